"""Flip sizes as measurements: shares, slacks, and what has none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from cases import sweep
from measurement_cases import AXES, trained_alone

import jaxkkt as jk
from jaxkkt.datasets import Dataset
from jaxkkt.perturbations import FlipStatus

pytestmark = pytest.mark.usefixtures("unchecked")
measure = jax.jit(jk.Flips().measure)


class TestFlips:
    @pytest.mark.slow
    def test_sizes_of_shares_and_the_least_over_slacks(self, one_lane):
        runs = jk.grid(d=10, samples=40, width=50, seed=0)
        row = sweep(runs).squeeze()
        params, (x, y) = trained_alone(runs[0])
        margins = jk.networks.margins(params, x, y)

        def exact(slack):
            chosen = jk.perturbations.on_margin(margins, slack)
            direction = jk.perturbations.universal_direction(x, y, chosen)
            return chosen, jk.perturbations.flip_sizes_exact(params, x, y, direction, chosen)

        chosen, found = exact(1.1)
        first = np.sort(np.asarray(found.sizes)[np.asarray(chosen)])
        n = len(first)
        for name, share in (("half", 0.5), ("90", 0.9), ("99", 0.99)):
            expected = first[int(np.ceil(share * n)) - 1]
            assert float(row[f"flip_size_{name}"]) == pytest.approx(expected, rel=5e-3)
        assert row.flip_size_half < row.flip_size_90 <= row.flip_size_99
        least = min(float(exact(slack)[1].size) for slack in (1.05, 1.1, 1.15, 1.2))
        assert float(row.flip_size_least) == pytest.approx(least, rel=5e-3)
        assert row.flip_size_least <= row.flip_size_exact

    @pytest.mark.slow
    @pytest.mark.parametrize("separable", [True, False])
    def test_slacks_are_searched_anew_where_their_samples_differ(self, separable):
        """Also where nobody is on the margin: nothing is found, not the zeros of an empty start."""
        params, data = trained_alone(jk.grid(d=10, samples=40, width=50, seed=0)[0])
        if not separable:
            data = Dataset(data.x, -data.y)
        found = jax.jit(jk.Flips(slack=1.0).measure)(params, data)
        assert np.isnan(found["flip_size_least"]) != separable
        assert np.isnan(found["flip_size_half"]) != separable
        if separable:
            assert float(found["on_margin_share"]) == pytest.approx(1 / 40)

    def test_the_least_is_no_larger_than_the_exact_one(self):
        """Of young networks bisection finds no size at which all stay flipped."""
        (young,) = jk.grid(d=10, samples=8, width=10, seed=1, target_log_loss=-1)
        params, data = trained_alone(young)
        found = measure(params, data)
        assert np.isinf(found["flip_size"])
        assert found["flip_size_least"] <= found["flip_size_exact"] < np.inf
        assert not found["flip_monotone"]

    def test_a_broken_network_has_no_sizes(self):
        """A neuron that is on for nobody, whose bias is -inf: all outputs are finite."""
        params, data = trained_alone(jk.grid(d=10, samples=8, width=10, seed=0)[0])
        broken = params._replace(b=np.append(np.float32(-np.inf), params.b[1:]))
        assert np.isfinite(jk.networks.margins(broken, *data)).all()
        for network, finite in ((params, True), (broken, False)):
            found = measure(network, data)
            status = FlipStatus.FLIPPED if finite else FlipStatus.NON_FINITE
            assert found["flip_status"] == status
            for name in ("flip_size", "flip_size_exact", "flip_size_least"):
                assert np.isfinite(found[name]) == finite, name

    @pytest.mark.slow
    def test_points_that_cancel_have_no_direction(self):
        params = jk.Params(*map(jnp.array, ([[1.0], [-1.0]], [0.0, 0.0], [1.0, 1.0])))
        data = Dataset(jnp.array([[1.0], [-1.0]]), jnp.ones(2))
        found = jax.jit(jk.Flips().measure)(params, data)
        assert found["flip_status"] == FlipStatus.NOTHING_TO_FLIP
        for name in ("flip_size", "flip_size_exact", "flip_size_least"):
            assert np.isnan(found[name]), name


@pytest.mark.slow
def test_means_name_what_they_leave_out():
    table = sweep(jk.grid(**{**AXES, "seed": range(3)}, max_steps=[5, 1000]))
    summary = jk.summarize(table, "flip_size_exact").mean.squeeze()
    assert np.isnan(summary.sel(max_steps=5))
    assert np.isfinite(summary.sel(max_steps=1000))
    assert isinstance(summary, xr.DataArray)
