"""Specs: fields, sizes, runs, JSON."""

import json
import os
import pickle
import subprocess
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from spec_cases import Blobs, Small, one

import jaxkkt as jk
from jaxkkt.runs.columns import distinct
from jaxkkt.runs.run import Run
from jaxkkt.specs.same import Same

pytestmark = pytest.mark.usefixtures("unchecked")


def mean_bias(params):
    return params.b.mean()


def three(learning_rate):
    return 3


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

    def test_a_whole_number_of_own_fields_is_one(self):
        """3.0 equals 3: one was computed by what was compiled of the other."""

        class Powers(jk.data.Distribution):
            power: int = 1

            def draw(self, key, samples, dim):
                return jax.random.normal(key, (samples, dim)) ** self.power, jnp.ones(samples)

        assert type(Powers(d=3, samples=4, power=np.int64(3)).power) is int
        with pytest.raises(ValueError, match=r"power must be an integer, got 3\.0"):
            Powers(d=3, samples=4, power=3.0)

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


@pytest.fixture(scope="module")
def other_process():
    """A run of a process that hashes otherwise, and for how many ids its plans asked."""
    code = (
        "import pickle, sys, jaxkkt as jk\n"
        "run = jk.grid(d=5, samples=4, width=3)[0]\n"
        "hash(run)\n"
        "runs, asked = jk.grid(d=5, samples=4, width=3, seed=range(4000)), []\n"
        "sys.addaudithook(lambda event, _: event == 'builtins.id' and asked.append(1))\n"
        "jk.plan_sweep(runs[:3000])\n"  # traces
        "traced = len(asked)\n"
        "jk.plan_sweep(runs)\n"
        "told = {'run': run, 'asked': (traced, len(asked) - traced)}\n"
        "sys.stdout.buffer.write(pickle.dumps(told))"
    )
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    told = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONHASHSEED": seed},
        check=True,
        capture_output=True,
    )
    return pickle.loads(told.stdout)


class TestRun:
    def test_one_protocol_has_one_name(self):
        """Parameters in another order were another protocol, trained and stored again."""
        assert one(trained=("v", "b", "w", "w")) == one()
        assert one(trained=("v", "w")).name == one(trained=("w", "v")).name
        assert jk.Protocol(trained=(name for name in "vw")).trained == ("w", "v")

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
            ({"target_log_loss": -1e39}, r"target_log_loss has -1e\+39, but float32 ends at"),
            ({"trained": [()]}, r"trained must name some of .* got \(\)"),
            ({"expected_steps": 0}, "expected_steps must be at least 1, got 0"),
            ({"data": "span", "d": None, "ambient": float("inf")}, "ambient must be positive and"),
            ({"data": "clusters", "d": None, "ambient": float("inf")}, "ambient must be positive"),
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

    def test_a_plan_asks_for_few_ids(self, other_process):
        """Each takes ten times as long where something listens, as newest filelock does."""
        traced, planned = other_process["asked"]
        assert traced > 0
        assert planned < 1000

    def test_a_run_of_another_process_is_the_same_run(self, other_process):
        assert other_process["run"] in set(jk.grid(d=5, samples=4, width=3))

    def test_keys_differ_wherever_a_draw_should(self):
        base = one()
        bits = lambda key: tuple(jax.random.key_data(key).tolist())  # noqa: E731
        for field, value in (("d", 6), ("samples", 5), ("seed", 1), ("data", "gaussian")):
            assert bits(one(**{field: value}).data_key()) != bits(base.data_key())
        for field, value in (("d", 6), ("width", 4), ("seed", 1), ("initialization", "gaussian")):
            assert bits(one(**{field: value}).init_key()) != bits(base.init_key())
        assert bits(base.data_key()) != bits(base.init_key())
        assert bits(one(width=9).data_key()) == bits(base.data_key())


class TestJson:
    def test_there_and_back(self):
        sgd = jk.optimizer(optax.sgd, learning_rate=0.1, momentum=0.9)
        runs = [
            *jk.grid(d=5, alpha=1.0, seed=3, optimizer=[sgd, "flow"], loss="logistic"),
            *jk.grid(
                d=25, samples=9, seed=1, data=jk.data.Digits, protocol=jk.protocols.lazy_flow()
            ),
            one(measure=[jk.Flips(slack=1.2), jk.Certificates(budget=(8, 2))]),
            one(curve=jk.Curve(log_losses=[-1, -5.5], measure=jk.Flips())),
            one(data=Blobs, sigma=0.25, initialization=Small),
            one(measure=mean_bias),
        ]
        for run in runs:
            again = jk.from_json(json.loads(json.dumps(run.to_json())))
            assert again == run
            assert again.identity == run.identity

    def test_what_makes_no_optimizer_is_told(self):
        """A number was the optimizer of a run, which raised in its first step."""
        with pytest.raises(ValueError, match="makes no optax transformation, but 3"):
            one(optimizer=jk.optimizer(three, learning_rate=0.1))
        run = one(optimizer=jk.optimizer(optax.sgd, learning_rate=0.1)).to_json()
        run["protocol"]["optimizer"]["made_by"] = {"function": "os:getenv"}
        with pytest.raises(ValueError, match="getenv"):
            jk.from_json(run)

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
