"""What a class says of its methods holds for them alone: one that brings another method inherits no
promise about it. And what is lent to one measurement is not another's to change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from spec_cases import Blobs, one

import jaxkkt as jk
from jaxkkt.engine.programs.draws import drawn_on_device
from jaxkkt.studies import Context

pytestmark = pytest.mark.usefixtures("unchecked")


class Margins(jk.Flips):
    """Knows nothing of padding, other than what it is derived from."""

    def measure(self, params, data):
        return {"mean_margin": jk.networks.margins(params, *data).mean()}


class Masked(Margins):
    padded = True

    def measure(self, params, data):
        margins = jk.networks.margins(params, *data)
        return {"mean_margin": jnp.mean(margins, where=data.y != 0)}


class Renamed(jk.Flips):
    bracket: jk.Number = 2.0


def test_a_measurement_that_brings_its_own_measure_sees_no_padding_unless_it_says_so():
    assert [cls.padded for cls in (jk.Flips, Margins, Masked, Renamed)] == [True, False, True, True]


class SameForAll(jk.data.Sphere):
    """The same points for every seed."""

    def data_key(self, seed):
        return super().data_key(0)


class BySize(Blobs):
    @property
    def tag(self):
        return f"blobs of {self.d + 1}"


class OfSize(Blobs):
    @property
    def tag(self):
        return f"blobs of {self.d}"


def first(data):
    return {"first": data.x[0, 0]}


@pytest.mark.parametrize("data", [SameForAll, BySize, OfSize])
def test_points_are_drawn_by_the_key_that_a_distribution_gives(data):
    runs = [one(data=data, seed=seed, measure=first, max_steps=1) for seed in (0, 1)]
    assert not any(run.data.traceable for run in runs)
    drawn = [jk.draw(run)[1].x[0, 0] for run in runs]
    assert (drawn[0] == drawn[1]) == (data is SameForAll)
    if data is OfSize:
        np.testing.assert_array_equal(jk.sweep(runs)["first"].values.ravel(), drawn)


def test_shipped_distributions_are_drawn_on_the_device():
    assert one(data="sphere").data.traceable
    assert one(data=Blobs).data.traceable


def test_bits_that_depend_on_the_shape_are_drawn_by_the_host():
    """A run's data were others where a larger one was beside it."""
    init, data = one().initialization, one(data="sphere").data
    assert drawn_on_device(init, data, own_size=True) == (True, True)
    with jax.threefry_partitionable(False):
        assert drawn_on_device(init, data, own_size=True) == (False, False)
        assert drawn_on_device(init, one(data=Blobs).data, own_size=True) == (False, True)


def test_images_that_each_seed_draws_are_not_those_of_the_first():
    class Shuffled(jk.data.Digits):
        def draw_held_out(self, seed):
            return super().draw_held_out(seed)

    class Larger(jk.data.Digits):
        pass

    assert [cls.same_for_all_seeds for cls in (Larger, Shuffled)] == [True, False]


def test_images_that_later_runs_read_cannot_be_changed():
    held_out = jk.held_out(one(data="digits", d=64, samples=4))
    with pytest.raises(ValueError, match="read-only"):
        held_out.x[:] = 0
    with pytest.raises(ValueError, match="read-only"):
        held_out.y[:] = 0


class Sum(jk.Measurement):
    """Changes what it is given."""

    on_host = True
    name: str = "a"

    def measure(self, curve):
        total = curve.w.sum()
        curve.w[:] = 0
        return {self.name: total}


def test_what_one_measurement_does_to_a_curve_no_other_one_sees():
    run = one(measure=[Sum(name="a"), Sum(name="b")], curve=jk.Curve(steps=[0]), max_steps=1)
    table = jk.sweep([run])
    assert table.a.item() == table.b.item() != 0


def test_a_network_that_is_not_the_row_s_is_not_given_for_it(tmp_path):
    run = one(measure=(), max_steps=1)
    jk.sweep([run], store=tmp_path, keep="params")
    (kept,) = (tmp_path / "networks").iterdir()
    before = jk.load_network(tmp_path, run)
    assert before.w.shape == (run.width, run.d)
    kept.rename(kept.with_name(f"{run.name}-{'0' * 16}.npz"))
    with pytest.raises(ValueError, match=r"keeps a network of d5.*no row that counts says"):
        jk.load_network(tmp_path, run)


def test_neurons_of_no_output_weight_count_in_the_distance():
    rng = np.random.default_rng(0)
    w, x = (rng.normal(size=size).astype(np.float32) for size in ((9, 3), (4, 3)))
    start = jk.Params(w, np.zeros(9, np.float32), np.zeros(9, np.float32))
    moved = start._replace(w=w + np.float32(0.5))
    test = jk.Dataset(x, np.ones(4, np.float32))
    params, start = (jk.networks.pad(one, 12, 3) for one in (moved, start))
    found = jax.jit(jk.StepFlips().measure)(params, test, start)["furthest"]
    np.testing.assert_allclose(found, 0.5 * 3**0.5 * 9**0.5, rtol=1e-6)


def test_a_run_is_found_where_it_has_no_value(tmp_path):
    runs = jk.grid(d=3, samples=8, width=4, seed=0, optimizer="descent", batch_size=[None, 5])
    coords = {"batch_size": [5.0, np.nan], "seed": [0]}
    table = xr.Dataset({"status": (("batch_size", "seed"), [[1], [2]])}, coords)
    context = Context(runs, tmp_path)
    assert [int(context.row(table, run).status) for run in runs] == [2, 1]
    assert context.row(table.isel(batch_size=[0]), runs[0]) is None
    with pytest.raises(ValueError, match="a table along `run` has no place"):
        context.row(table.stack(run=("batch_size", "seed")), runs[0])


class Scaled(jk.Measurement):
    c: jk.Number = 1.0

    def measure(self, params):
        return {"scaled": self.c * params.w.sum()}


class OnHost(Scaled):
    on_host = True


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"init_scale": 1e-50}, "scale of 'torch' is 1e-50, but what is smaller than"),
        ({"measure": Scaled(c=1e39)}, r"c of 'scaled' has 1e\+39, but float32 ends at"),
        ({"measure": Scaled(c=-1e-46)}, "c of 'scaled' is -1e-46, but what is smaller than"),
        ({"optimizer": jk.Flow(delta=1e-40)}, "delta of .* is 1e-40, but what is smaller than"),
    ],
)
def test_numbers_that_lanes_would_take_for_others_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        jk.plan_sweep([one(**changes)])
    with jax.enable_x64(True):
        assert jk.plan_sweep([one(**changes)]).runs == 1


def test_numbers_of_the_host_s_measurements_are_kept():
    assert jk.plan_sweep([one(measure=OnHost(c=1e300))]).runs == 1
