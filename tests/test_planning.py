"""Plans: which runs share a bucket, and which buckets share draws and measurements."""

from itertools import chain, combinations

import jax
import numpy as np
import pytest
from cases import mixed_grid, planned_for

import jaxkkt as jk
from jaxkkt.engine.planning import costs, lane_counts
from jaxkkt.engine.planning.merging import merge
from jaxkkt.engine.planning.plan import OPERATIONS_PER_COMPILATION, padding_share
from jaxkkt.engine.programs.draws import drawing_of
from sweeps.vardi_figures import preset


class Guessing(jk.Training):
    """A kind of training whose steps, and the gradients of each, are guessed by its fields."""

    steps: jk.Count = 10
    gradients: jk.Count = 1

    @property
    def guessed_steps(self):
        return int(self.steps)

    @property
    def gradients_per_step(self):
        return int(self.gradients)

    @property
    def takes_padding(self):
        return True


class TestPlan:
    def test_every_run_has_one_place_that_holds_it(self):
        runs = mixed_grid()
        planned = planned_for(runs)
        assert sorted(r.name for b in planned for r in b.runs) == sorted(r.name for r in runs)
        for b in planned:
            assert b.lanes in (16, 32)
            assert b.slots % b.lanes == 0
            for r in b.runs:
                assert (r.samples, r.d, r.width) <= (b.samples, b.d, b.width)
                assert r.protocol == b.runs[0].protocol
                assert b.representation == r.protocol.representation_for(r.samples, r.d)

    def test_padding_costs_no_more_than_the_compilations_it_spares(self):
        axes = {"d": range(20, 101, 5), "alpha": [0.5, 0.8, 1.0, 1.2, 1.5], "width": [50, 900]}
        few, many = (jk.grid(**axes, seed=range(count)) for count in (1, 20))
        shapes = {(r.samples, r.d, r.width) for r in few}
        planned = planned_for(few)
        padding = sum(b.guessed_steps * (b.padded_work - b.useful_work) for b in planned)
        assert 0 < padding <= OPERATIONS_PER_COMPILATION * (len(shapes) - len(planned))
        assert len(planned) < len(shapes) / 4
        # The more runs, the more there is to pad: fewer shapes share a program.
        of_many = planned_for(many)
        assert len(planned) < len(of_many)
        assert padding_share(of_many) < padding_share(planned)
        # On an accelerator, where steps take less beside a compilation, more do.
        assert len(planned_for(many, "gpu")) < len(of_many)

    @pytest.mark.parametrize("field", ["steps", "gradients"])
    def test_what_own_steps_cost_counts_whatever_order_runs_come_in(self, field):
        sizes = [{"d": 10, "samples": 10, "width": 10}, {"d": 300, "samples": 200, "width": 100}]
        few, many = (
            [*chain(*(jk.grid(**size, seed=[0, 1], protocol=Guessing, **at) for size in sizes))]
            for at in ({}, {field: 100_000})
        )
        mixed = [*few[:2], *many[2:]] if field == "steps" else many
        assert len(planned_for(few)) == 1
        assert len(planned_for(many)) == len(planned_for(mixed)) == 2
        assert planned_for(mixed) == planned_for(mixed[::-1])

    def test_a_bucket_of_few_inputs_and_many_neurons_costs_its_products(self):
        """Sizes in another order give other costs, where d and k differ."""
        wide, square = (
            planned_for(jk.grid(d=d, samples=m, width=k, seed=0))[0]
            for d, m, k in ((100, 100, 8000), (700, 189, 1000))
        )
        per_element = costs.OPERATIONS_PER_ELEMENT
        assert wide.representation == square.representation == "gram"
        assert wide.padded_work == wide.useful_work == (2 * 100 + per_element) * 100 * 8000
        assert wide.padded_work > square.padded_work == (2 * 189 + per_element) * 189 * 1000
        assert wide.step_flops == 2 * 100 * 100 * 8000

    def test_depends_on_the_runs_and_not_their_order(self):
        runs = mixed_grid()
        assert planned_for(runs) == planned_for(runs[::-1])

    def test_an_accelerator_runs_many_lanes_and_a_cpu_many_streams(self):
        runs = jk.grid(d=[8], alpha=[1.0], width=[20], seed=range(40))
        (bucket,) = planned_for(runs, "gpu")
        assert 8 <= bucket.lanes <= 40
        on_cpu = lane_counts.streams(planned_for(runs), jax.devices("cpu"))
        assert on_cpu == min(40, lane_counts.cores())
        huge = planned_for(jk.grid(d=[10_000], samples=[30_000], width=[10_000], seed=range(9)))
        assert lane_counts.streams(huge, jax.devices("cpu")) == 1

    def test_an_accelerator_never_has_one_lane(self):
        """A batch of one is compiled to other bits."""
        for seeds in (1, 2, 3):
            (bucket,) = planned_for(jk.grid(d=8, samples=6, width=20, seed=range(seeds)), "gpu")
            assert bucket.lanes >= 2

    def test_a_ball_keeps_the_initial_weights_too(self):
        ball = jk.protocols.lazy_flow(1.0)
        inside, free = (
            planned_for(jk.grid(d=8, samples=50, width=30, seed=0, protocol=protocol))[0].slot_bytes
            for protocol in (ball, ball.replace(ball=None))
        )
        assert inside - free == 4 * 8 * 30

    def test_mini_batches_and_full_batches_are_kept_apart(self):
        runs = jk.grid(d=8, alpha=[1.0, 1.2], seed=0, protocol="paper", batch_size=10)
        planned = planned_for(runs)
        assert [b.samples for b in planned] == [8, 12]

    def test_describes_the_cost(self):
        text = str(jk.plan_sweep(mixed_grid()))
        for word in ("runs", "buckets", "lanes", "padding", "FLOP", "MiB"):
            assert word in text


def test_a_few_runs_more_have_the_slots_of_those_before():
    counts = [1, 31, 32, 64, 95, 96, 127, 128, 191, 192]
    runs = [lane_counts.runs_of_a_lane(4, count, 1e6, 1000) for count in counts]
    assert runs == [1, 1, 1, 2, 2, 3, 3, 4, 4, 6]


class TestShared:
    """What few runs are drawn and measured at: programs are shared where that costs less."""

    def test_buckets_that_share_draws_take_turns_as_long(self):
        """Else each would compile its own."""
        few = jk.grid(d=100, samples=100, width=1000, seed=range(3))
        many = jk.grid(d=100, samples=40, width=1000, seed=range(57))
        buckets = planned_for([*many, *few])
        assert len(buckets) == 2
        assert len({(b.drawn_at, b.measured_at) for b in buckets}) == 1
        assert {b.turn for b in buckets} == {1}
        (alone,) = planned_for(many)
        assert alone.turn > 1

    def test_few_runs_of_many_sizes_share_one_program_of_round_sizes(self):
        runs = jk.grid(d=[10, 20, 40], samples=[10, 20, 40], width=[50, 100], seed=range(20))
        buckets = planned_for(runs)
        assert len(buckets) > 1
        assert {(b.drawn_at, b.measured_at) for b in buckets} == {((64, 64, 256),) * 2}

    def test_many_runs_are_drawn_and_measured_at_their_own_size(self):
        (bucket,) = planned_for(jk.grid(d=10, samples=9, width=50, seed=range(2000)))
        assert bucket.drawn_at == bucket.measured_at == (9, 10, 50)
        (few,) = planned_for(jk.grid(d=10, samples=9, width=50, seed=range(20)))
        assert few.drawn_at == few.measured_at == (64, 64, 64)

    @pytest.mark.parametrize(("seeds", "programs"), [(100, 1), (400, 2)])
    def test_small_networks_are_measured_as_large_ones_while_that_takes_less(self, seeds, programs):
        runs = jk.grid(d=100, samples=100, width=[300, 3000], seed=range(seeds))
        small, large = planned_for(runs)
        assert small.lanes == large.lanes == 1
        assert large.measured_at == (100, 100, 3000)
        assert len({b.measured_at for b in (small, large)}) == programs
        assert small.measured_at == ((100, 100, 300) if programs > 1 else large.measured_at)

    def test_what_a_curve_measures_counts(self):
        curve = jk.Curve(steps=range(1, 50))
        runs = jk.grid(d=100, samples=100, width=[300, 3000], seed=range(100), curve=curve)
        small, large = planned_for(runs)
        assert small.measured_at != large.measured_at

    def test_what_is_measured_otherwise_shares_nothing(self):
        many = {"d": 10, "samples": 10, "seed": range(3)}
        runs = [
            *jk.grid(**many, width=20, measure=jk.Flips),
            *jk.grid(**many, width=100, measure=jk.Certificates, loss="logistic"),
        ]
        assert [b.measured_at for b in planned_for(runs)] == [(64, 64, 64), (64, 64, 256)]

    def test_networks_that_can_be_certified_are(self):
        """Beside more samples than are certified they were padded to as many."""
        runs = jk.grid(d=50, samples=[40, 300], width=400, seed=0, measure=jk.Certificates)
        few, many = planned_for(runs)
        assert few.measured_at[0] == 64
        assert many.measured_at[0] == 1024
        quick = preset("quick", measure=(jk.Flips(), jk.Certificates()))
        certified = [b for b in planned_for(quick) if b.measured_at[0] <= 256]
        assert sum(len(b.runs) for b in certified) == sum(r.samples <= 256 for r in quick) == 129

    @pytest.mark.parametrize(
        ("samples", "measure", "expected"),
        [
            (40, jk.Certificates, (64, 256, 256)),
            (70, jk.Certificates, (70, 256, 256)),
            (70, jk.Flips, (256, 256, 256)),
        ],
    )
    def test_samples_are_not_rounded_up_where_that_takes_many_times_as_long(
        self, samples, measure, expected
    ):
        """Of certificates 256 samples take fifteen times as long as 70."""
        runs = jk.grid(d=100, samples=samples, width=100, seed=range(20), measure=measure)
        (bucket,) = planned_for(runs)
        assert bucket.measured_at == expected

    def test_one_run_more_of_another_loss_pads_nothing(self):
        sizes = {"d": 10, "samples": 10, "width": 50}
        many, one = jk.grid(**sizes, seed=range(2000)), jk.grid(**sizes, seed=0, loss="logistic")
        buckets = planned_for([*many, *one])
        assert [b.measured_at for b in buckets] == [(10, 10, 50)] * 2

    def test_a_turn_at_a_shared_shape_takes_no_more_memory_than_training(self):
        """Many points of few coordinates, and few of many, took gigabytes together."""
        batches = {"width": 50, "seed": 0, "protocol": "paper", "batch_size": 20}
        runs = [
            *jk.grid(d=200, samples=300, **batches),
            *jk.grid(d=10, samples=20_000, **batches),
        ]
        buckets = planned_for(runs)
        assert {b.lanes for b in buckets} == {32}
        assert {b.measured_at[:2] for b in buckets} == {(1024, 256), (20_000, 10)}

    @pytest.mark.parametrize("size", [(12, 30, 20), (64, 64, 64)])
    def test_draws_of_one_size_alone_keep_it_and_are_measured_beside_others(self, size):
        def blobs(key, samples, dim):
            x = jax.random.normal(key, (samples, dim))
            return x, jax.numpy.sign(x[:, 0])

        m, d, k = size
        own = jk.grid(data=blobs, d=d, samples=m, width=k, seed=range(3))
        others = jk.grid(d=100, samples=m, width=k, seed=range(3), loss="logistic")
        mine, other = sorted(planned_for([*own, *others]), key=lambda b: b.d)
        assert mine.lanes == other.lanes
        assert mine.drawn_at == size
        assert mine.measured_at == other.measured_at == other.drawn_at
        assert mine.turn == other.turn
        _, points = drawing_of(own[0], mine.drawn_at).specs
        assert points is not None  # the device draws them


def pair_by_pair(counts, work, compilation):
    """`merge` as it is defined: at each merge all pairs are looked at."""
    groups = [([shape], shape, counts[shape]) for shape in sorted(counts)]
    while len(groups) > 1:
        pairs = []
        for (i, a), (j, b) in combinations(enumerate(groups), 2):
            size, number = tuple(map(max, a[1], b[1])), a[2] + b[2]
            padding = number * work(*size) - (a[2] * work(*a[1]) + b[2] * work(*b[1]))
            pairs.append((padding, i, j, (a[0] + b[0], size, number)))
        padding, i, j, union = min(pairs, key=lambda pair: pair[:3])
        if padding > compilation:
            break
        groups[i] = union
        del groups[j]
    return [(tuple(parts), *size) for parts, size, _ in groups]


@pytest.mark.parametrize("largest", [3, 20, 300])
def test_merging_many_shapes_looks_at_all_pairs(largest):
    """Without looking at each of them again after each merge."""
    rng = np.random.default_rng(largest)

    def work(m, d, k):
        return 100 + m * d * k

    for _ in range(60):  # in some of equal pairs the first counts
        shapes = rng.integers(1, largest + 1, (rng.integers(1, 25), 3)).tolist()
        counts = {tuple(shape): int(rng.integers(1, 6)) for shape in shapes}
        compilation = float(10 ** rng.uniform(2, 7))
        found = merge(counts, work, compilation)
        assert [tuple(shape) for shape in found] == pair_by_pair(counts, work, compilation)


def test_shapes_are_merged_while_padding_is_cheaper_than_a_compilation():
    def work(m, d, k):
        return m * d * k

    def merged(counts, compilation):
        return {shape.parts for shape in merge(counts, work, compilation)}

    small, middle, large = (1, 1, 1), (1, 2, 1), (1, 10, 1)
    counts = {small: 5, middle: 1, large: 1}
    assert merged(counts, 4.9) == {(small,), (middle,), (large,)}
    assert merged(counts, 5.0) == {(small, middle), (large,)}
    assert merged(counts, 47.0) == {(small, middle), (large,)}
    assert merged(counts, 48.0) == {(small, middle, large)}
