"""The rate that a flow is told, beside the rate that its fastest mode has."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxkkt import datasets, losses, networks, representations, training
from jaxkkt.protocols import flow_protocol
from jaxkkt.stiffness import fastest_rate, top_eigenvalue
from jaxkkt.training import Status, steps


@pytest.mark.parametrize("draw", [datasets.sphere, datasets.gaussian])
@pytest.mark.parametrize(("samples", "dim"), [(5, 40), (40, 40), (200, 20)])
def test_the_eigenvalue_is_that_of_the_points(draw, samples, dim):
    data = draw(jax.random.key(samples), samples, dim)
    x = np.asarray(data.x, np.float64)
    weights = 1 / (np.sum(x**2, axis=1) + 1)
    roots = np.sqrt(weights / weights.sum())
    exact = np.linalg.eigvalsh(roots[:, None] * (x @ x.T + 1) * roots)[-1]
    found = float(top_eigenvalue(data))
    assert 0.85 * exact < found < exact * (1 + 1e-5)
    params = networks.torch_linear(jax.random.key(0), 8, dim)
    gram = representations.encode(params, data, "gram")[1]
    padded = datasets.pad(data, samples + 7, dim + 3)
    for same in (gram, padded, datasets.Dataset(data.x, -data.y)):
        assert float(top_eigenvalue(same)) == pytest.approx(found, rel=1e-4)


def test_a_point_far_off_does_not_count():
    """It is soon classified by far. A flow that takes all samples to weigh the same takes four
    times as many gradients."""
    data = datasets.sphere(jax.random.key(0), 50, 50)
    far = data._replace(x=data.x.at[3].multiply(100))
    assert float(top_eigenvalue(far)) == pytest.approx(float(top_eigenvalue(data)), rel=0.1)


def test_points_of_zeros_have_no_rate():
    nothing = datasets.Dataset(jnp.zeros((3, 2)), jnp.zeros(3))
    assert float(top_eigenvalue(nothing)) == 0


def rate_of(params, data):
    """The largest eigenvalue of J^T diag(p) J over |grad log L|^2, J those of margins."""
    margins = networks.margins(params, data.x, data.y)
    p = np.asarray(losses.log_loss(margins)[1], np.float64)
    tangents = jax.jacrev(lambda params: networks.margins(params, data.x, data.y))(params)
    rows = [np.asarray(t, np.float64).reshape(len(p), -1) for t in jax.tree.leaves(tangents)]
    jacobian = np.concatenate(rows, axis=1)
    squared_norm = np.sum((p @ jacobian) ** 2)
    scaled = np.sqrt(p)[:, None] * jacobian
    return np.linalg.eigvalsh(scaled @ scaled.T)[-1] / squared_norm, squared_norm


def trained(samples, dim, width=200):
    """A network on points of the sphere and its data, the sizes of its steps after the start, and
    the shares of them that log L fell by."""
    data = datasets.sphere(jax.random.key(1), samples, dim)
    params = networks.torch_linear(jax.random.key(2), width, dim)
    protocol = flow_protocol(representation="plain")
    step = jax.jit(lambda state: training.step(state, data, protocol))
    state, ends = training.init(params, data, protocol, jax.random.key(0)), []
    while int(state.status) == Status.RUNNING:
        state = step(state)
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
    told = float(fastest_rate(params.v, top_eigenvalue(data), jnp.float32(squared_norm)))
    assert 0.5 < told / exact < 1.5


def test_steps_on_many_samples_do_not_oscillate():
    """Told no rate, many of them lower log L by two fifths of their size."""
    shares = trained(500, 50)[2]
    assert np.median(shares) > 0.8
    assert np.min(shares) > 0


@pytest.mark.parametrize(("alone", "told"), [(None, True), ("v", False)])
def test_a_rate_is_told_where_the_hidden_layer_trains(alone, told):
    """With w held the modes that it counts are not there."""
    data = datasets.sphere(jax.random.key(1), 500, 50)
    params = networks.torch_linear(jax.random.key(2), 20, 50)
    protocol = flow_protocol(representation="plain")
    if alone:
        protocol = protocol.replace(trained=(alone,))
    state = training.init(params, data, protocol, jax.random.key(0))
    here = training.evaluate(state, data, protocol).here
    assert ("rate" in steps._of_flow(state, here, protocol)) is told
