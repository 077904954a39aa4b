"""How runs end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CORNERS, assert_same_bits, lane, problem, stacked, train_lanes

from jaxkkt import losses, networks, optimizers, representations, single, training
from jaxkkt.datasets import Dataset
from jaxkkt.networks import Params
from jaxkkt.numerics.outcomes import Outcome
from jaxkkt.protocols import Protocol
from jaxkkt.training import Status

FLOW = optimizers.log_loss_time(0.05)
DESCENT = optimizers.loss_scaled(0.05)
CAPPED = Protocol(DESCENT, max_steps=150)


def test_one_name_has_one_code():
    codes = {}
    for outcomes in Outcome.__subclasses__():
        for member in outcomes:
            assert codes.setdefault(member.name, int(member)) == int(member), member
            assert member.describe()
    assert len(codes) > 20


def check_status(result, status, sentence):
    assert result.status == status
    assert sentence in Status(int(result.status)).describe()


def test_status_converged():
    params, data = problem()
    result = single.train(params, *data, Protocol(FLOW, target_log_loss=-4.0))
    check_status(result, Status.CONVERGED, "the log loss reached the target")
    # A target that the start meets takes no step.
    result = single.train(params, *data, Protocol(FLOW, target_log_loss=50.0))
    check_status(result, Status.CONVERGED, "reached the target")
    assert result.steps == 0
    assert_same_bits(result.params, params)


def test_status_step_cap():
    params, data = problem()
    result = single.train(params, *data, Protocol(FLOW, max_steps=80))
    check_status(result, Status.STEP_CAP, "raise max_steps")
    assert result.steps == 80
    assert networks.margins(result.params, *data).min() > 0


def test_of_several_ends_at_once_one_is_told():
    nothing = Params(*map(jnp.zeros, ((1, 1), 1, 1)))
    here = representations.Gradient(
        log_loss=jnp.array(0.5),
        samples=jnp.array(2),
        gradient=nothing,
        squared_norm=jnp.array(0.0),
        min_margin=jnp.array(0.0),
        dead=jnp.array(True),
    )

    def status(target, steps=5, **changes):
        changed = here._replace(**{name: jnp.array(value) for name, value in changes.items()})
        evaluation = training.Evaluation(changed, changed.log_loss, changed.log_loss, None)
        return Status(int(training.status_at(evaluation, jnp.array(steps), 5, target)))

    assert status(1.0) == Status.CONVERGED
    assert status(0.0) == Status.STALLED
    assert status(0.0, dead=False) == Status.NOT_SEPARABLE  # a margin of 0 is no right answer
    assert status(0.0, dead=False, min_margin=0.1) == Status.STEP_CAP
    assert status(0.0, dead=False, steps=4) == Status.RUNNING
    assert status(1.0, log_loss=-jnp.inf) == status(1.0, log_loss=jnp.nan) == Status.DIVERGED


def test_a_flow_takes_no_more_steps_than_it_may():
    """At the cap it began to be led onto its target, by a step more than a sweep took."""
    params, data = problem()
    protocol = Protocol(FLOW, target_log_loss=-4.0)
    steps = int(single.train(params, *data, protocol).steps)
    caps = np.arange(steps - 40, steps + 1)

    def train(cap):
        return single.train(params, *data, protocol.replace(max_steps=cap))

    ended = jax.device_get(jax.jit(jax.vmap(train))(caps))
    np.testing.assert_array_equal(ended.steps, caps)
    assert (ended.status[:-1] == Status.STEP_CAP).all()
    assert ended.status[-1] == Status.CONVERGED


@pytest.mark.slow
def test_a_flow_that_is_thrown_far_above_its_start_ends_there():
    """Networks of so few neurons have samples on which none is active: where the gradient all but
    vanishes a step is a leap. Those that come back are left alone."""
    params, data = stacked(*(problem(5, 4, 6, seed) for seed in range(64)))
    train = jax.jit(lambda *p: train_lanes(*p, Protocol(FLOW, max_steps=3000)))
    ended = jax.device_get(train(params, data))
    thrown = (ended.status == Status.DIVERGED) & np.isfinite(ended.log_loss)
    assert thrown.sum() >= 4
    assert (ended.steps[thrown] < 2000).all()
    assert (ended.log_loss[ended.status == Status.NOT_SEPARABLE] < 1000).all()
    assert (ended.status == Status.CONVERGED).sum() >= 40
    # Through levels, too: such runs went on to the cap.
    protocol = Protocol(FLOW, max_steps=3000)
    level = jnp.array([protocol.target_log_loss])
    through = jax.jit(jax.vmap(lambda p, d: single.train_through(p, *d, level, protocol)))
    found = jax.device_get(through(params, data))
    assert (found.status[thrown] == Status.DIVERGED).all()
    assert (found.steps[thrown] < 2000).all()
    # One that starts as far up is not thrown, and comes down.
    params, data = problem(10, 8, 30)
    far = jax.tree.map(lambda a: 100 * a, params)
    result = single.train(far, *data, Protocol(FLOW, max_steps=300, target_log_loss=-1e9))
    assert result.status != Status.DIVERGED


def test_no_steps_leave_the_network_as_it_is():
    params, data = problem()
    result = single.train(params, *data, Protocol(FLOW, max_steps=0, representation="plain"))
    assert result.steps == 0
    assert result.status in (Status.STEP_CAP, Status.NOT_SEPARABLE)
    assert_same_bits(result.params, params)
    expected = jax.jit(lambda *q: losses.log_loss(networks.margins(*q))[0])(params, *data)
    np.testing.assert_allclose(result.log_loss, expected, rtol=1e-6)


@pytest.mark.parametrize("optimizer", [FLOW, optimizers.loss_scaled(0.005)])
def test_status_not_separable(optimizer):
    params, data = problem(8, 3, 40)
    x, y = map(np.array, data)
    x[1], y[:2] = x[0], [1, -1]
    # Later a leap may throw the flow away, by the CPU's rounding: on one with AVX-512 after 330.
    result = single.train(params, x, y, Protocol(optimizer, max_steps=200))
    check_status(result, Status.NOT_SEPARABLE, "equal points with opposite labels")
    assert result.steps == 200
    assert networks.margins(result.params, x, y).min() <= 0
    later = single.train(params, x, y, Protocol(optimizer, max_steps=3000))
    ends = Status.NOT_SEPARABLE, Status.DIVERGED
    assert later.status in ends[: 2 if optimizer is FLOW else 1]
    assert "equal points with opposite labels" in Status(int(later.status)).describe()


@pytest.mark.parametrize("learning_rate", [1e2, 1e30])
def test_status_diverged(learning_rate):
    params, data = problem()
    result = single.train(params, *data, Protocol(optimizers.loss_scaled(learning_rate)))
    check_status(result, Status.DIVERGED, "lower the learning rate or delta")
    assert result.steps < 10
    assert not np.isfinite(result.log_loss)


@pytest.mark.parametrize("representation", ["plain", "span", "gram"])
def test_status_stalled(representation):
    params, data = problem()
    dead = params._replace(b=params.b - 100)
    result = single.train(dead, *data, Protocol(FLOW, representation=representation))
    check_status(result, Status.STALLED, "no neuron is active on any sample")
    assert result.steps == 0
    np.testing.assert_allclose(result.log_loss, np.log(6), rtol=1e-6)


def test_status_of_a_run_in_progress():
    params, data = problem()

    @jax.jit
    def begun(params, data):
        state = training.init(params, data, CAPPED, jax.random.key(0))
        return training.step(state, data, CAPPED)

    state = begun(params, data)
    assert state.status == Status.RUNNING
    assert Status(int(state.status)).describe() == "still training"
    assert len({status.describe() for status in Status}) == len(Status)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("representation", ["plain", "gram"])
def test_a_lane_of_nan_leaves_its_neighbours_alone(bad, representation):
    protocol = Protocol(FLOW, target_log_loss=-5.0, representation=representation)
    params, data = jax.device_get(stacked(*(problem(seed=seed) for seed in range(3))))
    w, x = params.w.copy(), data.x.copy()
    w[1, 2, 0] = x[1, 0, 0] = bad
    healthy = jax.device_get(train_lanes(params, data, protocol))
    poisoned = jax.device_get(train_lanes(params._replace(w=w), data, protocol))
    for i in (0, 2):
        assert healthy.status[i] == Status.CONVERGED
        assert_same_bits(lane(poisoned, i), lane(healthy, i))
    assert poisoned.status[1] == Status.DIVERGED
    in_data = jax.device_get(train_lanes(params, data._replace(x=x), protocol))
    for i in (0, 2):
        assert_same_bits(lane(in_data, i), lane(healthy, i))
    assert in_data.status[1] == Status.DIVERGED


def test_cancelling_gradients_are_not_dead_neurons():
    # Every neuron is active on every sample, the outputs cancel, and w has a gradient.
    params = jax.device_put(Params(np.zeros((2, 2)), np.ones(2), np.array([1.0, -1.0])))
    data = Dataset(*(np.asarray(array)[:2] for array in CORNERS))
    dead = jax.jit(lambda *given: representations.gradient(*given, losses.exponential).dead)
    assert not dead(params, data)
    result = single.train(params, *data, Protocol(DESCENT, target_log_loss=-1.0))
    assert result.status == Status.CONVERGED


def test_a_sample_without_neurons_stalls_where_the_others_no_longer_weigh():
    params = networks.Params(w=jnp.array([[1.0]]), b=jnp.zeros(1), v=jnp.array([200.0]))
    x, y = jnp.array([[1.0], [-1.0]]), jnp.array([1.0, -1.0])
    result = single.train(params, x, y, Protocol(optimizers.loss_scaled(1e-3)))
    check_status(result, Status.STALLED, "that the loss weighs")
    assert result.steps == 0
    assert result.log_loss == 0  # of the sample that no neuron sees
