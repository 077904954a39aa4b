"""Own functions that compute something else than before, in one process: seen at every size."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import SOON
from cases import one as any_one
from test_identity import ALTERNATING, scaled

import jaxkkt as jk

pytestmark = pytest.mark.usefixtures("unchecked")
one = partial(any_one, optimizer=SOON)


class Factor:
    """What functions read that are not told of it."""

    value = 1.0


def reading(what):
    """An own function of each kind whose numbers are those of `Factor.value`."""

    class Blobs(jk.data.Distribution):
        def draw(self, key, samples, dim):
            return scaled(Factor.value)(key, samples, dim)

    def weights(key, width, dim):
        return jk.networks.torch_linear(key, width, dim, Factor.value)

    def norm(params):
        return Factor.value * jnp.linalg.norm(params.w)

    def data(key, samples, dim):
        return scaled(Factor.value)(key, samples, dim)

    def schedule(step):
        return 0.1 * Factor.value + 0.0 * step

    def rule():
        return optax.sgd(0.1 * Factor.value)

    def update(gradient, state, params=None):
        return jax.tree.map(lambda g: -0.1 * Factor.value * g, gradient), state

    kinds = {
        "a class": ("data", Blobs),
        "a factory of optimizers": ("optimizer", jk.optimizer(rule)),
        "a schedule": ("optimizer", jk.optimizer(optax.sgd, learning_rate=schedule)),
        "a transformation": (
            "optimizer",
            optax.chain(optax.GradientTransformation(lambda params: (), update)),
        ),
    }
    functions = {"data": data, "initialization": weights, "measure": norm}
    return kinds.get(what) or (what, functions[what])


def test_a_function_that_has_changed_at_another_size_is_refused():
    """It was looked at as it was first used, and at no other size."""
    points = {d: np.eye(6, d, dtype=np.float32) for d in (8, 9)}

    def mine(key, samples, dim):
        return jnp.asarray(points[dim]), jnp.asarray(ALTERNATING[:samples])

    runs = [one(data=mine, d=d) for d in (8, 9)]
    jk.sweep(runs)
    points[9] = 10 * points[9]
    with pytest.raises(ValueError, match="mine computes something else than when it was first"):
        jk.sweep(runs)


@pytest.mark.slow
def test_what_is_forgotten_is_no_longer_in_a_run(monkeypatch):
    """A run kept its name, and took the rows of what its function had computed before."""
    axis, function = reading("data")
    run = one(**{axis: function})
    before = run.name, run.identity
    assert (run.name, run.identity) == before
    monkeypatch.setattr(Factor, "value", 2.0)
    jk.engine.forget()
    assert run.name != before[0]
    assert run.identity != before[1]


def test_the_precision_of_products_is_that_of_the_sweep():
    """Streams traced with the default, and identities with what was set around the sweep."""
    seen = []

    def size(params):
        seen.append(jax.config.jax_default_matmul_precision)
        return jnp.sum(params.w @ params.w.T)

    with jax.default_matmul_precision("highest"):
        jk.sweep([one(measure=size, max_steps=1)])
    assert set(seen) == {"highest"}
    jk.sweep([one(measure=size, max_steps=1)])
    assert set(seen) == {"highest", None}


def test_a_function_may_be_used_in_both_precisions():
    def size(data):
        return jnp.linalg.norm(data.x)

    for double in (False, True, False):
        with jax.enable_x64(double):
            assert jk.sweep([one(measure=size, max_steps=1)])["size"].item() > 0


def test_draws_may_be_of_both_kinds_of_random_bits():
    """The second was taken for a function that had changed."""

    class Blobs(jk.data.Distribution):
        def draw(self, key, samples, dim):
            return scaled(1.0)(key, samples, dim)

    for kind in (True, False, True):
        with jax.threefry_partitionable(kind):
            assert jk.plan_sweep([one(data=Blobs)]).runs == 1
            jk.sweep([one(data=Blobs, measure=(), max_steps=1)])


KINDS = ["measure"]
MORE = [
    "data",
    "a schedule",
    "a class",
    "initialization",
    "a factory of optimizers",
    "a transformation",
]


@pytest.mark.parametrize(
    "what", [*KINDS, *(pytest.param(what, marks=pytest.mark.slow) for what in MORE)]
)
def test_a_function_that_reads_what_has_changed_is_refused(what, monkeypatch, tmp_path):
    """What was compiled of it would give the old numbers."""
    axis, function = reading(what)
    before = jk.sweep([one(**{axis: function})], store=tmp_path).to_array().values
    monkeypatch.setattr(Factor, "value", 2.0)
    with pytest.raises(ValueError, match="computes something else than when it was first used"):
        jk.sweep([one(**{axis: function}, d=6)])
    jk.engine.forget()
    again = jk.sweep([one(**{axis: function})]).to_array().values
    assert not np.array_equal(before, again, equal_nan=True)
    # Defined anew it is another function.
    monkeypatch.setattr(Factor, "value", 1.0)
    axis, function = reading(what)
    redefined = jk.sweep([one(**{axis: function})]).to_array().values
    np.testing.assert_array_equal(before, redefined)


class OfFactor(jk.Measurement):
    on_host = True

    def measure(self, params):
        return {"factor": Factor.value * jnp.ones(())}


def test_what_a_measurement_on_the_host_reads_is_told_where_rows_are_kept(monkeypatch, tmp_path):
    jk.engine.forget()
    assert jk.sweep([one(measure=OfFactor)], store=tmp_path).factor.item() == 1
    monkeypatch.setattr(Factor, "value", 2.0)
    assert jk.sweep([one(measure=OfFactor)]).factor.item() == 2  # nothing was compiled of it
    with pytest.raises(ValueError, match="computes something else than when it was first used"):
        jk.sweep([one(measure=OfFactor)], store=tmp_path)
    jk.engine.forget()
    assert jk.sweep([one(measure=OfFactor)], store=tmp_path).factor.item() == 2


def test_held_out_points_that_cannot_be_drawn_for_seed_0_are_those_of_others():
    """What they are told by is no reason for a sweep without a store to end."""

    class Late(jk.data.Distribution):
        def draw(self, key, samples, dim):
            return scaled(1.0)(key, samples, dim)

        def draw_held_out(self, seed):
            if seed == 0:
                raise KeyError(seed)
            return jk.Dataset(np.eye(2, self.d, dtype=np.float32), ALTERNATING[:2])

    def size(test):
        return jnp.sum(test.x)

    assert jk.sweep([one(data=Late, measure=size, seed=3, max_steps=1)])["size"].item() == 2
    with pytest.raises(ValueError, match="make it work there, or go on without a store"):
        _ = one(data=Late, measure=size, seed=3).name
