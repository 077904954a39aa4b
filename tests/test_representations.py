from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import normal

from jaxkkt import datasets, losses, networks, optimizers, representations, single, training
from jaxkkt.datasets import Dataset
from jaxkkt.protocols import Protocol

REPRESENTATIONS = ["plain", "span", "gram"]
LOSSES = ["exponential", "logistic"]
OPTIMIZERS = {
    "flow": optimizers.log_loss_time(0.05),
    "paper": optimizers.paper_schedule(3e-3, every=20),
    "loss_scaled": optimizers.loss_scaled(optax.exponential_decay(0.02, 50, 0.7)),
    "momentum": optimizers.linear(optax.sgd(0.006, momentum=0.8)),
}
FEW, MANY = (4, 9, 11), (12, 7, 10)  # m < d and d < m < 2d, with width


def problem(m, d, k):
    """Points whose mean, scales and labels are all lopsided."""
    drawn = normal(0, m, d), normal(1, k, d), normal(2, k), normal(3, k)
    x, w, b, v = map(np.asarray, drawn)
    x = (x / d**0.5 + 0.3) * np.linspace(0.5, 2.0, d, dtype=x.dtype)
    y = np.where(np.arange(m) % 3 == 1, -1, 1).astype(x.dtype)
    w, b, v = w / d**0.5, b / d**0.5, v / k**0.5
    return networks.Params(1.3 * w, 1.3 * b, 1.3 * v), Dataset(x, y)


@partial(jax.jit, static_argnums=2)
def encoded_gradient(params, data, name):
    return representations.gradient(*representations.encode(params, data, name), losses.exponential)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("padding", [(0, 0, 0), (3, 2, 4)])
def test_gradient_matches_autodiff(loss, padding):
    m, d, k = MANY
    params, data = problem(m, d, k)
    data = datasets.pad(data, m + padding[0], d + padding[1])
    params = networks.pad(params, k + padding[2], d + padding[1])

    def value(params):
        real = data.y != 0
        return losses.log_loss(networks.margins(params, *data), losses.LOSSES[loss], real)[0]

    @jax.jit
    def both(params):
        here = representations.gradient(params, data, losses.LOSSES[loss])
        log_loss, slopes = jax.value_and_grad(value)(params)
        margins = networks.margins(params, *data)[:m]
        return here, log_loss, slopes, networks.squared_norm(slopes), margins

    got, log_loss, slopes, squared_norm, margins = both(params)
    np.testing.assert_allclose(got.log_loss, log_loss, rtol=1e-13)
    for a, b in zip(got.gradient, slopes, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(got.squared_norm, squared_norm, rtol=1e-12)
    np.testing.assert_allclose(got.min_margin, np.min(margins), rtol=1e-13)
    assert np.min(margins) < 0 < np.max(margins)
    assert not got.dead


class TestBlocks:
    """A gradient that goes through its samples in blocks is the gradient."""

    @pytest.fixture(autouse=True)
    def _small_blocks(self, monkeypatch):
        monkeypatch.setattr(representations, "SAMPLES_OF_A_BLOCK", 4)
        monkeypatch.setattr(representations, "BLOCKS_FROM", 20)

    @staticmethod
    @partial(jax.jit, static_argnames=("loss", "fixed"))
    def _both(params, data, loss=losses.exponential, fixed=()):
        """In blocks, and of all samples at once."""
        at_once = representations._of_samples(params, data, loss)
        return representations.gradient(params, data, loss, fixed), at_once

    @pytest.mark.usefixtures("float64")
    @pytest.mark.parametrize("loss", LOSSES)
    @pytest.mark.parametrize("samples", [5, 8, 12, 23])
    def test_is_that_of_all_samples_at_once(self, samples, loss):
        params, data = problem(samples, 7, 10)
        params = params._replace(v=4 * params.v)  # log L of the blocks far apart
        here, at_once = self._both(params, data, loss=losses.LOSSES[loss])
        assert representations.samples_at_once(samples, 10) == 4
        np.testing.assert_allclose(here.log_loss, at_once.log_loss, rtol=1e-13)
        for a, b in zip(here.gradient, at_once.gradient, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-14)
        squares = sum(np.sum(np.square(g)) for g in at_once.gradient)
        np.testing.assert_allclose(here.squared_norm, squares, rtol=1e-12)
        assert here.min_margin == at_once.min_margin
        assert here.samples == samples

    @pytest.mark.parametrize("padded", [9, 14, 16])  # blocks of padding alone, first and last
    def test_blocks_of_padding_take_no_part(self, padded):
        params, data = problem(6, 7, 10)
        alone, _ = self._both(params, data)
        more = jax.device_get(datasets.pad(data, padded, 7))
        for order in (slice(None), slice(None, None, -1)):
            here, _ = self._both(params, Dataset(more.x[order], more.y[order]))
            np.testing.assert_allclose(here.log_loss, alone.log_loss, rtol=1e-6)
            assert here.samples == 6
            np.testing.assert_allclose(here.min_margin, alone.min_margin, rtol=1e-5)
            for a, b in zip(here.gradient, alone.gradient, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)

    def test_at_losses_beyond_float32(self):
        params, data = problem(11, 7, 10)
        params = jax.tree.map(lambda p: 300 * p, params)
        here, at_once = jax.device_get(self._both(params, data))
        assert abs(at_once.log_loss) > 1e4
        np.testing.assert_allclose(here.log_loss, at_once.log_loss, rtol=1e-6)
        for a, b in zip(here.gradient, at_once.gradient, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max())

    @pytest.mark.parametrize("block", [0, 1, 2])
    def test_what_diverged_does(self, block):
        params, data = problem(11, 7, 10)
        data.x[4 * block] = np.inf
        here, _ = self._both(params, data)
        assert not np.isfinite(here.log_loss) or not np.isfinite(here.squared_norm)

    def test_dead_neurons_and_fixed_parameters(self):
        params, data = problem(11, 7, 10)
        dead, _ = self._both(params._replace(b=params.b - 100), data)
        assert dead.dead
        here, at_once = jax.device_get(self._both(params, data, fixed=("b",)))
        assert not here.dead
        assert not here.gradient.b.any()
        squares = np.sum(at_once.gradient.w**2) + np.sum(at_once.gradient.v**2)
        np.testing.assert_allclose(here.squared_norm, squares, rtol=1e-5)

    def test_few_samples_or_neurons_are_one_block(self):
        assert representations.samples_at_once(4, 100) == 4
        assert representations.samples_at_once(19, 1) == 19
        assert representations.samples_at_once(20, 1) == 4


def test_no_array_of_all_preactivations_is_held():
    m, d, k = 20_000, 5, 500
    params = networks.Params(*(jax.ShapeDtypeStruct(n, jnp.float32) for n in ((k, d), (k,), (k,))))
    data = Dataset(*(jax.ShapeDtypeStruct(n, jnp.float32) for n in ((m, d), (m,))))

    def value(params, data):
        return representations.gradient(params, data, losses.exponential)

    held = jax.jit(value).lower(params, data).compile().memory_analysis().temp_size_in_bytes
    assert held < 4 * m * k / 4


@pytest.mark.parametrize("name", ["plain", "gram"])  # a rotation would round the zero
def test_a_neuron_at_zero_preactivation_does_not_pull(name):
    # The second neuron is exactly 0 on the second sample; the third sample is padding.
    params = networks.Params(
        jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([1.0, -2.0]), jnp.array([3.0, -1.0])
    )
    data = Dataset(jnp.array([[1.0, 4.0], [-0.5, 2.0], [0.0, 0.0]]), jnp.array([1.0, -1.0, 0.0]))
    here = encoded_gradient(params, data, name)
    # Margins 6 - 2 = 4 and -1.5: only the first neuron sees the second sample.
    np.testing.assert_allclose(here.min_margin, -1.5, rtol=1e-6)
    p = 1 / (1 + np.exp(-1.5 - 4))  # the weight of the second sample
    on_v = [-(1 - p) * 2 + p * 0.5, -(1 - p) * 2]
    np.testing.assert_allclose(here.gradient.v, on_v, rtol=1e-5)
    on_b = [3 * (p - (1 - p)), 1 - p]
    on_w = [[3 * (-(1 - p) - 0.5 * p), 3 * (2 * p - 4 * (1 - p))], [1 - p, 4 * (1 - p)]]
    squared = np.sum(np.square(on_b)) + np.sum(np.square(on_w)) + np.sum(np.square(on_v))
    np.testing.assert_allclose(here.squared_norm, squared, rtol=1e-5)


@pytest.mark.parametrize("name", REPRESENTATIONS)
def test_the_smallest_margin_leaves_padding_out(name):
    params = networks.Params(np.eye(2, dtype="f"), np.zeros(2, "f"), np.array([3, -1], "f"))
    data = Dataset(np.array([[1, 0], [0, 2.5], [0, 0], [0, 0]], "f"), np.array([1, -1, 0, 0], "f"))
    here = encoded_gradient(params, data, name)
    np.testing.assert_allclose(here.min_margin, 2.5, rtol=1e-6)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("sizes", [FEW, MANY])
def test_all_representations_see_the_same_loss_and_gradient_norm(sizes):
    params, data = problem(*sizes)

    @jax.jit
    def gradients(params, data):
        return [
            representations.gradient(
                *representations.encode(params, data, name), losses.logistic
            )._replace(gradient=None)
            for name in REPRESENTATIONS
        ]

    plain, *others = gradients(params, data)
    for other in others:
        for got, expected in zip(jax.tree.leaves(other), jax.tree.leaves(plain), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-11)


def trajectories(params, data, optimizer, loss, steps):
    """Log loss and decoded parameters before each step, in each representation."""

    def trajectory(name):
        protocol = Protocol(optimizer, loss, target_log_loss=-1e6, representation=name)
        position, encoded = representations.encode(params, data, name)
        state = training.init(position, encoded, protocol, jax.random.key(0))

        def advance(state, _):
            new = training.step(state, encoded, protocol)
            return new, (new.log_loss, state.position)

        last, (log_losses, positions) = jax.lax.scan(advance, state, length=steps)
        decode = jax.vmap(lambda p: representations.decode(p, params, data, name))
        return last.steps, log_losses, decode(positions)

    params, data = jax.device_put((params, data))
    runs = jax.jit(lambda: [trajectory(name) for name in REPRESENTATIONS])()
    assert [taken for taken, _, _ in runs] == [steps] * 3
    return [run[1:] for run in runs]


CASES = [
    # Either loss and either size once; the others are long tests.
    pytest.param(name, LOSSES[(i + j) % 2], sizes, marks=[pytest.mark.slow] * (j != i // 2))
    for i, name in enumerate(OPTIMIZERS)
    for j, sizes in enumerate((FEW, MANY))
]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("optimizer", "loss", "sizes"), CASES)
def test_representations_follow_the_plain_trajectory(optimizer, loss, sizes):
    params, data = problem(*sizes)
    # The flow's large steps make margins oscillate, and rounding grow, the sooner.
    runs = trajectories(
        params, data, OPTIMIZERS[optimizer], loss, 70 if optimizer == "flow" else 200
    )
    log_losses, plain = runs[0]
    assert log_losses[-1] < log_losses[0] - 0.2
    assert np.abs(plain.w[-1] - plain.w[0]).max() > 0.05
    for other, decoded in runs[1:]:
        # Rounding at 2e-16 a step, grown where margins oscillate; a wrong step is off by 1e-3.
        np.testing.assert_allclose(other, log_losses, rtol=1e-8, atol=1e-8)
        for got, expected in zip(decoded, plain, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-8, atol=1e-8)


def test_representations_agree_in_float32():
    params, data = problem(*FEW)
    runs = trajectories(params, data, OPTIMIZERS["flow"], "exponential", 60)
    log_losses, plain = runs[0]
    for other, decoded in runs[1:]:
        assert other.dtype == decoded.w.dtype == jnp.float32
        np.testing.assert_allclose(other, log_losses, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(decoded.w, plain.w, rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("sizes", [FEW, MANY, (5, 2, 3)])
@pytest.mark.parametrize("name", REPRESENTATIONS)
def test_decode_undoes_encode(name, sizes):
    params, data = problem(*sizes)

    @jax.jit
    def round_trip(params, data):
        position, encoded = representations.encode(params, data, name)
        return encoded, representations.decode(position, params, data, name)

    encoded, decoded = round_trip(params, data)
    for got, expected in zip(decoded, params, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-13, atol=1e-14)
    expected_shape = {
        "plain": (sizes[0], sizes[1]),
        "span": (sizes[0], min(sizes[:2])),
        "gram": (sizes[0], sizes[0]),
    }[name]
    assert encoded[0].shape == expected_shape
    np.testing.assert_array_equal(encoded.y, data.y)


@pytest.mark.parametrize("name", ["span", "gram"])
def test_compression_is_refused_for_optimizers_that_are_not_linear(name):
    message = f"the representation '{name}' is exact only for linear optimizers: use 'plain'"
    with pytest.raises(ValueError, match=message):
        Protocol(optax.adam(0.1), representation=name)
    with pytest.raises(ValueError, match=message):
        Protocol(optax.sgd(0.1), representation=name)  # linear, but not declared so
    Protocol(optimizers.linear(optax.sgd(0.1)), representation=name)
    Protocol(optax.adam(0.1), representation="plain")


def test_gram_is_refused_for_mini_batches():
    protocol = Protocol(OPTIMIZERS["momentum"], batch_size=5, representation="gram")
    message = "'gram' needs full batches, but 6 samples come in batches of 5: use 'plain' or 'span'"
    with pytest.raises(ValueError, match=message):
        protocol.representation_for(6, 20)
    assert protocol.representation_for(5, 20) == "gram"
    params, data = problem(6, 9, 4)
    with pytest.raises(ValueError, match=message):
        single.train(params, *data, protocol, jax.random.key(0))


@pytest.mark.parametrize(
    ("m", "d", "linear", "full_batch", "expected"),
    [
        (10, 100, True, True, "gram"),
        (199, 100, True, True, "gram"),
        (200, 100, True, True, "plain"),
        (300, 100, True, True, "plain"),
        (10, 100, True, False, "span"),
        (99, 100, True, False, "span"),
        (100, 100, True, False, "plain"),
        (150, 100, True, False, "plain"),
        (10, 100, False, True, "plain"),
        (10, 100, False, False, "plain"),
    ],
)
def test_the_cheapest_representation_is_chosen(m, d, linear, full_batch, expected):
    assert representations.cheapest(m, d, linear=linear, gram=full_batch) == expected
    optimizer = OPTIMIZERS["paper"] if linear else optax.adam(0.1)
    protocol = Protocol(optimizer, batch_size=None if full_batch else m - 1)
    assert protocol.representation_for(m, d) == expected
    if linear:
        exact = REPRESENTATIONS if full_batch else ["plain", "span"]
        flops = {
            name: representations.step_flops(name, samples=m, dim=d, width=7) for name in exact
        }
        assert flops[expected] == min(flops.values())


def test_flops_of_a_step():
    assert representations.step_flops("plain", samples=10, dim=30, width=7) == 4 * 10 * 7 * 30
    assert representations.step_flops("span", samples=10, dim=30, width=7) == 4 * 10 * 7 * 10
    assert representations.step_flops("span", samples=40, dim=30, width=7) == 4 * 40 * 7 * 30
    assert representations.step_flops("gram", samples=10, dim=30, width=7) == 2 * 10 * 10 * 7


def test_a_set_representation_is_used():
    for name in REPRESENTATIONS:
        assert Protocol(OPTIMIZERS["flow"], representation=name).representation_for(4, 9) == name


@pytest.mark.parametrize("protocol", [Protocol(), Protocol(optax.sgd(0.1, momentum=0.9))])
def test_a_step_of_an_accelerator_waits_for_no_loop(protocol):
    """It would ask the host in each whether it goes on. A CPU is spared a pass over the weights."""
    params, data = problem(3, 4, 5)
    load = partial(training.load, protocol, representation="plain")
    state, encoded = jax.eval_shape(load, params, data, jax.random.key(0))

    def lowered(platform):
        traced = jax.jit(training.step).trace(state, encoded, protocol)
        return traced.lower(lowering_platforms=(platform,)).as_text()

    for word in ("stablehlo.while", "optimization_barrier"):
        assert word in lowered("cpu")
        assert word not in lowered("cuda")
        assert word not in lowered("tpu")


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_a_gradient_that_vanishes_is_told_alike_on_an_accelerator(platform, monkeypatch):
    """Its way to tell, computed here; where all are inactive, none is, or only v is looked at."""

    def choose(*args, cpu, default):
        return (cpu if platform == "cpu" else default)(*args)

    monkeypatch.setattr(jax.lax, "platform_dependent", choose)
    data = Dataset(jnp.array([[1.0, 1.0, 1.0], [-1.0, -1.0, -1.0]]), jnp.array([1.0, -1.0]))

    @partial(jax.jit, static_argnames="fixed")
    def dead(bias, fixed=()):
        params = networks.Params(jnp.ones((4, 3)), jnp.full(4, bias), jnp.ones(4))
        return representations.gradient(params, data, losses.exponential, fixed).dead

    assert dead(-10.0)
    assert not dead(5.0)
    assert not dead(0.0, fixed=("v",))  # one point's margin is 0, the other moves w
