"""Names of what is measured, and of its dimensions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from cases import sweep
from measurement_cases import AXES

import jaxkkt as jk

pytestmark = pytest.mark.usefixtures("unchecked")


def blobs_with(name):
    """A distribution with a field of this name."""

    def draw(self, key, samples, dim):
        y = jnp.where(jnp.arange(samples) % 2 == 0, 1.0, -1.0)
        return getattr(self, name) * y[:, None] + jax.random.normal(key, (samples, dim)), y

    body = {"__annotations__": {name: jk.Number}, name: 1.0, "draw": draw}
    return type("Blobs", (jk.data.Distribution,), body)


class TestFieldsOfOwnKinds:
    @pytest.mark.parametrize("name", ["status", "steps", "log_loss", "error", "curve_x"])
    def test_names_of_the_engine_are_refused_before_training(self, name):
        runs = jk.grid(**AXES, data=["sphere", blobs_with(name)])
        with pytest.raises(ValueError, match=f"a run has a field '{name}'.* the engine's own name"):
            jk.plan_sweep(runs)

    def test_names_of_measurements_and_moments_are_refused_in_whatever_run(self):
        runs = jk.grid(**AXES, data=["sphere", blobs_with("flip_size")])
        with pytest.raises(ValueError, match=r"'flip_size'.* returned by a measurement"):
            jk.plan_sweep(runs)
        noise = jk.grid(**AXES, data=blobs_with("level"))
        jk.plan_sweep(noise)
        with pytest.raises(ValueError, match="a run has a field 'level'"):
            jk.plan_sweep([run.replace(curve=jk.Curve([-1.0])) for run in noise])

    def test_a_width_beside_the_network_s_has_the_name_of_its_part(self, tmp_path):
        axes = {**AXES, "data": blobs_with("width"), "network_width": 20, "data_width": [1.0, 2.0]}
        del axes["width"]
        table = sweep(jk.grid(**axes), store=tmp_path)
        assert table.width.values.tolist() == [20]
        assert table.data_width.values.tolist() == [1.0, 2.0]
        xr.testing.assert_equal(jk.read_store(tmp_path), table)


class Strongest(jk.Measurement):
    """The largest weights of the second layer, at these ranks."""

    ranks: tuple[int, ...] = (1, 2)
    named: str = "rank"
    returned: str = "strongest"

    def measure(self, params):
        return {self.returned: -jnp.sort(-jnp.abs(params.v))[jnp.array(self.ranks) - 1]}

    def axes(self):
        return {self.returned: {self.named: self.ranks}}


class TestNamedDimensions:
    @pytest.mark.parametrize("name", ["seed", "width", "d", "level", "run", "steps", "strongest"])
    def test_one_that_the_table_has_is_refused_before_training(self, name):
        runs = jk.grid(**AXES, measure=Strongest(named=name), curve=jk.Curve([-1, -2]))
        with pytest.raises(ValueError, match=f"names a dimension '{name}', but the table"):
            jk.plan_sweep(runs)

    def test_values_stand_at_what_their_own_measurement_names(self, tmp_path):
        """Not at what another calls so, nor at that of other runs, or of the curve."""
        more = Strongest(ranks=(4, 2, 3), returned="more")
        runs = jk.grid(
            **AXES,
            max_steps=5,
            measure=[Strongest(), more],
            curve=jk.Curve(steps=[5], measure=Strongest(ranks=(3, 1))),
        )
        whole = sweep(runs, store=tmp_path).squeeze()
        for table in (whole, jk.read_store(tmp_path).squeeze()):
            strongest, more = table.strongest, table.more
            assert sorted(table["rank"].values.tolist()) == [1, 2, 3, 4]
            assert np.isfinite(strongest.sel(rank=[1, 2])).all()
            assert np.isnan(strongest.sel(rank=[3, 4])).all()
            assert np.isnan(more.sel(rank=1))
            assert more.sel(rank=2) == strongest.sel(rank=2)
            assert strongest.sel(rank=1) > more.sel(rank=2) > more.sel(rank=3) > more.sel(rank=4)
            way = table.curve_strongest
            assert way.sel(rank=1) == strongest.sel(rank=1)
            assert way.sel(rank=3) == more.sel(rank=3)
            assert np.isnan(way.sel(rank=[2, 4])).all()

    def test_values_of_other_runs_have_places_of_their_own(self):
        runs = jk.grid(**AXES, max_steps=5, measure=Strongest())
        runs += jk.grid(**AXES, max_steps=6, measure=Strongest(ranks=(2, 3)))
        table = sweep(runs)
        assert table["rank"].values.tolist() == [1, 2, 3]
        found = {steps: table.strongest.sel(max_steps=steps) for steps in (5, 6)}
        there = {steps: np.isfinite(some).any("ranks") for steps, some in found.items()}
        assert there[5].squeeze().values.tolist() == [True, True, False]
        assert there[6].squeeze().values.tolist() == [False, True, True]

    @pytest.mark.parametrize(
        ("along", "message"),
        [
            ({"rank": (1, 2)}, r"'rank' of 2 values, but it is an array of shape \(3,\)"),
            ({"rank": (1, 2, 3), "more": (1,)}, r"'more' of 1 values, but it is an array"),
            ({}, r"no dimension, but it is an array of shape \(3,\)"),
            ({"rank": (1, 2, 2)}, r"names for 'strongest' a value of 'rank' twice: \[1, 2, 2\]"),
            ({"rank": (np.nan, 1.0, -float("nan"))}, r"of 'rank' twice: \[nan, 1.0, nan\]"),
            ({"rank": ((0, 1), (0, 2), (1, 2))}, r"'rank', but those of .* are numbers or texts"),
        ],
    )
    @pytest.mark.parametrize("on_host", [False, True])
    def test_that_do_not_fit_are_refused(self, along, message, on_host):
        body = {"axes": lambda self: {"strongest": along}, "on_host": on_host}
        one = type("Wrong", (Strongest,), body)(ranks=(1, 2, 3))
        runs = jk.grid(**AXES, max_steps=5, measure=one)
        with pytest.raises(ValueError, match=message):
            sweep(runs) if on_host else jk.plan_sweep(runs)

    def test_that_do_not_fit_some_run_are_that_run_s_error(self, tmp_path):
        """Not of the whole table, when all are trained."""

        class Norms(jk.Measurement):
            on_host = True

            def measure(self, params):
                return {"norms": jnp.abs(params.v)}

            def axes(self):
                return {"norms": {"neuron": np.arange(15)}}

        runs = jk.grid(**{**AXES, "width": [10, 15, 20]}, max_steps=5, measure=Norms)
        table = sweep(runs, store=tmp_path).squeeze()
        assert table.status.sel(width=20) == jk.Status.RAISED
        assert "15 values, but it is an array of shape (20,)" in table.error.sel(width=20).item()
        assert np.isfinite(table.norms.sel(width=15)).all()
        assert np.isfinite(table.norms.sel(width=10)).sum() == 10
