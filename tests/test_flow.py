"""Gradient flow in log-loss time: its steps, its start and end, its stiffness."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.polynomial import Chebyshev
from optimizer_cases import problem

import jaxkkt as jk
from jaxkkt import losses, networks, optimizers, representations
from jaxkkt.optimizers.chebyshev import coefficients, fewest_gradients, stable_up_to

SCALES = (1.0, 0.1, 0.01, 1e-3, 1e-6)


def at_delta(optimizer, gradient, delta):
    """The state whose next step is the first of size delta, none of which has moved anything."""
    update = jax.jit(partial(optimizer.update, log_loss=jnp.zeros(()), squared_norm=jnp.ones(())))
    state = optimizer.init(gradient)
    while int(state.stage) or float(state.h) < delta / 4.01:
        _, state = update(np.zeros_like(gradient), state)
    return state


@jax.jit
def shortfall(delta, params, data):
    """The share of its size by which a flow step does not lower the log loss."""
    optimizer = optimizers.log_loss_time(delta)
    here = representations.gradient(params, data, losses.exponential)
    state = optimizer.init(params)._replace(h=delta, steps=1, last_log_loss=here.log_loss)
    updates, _ = optimizer.update(
        here.gradient, state, log_loss=here.log_loss, squared_norm=here.squared_norm
    )
    moved = optax.apply_updates(params, updates)
    after, _ = losses.log_loss(networks.margins(moved, *data))
    return 1 - (here.log_loss - after) / delta


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("scale", [0.5, 4.0])
def test_a_flow_step_lowers_the_log_loss_by_its_size(scale):
    start = problem(scale)
    coarse, fine = (float(shortfall(delta, *start)) for delta in (2e-5, 1e-5))
    assert abs(fine) < 1e-3
    assert fine != 0
    np.testing.assert_allclose(coarse / fine, 2, rtol=0.01)  # an error of second order in h


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("h", [0.02, 0.07, 0.25, 0.6, 1.7, 4.5])
def test_a_step_damps_linear_modes_by_the_polynomial_of_its_method(h):
    stiffest = 20.0
    rates = np.linspace(0.5, stiffest, 40)
    optimizer = optimizers.log_loss_time(h, h, stiffest)
    position, state = np.ones(40), at_delta(optimizer, np.ones(40), h)
    update = jax.jit(partial(optimizer.update, squared_norm=jnp.ones(())))
    n = {0.02: 1, 0.07: 1, 0.25: 2, 0.6: 3, 1.7: 5, 4.5: 8}[h]
    for stage in range(n):
        updates, state = update(rates * position, state, log_loss=np.asarray(-h * stage))
        position = position + np.asarray(updates)
        assert int(state.stage) == (stage + 1) % n
    w0 = 1 + 0.5 / n**2
    theta = np.arccosh(w0)
    w1 = np.cosh(n * theta) / (n * np.sinh(n * theta) / np.sinh(theta))
    z = w0 - w1 * h * rates
    # T_n on and off [-1, 1].
    damped = np.where(
        abs(z) <= 1,
        np.cos(n * np.arccos(np.clip(z, -1, 1))),
        np.cosh(n * np.arccosh(np.maximum(z, 1))),
    ) / np.cosh(n * theta)
    np.testing.assert_allclose(position, damped, atol=1e-9)
    assert abs(damped).max() < 1


@pytest.mark.usefixtures("float64")
def test_the_start_follows_the_path_of_the_flow():
    rates = np.array([1.0, 3.0])

    def error(h):
        """Of x_2 = x_1^3, the path from (1, 1) of the flow along -(x_1, 3 x_2)."""
        optimizer = optimizers.log_loss_time(h, h, stiffness=1e-3, proportion=1e-6)
        x, state = np.ones(2), at_delta(optimizer, np.ones(2), h)
        update = jax.jit(optimizer.update)
        for i in range(round(1 / h)):
            g = rates * x
            updates, state = update(g, state, log_loss=-i * h, squared_norm=g @ g)
            x = x + np.asarray(updates)
        return float(x[1] - x[0] ** 3)

    coarse, fine = error(0.002), error(0.001)
    assert 1e-6 < abs(fine) < 1e-3
    assert coarse / fine == pytest.approx(2, rel=0.05)  # of first order


@pytest.mark.parametrize("delta", [0.01, 0.002])
def test_steps_begin_tiny_and_grow_as_the_gradient_allows(delta):
    update = jax.jit(optimizers.log_loss_time(delta).update)

    def sizes(norms):
        """Of the steps that meet gradients of these norms, the log loss as good as constant."""
        state, found = optimizers.log_loss_time(delta).init(jnp.ones(1)), []
        for norm in norms:
            told = {"log_loss": jnp.float32(5), "squared_norm": jnp.float32(norm) ** 2}
            _, state = update(jnp.ones(1), state, **told)
            found.append(float(state.h) / delta)
        return found

    usual = pytest.approx([2.0 ** min(2 * n - 28, 0) for n in range(17)])
    assert sizes([3.0] * 17) == sizes([3.0 * 0.9**n for n in range(17)]) == usual
    # One that rises by a share of 20 delta a step halves the next, and by 5 delta doubles it.
    fast = sizes(3 * np.exp(20 * delta * np.arange(5)))
    assert fast == pytest.approx([2.0 ** (-28 - i) for i in range(5)], rel=1e-3)
    slow = sizes(3 * np.exp(5 * delta * np.arange(5)))
    assert slow == pytest.approx([2.0 ** (-28 + i) for i in range(5)], rel=2e-3)
    # Small weights have a small gradient, and are left by smaller steps.
    assert sizes([1e-3, 1e-3]) == pytest.approx([2.0**-28 * 1e-6, 2.0**-26 * 1e-6])
    # So they grow from a gradient of 0, and shrink to a quarter at most, whatever it does.
    assert sizes([0.0, 1e-3])[1] == pytest.approx(0.25 * sizes([0.0])[0])
    assert sizes([3.0, 3e5]) == pytest.approx([2.0**-28, 2.0**-30])
    # Steps of delta do not shrink again.
    assert sizes([3.0] * 15 + [30.0, 300.0])[14:] == pytest.approx([1, 1, 1])
    # A square that overflows is no number to grow by.
    assert np.all(np.isfinite(sizes([3e18, 1e30, 1e30, 3e18])))


@pytest.mark.slow
@pytest.mark.parametrize("scale", SCALES)
def test_neither_small_weights_nor_sliding_neurons_mislead_the_flow(scale):
    """A first step of 0.01 is hundreds of times as long as the smallest weights. From a tenth, seed
    1 has neurons that slide along kinks, where a step realizes half of its size however short."""
    axes = {"d": 20, "samples": 20, "width": 50, "seed": range(4), "init_scale": scale}
    coarse, fine = (jk.sweep(jk.grid(**axes, delta=h), progress=False) for h in (0.01, 0.003))
    for table in (coarse, fine):
        assert np.all(table.status == jk.Status.CONVERGED)
    assert float(coarse.steps.max()) < 1000
    assert float(fine.steps.max()) < 2300
    np.testing.assert_allclose(coarse.normalized_margin, fine.normalized_margin, rtol=0.01)


@pytest.mark.parametrize("target", [-69.0, -700.0])
def test_a_run_ends_on_its_target(target):
    """Not up to a step of 2, and far down of 14, beyond it."""
    axes = {"d": 20, "samples": 20, "width": 50, "seed": range(8), "measure": ()}
    table = jk.sweep(jk.grid(**axes, target_log_loss=target), progress=False)
    assert np.all(table.status == jk.Status.CONVERGED)
    beyond = target - table.log_loss
    assert np.all((beyond >= 0) & (beyond < 0.011))


@pytest.mark.slow
def test_moments_are_met_and_change_nothing():
    """Log losses to within delta, those that one step passes, too; numbers of steps where they
    are. What is measured on the way leaves the run as it is."""
    axes = {"d": 20, "samples": 20, "width": 50, "seed": range(3), "target_log_loss": -300}
    levels = [-1.0, -30.0, -30.5, -31.0, -299.5, -300.5]
    table = jk.sweep(jk.grid(**axes, curve=jk.Curve(levels)), progress=False)
    beyond = (table.level - table.curve_log_loss).transpose(..., "level").values.reshape(3, -1)
    assert np.all((beyond[:, :-1] >= 0) & (beyond[:, :-1] < 0.011))
    assert np.all(np.isnan(beyond[:, -1]))  # below the target
    stepped = jk.sweep(jk.grid(**axes, curve=jk.Curve(steps=[0, 100, 101])), progress=False)
    assert np.all(stepped.curve_log_loss > -60)
    assert np.all(stepped.curve_steps == stepped.step)
    alone = jk.sweep(jk.grid(**axes), progress=False)
    for other in (table, stepped):
        np.testing.assert_array_equal(other.steps, alone.steps)
        np.testing.assert_array_equal(other.log_loss, alone.log_loss)


def test_the_estimated_stiffness_stays_where_it_can_fall_again():
    """Steps that rise a hundred times in a row, and then realize what they should."""
    easy = [1.0] * 100
    settings = {"delta": 0.01, "largest": 1.0, "stiffness": 20.0, "proportion": 1e-6}
    h, n, _ = steps_of(optimizers.log_loss_time(**settings), [*easy, *[-1.0] * 100, *easy])
    assert (h[199], n[199]) == (pytest.approx(0.01), 8)
    assert (h[-1], n[-1]) == (1.0, 4)


def chebyshev(n, damping=0.5):
    """Momenta, shares and stability limit of n gradients, by the recurrence of Chebyshev."""
    w0 = 1 + damping / n**2
    t = [1.0, w0]
    for _ in range(n - 1):
        t.append(2 * w0 * t[-1] - t[-2])
    t = np.array(t)
    w1 = t[n] / Chebyshev.basis(n).deriv()(w0)
    ratio = t[:-1] / t[1:]
    momenta, shares = 2 * w0 * ratio - 1, 2 * w1 * ratio
    momenta[0], shares[0] = 0, w1 / w0
    return momenta, shares, (w0 + 1) / w1


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(np.float64, 1e-12), pytest.param(np.float32, 1e-6, marks=pytest.mark.slow)],
)
def test_coefficients_are_those_of_the_chebyshev_recurrence(dtype, tolerance):
    every_stage = jax.jit(jax.vmap(lambda n, j: coefficients(n, j, dtype), (None, 0)))
    stages = np.arange(64, dtype=np.int32)
    for n in range(1, 65):
        momenta, shares, _ = chebyshev(n)
        got = jax.device_get(every_stage(np.int32(n), stages))
        assert got[0].dtype == got[1].dtype == dtype
        np.testing.assert_allclose(got[0][:n], momenta, atol=tolerance)
        np.testing.assert_allclose(got[1][:n], shares, rtol=tolerance)
    momenta, shares = jax.device_get(every_stage(np.int32(1), stages))
    assert (momenta[0], shares[0]) == pytest.approx((0.0, 1.0), abs=tolerance)  # Euler


@pytest.mark.usefixtures("float64")
def test_a_step_takes_the_fewest_stable_gradients():
    fewest = jax.jit(fewest_gradients)
    for n in range(1, 65):
        stable = chebyshev(n)[2]
        np.testing.assert_allclose(stable_up_to(n), 0.93 * stable, rtol=1e-11)
        around = 0.93 * stable * np.array([1 - 0.002, 1 + 1e-4])
        assert fewest(around).tolist() == [n, n + 1]
    assert fewest(np.array([0.0, 1.54, 1.56])).tolist() == [1, 1, 2]


def steps_of(optimizer, shares, delta=0.01, first=2.0):
    """Size, gradients and fall so far of the steps that realize these shares of their size, from
    the first of size delta on."""
    gradient = np.array([3, -4], np.float32)
    update = jax.jit(partial(optimizer.update, gradient, squared_norm=jnp.float32(25)))
    state, log_loss, steps = at_delta(optimizer, gradient, delta), first, []
    state = state._replace(first_log_loss=jnp.float32(first), scale=jnp.float32(25))
    for share in shares:
        _, state = update(state, log_loss=jnp.float32(log_loss))
        gradients = 1
        while int(state.stage):
            _, state = update(state, log_loss=jnp.float32(log_loss))
            gradients += 1
        h = float(state.h)
        steps.append((h, gradients, first - log_loss))
        log_loss -= share * h
    return np.array(steps).T


def test_steps_grow_as_the_log_loss_falls_up_to_the_ceiling():
    h, n, fall = steps_of(optimizers.log_loss_time(0.01, 0.7, 20.0, proportion=1e-6), [1.0] * 300)
    np.testing.assert_allclose(h, np.minimum(0.01 * (1 + fall) ** 1.5, 0.7), rtol=1e-5)
    assert (h[0], h[-1]) == pytest.approx((0.01, 0.7))
    # The fewest gradients that keep a mode of rate 20 stable, with a margin of 7%.
    stable = np.array([0, *(0.93 * chebyshev(k)[2] for k in range(1, 9))])
    n = n.astype(int)
    assert np.all(h * 20 <= stable[n] * (1 + 1e-5))
    assert np.all(h * 20 >= stable[n - 1] * 0.998)
    assert set(n) == {1, 2, 3, 4}


@pytest.mark.slow
def test_steps_grow_in_proportion_once_that_is_more_than_the_largest():
    optimizer = optimizers.log_loss_time(0.01, 2.0, 20.0, proportion=0.05)
    h, n, fall = steps_of(optimizer, [1.0] * 400)
    deep = 0.05 * (1 + fall) > 2
    assert 100 < deep.sum() < 300
    assert fall[-1] > 1e5
    np.testing.assert_allclose(h[deep], 0.05 * (1 + fall[deep]), rtol=1e-5)
    shallow = np.minimum(0.01 * (1 + fall[~deep]) ** 1.5, 2)
    np.testing.assert_allclose(h[~deep], shallow, rtol=1e-5)
    needed = np.ceil(np.sqrt(h[deep] * 20 / 0.93 / 1.5232))
    assert np.all(np.abs(n[deep] - needed) <= 1)
    assert n.max() > 200  # far beyond `stages`
    # A step that realizes little asks for more gradients then, not for a smaller step.
    h, n, fall = steps_of(optimizer, [*[1.0] * 300, -0.2, 1.0])
    np.testing.assert_allclose(h[-2:], 0.05 * (1 + fall[-2:]), rtol=1e-4)
    np.testing.assert_allclose(n[-1] / n[-2], 5**0.5, rtol=0.05)


@pytest.mark.usefixtures("float64")
def test_deep_steps_damp_every_mode_of_a_stiff_linear_problem():
    rates = np.geomspace(1e-5, 20.0, 50)
    optimizer = optimizers.log_loss_time(stiffness=20.0)
    update = jax.jit(partial(optimizer.update, squared_norm=jnp.ones(())))
    position, state, s, sizes = np.ones(50), optimizer.init(np.ones(50)), 0.0, []
    while s < 3e3:
        before, h = position, 0.0
        for _ in range(2 * 64):
            updates, state = update(rates * position, state, log_loss=np.asarray(-s))
            position, h = position + np.asarray(updates), float(state.h)
            if int(state.stage) == 0:
                break
        assert np.all(np.abs(position) <= np.abs(before))
        sizes.append(h)
        s += h
    assert max(sizes) > 50
    slow = rates * max(sizes) < 0.02  # the flow's own exponential, to first order in h * rate
    np.testing.assert_allclose(position[slow], np.exp(-s * rates[slow]), rtol=0.02)
    assert np.all(np.abs(position[rates > 1]) < 1e-9)


def test_a_step_that_realizes_little_asks_for_more_stages_and_then_for_smaller_steps():
    settings = {"delta": 0.01, "largest": 1.0, "stiffness": 3.0, "realized": 0.4, "stages": 4}
    settings["proportion"] = 1e-6
    easy = [1.0] * 200
    h, n, _ = steps_of(optimizers.log_loss_time(**settings), [*easy, -0.1, -0.1, -0.1, *easy])
    assert (h[199], n[199]) == (1.0, 2)
    # The change is 1 + 2 (-0.1 - 0.4), no less than a fifth: a stiffness of 15, 75, 375.
    assert h[201] == 1.0
    assert n[201] == 4
    assert h[202] < 0.31
    assert h[203] == pytest.approx(h[202] / 5, rel=1e-4)
    assert set(n[202:204]) == {4}
    # Back again, by a tenth a step at most.
    assert np.all(h[204:] <= h[203:-1] * 1.1 * (1 + 1e-5))
    assert (h[-1], n[-1]) == (1.0, 2)
    h, _, _ = steps_of(optimizers.log_loss_time(**settings), [*easy, *[-5.0] * 30])
    assert h.min() == pytest.approx(0.01)


@pytest.mark.slow
def test_points_of_other_lengths():
    """As docs/protocols.md says of its limits."""
    data = jk.datasets.sphere(jax.random.key(0), 12, 20)
    start = networks.torch_linear(jax.random.key(1), 60, 20)
    short = data._replace(x=0.003 * data.x)
    stalled = jk.train(start, *short)
    assert stalled.status == jk.Status.STALLED
    trains = jk.train(start, *short, jk.flow_protocol(delta=1e-3, target_log_loss=-0.1))
    assert trains.status == jk.Status.CONVERGED
    long = data._replace(x=1e4 * data.x)
    found = jk.train(start, *long, jk.flow_protocol("logistic"))
    w, b, v = (np.asarray(leaf, float) for leaf in found.params)
    margins = np.asarray(long.y, float) * (np.maximum(np.asarray(long.x, float) @ w.T + b, 0) @ v)
    assert abs(found.log_loss - np.log(np.log1p(np.exp(-margins)).sum())) < 0.01
