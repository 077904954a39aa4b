"""Grids of runs: every field an axis, what is refused."""

from functools import partial, wraps

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from spec_cases import Blobs, stripes

import jaxkkt as jk

pytestmark = pytest.mark.usefixtures("unchecked")


def of_width(key, samples, dim, sigma=1.0):
    x, y = stripes(key, samples, dim)
    return sigma * x, y


class Unannotated(Blobs):
    spread = 1.5


class TestGrid:
    def test_sample_counts_are_rounded_powers(self):
        runs = jk.grid(d=[100, 200], alpha=[0.8, 1.2], seed=[0])
        assert [r.samples for r in runs] == [40, 251, 69, 577]

    def test_a_scalar_stands_for_one_value_and_any_field_is_an_axis(self):
        axes = {"loss": "logistic", "delta": [0.01, 0.02], "slack": [1.05, 1.2], "init_scale": 0.5}
        runs = jk.grid(d=5, samples=4, width=3, seed=0, **axes)
        assert len(runs) == 4
        assert {r.protocol.optimizer.delta for r in runs} == {0.01, 0.02}
        assert {r.measure[0].slack for r in runs} == {1.05, 1.2}
        assert {(r.protocol.loss, r.initialization.scale) for r in runs} == {("logistic", 0.5)}

    def test_two_axes_of_one_field_are_refused(self):
        """The first was dropped."""
        with pytest.raises(ValueError, match=r"'delta'.* are axes of the same field: give one"):
            jk.grid(d=8, samples=6, delta=[0.01, 0.1], optimizer_delta=[0.02, 0.03])

    def test_a_field_of_several_parts_needs_the_name_of_one(self):
        sizes = {"d": 5, "samples": 4, "width": 3, "seed": 0}
        both = [jk.Flips(), jk.Flips(slack=1.3)]
        with pytest.raises(ValueError, match=r"several parts .* choose from measure_slack, meas"):
            jk.grid(**sizes, measure=both, slack=[1.1, 1.2])
        runs = jk.grid(**sizes, measure=both, measure1_slack=[1.1, 1.2])
        assert [[one.slack for one in run.measure] for run in runs] == [[1.1, 1.1], [1.1, 1.2]]

    def test_a_tuple_of_names_is_an_axis_of_data(self):
        kinds = [run.data.label for run in jk.grid(data=("sphere", "gaussian"), d=5, samples=4)]
        assert kinds == ["sphere"] * 5 + ["gaussian"] * 5

    def test_a_tuple_is_one_value_of_a_field_that_holds_tuples(self):
        """Two runs were trained, of one layer each."""
        sizes = {"d": 5, "samples": 4, "width": 3, "seed": 0}
        (run,) = jk.grid(**sizes, trained=("w", "v"))
        assert run.protocol.trained == ("w", "v")
        for several in ([("w",), ("w", "b")], (("w",), ("w", "b"))):
            kinds = [run.protocol.trained for run in jk.grid(**sizes, trained=several)]
            assert kinds == [("w",), ("w", "b")]
        (run,) = jk.grid(**sizes, measure=jk.Certificates(), budget=(8, 2))
        assert run.measure[0].budget == (8, 2)
        with pytest.raises(ValueError, match=r"trained must name some of .* in a tuple, got 'w'"):
            jk.grid(**sizes, trained=["w", "v"])

    def test_a_dictionary_is_no_list_of_values(self):
        """Its names were data."""
        with pytest.raises(ValueError, match=r"data takes a value, or a list .* got a dictionary"):
            jk.grid(data={"x": np.eye(2), "y": [1, -1]})

    def test_a_draw_in_another_order_is_told(self):
        """JAX said that 5 is no key."""

        def points(samples, dim, key):
            return stripes(key, samples, dim)

        with pytest.raises(ValueError, match=r"f\(key, samples, dim\), in this order, but"):
            jk.grid(data=points, d=5, samples=4)

    def test_a_tuple_of_pairs_is_an_axis_of_data(self):
        x, y = np.eye(6, 8, dtype=np.float32), np.array([1, -1] * 3, np.float32)
        assert len(jk.grid(data=((x, y), (2 * x, y)), width=20, seed=0)) == 2

    def test_arrays_have_nothing_to_override(self):
        with pytest.raises(TypeError, match=r"or subclass jk\.data\.Distribution"):
            type("Mine", (jk.data.Arrays,), {})

    def test_an_axis_of_one_kind_leaves_the_others_alone(self):
        rules = [jk.optimizer(optax.sgd, learning_rate=0.1), "flow"]
        runs = jk.grid(d=5, samples=4, seed=0, optimizer=rules, momentum=[0.5, 0.9])
        assert [getattr(r.protocol.optimizer, "momentum", None) for r in runs] == [0.5, 0.9, None]

    @pytest.mark.parametrize("array", [np.array, jnp.array])
    def test_arrays_are_values_of_an_axis(self, array):
        runs = jk.grid(d=array([10, 20]), samples=array(8), delta=array(0.25), seed=array([1]))
        assert runs == jk.grid(d=[10, 20], samples=8, delta=0.25, seed=1)
        assert jk.grid(d=[array(10)], samples=8, delta=0.25, seed=1)[0].name == runs[0].name

    def test_whatever_gives_values_is_an_axis(self):
        runs = jk.grid(d=(d for d in (10, 20)), samples={8}, seed=range(1))
        assert runs == jk.grid(d=[10, 20], samples=8, seed=0)

    @pytest.mark.parametrize("curve", [[-1, -10], [jk.Curve([-1])], "a"])
    def test_a_curve_is_one_curve(self, curve):
        with pytest.raises(ValueError, match=r"curve must be one jk\.Curve, such as .*, got"):
            jk.grid(d=5, samples=4, curve=curve)

    @pytest.mark.parametrize(
        ("axes", "message"),
        [
            ({}, "d is missing: give the input dimension, for instance d=20"),
            ({"d": [5]}, "exactly one of `alpha` and `samples`"),
            ({"d": [5], "alpha": [1.0], "samples": [4]}, "exactly one of"),
            ({"d": [], "alpha": [1.0]}, "no values for d"),
            ({"d": [5], "alpha": [1.0], "seed": []}, "no values for seed"),
            ({"d": 5, "alpha": 1.0, "widht": 3}, "called 'widht'; did you mean 'width'"),
            ({"d": 5, "alpha": 1.0, "data": Blobs, "sgima": 3}, "did you mean 'sigma'"),
            ({"d": 5, "samples": 4, "learning_rate": 0.1}, "a field of optimizer='paper' or opt"),
            (
                {"d": 5, "samples": 4, "clusters": 2},
                "'clusters' is a field of data='clusters', and",
            ),
            ({"data": of_width, "sigma": 2.0}, "'sigma' is a parameter of the function of_width, "),
            ({"data": Unannotated, "spread": 2}, "makes it one, `spread: jk.Number = 1.5`"),
            ({"data": [np.ones((3, 2)), np.ones(3)]}, r"one array, of shape \(3, 2\): give points"),
            ({"data": [[np.ones((3, 2)), np.ones(3)]]}, r"several data are a list of tuples"),
            ({"optimizer": "adam"}, r"or one of optax's, such as jk.optimizer\(optax.adam"),
            ({"d": 5, "alpha": 1.0, "momentum": 0.5}, "no field is called 'momentum'"),
            ({"d": 5, "m": 4}, "no field is called 'm'; did you mean 'samples'"),
        ],
    )
    def test_refuses(self, axes, message):
        with pytest.raises(ValueError, match=message):
            jk.grid(**axes)

    def test_functions_that_can_be_called_so_are_taken(self):
        def draw(key, samples, dim, noise=0.1):
            raise AssertionError

        @wraps(draw)
        def without_noise(*given):
            return draw(*given, 0.1)

        class Own:
            def __call__(self, key, samples, dim):
                raise AssertionError

        def least(key, samples, dim, noise):
            raise AssertionError

        for f in (draw, without_noise, wraps(least)(without_noise), Own(), jax.jit(draw), max):
            assert len(jk.grid(data=f, d=4, samples=4, width=5, seed=0)) == 1
        assert len(jk.grid(data=partial(least, noise=0.2), d=4, samples=4, width=5, seed=0)) == 1

    def test_own_arrays_bring_their_size(self):
        x, y = np.eye(4, 3, dtype=np.float32), np.array([1, -1, 1, -1], np.float32)
        run = jk.grid(data=(x, y), width=3, seed=0)[0]
        assert (run.d, run.samples) == (3, 4)
        assert repr(run.data) == "Arrays(x=float32[4, 3], y=float32[4], name='own')"
        for axis in ("d", "samples", "alpha"):
            with pytest.raises(ValueError, match=f"arrays, which have their own {axis}: leave it "):
                jk.grid(data=(x, y), **{axis: 5})

    @pytest.mark.parametrize("x64", [False, True])
    def test_own_arrays_of_fewer_digits_are_kept_with_as_many_as_jax_computes_with(self, x64):
        """Programs are compiled for those, and took no others."""
        x, y = np.eye(4, 3, dtype=np.float16) / 3, np.array([1, -1, 1, -1], np.float16)
        with jax.enable_x64(x64):
            for kind in (np.float16, np.float32):
                data = jk.data.Arrays(x.astype(kind), y.astype(kind), x, y)
                for drawn in (data.draw_training(0), data.draw_held_out(0)):
                    assert drawn.x.dtype == drawn.y.dtype == (np.float64 if x64 else np.float32)
                    np.testing.assert_array_equal(drawn.x, x)
            data = jk.data.Arrays((x / 3).tolist(), y.tolist())
            np.testing.assert_array_equal(data.x, np.asarray((x / 3).tolist(), data.x.dtype))
            assert data.x.dtype == (np.float64 if x64 else np.float32)


def test_runs_share_the_parts_that_they_have_in_common():
    """All that is looked at once for a spec was looked at for every run of numbers of its own."""
    axes = {"d": 5, "samples": 4, "width": 3, "seed": 0}
    runs = jk.grid(**axes, delta=[0.01, 0.02], init_scale=[0.5, 1.0], slack=[1.1, 1.2])
    for part, count in (("data", 1), ("network", 1), ("protocol", 2), ("initialization", 2)):
        assert len({id(getattr(run, part)) for run in runs}) == count
    assert len({id(run.measure) for run in runs}) == 2
    assert len(set(runs)) == 8
    one, another = (jk.grid(**axes, delta=delta)[0] for delta in (0.01, 0.02))
    assert one.measure is another.measure
