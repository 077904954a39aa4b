"""Own measurements: at a run's own size, on the host, what is refused."""

import inspect
import threading
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from cases import rows_in, squared_norm, sweep
from measurement_cases import AXES, trained_alone

import jaxkkt as jk
from jaxkkt.adversarial import AdversarialProtocol
from jaxkkt.datasets import Dataset
from jaxkkt.engine.programs import returned
from jaxkkt.engine.programs.training import compile_bucket
from jaxkkt.measurements import CLAIMS, ledger_table, measured, measurement
from jaxkkt.measurements import ledger as ledger_module
from jaxkkt.runs import grid

pytestmark = pytest.mark.usefixtures("unchecked")


PRECISE = {"big": 1e300, "small": 1e-60, "whole": 2**40 + 5, "third": 1 / 3, "unsigned": 2**63}
BUFFERS = threading.local()


class Precise(jk.Measurement):
    """What neither float32 nor int32 holds."""

    on_host = True

    def measure(self):
        given = {**PRECISE, "third": np.array([1 / 3]), "unsigned": np.uint64(2**63)}
        return {name: np.asarray(value) for name, value in given.items()}


def test_no_kind_of_run_takes_a_name_that_a_measurement_returns():
    """`balance` was a field of clusters and the balance of certificates: never in one sweep."""
    kinds = [*grid.DATA.values(), *grid.INITIALIZATIONS.values(), *grid.OPTIMIZERS.values()]
    kinds += [jk.Protocol, AdversarialProtocol, jk.StepFlips, jk.Ledger, jk.Flips]
    fields = {name for kind in kinds for name in kind.field_names()}
    for one in (jk.Flips, jk.Certificates, jk.StepFlips, jk.ClusterFlips, jk.Ledger):
        assert not fields & one().attributes().keys()


class Misspelled(jk.Measurement):
    def mesure(self, params):
        return 0.0


def dead_share(params, data):
    inside = jk.networks.preactivations(params, data.x) > 0
    return {"dead": 1 - inside.any(axis=0).mean(), "mean_b": jnp.abs(params.b).mean()}


class TestOwn:
    def test_what_raises_is_named(self):
        def broken(params):
            raise ArithmeticError("boom")

        with pytest.raises(ArithmeticError, match="boom") as caught:
            sweep(jk.grid(**AXES, measure=broken))
        assert "raised by the measurement 'broken', as JAX traces it" in caught.value.__notes__

    @pytest.mark.slow
    def test_sees_the_network_at_its_own_size(self):
        runs = jk.grid(**AXES, measure=dead_share)
        table = sweep(runs)
        expected = dead_share(*trained_alone(runs[0]))
        assert table.dead.item() == pytest.approx(float(expected["dead"]), abs=1e-6)
        assert table.dead.item() < 0.2  # 0.9 with the padding of 256
        assert table.mean_b.item() == pytest.approx(float(expected["mean_b"]), rel=1e-3)

    def test_gets_what_its_parameters_name_at_its_size(self):
        def shapes(test, start, params, data):
            asked = {"of_test": test.x, "of_start": start.w, "of_params": params.w}
            asked["of_data"] = data.x
            return {name: jnp.array(array.shape) for name, array in asked.items()}

        table = sweep(jk.grid(**AXES, measure=shapes)).squeeze()
        found = [
            table[f"of_{name}"].values.tolist() for name in ("test", "start", "params", "data")
        ]
        assert found == [[256, 8], [20, 8], [20, 8], [6, 8]]

    @pytest.mark.slow
    def test_what_a_network_started_from_is_taken_out_where_it_is_asked_for(self):
        def moved(params, start):
            return jnp.abs(params.w - start.w).max()

        for asked, axes in (
            (False, {"measure": squared_norm}),
            (True, {"measure": moved}),
            (True, {"curve": jk.Curve([-1.0], measure=moved)}),
        ):
            (bucket,) = jk.plan_sweep(jk.grid(**AXES, **axes)).buckets
            programs = compile_bucket(bucket)
            places = np.zeros(bucket.turn, np.int32)
            taken, _ = programs.take_out(places, programs.idle())
            assert (taken.start is not None) == asked

    def test_a_bare_number_has_the_function_s_name_and_arrays_dimensions_of_their_own(self):
        def largest(params):
            return jnp.abs(params.w).max()

        def norms(params):
            return jnp.linalg.norm(params.w, axis=1)

        axes = {**AXES, "width": [10, 20]}
        table = sweep(jk.grid(**axes, measure=[largest, norms])).squeeze()
        assert table.largest.dims == ("width",)
        assert table.norms.dims == ("width", "norms_0")
        assert np.isfinite(table.norms.sel(width=20)).all()
        assert np.isnan(table.norms.sel(width=10)).sum() == 10

    def test_has_numbers_of_its_own(self):
        class Above(jk.Measurement):
            threshold: jk.Number = 0.1

            def measure(self, params):
                return {"above": (jnp.abs(params.b) > self.threshold).mean()}

        table = sweep(jk.grid(**AXES, measure=Above, threshold=[0.0, 0.1, 10.0])).squeeze()
        assert table.threshold.values.tolist() == [0.0, 0.1, 10.0]
        assert table.above[0] == 1
        assert 0 < table.above[1] < 1
        assert table.above[2] == 0

    def test_part_of_whose_arguments_is_given_has_the_function_s_name(self):
        """Wherever the part stands: those after it, and those after a star, are given by name."""
        params = jk.Params(jnp.ones((2, 2)), jnp.ones(2), jnp.ones(2))
        data = Dataset(jnp.ones((3, 2)), jnp.ones(3))

        def jitted(function, **given):
            return jax.jit(partial(function, **given))

        def last(params, data, factor):
            return factor * params.v.max() * data.y.sum()

        def first(factor, params, *, data):
            return last(params, data, factor)

        for function, made in product((last, first), (partial, jitted)):
            one = measurement(made(function, factor=2.0))
            assert (one.label, one.needs()) == (function.__name__, ("params", "data"))
            assert measured(one, params, data) == {function.__name__: 6}
        whatever = measurement(partial(lambda params, **rest: 0.0, factor=2.0))
        with pytest.raises(ValueError, match="asks for 'rest'"):
            whatever.needs()

    @pytest.mark.slow
    def test_sees_the_numbers_of_its_run_s_protocol(self):
        def rate(protocol):
            return 2 * protocol.optimizer.delta

        table = sweep(jk.grid(**AXES, measure=rate, delta=[0.01, 0.02], max_steps=3)).squeeze()
        np.testing.assert_allclose(table["rate"], [0.02, 0.04], rtol=1e-6)

    @pytest.mark.slow
    def test_on_the_host_sees_the_networks_of_the_curve(self):
        class Moved(jk.Measurement):
            on_host = True

            def measure(self, params, start, curve):
                return {"norms": np.linalg.norm(curve.w - start.w, axis=(1, 2)), "n": len(curve.w)}

        runs = jk.grid(**AXES, measure=Moved, curve=jk.Curve([-1, -5, -20]))
        table = sweep(runs).squeeze()
        assert table.n == 3
        assert (np.diff(table.norms) > 0).all()

    def test_what_the_host_measures_is_kept_as_it_is(self, tmp_path):
        """float32 and int32 would give inf, 0, 5, 0.33333334 and 0."""
        curve = jk.Curve(steps=[2], measure=Precise)
        runs = jk.grid(**AXES, max_steps=3, measure=Precise, curve=curve)
        tables = [sweep(runs), sweep(runs, store=tmp_path), sweep(runs, store=tmp_path)]
        for table in (*tables, jk.read_store(tmp_path), xr.load_dataset(tmp_path / "results.nc")):
            for name, value in PRECISE.items():
                assert table[name].values.ravel().tolist() == [value]
                assert table[f"curve_{name}"].values.ravel().tolist() == [value]
        (row,) = rows_in(tmp_path).values()
        (kept,) = row["measured"].values()
        assert kept == {**PRECISE, "third": [1 / 3]}
        assert type(kept["whole"]) is int

    def test_rows_do_not_share_the_host_s_memory(self):
        class Same(jk.Measurement):
            on_host = True

            def measure(self, params):
                # One a thread: streams measure at the same time.
                buffer = BUFFERS.__dict__.setdefault("buffer", np.zeros(2, np.float32))
                buffer[:] = np.asarray(params.v[:2])
                return {"same": buffer}

        table = sweep(jk.grid(**{**AXES, "seed": range(3)}, max_steps=3, measure=Same))
        assert len(np.unique(table.same)) == 6

    def test_what_the_host_knows_beforehand_is_part_of_its_identity(self):
        """To the last bit: a traced program would have inf for both."""

        def of(number):
            class Known(jk.Measurement):
                on_host = True

                def measure(self):
                    return {"known": np.float64(number)}

            return jk.grid(**AXES, measure=Known)[0].measured

        assert of(1e300) == of(1e300) != of(2e300)

    @pytest.mark.parametrize(
        "value",
        [
            2**53 + 1,
            np.int64(2**63 - 1),
            np.array([1, -(2**53) - 1]),
            [2**70 + 1],
            np.longdouble(1) / 3,
        ],
    )
    def test_what_float64_does_not_hold_is_refused(self, value):
        class Beyond(jk.Measurement):
            on_host = True

            def measure(self):
                return {"beyond": value}

        if isinstance(value, np.longdouble) and np.longdouble == np.float64:
            pytest.skip("float64 holds all that this machine has")
        with pytest.raises(ValueError, match=r"returns 'beyond' = .*, but tables hold float64"):
            measured(Beyond())

    @pytest.mark.parametrize(
        "value", ["a word", None, 1j, np.ma.array([1.0], mask=[True]), [[], 1]]
    )
    def test_what_is_no_number_is_refused_on_the_host(self, value):
        class Strange(jk.Measurement):
            on_host = True

            def measure(self):
                return {"strange": value}

        with pytest.raises(ValueError, match=r"must return numbers or arrays.* but 'strange' is "):
            measured(Strange())

    @pytest.mark.parametrize(
        ("measure", "message"),
        [
            (lambda params: {"log_loss": 0.0}, "returns 'log_loss', which is the engine's own"),
            (lambda params: {"width": 0.0}, "returns 'width', which is a field of the run"),
            (lambda params: {"curve_x": 0.0}, "returns 'curve_x', which is the engine's own"),
            (lambda params: {"flip_size": 0.0}, "both return 'flip_size'"),
            (lambda params: {"x": "a word"}, "must return numbers or arrays, or a dictionary"),
            (lambda params: {"x": params.v + 1j}, "'x' is complex64: give its real and imagin"),
            (lambda params: {"x": jax.random.key(0)}, "'x' is a key: give its jax.random.key_data"),
            (lambda params: params.v.max(), "a lambda has no name for what it returns: return a d"),
            (lambda params: {"run": 0.0}, "returns 'run', which is the engine's own name"),
            (lambda params: {"environment": 0.0}, "returns 'environment', which is the engine's"),
            (
                lambda params: {"a/b": 0.0},
                "calls a variable or a dimension 'a/b', but a table with",
            ),
            (lambda params: {"": 0.0}, "calls a variable or a dimension '', but a table with"),
            (lambda params: {"a": params.v, "a_0": 0.0}, "an array 'a', whose dimension .* 'a_0'"),
            (lambda params: {"a": params.w, "a_1": 0.0}, "an array 'a', whose dimension .* 'a_1'"),
            (lambda network: 0.0, "asks for 'network': its parameters may be 'params'"),
            (Misspelled, "'misspelled' has no method `measure"),
            (lambda params: params.v[params.v > 0], "cannot be traced by JAX.*boolean ind"),
            (0.5, "a measurement is a function, such as f"),
        ],
    )
    def test_refuses_before_training(self, measure, message):
        with pytest.raises(ValueError, match=message):
            jk.plan_sweep(jk.grid(**AXES, measure=[jk.Flips(), measure]))

    @pytest.mark.parametrize("on_host", [False, True])
    @pytest.mark.parametrize(
        ("names", "message"),
        [
            (["level"], "returns 'level', which is the engine's own name"),
            (["width"], "returns 'width', which is a field of the run"),
            (["run"], "returns 'run', which is the engine's own name"),
            (["a/b"], "calls a variable or a dimension 'a/b'"),
            (["a", "a_0"], "an array 'a', whose dimension the table calls 'a_0'"),
        ],
    )
    def test_names_that_the_table_has_are_refused(self, names, message, on_host):
        """Of the host's as soon as they are known: a plan knows the others."""

        def measure(self, params):
            return dict.fromkeys(names, params.v)

        one = type("Named", (jk.Measurement,), {"on_host": on_host, "measure": measure})
        runs = jk.grid(**AXES, max_steps=5, measure=one, curve=jk.Curve([0.0, -1.0]))
        with pytest.raises(ValueError, match=message):
            sweep(runs) if on_host else jk.plan_sweep(runs)

    @pytest.mark.parametrize("curved", [False, True])
    @pytest.mark.parametrize(
        ("sizes", "seen"),
        [
            ({"width": [20, 1, 30]}, lambda params: params.v),
            ({"d": [1, 5, 7]}, lambda params: params.w[0]),
            ({"samples": [3, 2, 4]}, lambda data: data.y[1:]),
            ({"width": [5, 6, 7]}, lambda params: params.v[:-6]),
        ],
    )
    def test_numbers_and_arrays_by_one_name_are_refused_before_training(self, sizes, seen, curved):
        def squeezed(*args):
            found = seen(*args)
            return {"squeezed": jnp.squeeze(found)}

        squeezed.__signature__ = inspect.signature(seen)
        measured = {"curve": jk.Curve([-1.0], measure=squeezed)} if curved else {}
        runs = jk.grid(**{**AXES, **sizes}, **{"measure": squeezed, **measured})
        with pytest.raises(ValueError, match="squeezed' is a number for some runs and an array of"):
            jk.plan_sweep(runs)

    def test_numbers_and_arrays_of_two_measurements_are_refused_before_training(self):
        runs = [
            run
            for measure in (lambda params: {"q": params.v}, lambda params: {"q": params.v.sum()})
            for run in jk.grid(**AXES, measure=measure)
        ]
        with pytest.raises(ValueError, match="'q' is a number for some runs and an array of rank"):
            jk.plan_sweep(runs)

    def test_few_sizes_are_traced_to_plan(self):
        traced = []

        def norms(params, data):
            traced.append((*data.x.shape, len(params.v)))
            return {"norms": jnp.abs(params.v)}

        axes = {"d": [1, 3, 5, 7], "samples": [4, 6, 8], "width": range(10, 20), "seed": range(2)}
        jk.plan_sweep(jk.grid(**axes, measure=norms))
        assert {(4, 1, 10), (8, 7, 19)} < set(traced)
        assert len(traced) <= 5

    def test_what_was_traced_is_not_looked_up_again(self, monkeypatch):
        asked = []
        monkeypatch.setattr(returned, "kept", lambda what, make: asked.append(what) or make())

        def norms(params):
            return {"norms": jnp.abs(params.v)}

        for seed in range(3):
            jk.plan_sweep(jk.grid(**{**AXES, "seed": seed}, measure=norms))
        assert len(asked) == 1

    def test_what_raises_at_some_sizes_is_left_to_its_runs(self):
        def second(params):
            return jnp.split(params.v, 2)[1].sum()

        table = sweep(jk.grid(**{**AXES, "width": [16, 17, 20]}, max_steps=5, measure=second))
        raised = (table.status == jk.Status.RAISED).squeeze()
        assert raised.values.tolist() == [False, True, False]

    @pytest.mark.slow
    def test_held_out_points_of_own_arrays(self):
        def at_test(params, test):
            return {"accuracy": (jk.networks.margins(params, *test) > 0).mean()}

        x, y = np.eye(4, 3, dtype=np.float32), np.array([1, -1, 1, -1], np.float32)
        axes = {"width": 20, "seed": 0, "max_steps": 5000, "measure": at_test}
        assert sweep(jk.grid(data=jk.data.Arrays(x, y, x, y), **axes)).accuracy.item() == 1
        with pytest.raises(ValueError, match="asks for held-out points, and 'own' has none"):
            sweep(jk.grid(data=(x, y), **axes))

    @pytest.mark.parametrize("name", ["test", "truth"])
    @pytest.mark.parametrize("compiled", [True, False])
    def test_what_data_do_not_have_is_told_before_anything_runs(self, name, compiled):
        """Of every kind of data in the sweep, and of measurements on the host, too."""

        class Asking(jk.Measurement):
            on_host = not compiled

            def measure(self, test):
                return {"asked": 0.0}

        class AskingForTruth(Asking):
            def measure(self, truth):
                return {"asked": 0.0}

        x, y = np.eye(4, 3, dtype=np.float32), np.array([1, -1, 1, -1], np.float32)
        axes = {"width": 20, "seed": 0, "measure": Asking if name == "test" else AskingForTruth}
        with_both = jk.grid(data=jk.data.Clusters(samples=6, d=8, clusters=2), **axes)
        assert jk.plan_sweep(with_both)
        with pytest.raises(ValueError, match="and 'own' has none"):
            jk.plan_sweep([*with_both, *jk.grid(data=(x, y), **axes)])

    def test_a_truth_of_keys_is_refused_before_anything_runs(self):
        class Keyed(jk.data.Distribution):
            def draw(self, key, samples, dim):
                return jk.datasets.gaussian(key, samples, dim)

            def draw_truth(self, seed):
                return jax.random.key(seed)

        def number(truth):
            return jax.random.uniform(truth)

        with pytest.raises(ValueError, match="draw_truth returned keys: return"):
            jk.plan_sweep(jk.grid(**AXES, data=Keyed, measure=number))


def test_curves_of_other_moments_are_refused_before_training():
    runs = [*jk.grid(**AXES, curve=jk.Curve([-1])), *jk.grid(**AXES, curve=jk.Curve([-2]))]
    with pytest.raises(ValueError, match="the runs of a table must have the same curve"):
        jk.plan_sweep(runs)


def test_margins_of_flips_are_over_the_squared_norm():
    """relu(2 x + 1) - 3 relu(-x): |theta|^2 = 4 + 1 + 1 + 1 + 9, margins of 3, 6 and padding."""
    params = jk.Params(jnp.array([[2.0], [-1.0]]), jnp.array([1.0, 0.0]), jnp.array([1.0, -3.0]))
    data = jk.Dataset(jnp.array([[1.0], [-2.0], [0.0]]), jnp.array([1.0, -1.0, 0.0]))
    found = jax.jit(jk.Flips().measure)(params, data)
    assert float(found["min_margin"]) == 3
    assert float(found["squared_norm"]) == 16
    assert float(found["normalized_margin"]) == pytest.approx(3 / 16)
    assert (float(found["on_margin_share"]), int(found["off_margin_count"])) == (0.5, 1)


def test_the_table_of_a_ledger_is_of_the_runs_that_a_claim_applies_to():
    """The third run does not meet its assumptions, of the fourth the claim does not speak."""
    nan = np.nan
    columns = {
        "measured": [1.5, 1.0, 9.0, nan],
        "bound": [2.0, -4.0, nan, nan],
        "slack": [0.5, -3.0, nan, nan],
        "assumed": [1.0, 1.0, 0.0, nan],
        "holds": [1.0, 0.0, 0.0, nan],
        "vacuous": [0.0, 1.0, 0.0, nan],
    }
    claim = {"claim": [CLAIMS[0]]}
    results = xr.Dataset(
        {f"ledger_{n}": (("seed", "claim"), np.array(c)[:, None]) for n, c in columns.items()},
        claim,
    )
    (line,) = ledger_table(results).splitlines()[2:]
    assert line.split("|")[2:-1] == [" 3 ", " 2 ", " 1 of 2 ", " -0.75 ", " 1 of 2 "]


def test_of_points_that_a_lemma_speaks_of_the_one_of_least_slack_is_told():
    """The first is not of length 1."""
    start = jax.jit(lambda: jk.networks.lazy(jax.random.key(0), 50, 4))()
    x = np.eye(4, dtype=np.float32) * np.array([[2], [1], [1], [1]], np.float32)
    found = ledger_module._at_points(start, start, x, np.float32(1), np.float32(0.05))
    outputs = np.abs(np.maximum(x @ np.asarray(start.w).T, 0) @ np.asarray(start.v))
    told = found["B.5: output"]
    assert told.assumed
    np.testing.assert_allclose(told.measured, outputs[1:].max(), rtol=1e-4)
