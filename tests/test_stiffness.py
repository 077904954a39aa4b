"""The rate that a flow is told, beside the rate that its fastest mode has."""

from functools import partial

import jax
import numpy as np
import pytest

from jaxkkt import datasets, losses, networks, representations, training
from jaxkkt.protocols import flow_protocol
from jaxkkt.stiffness import fastest_rate, top_eigenvalue
from jaxkkt.training import Status, steps

PROTOCOL = flow_protocol(representation="plain")
top, rate = jax.jit(top_eigenvalue, static_argnums=1), jax.jit(fastest_rate)
step = jax.jit(lambda state, data: training.step(state, data, PROTOCOL))


@partial(jax.jit, static_argnums=0)
def padded(draw, samples, dim):
    return draw(jax.random.key(samples), samples, dim, (207, 43))


def points(draw, samples, dim):
    """Data, as NumPy arrays; those of all sizes are drawn by one program."""
    x, y = jax.device_get(padded(draw, samples, dim))
    return datasets.Dataset(x[:samples, :dim], y[:samples])


@jax.jit
def top_of_gram(data):
    params = networks.torch_linear(jax.random.key(0), 8, data.x.shape[1])
    return top_eigenvalue(representations.encode(params, data, "gram")[1])


@pytest.mark.parametrize("draw", [datasets.sphere, datasets.gaussian])
@pytest.mark.parametrize(("samples", "dim"), [(5, 40), (40, 40), (200, 20)])
def test_the_eigenvalue_is_that_of_the_points(draw, samples, dim):
    data = points(draw, samples, dim)
    x = np.asarray(data.x, np.float64)
    weights = 1 / (np.sum(x**2, axis=1) + 1)
    roots = np.sqrt(weights / weights.sum())
    exact = np.linalg.eigvalsh(roots[:, None] * (x @ x.T + 1) * roots)[-1]
    found = float(top(data))
    assert 0.85 * exact < found < exact * (1 + 1e-5)
    flipped = datasets.Dataset(data.x, -data.y)
    for same in (top_of_gram(data), top(padded(draw, samples, dim)), top(flipped)):
        assert float(same) == pytest.approx(found, rel=1e-4)


@pytest.mark.parametrize("draw", [datasets.sphere, datasets.gaussian])
def test_biases_that_stay_are_in_no_mode(draw):
    """With the 1 of biases it was many times too large where |x| = 1, and a flow took more
    gradients."""
    data = points(draw, 40, 40)
    x = np.asarray(data.x, np.float64)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    lengths = np.sum(np.asarray(data.x, np.float64) ** 2, axis=1)
    exact = np.linalg.eigvalsh(x @ x.T)[-1] / np.sum(1 / lengths)
    assert 0.85 * exact < float(top(data, False)) < exact * (1 + 1e-5)
    origin = data._replace(x=np.concatenate([data.x[:39], 0 * data.x[:1]]))
    assert np.isfinite(top(origin, False))


def test_a_flow_is_told_of_the_biases_that_move():
    params = networks.torch_linear(jax.random.key(0), 8, 40)
    data = points(datasets.gaussian, 40, 40)
    for trained, biased in ((("w", "b", "v"), True), (("w", "v"), False)):
        protocol = flow_protocol(representation="plain", trained=trained)
        state = training.init(params, data, protocol, jax.random.key(0))
        assert float(state.eigenvalue) == float(top(data, biased))


def test_a_point_far_off_does_not_count():
    """It is soon classified by far. A flow that takes all samples to weigh the same takes four
    times as many gradients."""
    data = points(datasets.sphere, 50, 40)
    x = data.x.copy()
    x[3] *= 100
    far = data._replace(x=x)
    assert float(top(far)) == pytest.approx(float(top(data)), rel=0.1)


def test_points_of_zeros_have_no_rate():
    nothing = datasets.Dataset(np.zeros((5, 40), np.float32), np.zeros(5, np.float32))
    assert float(top(nothing)) == 0


@jax.jit
def of_margins(params, data):
    """The weights of the samples, and the Jacobian of the margins."""

    def margins(params):
        return networks.margins(params, data.x, data.y)

    return losses.log_loss(margins(params), mask=data.y != 0)[1], jax.jacrev(margins)(params)


def rate_of(params, data):
    """The largest eigenvalue of J^T diag(p) J over |grad log L|^2, J those of margins."""
    weights, tangents = of_margins(params, data)
    p = np.asarray(weights, np.float64)
    rows = [np.asarray(t, np.float64).reshape(len(p), -1) for t in jax.tree.leaves(tangents)]
    jacobian = np.concatenate(rows, axis=1)
    squared_norm = np.sum((p @ jacobian) ** 2)
    scaled = np.sqrt(p)[:, None] * jacobian
    return np.linalg.eigvalsh(scaled @ scaled.T)[-1] / squared_norm, squared_norm


@partial(jax.jit, static_argnames=("rows", "dim"))
def start(samples, rows, dim):
    """A state to train from and points of the sphere, padded to so many rows."""
    data = datasets.sphere(jax.random.key(1), samples, dim, (rows, dim))
    params = networks.torch_linear(jax.random.key(2), 200, dim)
    return training.init(params, data, PROTOCOL, jax.random.key(0)), data


def trained(samples, dim):
    """A network on points of the sphere and its data, padded to at least 250 samples, the sizes of
    its steps after the start, and the shares of them that log L fell by."""
    state, data = start(samples, max(samples, 250), dim)
    ends = []
    while int(state.status) == Status.RUNNING:
        state = step(state, data)
        flow = state.optimizer
        if int(flow.stage) == 0:
            ends.append((float(flow.h), float(flow.last_log_loss)))
    h, log_loss = np.array(ends).T
    late = h[:-1] > 0.1
    return state.position, data, (-np.diff(log_loss) / h[:-1])[late]


@pytest.mark.parametrize(("samples", "dim"), [(10, 40), (40, 40), (250, 40)])
def test_the_rate_is_about_that_of_the_fastest_mode(samples, dim):
    params, data, _ = trained(samples, dim)
    exact, squared_norm = rate_of(params, data)
    told = float(rate(params.v, top(data), np.float32(squared_norm)))
    assert 0.5 < told / exact < 1.5


@pytest.mark.slow
def test_steps_on_many_samples_do_not_oscillate():
    """Told no rate, many of them lower log L by two fifths of their size."""
    shares = trained(500, 50)[2]
    assert np.median(shares) > 0.8
    assert np.min(shares) > 0


@pytest.mark.parametrize(("alone", "told"), [(None, True), ("v", False)])
def test_a_rate_is_told_where_the_hidden_layer_trains(alone, told):
    """With w held the modes that it counts are not there."""
    protocol = PROTOCOL.replace(trained=(alone,)) if alone else PROTOCOL

    def asked(key):
        data = datasets.sphere(key, 200, 20)
        params = networks.torch_linear(key, 8, 20)
        state = training.init(params, data, protocol, key)
        here = training.evaluate(state, data, protocol).here
        return steps._of_flow(state, here, protocol)

    assert ("rate" in jax.eval_shape(asked, jax.random.key(0))) is told
