"""Ways to train that users bring."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, NamedTuple

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import assert_close, problem

import jaxkkt as jk
from jaxkkt import training
from jaxkkt.adversarial import AdversarialProtocol

KEY = jax.random.key(7)


class Walk(NamedTuple):
    params: jk.Params
    log_loss: Any
    steps: Any
    status: Any
    key: Any


class NoisyLabels(jk.Training):
    """Descent on the squared loss, with noise on the labels."""

    noise: jk.Number = 0.1
    learning_rate: jk.Number = 0.01
    max_steps: jk.Count = 30

    def begin(self, params, data, key):
        return Walk(params, jnp.inf, 0, jk.Status.RUNNING, key)

    def step(self, state, data):
        key = jax.random.fold_in(state.key, state.steps)
        y = data.y + self.noise * jax.random.normal(key, data.y.shape)

        def loss(params):
            return jnp.sum((jk.networks.apply(params, data.x) - y) ** 2)

        here, gradient = jax.value_and_grad(loss)(state.params)
        params = jax.tree.map(lambda p, g: p - self.learning_rate * g, state.params, gradient)
        steps = state.steps + 1
        status = jnp.where(steps < self.max_steps, jk.Status.RUNNING, jk.Status.CONVERGED)
        return Walk(params, jnp.log(here), steps, status, state.key)

    def outcomes(self, state):
        return {"largest_bias": jnp.max(state.params.b)}

    def attributes(self):
        return {
            "largest_bias": {"long_name": "largest bias", "units": "1"},
            "steps": {"long_name": "steps with noise", "units": "1"},
        }


def grid(**axes):
    return jk.grid(**{"d": 6, "samples": 8, "width": 10, "seed": range(2), "measure": ()} | axes)


def by_hand(protocol, params, data, key):
    """The same with no engine, in float64."""
    x, y = (np.asarray(a, float) for a in data)
    w, b, v = (np.asarray(a, float) for a in params)
    for step in range(int(protocol.max_steps)):
        noise = jax.random.normal(jax.random.fold_in(key, step), y.shape)
        inside = x @ w.T + b
        hidden = np.maximum(inside, 0)
        off = 2 * (hidden @ v - y - protocol.noise * np.asarray(noise, float))
        pull = off[:, None] * v * (inside > 0)
        new = w - protocol.learning_rate * pull.T @ x, b - protocol.learning_rate * pull.sum(0)
        w, b, v = *new, v - protocol.learning_rate * hidden.T @ off
    return jk.Params(w, b, v)


def test_a_network_trains_by_it():
    params, data = problem(8, 6, 10)
    protocol = NoisyLabels()
    found = jk.train(params, *data, protocol, KEY)
    assert (int(found.steps), int(found.status)) == (30, jk.Status.CONVERGED)
    assert_close(found.params, by_hand(protocol, params, data, KEY), rtol=1e-4, atol=1e-5)
    noises = jnp.array([0.0, 0.1, 0.5])
    together = jax.vmap(lambda noise: jk.train(params, *data, NoisyLabels(noise=noise), KEY))(
        noises
    )
    assert_close(cases.lane(together, 1).params, found.params, rtol=1e-4, atol=1e-5)


def test_a_sweep_trains_by_it_and_says_what_it_tells():
    runs = grid(protocol=NoisyLabels, noise=[0.1, 1.0], max_steps=[5, 30])
    table = cases.sweep(runs)
    for run in runs:
        start, data = jk.draw(run)
        by = jk.train(start, *data, run.protocol, run.shuffle_key())
        at = {"seed": run.seed, "noise": run.protocol.noise, "max_steps": run.protocol.max_steps}
        row = table.sel(at).squeeze()
        assert (row.steps, row.status) == (run.protocol.max_steps, jk.Status.CONVERGED)
        np.testing.assert_allclose(row.largest_bias, by.params.b.max(), rtol=1e-4)
    assert table.largest_bias.attrs == {"long_name": "largest bias", "units": "1"}
    assert table.steps.attrs["long_name"] == "steps with noise"
    assert "logarithm" in table.log_loss.attrs["long_name"]


@pytest.mark.slow
def test_what_one_kind_says_is_not_said_of_others():
    protocols = [NoisyLabels(max_steps=2), jk.Protocol(max_steps=3)]
    table = cases.sweep(grid(protocol=protocols, seed=0))
    assert table.steps.attrs["long_name"] == "steps of training made"
    assert table.largest_bias.attrs["long_name"] == "largest bias"
    assert np.isnan(table.largest_bias).sum() == 1


@pytest.mark.slow
def test_a_store_has_it_and_knows_it_by_what_it_computes(tmp_path):
    runs = grid(protocol=NoisyLabels, noise=[0.1, 1.0], max_steps=3)
    first = cases.sweep(runs[:2], store=tmp_path)
    whole = cases.sweep(runs, store=tmp_path)
    assert whole.identical(cases.sweep(runs))
    assert first.largest_bias.values.ravel().tolist() == [
        whole.largest_bias.sel(noise=0.1, seed=seed).item() for seed in (0, 1)
    ]
    read = jk.read_store(tmp_path)
    assert read.largest_bias.attrs == whole.largest_bias.attrs
    assert read.steps.attrs == whole.steps.attrs

    ours = NoisyLabels

    class NoisyLabels_(ours):
        def step(self, state, data):
            after = super().step(state, data)
            return after._replace(params=after.params._replace(b=state.params.b))

    NoisyLabels_.__name__ = ours.__name__
    (edited,) = grid(protocol=NoisyLabels_, noise=0.1, max_steps=3, seed=0)
    assert edited.protocol.label == runs[0].protocol.label
    assert edited.name != runs[0].name
    assert runs[0].name == grid(protocol=ours, noise=0.1, max_steps=3, seed=0)[0].name


@pytest.mark.slow
def test_workers_train_by_it():
    runs = grid(protocol=NoisyLabels, noise=[0.1, 1.0])
    with ProcessPoolExecutor(1, get_context("spawn")) as executor:
        there = cases.sweep(runs, executor=executor)
    assert there.identical(cases.sweep(runs))


class Bare(jk.Training):
    pass


class WithoutStatus(NoisyLabels):
    def begin(self, params, data, key):
        return {"params": params}


class Growing(NoisyLabels):
    def step(self, state, data):
        return super().step(state, data)._replace(key=jnp.zeros(3))


class Whole(NoisyLabels):
    def step(self, state, data):
        after = super().step(state, data)
        return after._replace(params=after.params._replace(b=after.params.b.astype(jnp.int32)))


class OtherState(NoisyLabels):
    def step(self, state, data):
        return super().step(state, data).params


class Narrower(NoisyLabels):
    def begin(self, params, data, key):
        walk = super().begin(params, data, key)
        return walk._replace(params=jk.networks.unpad(params, 5, 6))


class HalfSteps(NoisyLabels):
    def step(self, state, data):
        after = super().step(state, data)
        return after._replace(steps=state.steps.astype(jnp.float32) + 0.5)


class ListsOutcomes(NoisyLabels):
    def outcomes(self, state):
        return [state.steps]


class TextOutcomes(NoisyLabels):
    def outcomes(self, state):
        return {"how": "well"}


REFUSED = [
    (Bare, r"Bare has no method `begin\(self, params, data, key\)`"),
    (WithoutStatus, "must return a NamedTuple with the fields params, status, .*, got dict"),
    (Growing, r"`step` of Growing makes float32 of shape \(3,\) of key, which was key"),
    (Whole, r"makes int32 of shape \(10,\) of params\.b, which was float32 of shape \(10,\)"),
    (OtherState, "`step` of OtherState must return what it is given, changed, got "),
    (Narrower, "`begin` of Narrower must keep the shapes of the network's jk.Params"),
    (HalfSteps, "steps of HalfSteps must be a whole number"),
    (ListsOutcomes, "`outcomes` of ListsOutcomes must return a dictionary, got list"),
    (TextOutcomes, "`outcomes` of TextOutcomes must return numbers or arrays"),
]


@pytest.mark.parametrize(("kind", "message"), REFUSED, ids=[k.__name__ for k, _ in REFUSED])
def test_what_is_no_way_to_train_is_refused(kind, message):
    params, data = problem(8, 6, 10)
    with pytest.raises(ValueError, match=message):
        jk.train(params, *data, kind(), KEY)


@pytest.mark.parametrize("name", ["status", "noise", "seed", "d", "date", "curve_loss"])
def test_outcomes_have_names_of_their_own(name):
    """Runs were trained of which no table could be made."""

    class Named(NoisyLabels):
        def outcomes(self, state):
            return {name: state.steps}

    with pytest.raises(ValueError, match=f"`outcomes` of Named returns '{name}', which is "):
        cases.sweep(grid(protocol=Named, seed=0))


def test_outcomes_and_measurements_have_other_names():
    def largest_bias(params):
        return params.b.max()

    with pytest.raises(ValueError, match="both return 'largest_bias': call one of them"):
        cases.sweep(grid(protocol=NoisyLabels, seed=0, measure=largest_bias))


def test_what_moves_is_part_of_what_a_run_computes():
    """Rows of before were taken after an edit."""

    def trained(*names):
        body = {"trained": property(lambda self: names), "__module__": __name__}
        return grid(protocol=type("Part", (NoisyLabels,), body), seed=0)[0]

    assert trained("w").name != trained("w", "b").name
    assert trained("w").name == trained("w").name


@pytest.mark.slow
def test_outcomes_may_be_numbers_of_python():
    class Constant(NoisyLabels):
        def outcomes(self, state):
            return {"three": 3.0}

    assert cases.sweep(grid(protocol=Constant, seed=0, max_steps=2)).three.item() == 3


def test_a_sweep_says_what_is_wrong_with_it():
    with pytest.raises(ValueError, match="`step` of Growing makes float32"):
        cases.sweep(grid(protocol=Growing, seed=0))


@pytest.fixture(scope="module")
def curved():
    """Runs seen after 0, 3, 7, 30 and 40 steps, of which they take 7 and 30."""
    steps = [0, 3, 7, 30, 40]
    return cases.sweep(grid(protocol=NoisyLabels, max_steps=[7, 30], curve=jk.Curve(steps=steps)))


def test_a_curve_sees_it_on_its_way(curved):
    """Each moment is the end of a run of so many steps, its last one too, and none comes later."""
    for last in (7, 30):
        row = curved.sel(seed=1, max_steps=last).squeeze()
        assert row.curve_steps.values.tolist()[:3] == [0, 3, 7]
        assert np.isnan(row.curve_steps.values).tolist() == [False] * 3 + [last == 7, True]
        (run,) = grid(protocol=NoisyLabels, max_steps=last, seed=1)
        start, data = jk.draw(run)
        for step in (3, 7, 30)[: 2 if last == 7 else 3]:
            by = jk.train(start, *data, NoisyLabels(max_steps=step), run.shuffle_key())
            there = row.sel(step=step)
            np.testing.assert_allclose(there.curve_log_loss, by.log_loss, rtol=1e-5)
            np.testing.assert_allclose(there.curve_largest_bias, by.params.b.max(), rtol=1e-4)
            margin = jk.networks.margins(by.params, *data).min()
            np.testing.assert_allclose(there.curve_min_margin, margin, rtol=1e-3, atol=1e-5)
        assert np.isinf(row.curve_log_loss.sel(step=0))
    assert curved.curve_largest_bias.attrs["long_name"] == "largest bias"


def test_a_curve_changes_nothing_of_its_run(curved):
    without = cases.sweep(grid(protocol=NoisyLabels, max_steps=[7, 30]))
    for name in ("status", "steps", "log_loss", "largest_bias"):
        np.testing.assert_array_equal(curved[name], without[name])


@pytest.mark.slow
def test_a_curve_sees_adversarial_training_and_what_nothing_reaches():
    axes = {"protocol": AdversarialProtocol, "batch_size": 4, "width": 6, "seed": 0}
    curve = jk.Curve([-1e4], measure=jk.Flips)
    table = cases.sweep(grid(**axes, epochs=3, measure=jk.Flips, curve=curve))
    assert np.isnan(table.curve_robust_training_accuracy).all()
    curve = jk.Curve(steps=[0, 1, 3])
    table = cases.sweep(grid(**axes, epochs=3, curve=curve)).squeeze()
    assert table.curve_steps.values.tolist() == [0, 1, 3]
    assert np.isnan(table.curve_robust_training_accuracy.values).tolist() == [True, False, False]
    assert table.curve_robust_training_accuracy[-1] == table.robust_training_accuracy


def test_levels_are_where_its_log_loss_first_is(curved):
    params, data = problem(8, 6, 10)
    every = [jk.train(params, *data, NoisyLabels(max_steps=n), KEY) for n in range(1, 31)]
    losses = np.array([float(one.log_loss) for one in every])
    levels = [losses[2] + 1e-3, losses.min() + 1e-3, losses.min() - 9]
    found = jk.train_through(params, *data, levels, NoisyLabels(), KEY)
    first = [int(np.argmax(losses <= level)) + 1 for level in levels[:2]]
    assert found.steps.tolist() == [*first, 30]
    assert found.status.tolist() == [jk.Status.CONVERGED] * 3  # as it ends after 30 steps
    capped = jk.train_through(params, *data, levels, Capped(), KEY)
    assert capped.status.tolist() == [jk.Status.CONVERGED] * 2 + [jk.Status.STEP_CAP]
    for i, steps in enumerate(first):
        assert_close(cases.lane(found, i).params, every[steps - 1].params, rtol=1e-4, atol=1e-6)


class Lossless(NoisyLabels):
    """Says that nothing is lost from the third step on."""

    def step(self, state, data):
        after = super().step(state, data)
        return after._replace(log_loss=jnp.where(after.steps > 2, -jnp.inf, after.log_loss))


@pytest.mark.parametrize("curve", [jk.Curve([-1e3]), jk.Curve(steps=[1, 4])])
def test_a_loss_of_0_ends_no_run_and_holds_none_up(curve):
    """It was at or below where a run never pauses, and paused there for ever."""
    table = cases.sweep(grid(protocol=Lossless, seed=0, max_steps=6, curve=curve)).squeeze()
    assert table.steps == 6
    assert table.curve_steps.values.ravel().tolist() == ([3] if curve.log_losses else [1, 4])


class Capped(NoisyLabels):
    """Ends with another status."""

    def step(self, state, data):
        after = super().step(state, data)
        ended = after.status == jk.Status.CONVERGED
        return after._replace(status=jnp.where(ended, jk.Status.STEP_CAP, after.status))


@pytest.mark.parametrize("name", ["largest_bias", "log_loss"])
@pytest.mark.parametrize("on_host", [False, True])
def test_a_curves_measurements_take_no_name_that_a_moment_has(name, on_host):
    """One of the host was taken in place of the engine's own."""

    class Named(jk.Measurement):
        def measure(self, params):
            return {name: params.b.max() * 0 + 7}

    Named.on_host = on_host
    runs = grid(protocol=NoisyLabels, max_steps=3, seed=0, curve=jk.Curve(steps=[1], measure=Named))
    with pytest.raises(Exception, match=f"{name}.*call (one of them|it) something else"):
        cases.sweep(runs)


def test_what_may_draw_needs_a_key():
    params, data = problem(8, 6, 10)
    with pytest.raises(ValueError, match="NoisyLabels may draw as it trains: give it a key"):
        jk.train(params, *data, NoisyLabels())


@pytest.mark.usefixtures("unchecked")
def test_what_trains_otherwise_is_refused():
    params, data = problem(8, 6, 10)
    with pytest.raises(ValueError, match=r"takes a jk\.Protocol, or another jk\.Training, got str"):
        jk.train(params, *data, "flow", KEY)


@pytest.mark.parametrize("name", ["begin", "step", "outcomes"])
def test_a_protocol_trains_by_its_optimizer(name):
    """Its own method would not be called."""
    mixed = type("Mixed", (), {name: lambda self, *args: None})
    for bases, body in (((jk.Protocol,), dict(vars(mixed))), ((mixed, jk.Protocol), {})):
        with pytest.raises(ValueError, match=rf"Own has a method `{name}`, by which no jk\.Pro"):
            type("Own", bases, {k: v for k, v in body.items() if k == name})


def test_ended_runs_stay_as_they_are():
    params, data = problem(8, 6, 10)
    protocol = NoisyLabels()
    state, _ = training.load(protocol, params, data, KEY, "plain")
    ended = state._replace(status=jnp.int32(jk.Status.CONVERGED))
    after = jax.jit(lambda ended: training.advance(protocol, ended, data, None))(ended)
    assert_close(after.own.params, params, rtol=0, atol=0)
    assert after.steps == 0


def test_padding_is_for_those_who_say_that_zeros_change_nothing():
    """Every own kind of training shared programs with runs of other sizes."""
    assert not Bare().takes_padding
    assert jk.Protocol().takes_padding
    assert Bare().batch_size is None
    assert Bare().full_batch(10**6)
    assert Bare().trained == ("w", "b", "v")
    with pytest.raises(ValueError, match="give it a method `computations` that yields"):
        list(Bare().computations())
