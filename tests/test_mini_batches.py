"""Training in shuffled batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CORNERS, assert_same_bits, problem

from jaxkkt import datasets, losses, networks, optimizers, single, training
from jaxkkt.datasets import Dataset
from jaxkkt.networks import Params
from jaxkkt.protocols import Protocol
from jaxkkt.training import Status

DESCENT = optimizers.loss_scaled(0.05)
M, BATCH = 8, 3
full_loss = jax.jit(lambda params, data: losses.log_loss(networks.margins(params, *data))[0])
# Live on samples 0 and 2 alone.
HALF_LIVE = jax.device_put(
    Params(np.array([[1.0, 0.0], [0.5, 0.5]]), np.zeros(2), np.array([1.0, 0.5]))
)


@pytest.mark.parametrize("padding", [0, 3, 4])
def test_every_sample_is_used_once_in_an_epoch(padding):
    x = np.arange(1, M + 1, dtype=np.float32)[:, None] * np.array([1, -1], np.float32)
    y = np.where(np.arange(M) % 3 == 0, np.float32(1), np.float32(-1))
    # Padding in the middle and at the end.
    data = datasets.pad(Dataset(x, y), M + padding, 2)
    data = jax.device_put(jax.tree.map(lambda a: np.roll(a, padding // 2, axis=0), data))
    protocol = Protocol(DESCENT, batch_size=BATCH)
    start = training.init(problem(M, 2)[0], data, protocol, jax.random.key(0))

    @jax.jit
    def batch(seed, steps, order):
        state = start._replace(key=jax.random.key(seed), steps=steps, order=order)
        return training.mini_batch(state, data, protocol)

    def epoch(seed, number):
        batches, order = [], jnp.full_like(start.order, -1)
        for i in range(3):
            some, order, *ends = batch(seed, np.int32(3 * number + i), order)
            assert [bool(end) for end in ends] == [i == 0, i == 2]
            batches.append(some)
        assert [b.x.shape for b in batches] == [(BATCH, 2)] * 3
        assert [int(np.sum(np.asarray(b.y) != 0)) for b in batches] == [3, 3, 2]
        rows = np.concatenate([np.asarray(b.x) for b in batches])
        labels = np.concatenate([np.asarray(b.y) for b in batches])
        return rows[labels != 0], labels[labels != 0]

    orders = []
    for seed, number in [(1, 0), (1, 1), (1, 2), (2, 0)]:
        rows, labels = epoch(seed, number)
        assert sorted(rows[:, 0]) == list(range(1, M + 1))
        np.testing.assert_array_equal(rows[:, 1], -rows[:, 0])
        np.testing.assert_array_equal(labels, np.asarray(y)[rows[:, 0].astype(int) - 1])
        orders.append(tuple(rows[:, 0]))
    assert len(set(orders)) == 4
    assert tuple(epoch(1, 1)[0][:, 0]) == orders[1]


def test_an_epoch_is_shuffled_once():
    """In the middle of an epoch a run keeps its order, whatever the runs beside it begin."""
    params, data = problem(M, 2)
    protocol = Protocol(DESCENT, batch_size=BATCH)
    mine = np.append(np.arange(M)[::-1], [M] * BATCH).astype(np.int32)

    def batch(steps):
        start = training.init(params, data, protocol, jax.random.key(0))
        state = start._replace(steps=steps, order=jnp.asarray(mine))
        return training.mini_batch(state, data, protocol)[:2]

    some, orders = jax.device_get(jax.jit(jax.vmap(batch))(np.array([1, 3], np.int32)))
    np.testing.assert_array_equal(orders[0], mine)
    np.testing.assert_array_equal(some.x[0], np.asarray(data.x)[mine[BATCH : 2 * BATCH]])
    assert sorted(orders[1].tolist()) == sorted(mine.tolist())
    assert orders[1].tolist() != mine.tolist()


def test_mini_batches_stop_on_the_loss_of_an_epoch():
    params, data = problem(M)
    full = full_loss(params, data)
    # Steps that move nothing: the loss of an epoch is the loss of the set.
    still = optimizers.loss_scaled(1e-30)
    for above, steps, status in [(1e-3, 2, Status.CONVERGED), (-1e-3, 9, Status.NOT_SEPARABLE)]:
        protocol = Protocol(
            still, batch_size=BATCH, target_log_loss=float(full) + above, max_steps=9
        )
        result = single.train(params, *data, protocol, jax.random.key(3))
        assert (result.steps, result.status) == (steps, status)
        if status == Status.CONVERGED:
            np.testing.assert_allclose(result.log_loss, full, rtol=1e-6)


@pytest.mark.parametrize("representation", ["plain", "span"])
def test_mini_batches_train(representation):
    params, data = problem(M, 9, 20)
    protocol = Protocol(
        DESCENT, batch_size=BATCH, representation=representation, target_log_loss=-2.0
    )
    result = single.train(params, *data, protocol, jax.random.key(3))
    assert result.status == Status.CONVERGED
    assert result.steps % 3 == 2  # at the last batch of an epoch
    assert full_loss(result.params, data) < -2
    other = single.train(params, *data, protocol, jax.random.key(4))
    assert np.any(np.asarray(other.params.w) != np.asarray(result.params.w))


def test_mini_batches_match_full_batches_where_all_fit():
    params, data = problem()
    small = Protocol(DESCENT, batch_size=6, max_steps=20)
    full = Protocol(DESCENT, max_steps=20)
    assert_same_bits(single.train(params, *data, small), single.train(params, *data, full))


def test_mini_batches_need_a_key():
    params, data = problem(M)
    with pytest.raises(ValueError, match="8 samples train in mini-batches: give a key to shuffle"):
        single.train(params, *data, Protocol(DESCENT, batch_size=BATCH))


@pytest.mark.usefixtures("unchecked")
def test_a_seed_is_no_key():
    params, data = problem(M)
    with pytest.raises(ValueError, match=r"a random key is needed, as jax.random.key\(0\), got 0"):
        single.train(params, *data, Protocol(DESCENT, batch_size=BATCH), key=0)


def test_a_batch_without_live_neurons_does_not_stall():
    protocol = Protocol(DESCENT, batch_size=1, max_steps=60)
    result = single.train(HALF_LIVE, *CORNERS, protocol, jax.random.key(0))
    assert result.status != Status.STALLED
    assert result.steps == 60


@pytest.mark.parametrize("label", [1.0, -1.0])
def test_all_samples_tell_at_a_cap_whether_they_are_classified(label):
    """The last batch alone may be, or not; padding is neither."""
    params = Params(*map(jnp.array, ([[1.0]], [0.0], [1.0])))
    data = Dataset(jnp.array([[1.0], [2.0], [0.0]]), jnp.array([1.0, label, 0.0]))
    protocol = Protocol(DESCENT, batch_size=1)
    state = training.init(params, data, protocol, jax.random.key(0))
    finish = jax.jit(lambda state: training.finish(state, data, protocol))
    for status in (Status.STEP_CAP, Status.NOT_SEPARABLE):
        found = finish(state._replace(status=jnp.int32(status)))
        assert found.status == (Status.STEP_CAP if label > 0 else Status.NOT_SEPARABLE)
        np.testing.assert_allclose(found.log_loss, np.log(np.exp(-1) + np.exp(-2 * label)), 1e-6)


def test_log_loss_at_a_cap_inside_an_epoch_is_that_of_all_samples():
    params, data = problem(M)
    still = optimizers.loss_scaled(1e-30)
    protocol = Protocol(still, batch_size=BATCH, max_steps=3)
    result = single.train(params, *data, protocol, jax.random.key(3))
    np.testing.assert_allclose(result.log_loss, full_loss(params, data), rtol=1e-6)
