"""Specs: fields, JSON, grids, own data, distributions, initializations, optimizers."""

import json
import os
import pickle
import subprocess
import sys
from functools import partial, wraps

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxkkt as jk
from jaxkkt.runs.columns import distinct
from jaxkkt.runs.run import Run
from jaxkkt.specs.same import Same

pytestmark = pytest.mark.usefixtures("unchecked")


class Blobs(jk.data.Distribution):
    sigma: jk.Number = 1.0

    def draw(self, key, samples, dim):
        y = jnp.where(jnp.arange(samples) % 2 == 0, 1.0, -1.0)
        return y[:, None] + self.sigma * jax.random.normal(key, (samples, dim)), y


class Small(jk.initializations.Initialization):
    size: jk.Number = 0.5

    def draw(self, key, width, dim):
        w = self.size * jax.random.normal(key, (width, dim))
        return jk.Params(w, jnp.zeros(width), jnp.ones(width))


def stripes(key, samples, dim):
    y = jnp.where(jnp.arange(samples) % 2 == 0, 1.0, -1.0)
    return jax.random.normal(key, (samples, dim)).at[:, 0].set(y), y


def of_width(key, samples, dim, sigma=1.0):
    x, y = stripes(key, samples, dim)
    return sigma * x, y


class Unannotated(Blobs):
    spread = 1.5


def mean_bias(params):
    return params.b.mean()


def one(**axes) -> Run:
    (run,) = jk.grid(**{"d": 5, "samples": 4, "width": 3, "seed": 0, **axes})
    return run


class TestSpec:
    def test_numbers_are_leaves_and_the_rest_is_structure(self):
        a, b = Blobs(d=5, samples=4, sigma=0.5), Blobs(d=5, samples=4, sigma=2)
        assert jax.tree.leaves(a) == [0.5]
        assert jax.tree.leaves(b) == [2.0]
        assert jax.tree.structure(a) == jax.tree.structure(b)
        assert jax.tree.structure(a) != jax.tree.structure(Blobs(d=6, samples=4))
        assert jax.tree.unflatten(jax.tree.structure(a), [2.0]) == b

    def test_a_spec_of_traced_numbers_is_one_program(self):
        chex.clear_trace_counter()

        @jax.jit
        @chex.assert_max_traces(n=1)
        def scaled(spec):
            return 2 * spec.sigma

        assert [float(scaled(Blobs(d=5, samples=4, sigma=s))) for s in (0.5, 1.5)] == [1, 3]
        with pytest.raises(AssertionError, match="traced > 1 times"):
            scaled(Blobs(d=6, samples=4))  # another size is another structure

    @pytest.mark.parametrize("value", ["x", True, None.__class__, [1.0]])
    def test_a_number_is_a_number(self, value):
        with pytest.raises(ValueError, match="sigma must be a number, got"):
            Blobs(d=5, samples=4, sigma=value)

    @pytest.mark.parametrize("kind", [jnp.float32, jnp.asarray, np.float32])
    def test_a_number_of_jax_is_that_number(self, kind):
        """Its array could not be hashed, and no sweep could take it."""
        half = kind(0.5)
        rules = [jk.optimizer(optax.sgd, learning_rate=rate) for rate in (half, 0.5)]
        specs = [(Blobs(d=5, samples=4, sigma=s), r) for s, r in zip((half, 0.5), rules, strict=1)]
        runs = [one(data=data, optimizer=rule) for data, rule in specs]
        assert runs[0] == runs[1]
        assert hash(runs[0]) == hash(runs[1])
        batch = Blobs(d=5, samples=4, sigma=jnp.array([0.5, 1.0]))
        assert jax.vmap(lambda spec: 2 * spec.sigma)(batch).tolist() == [1, 2]

    def test_a_class_has_fields_in_place_of_an_init(self):
        """It failed with a FrozenInstanceError, or set what no name told apart."""
        with pytest.raises(ValueError, match="Mine has an __init__ of its own: give it fields"):

            class Mine(jk.Measurement):
                def __init__(self, size):
                    object.__setattr__(self, "size", size)

    @pytest.mark.parametrize("value", [[0.1, 0.2], np.array([0.1, 0.2]), jnp.array([0.1, 0.2])])
    def test_several_numbers_in_one_field_are_told_with_what_to_do(self, value):
        run = one(optimizer=jk.optimizer(optax.sgd, learning_rate=value))
        with pytest.raises(ValueError, match=r"learning_rate of 'sgd' is .*jk.grid\(learning_r"):
            jk.plan_sweep([run])

    @pytest.mark.parametrize("value", ["no", 2.7, 0, None, np.ones(2, bool)])
    def test_a_bool_is_true_or_false(self, value):
        with pytest.raises(ValueError, match="normalized must be True or False, got"):
            jk.data.Digits(d=25, samples=4, normalized=value)
        with pytest.raises(ValueError, match="published must be True or False, got"):
            jk.StepFlips(published=value)

    def test_a_bool_of_a_grid_is_true_or_false(self):
        with pytest.raises(ValueError, match="upsample must be True or False, got 'no'"):
            one(data="digits", d=25, upsample=[True, "no"])
        assert one(data="digits", d=25, upsample=np.True_).data.upsample is True

    def test_equal_numbers_have_one_name(self):
        """1 and 1.0 were one run in a process, and two in its store; so were 0.0 and -0.0."""

        class Mixed(Blobs):
            share: float = 1.0
            power: float | None = None
            offset: jk.Number = 0.0

        common = {"d": 5, "samples": 4, "width": 3, "seed": 0}
        written, given = (
            jk.grid(data=Mixed, share=share, power=power, offset=offset, **common)[0]
            for share, power, offset in ((1.0, 2.0, 0.0), (1, 2, -0.0))
        )
        assert written == given
        assert written.name == given.name

    def test_whole_numbers_of_a_lane_have_32_bits(self):
        class Counted(Blobs):
            n: jk.Count = 0

        for n, message in (
            (2**31, "n must be at most 2147483647"),
            (-(2**31) - 1, "n must be at "),
        ):
            with pytest.raises(ValueError, match=message):
                Counted(d=5, samples=4, n=n)
        assert Counted(d=5, samples=4, n=-(2**31)).n == -(2**31)

    def test_misspelled_fields_name_the_nearest(self):
        with pytest.raises(ValueError, match="no field of Flow is called 'delat'; did you mean 'd"):
            jk.Flow().replace(delat=0.1)
        with pytest.raises(ValueError, match="no field is called 'samplse'; did you mean 'samples"):
            jk.grid(d=10, samplse=20)

    def test_labels_are_words(self):
        assert jk.data.UnitSphere(d=2, samples=3).label == "unit sphere"
        assert jk.optimizer(optax.adam, learning_rate=0.1).label == "adam"


class TestSizes:
    def test_alpha_counts_the_samples(self):
        assert jk.data.Sphere(d=100, alpha=0.8).samples == 40
        assert jk.data.Sphere(d=100, alpha=0.8).replace(d=200).samples == 69
        assert jk.data.Sphere(d=100, alpha=0.8).replace(samples=7).alpha is None
        assert jk.data.Sphere(d=100, samples=7).replace(alpha=1.0).samples == 100

    @pytest.mark.parametrize(
        ("sizes", "message"),
        [
            ({"d": 5}, "exactly one of `alpha` and `samples`"),
            ({"d": 5, "alpha": 1.0, "samples": 4}, "exactly one of"),
            ({"d": 0, "samples": 4}, "d must be at least 1, got 0"),
            ({"d": 5.0, "samples": 4}, "d must be an integer, got 5.0"),
            ({"d": 5, "samples": 1}, "samples must be at least 2, got 1"),
            ({"d": 10, "alpha": 10}, "alpha = 10 means more than 2147482624 samples at d = 10"),
            ({"d": 10, "alpha": 1e9}, "alpha = 1e\\+09 means more than"),
            ({"d": 10, "alpha": float("nan")}, "alpha must be a finite number, got nan"),
            ({"d": 10, "alpha": float("inf")}, "alpha must be a finite number, got inf"),
            ({"d": 10, "alpha": "a"}, "alpha must be a finite number, got 'a'"),
        ],
    )
    def test_refuses(self, sizes, message):
        with pytest.raises(ValueError, match=message):
            jk.data.Sphere(**sizes)


class TestRun:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"seed": -1}, "seed must be at least 0, got -1"),
            ({"seed": 2**32}, "seed must be at most 4294967295, got 4294967296"),
            ({"d": 2**40}, "d must be at most 2147482624, got 1099511627776"),
            ({"samples": 2**31}, "samples must be at most 2147482624, got 2147483648"),
            ({"width": 10**12}, "width must be at most 2147482624, got 1000000000000"),
            ({"max_steps": 2**31}, "max_steps must be at most 2147483647, got 2147483648"),
            ({"batch_size": 2**31}, "batch_size must be at most 2147482624, got 2147483648"),
            ({"seed": True}, "seed must be an integer, got True"),
            ({"seed": 1.0}, "seed must be an integer, got 1.0"),
            ({"width": 0}, "width must be at least 1, got 0"),
            ({"d": 0}, "d must be at least 1, got 0"),
            ({"samples": 1}, "samples must be at least 2, got 1"),
            ({"delta": [0.01, 10]}, "delta must be at most 2, the flow's largest step.* got 10"),
            (
                {"target_log_loss": 1e-30},
                r"is the logarithm of the loss.*give log\(1e-30\) = -69.08",
            ),
            ({"loss": "hinge"}, "unknown loss 'hinge': choose from"),
            ({"data": "cube"}, "unknown data 'cube': choose from"),
            ({"initialization": "ones"}, "unknown initialization 'ones': choose from"),
            ({"optimizer": "adma"}, "unknown optimizer 'adma': choose from"),
            ({"init_scale": float("nan")}, "init_scale must be positive and finite, got nan"),
            ({"data": 5}, "data must be a name, a spec, a function"),
            (
                {"data": lambda key, samples: 0},
                r"is called as f\(key, samples, dim\), but <lambda>\(key, samples\) takes",
            ),
            (
                {"initialization": lambda width, dim: 0},
                r"is called as f\(key, width, dim\), but <lambda>\(width, dim\) takes",
            ),
        ],
    )
    def test_refuses(self, change, message):
        with pytest.raises(ValueError, match=message):
            one(**change)

    def test_the_flow_takes_no_mini_batches(self):
        with pytest.raises(ValueError, match="optimizer 'flow' takes all 4 samples at every step"):
            one(batch_size=3)
        assert one(batch_size=4).protocol.full_batch(4)
        made = jk.optimizers.log_loss_time()
        for rule in (made, jk.optimizer(jk.optimizers.log_loss_time, delta=0.02)):
            assert one(optimizer=rule, batch_size=4).protocol.full_batch(4)
            with pytest.raises(ValueError, match="takes all 4 samples at every step"):
                one(optimizer=rule, batch_size=3)
        assert not one(batch_size=3, optimizer="descent").protocol.full_batch(4)

    def test_numpy_integers_are_integers(self):
        assert one(d=np.int64(5), seed=np.uint8(7)).name == one(d=5, seed=7).name

    def test_another_seed_is_all_that_changes(self):
        run = jk.grid(d=5, samples=4, width=3, seed=2, curve=jk.Curve([-1.0]))[0]
        assert all((hash(run), run.name, run.identity))  # kept once they are known
        other = run.with_seed(np.int64(7))
        made = run.replace(seed=7)
        assert type(other.seed) is int
        assert other == made != run
        assert (hash(other), other.name, other.identity) == (hash(made), made.name, made.identity)
        assert other.apart_from_seed is run.apart_from_seed
        assert made.apart_from_seed is made.replace(seed=8).apart_from_seed
        for seed in (-1, 2**32, 1.5, True, "1"):
            with pytest.raises(ValueError, match="seed must be"):
                run.with_seed(seed)

    def test_what_runs_share_is_told_apart_by_itself(self):
        some, others = (jk.grid(d=5, samples=4, width=3, seed=range(2)) for _ in range(2))
        assert some == others
        shared, same = some[0].apart_from_seed, others[0].apart_from_seed
        assert tuple(shared) == tuple(same)
        assert (shared == same, shared != same) == (shared is same, shared is not same)
        assert len({shared, shared, Same(shared), Same(shared)}) == 3

    def test_distinct_runs_are_in_the_order_in_which_their_specs_come(self):
        wide, narrow = (jk.grid(d=5, samples=4, width=k, seed=range(3)) for k in (9, 3))
        first, second = wide[0], narrow[1]
        assert distinct([first, second, narrow[0], wide[2], narrow[2]]) == [first, second]
        assert distinct([second, first, narrow[0]]) == [second, first]
        assert distinct([]) == []

    def test_a_plan_asks_for_few_ids(self):
        """Each takes ten times as long where something listens, as newest filelock does."""
        code = (
            "import sys, jaxkkt as jk\n"
            "runs, asked = jk.grid(d=5, samples=4, width=3, seed=range(4000)), []\n"
            "sys.addaudithook(lambda event, _: event == 'builtins.id' and asked.append(1))\n"
            "jk.plan_sweep(runs[:3000])\n"  # traces
            "traced = len(asked)\n"
            "jk.plan_sweep(runs)\n"
            "print(traced, len(asked) - traced)"
        )
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        traced, planned = map(int, done.stdout.split())
        assert traced > 0
        assert planned < 1000

    def test_a_run_of_another_process_is_the_same_run(self):
        code = (
            "import pickle, sys, jaxkkt as jk; run = jk.grid(d=5, samples=4, width=3)[0];"
            "hash(run); sys.stdout.buffer.write(pickle.dumps(run))"
        )
        seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
        told = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        )
        assert pickle.loads(told.stdout) in set(jk.grid(d=5, samples=4, width=3))

    def test_keys_differ_wherever_a_draw_should(self):
        base = one()
        bits = lambda key: tuple(jax.random.key_data(key).tolist())  # noqa: E731
        for field, value in (("d", 6), ("samples", 5), ("seed", 1), ("data", "gaussian")):
            assert bits(one(**{field: value}).data_key()) != bits(base.data_key())
        for field, value in (("d", 6), ("width", 4), ("seed", 1), ("initialization", "gaussian")):
            assert bits(one(**{field: value}).init_key()) != bits(base.init_key())
        assert bits(base.data_key()) != bits(base.init_key())
        assert bits(one(width=9).data_key()) == bits(base.data_key())


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
            ({"optimizer": "adam"}, r"or one of optax's, such as jk.optimizer\(optax.adam"),
            ({"d": 5, "alpha": 1.0, "momentum": 0.5}, "no field is called 'momentum'"),
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


class TestOwnDraws:
    def test_a_distribution_with_parameters(self):
        narrow, wide = (one(data=Blobs, sigma=s) for s in (0.1, 1.0))
        x, y = narrow.data.draw_training(0)
        noise = wide.data.draw_training(0).x - y[:, None]
        np.testing.assert_allclose((x - y[:, None]) * 10, noise, rtol=1e-4, atol=1e-5)
        assert narrow.data.draw_held_out(0).x.shape == (256, 5)

    def test_a_function(self):
        run = one(data=stripes)
        assert run.data.label == "stripes"
        np.testing.assert_array_equal(run.data.draw_training(0).x[:, 0], [1, -1, 1, -1])

    def test_a_distribution_of_the_wrong_shape_or_labels_is_told(self):
        with pytest.raises(ValueError, match=r"asked for x \(4, 5\) and y \(4,\), and drew"):
            one(data=lambda key, m, d: (jnp.ones((d, m)), jnp.ones(m))).data.draw_training(0)
        with pytest.raises(ValueError, match="labels must be -1 or 1"):
            one(data=lambda key, m, d: (jnp.ones((m, d)), jnp.arange(m))).data.draw_training(0)

    def test_a_distribution_without_a_draw_is_told(self):
        class Empty(jk.data.Distribution):
            sigma: jk.Number = 1.0

        with pytest.raises(ValueError, match=r"Empty has no `draw`: give it draw\(self, key, sam"):
            one(data=Empty)

    def test_a_draw_of_points_without_labels_is_told(self):
        class Bare(jk.data.Distribution):
            def draw(self, key, samples, dim):
                return jnp.ones((samples, dim))

        data = one(data=Bare).data
        message = r"draw of 'bare' must return two arrays, .* got an array of shape \({}, 5\)"
        with pytest.raises(ValueError, match=message.format(4)):
            data.draw_training(0)
        with pytest.raises(ValueError, match=message.format(256)):
            data.draw_held_out(0)
        with pytest.raises(ValueError, match=message.format(8)):
            data.draw_at(0, 4, 5, (8, 5))

    def test_an_initialization(self):
        run = one(initialization=Small, init_size=2.0)
        start = run.initialization.draw_start(0, 3, 5)
        assert start.w.shape == (3, 5)
        half = one(initialization=Small(size=1.0)).initialization.draw_start(0, 3, 5)
        np.testing.assert_allclose(start.w, 2 * half.w, rtol=1e-6)
        with pytest.raises(ValueError, match=r"asked for w \(3, 5\), b \(3,\), v \(3,\), and drew"):
            one(initialization=lambda key, k, d: jnp.ones(k)).initialization.draw_start(0, 3, 5)

    def test_shared_draws_are_those_of_the_functions(self):
        run = one(init_scale=0.5, data="gaussian")
        alone = jax.jit(jk.datasets.gaussian, static_argnums=(1, 2))(run.data_key(), 4, 5)
        np.testing.assert_allclose(run.data.draw_training(0).x, alone.x, rtol=1e-6)

    def test_arrays_are_checked_copied_and_told_apart(self):
        x, y = np.eye(4, 3, dtype=np.float32), np.array([1, -1, 1, -1], np.float32)
        mine = jk.data.Arrays(x, y)
        x[0, 0] = 5
        assert mine.x[0, 0] == 1
        assert mine != jk.data.Arrays(x, y)
        assert mine.draw_held_out(0) is None
        assert jk.data.Arrays(x, y, x, y).draw_held_out(0).x.shape == (4, 3)
        with pytest.raises(ValueError, match="float64, which JAX would round"):
            jk.data.Arrays(x.astype(float), y)
        with pytest.raises(ValueError, match="held-out points need both"):
            jk.data.Arrays(x, y, x)
        with pytest.raises(ValueError, match="held-out points have dimension 2, the others 3"):
            jk.data.Arrays(x, y, x[:, :2], y)


class TestOptimizers:
    def test_settings_of_an_optax_optimizer_are_fields(self):
        sgd = jk.optimizer(optax.sgd, learning_rate=0.1, momentum=0.9, nesterov=True)
        assert jax.tree.leaves(sgd) == [0.1, 0.9]
        assert sgd.replace(momentum=0.5) == jk.optimizer(
            optax.sgd, learning_rate=0.1, momentum=0.5, nesterov=True
        )
        assert sgd.label == "sgd"
        with pytest.raises(ValueError, match="called 'momentun'; did you mean 'momentum'"):
            jk.optimizer(optax.sgd, learning_rate=0.1, momentun=0.9)
        with pytest.raises(ValueError, match="cannot be set on a transformation that is made"):
            jk.optimizer(optax.adam(0.1), learning_rate=0.1)

    def test_settings_that_must_be_whole_stay_so(self):
        """A key of 0.0 is none, and raised within JAX; a momentum of 0 is a number of a lane."""

        def every(learning_rate, steps: int, decay=None, offset: "int | None" = None):
            return optax.sgd(learning_rate)

        noisy = jk.optimizer(optax.noisy_sgd, learning_rate=1, key=np.int32(3))
        kept = {"learning_rate": 1.0, "key": 3}
        assert {k: (v, type(v)) for k, v in noisy.settings().items()} == {
            k: (v, type(v)) for k, v in kept.items()
        }
        assert noisy.replace(key=4).settings()["key"] == 4
        noisy.transformation().init(jk.Params(jnp.ones((3, 2)), jnp.ones(3), jnp.ones(3)))
        own = jk.optimizer(every, learning_rate=1, steps=100, decay=2, offset=5).settings()
        types = {"learning_rate": float, "steps": int, "decay": float, "offset": int}
        assert {name: type(value) for name, value in own.items()} == types
        sgd = jk.optimizer(optax.sgd, learning_rate=0.1, momentum=0)
        assert jax.tree.leaves(sgd) == [0.1, 0.0]
        assert isinstance(sgd.settings()["momentum"], float)

    @pytest.mark.parametrize("rate", [0, -0.1, float("nan"), float("inf")])
    def test_a_learning_rate_is_positive(self, rate):
        with pytest.raises(ValueError, match="learning_rate must be positive and finite, got"):
            jk.optimizer(optax.adam, learning_rate=rate)
        with pytest.raises(ValueError, match="learning_rate must be positive and finite, got"):
            one(optimizer=jk.optimizer(optax.adam, learning_rate=0.1), learning_rate=rate)
        jk.optimizer(optax.adam, learning_rate=optax.constant_schedule(rate))

    def test_a_missing_setting_is_told_when_the_run_is_made(self):
        message = "adam cannot be made: .*'learning_rate'. Give it what it needs"
        with pytest.raises(ValueError, match=message):
            one(optimizer=optax.adam)
        with pytest.raises(ValueError, match=message):
            jk.Protocol(jk.optimizer(optax.adam))
        run = one(optimizer=optax.adam, learning_rate=0.1)  # an axis gives it
        assert run.protocol.optimizer == jk.optimizer(optax.adam, learning_rate=0.1)

    def test_equal_settings_make_the_same_updates(self):
        params = jk.Params(jnp.ones((3, 2)), jnp.ones(3), jnp.ones(3))
        spec, plain = jk.optimizer(optax.adam, learning_rate=0.1).transformation(), optax.adam(0.1)
        got, expected = (t.update(params, t.init(params), params)[0] for t in (spec, plain))
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_array_equal(a, b)

    def test_linear_ones_train_in_fewer_coordinates(self):
        declared = jk.optimizer(optax.sgd, linear=True, learning_rate=0.1)
        assert jk.Protocol(declared).representation_for(4, 20) == "gram"
        assert jk.Protocol(optax.sgd(0.1)).representation_for(4, 20) == "plain"
        assert jk.Protocol(jk.optimizers.linear(optax.sgd(0.1))).representation_for(4, 20) == "gram"

    @pytest.mark.parametrize(
        "factory",
        [
            optax.adam,
            optax.sign_sgd,
            lambda learning_rate: optax.chain(optax.clip(0.1), optax.sgd(learning_rate)),
            lambda learning_rate: optax.chain(
                optax.add_decayed_weights(1e-4), optax.sgd(learning_rate)
            ),
        ],
        ids=["adam", "sign", "clipped", "decayed"],
    )
    def test_what_is_declared_linear_has_to_be(self, factory):
        with pytest.raises(ValueError, match="is declared linear, and is not"):
            jk.optimizer(factory, linear=True, learning_rate=0.1)
        with pytest.raises(ValueError, match="is declared linear, and is not"):
            jk.optimizers.linear(factory(0.1))
        incomplete = jk.optimizer(factory, linear=True)
        with pytest.raises(ValueError, match="is declared linear, and is not"):
            one(optimizer=incomplete, learning_rate=0.1)

        class Own(jk.Optimizer):
            rate: jk.Number = 0.1
            linear = True

            def transformation(self):
                return factory(self.rate)

        with pytest.raises(ValueError, match="is declared linear, and is not"):
            Own()

    @pytest.mark.parametrize("float64", [False, True])
    def test_descent_and_momentum_are_linear(self, float64):
        with jax.enable_x64(float64):
            for rule in (
                optax.sgd(optax.exponential_decay(0.1, 10, 0.5), momentum=0.9, nesterov=True),
                jk.optimizers.log_loss_time(),
                jk.optimizers.paper_schedule(1e-5, 1.1, 100),
                jk.optimizers.loss_scaled(0.1, "mean"),
            ):
                jk.optimizers.linear(rule)


class TestJson:
    def test_there_and_back(self):
        sgd = jk.optimizer(optax.sgd, learning_rate=0.1, momentum=0.9)
        runs = [
            *jk.grid(d=5, alpha=1.0, seed=3, optimizer=[sgd, "flow"], loss="logistic"),
            *jk.grid(d=25, samples=9, seed=1, data=jk.data.Digits, protocol=jk.lazy.lazy_flow()),
            one(measure=[jk.Flips(slack=1.2), jk.Certificates(budget=(8, 2))]),
            one(curve=jk.Curve(log_losses=[-1, -5.5], measure=jk.Flips())),
            one(data=Blobs, sigma=0.25, initialization=Small),
            one(measure=mean_bias),
        ]
        for run in runs:
            again = jk.from_json(json.loads(json.dumps(run.to_json())))
            assert again == run
            assert again.identity == run.identity

    def test_what_json_cannot_hold_is_told(self):
        x, y = np.eye(2, dtype=np.float32), np.array([1, -1], np.float32)
        with pytest.raises(ValueError, match="holds the hash of an array"):
            jk.from_json(one_of_arrays(x, y).to_json())
        with pytest.raises(ValueError, match="cannot hold an optax transformation"):
            jk.from_json(one(optimizer=optax.adam(0.1)).to_json())
        with pytest.raises(ValueError, match="cannot be imported here"):
            jk.from_json({"kind": "nowhere:Blobs", "sigma": 1.0})

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ({"a": 1}, "takes what `to_json` of a run or spec wrote.*got {'a': 1}"),
            ({"kind": 3}, "takes what `to_json` of a run or spec wrote"),
            ({"kind": "Sphere"}, "no kind of spec is called 'Sphere'"),
            ({"kind": "os:path"}, "'os:path' is no kind of spec"),
            ({"kind": "data.Sphere", "dim": 3}, "no field of Sphere is called 'dim'"),
        ],
    )
    def test_what_no_spec_wrote_is_told(self, value, message):
        """It was a KeyError, or another error of Python's, which named nothing to do."""
        with pytest.raises(ValueError, match=message):
            jk.from_json([value])


def one_of_arrays(x, y) -> Run:
    return jk.grid(data=(x, y), width=3, seed=0)[0]
