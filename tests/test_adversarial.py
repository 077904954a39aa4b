"""Adversarial training with projection onto the lazy ball."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import assert_close, assert_same_bits, lane, normal

import jaxkkt as jk
from jaxkkt import adversarial, datasets, lazy, networks
from jaxkkt.adversarial import AdversarialProtocol, adversarial_training
from jaxkkt.perturbations import pgd, robust_accuracy
from jaxkkt.protocols import flow_protocol
from jaxkkt.training import Status

KEY = jax.random.key(7)
FEW = {"batch_size": 8, "attack_steps": 10, "learning_rate": 0.1}


def trained(start, x, y, radius, weight_radius, key, **settings):
    protocol = AdversarialProtocol(radius=radius, weight_radius=weight_radius, **settings)
    return adversarial_training(start, x, y, protocol, key)


@pytest.fixture(scope="module")
def case():
    """Two clusters on the unit sphere, and a lazy network."""
    y = np.where(np.arange(24) % 3 == 0, 1.0, -1.0)
    x = y[:, None] * np.eye(8)[:1] + 0.1 * np.asarray(normal(0, 24, 8))
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    return cases.lazy(1, 100, 8), *jax.device_put((x, y))


def test_one_epoch_is_that_of_the_algorithm(case):
    start, x, y = case
    found = trained(start, x, y, 0.2, 0.05, KEY, epochs=1, **FEW)
    attacked = pgd(start, x, y, 0.2, 10, normalized=False)
    moved = np.asarray(attacked.last, np.float64)
    order = np.asarray(jax.jit(lambda: jax.random.permutation(jax.random.fold_in(KEY, 0), 24))())
    w, labels, v = (np.asarray(a, np.float64) for a in (start.w, y, start.v))
    for i in range(3):
        rows = order[8 * i : 8 * i + 8]
        pre = moved[rows] @ w.T
        margins = labels[rows] * (np.maximum(pre, 0) @ v)
        pull = labels[rows] / (1 + np.exp(margins))
        w = w + 0.1 * ((pull[:, None] * v) * (pre > 0)).T @ moved[rows]
    ended = start._replace(w=jax.device_put(w))
    expected = jax.jit(lazy.project)(ended, start, 0.05)
    np.testing.assert_allclose(found.params.w, expected.w, rtol=1e-4, atol=1e-6)
    assert found.status == Status.LAST_EPOCH
    assert found.epochs == 1
    assert found.accuracy == np.mean(np.asarray(attacked.margins) > 0, dtype=np.float32)


def test_a_radius_of_0_trains_on_the_points_themselves(case):
    start, x, y = case
    found = trained(start, x, y, 0, 1.0, KEY, epochs=1, **(FEW | {"batch_size": 24}))

    def loss(w):
        return jnp.sum(jax.nn.softplus(-networks.margins(start._replace(w=w), x, y)))

    descended = start.w - 0.1 * jax.jit(jax.grad(loss))(start.w)
    np.testing.assert_allclose(found.params.w, descended, rtol=1e-4, atol=1e-6)
    assert found.accuracy == np.mean(networks.margins(start, x, y) > 0, dtype=np.float32)


def test_it_makes_networks_robust_that_were_not_and_stays_in_the_ball(case):
    start, x, y = case
    found = trained(start, x, y, 0.3, 1.0, KEY, epochs=200, **FEW)
    radii, distances = np.array([0.3], np.float32), jax.jit(lazy.distances)
    assert robust_accuracy(start, x, y, radii, normalized=False)[0] < 0.6
    assert robust_accuracy(found.params, x, y, radii, normalized=False)[0] == 1
    assert found.status == Status.SETTLED
    assert found.best == 1
    assert (distances(found.params, start) <= 1 + 1e-6).all()
    assert_same_bits(found.params._replace(w=start.w), start)
    small = trained(start, x, y, 0.3, 1e-3, KEY, epochs=200, **FEW)
    assert small.best < 1
    assert (distances(small.params, start) <= 1e-3 * (1 + 1e-3)).all()


def test_it_stops_when_accuracy_has_not_risen_for_a_while(case):
    start, x, y = case
    for patience in (3, 8):
        found = trained(start, x, y, 0.3, 1e-6, KEY, epochs=50, patience=patience, **FEW)
        # In so small a ball the first accuracy is the best.
        assert found.status == Status.SETTLED
        assert found.epochs == patience + 1


def test_judging_before_projecting_sees_other_networks(case):
    start, x, y = case
    settings = {
        "radius": 0.3,
        "weight_radius": 0.2,
        "key": KEY,
        "epochs": 25,
        "patience": 25,
        **FEW,
    }
    after = trained(start, x, y, **settings)
    before = trained(start, x, y, judged_before_projecting=True, **settings)
    assert_same_bits(before.params, after.params)
    assert before.best > after.best


def test_lanes_equal_a_loop(case):
    start, x, y = case
    radii, weight_radii = np.array([[0.1, 0.3, 0.5], [1.0, 0.1, 0.3]], np.float32)

    def train(*radii):
        return trained(start, x, y, *radii, KEY, epochs=30, patience=4, **FEW)

    together = jax.device_get(jax.vmap(train)(radii, weight_radii))
    assert len(set(together.epochs.tolist())) > 1
    for i in range(3):
        alone = train(float(radii[i]), float(weight_radii[i]))
        assert alone.epochs == together.epochs[i]
        assert_close(lane(together, i).params, alone.params, rtol=1e-3, atol=1e-5)


def test_biases_move_when_asked_to(case):
    start, x, y = case
    start = start._replace(b=start.b + 0.1)
    found = trained(start, x, y, 0.1, 1.0, KEY, epochs=2, biases=True, **FEW)
    assert (found.params.b != start.b).any()


def test_a_run_that_breaks_is_told(case):
    start, x, y = case
    w = np.array(start.w)
    w[0, 0] = np.inf
    broken = start._replace(w=jax.device_put(w))
    found = trained(broken, x, y, 0.1, 1.0, KEY, **FEW)
    assert found.status == Status.DIVERGED


def test_what_moves_is_known_to_measurements(case):
    """They took all parameters for trained: residuals were those of another problem."""
    protocol = AdversarialProtocol(radius=0.1, weight_radius=1.0)
    assert protocol.trained == ("w",)
    assert protocol.replace(biases=True).trained == ("w", "b")
    start, *data = case
    moved = start._replace(b=start.b + 0.1)
    with pytest.raises(ValueError, match="KKT points are those of networks whose two layers"):
        jk.Certificates().measure(moved, datasets.Dataset(*data), protocol)


def test_networks_whose_squares_are_too_large_are_none_that_broke(case):
    """They come back into the ball."""
    found = trained(*case, 0.1, 1.0, KEY, **FEW | {"learning_rate": 1e30, "epochs": 1})
    assert found.status == Status.LAST_EPOCH
    assert np.isfinite(found.params.w).all()


def test_the_log_loss_of_a_sweep_is_summed_over_the_points():
    """It was that of the mean."""
    protocol = AdversarialProtocol(radius=0.1, weight_radius=1.0, epochs=1, **FEW)
    sizes = {"d": 8, "samples": 24, "width": 50, "seed": 0, "measure": ()}
    (run,) = jk.grid(**sizes, initialization="lazy", protocol=protocol)
    table = cases.sweep([run])
    start, data = jk.draw(run)
    attacked = pgd(start, *data, 0.1, 10, normalized=False)
    expected = np.log(np.logaddexp(0, -np.asarray(attacked.margins, float)).sum())
    np.testing.assert_allclose(table.log_loss.item(), expected, rtol=1e-5)


@pytest.mark.parametrize("published", [False, True])
def test_a_learning_rate_that_breaks_it_is_told(case, published):
    start, x, y = case
    settings = FEW | {"learning_rate": 3e38, "judged_before_projecting": published}
    found = trained(start, 100 * x, y, 0.1, 1.0, KEY, **settings)
    assert found.status == Status.DIVERGED


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"radius": -0.1}, "radius must be at least 0 and finite, got -0.1"),
        ({"weight_radius": -1.0}, "weight_radius must be positive and finite, got -1"),
        ({"learning_rate": float("nan")}, "learning_rate must be positive and finite, got nan"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"patience": 0}, "patience must be at least 1, got 0"),
        ({"batch_size": 2.5}, "batch_size must be an integer, got 2.5"),
        ({"batch_size": 25}, "batch_size must be from 1 to the 24 samples, got 25"),
    ],
)
def test_bad_arguments_are_refused(case, settings, message):
    arguments = {"radius": 0.1, "weight_radius": 1.0, "key": KEY} | settings
    with pytest.raises(ValueError, match=message):
        trained(*case, **arguments)


@pytest.mark.usefixtures("unchecked")
def test_one_class_is_refused(case):
    start, x, _ = case
    with pytest.raises(ValueError, match="both labels must occur"):
        trained(start, x, np.ones(24, np.float32), 0.1, 1.0, KEY)


@pytest.mark.usefixtures("unchecked")
def test_another_protocol_is_refused(case):
    with pytest.raises(ValueError, match="takes an AdversarialProtocol, got Protocol"):
        adversarial_training(*case, flow_protocol(), KEY)


def test_data_are_checked(case):
    start, x, y = case
    with pytest.raises(ValueError, match="a network on inputs of dimension 4"):
        trained(start, x[:, :4], y, 0.1, 1.0, KEY, batch_size=2)


def test_every_epoch_has_an_order_of_its_own(case):
    """The second epoch, in NumPy, from the network after the first."""
    start, x, y = case
    first, found = (trained(start, x, y, 0.2, 0.05, KEY, epochs=n, **FEW).params for n in (1, 2))
    moved = np.asarray(pgd(first, x, y, 0.2, 10, normalized=False).last, np.float64)
    order = np.asarray(jax.random.permutation(jax.random.fold_in(KEY, 1), 24))
    w, labels, v = (np.asarray(a, np.float64) for a in (first.w, y, start.v))
    for i in range(3):
        rows = order[8 * i : 8 * i + 8]
        pre = moved[rows] @ w.T
        pull = labels[rows] / (1 + np.exp(labels[rows] * (np.maximum(pre, 0) @ v)))
        w = w + 0.1 * ((pull[:, None] * v) * (pre > 0)).T @ moved[rows]
    expected = jax.jit(lazy.project)(start._replace(w=jax.device_put(w)), start, 0.05)
    np.testing.assert_allclose(found.w, expected.w, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("radius", "fall", "since"), [(3.0, 0.015, 0), (3.0, 0.005, 5), (1e-4, 0.015, 5)]
)
def test_a_loss_that_falls_by_a_percent_is_progress_until_all_are_robust(case, radius, fall, since):
    """Of an accuracy that has stood still for 4 epochs, below 1 or at 1."""
    start, x, y = case
    network = trained(start, x, y, 1e-4, 1.0, KEY, epochs=20, **FEW).params
    protocol = AdversarialProtocol(radius=radius, weight_radius=1.0, **FEW)
    attacked = pgd(network, x, y, radius, 10, normalized=False).margins
    accuracy = np.mean(np.asarray(attacked) > 0)
    assert (accuracy == 1) == (radius < 1)
    loss = np.logaddexp(0, -np.asarray(attacked, np.float64)).sum()
    state = adversarial.init(network, KEY)
    least = jax.device_put(np.float32(loss / (1 - fall)))
    state = state._replace(best=jax.device_put(np.float32(1)), since=4 + state.since)
    state = state._replace(least_loss=least)
    ended = jax.jit(adversarial.epoch)(state, jk.Dataset(x, y), protocol)
    assert ended.since == since
