"""Exponents that the studies of Wang et al. fit."""

import numpy as np
import pytest
import xarray as xr

import jaxkkt as jk
from sweeps import (
    wang_claims,
    wang_fits,
    wang_thresholds,
)


def steps_table(d, status, data="sphere", **axes):
    """What `wang_steps` has in its results, of one width and seed."""
    coords = {"d": d, "width": [20], "seed": [0], **axes}
    names = (*wang_claims.EXPONENTS, "step_needed_share", "step_flipped_share")
    sizes = tuple(len(values) for values in coords.values())
    variables = {name: (tuple(coords), np.full(sizes, 0.5)) for name in names}
    variables["status"] = (tuple(coords), np.full(sizes, int(status)))
    return xr.Dataset(variables, coords | {"data": data, "published": False})


def figure_7(point_eta, status=jk.Status.LEFT_BALL):
    at = {"d": 784, "width": 100_000, "ball": 10.0, "data": "mnist"}
    return xr.Dataset({"point_eta": point_eta, "status": int(status)}, at)


class TestFits:
    def test_power_laws_are_found_with_their_interval(self):
        d = np.repeat([25.0, 100.0, 400.0], 2)
        exact = wang_fits.fit(d, 3 * d**-0.5)
        assert exact is not None
        assert exact == pytest.approx((-0.5, -0.5, -0.5))
        noise = np.array([1.1, 0.9, 1.2, 0.85, 0.95, 1.05])
        found = wang_fits.fit(d, 3 * d**-0.5 * noise)
        assert found is not None
        assert found.low < -0.5 < found.high
        assert found.high - found.low > 0.05

    def test_too_few_points_are_not_fitted(self):
        assert wang_fits.fit(np.array([1.0, 2.0]), np.array([1.0, 2.0])) is None
        assert wang_fits.fit(np.array([4.0, 4.0, 4.0]), np.ones(3)) is None
        assert wang_fits.fit(np.array([1.0, 2.0, 4.0]), np.array([1.0, np.nan, 0.0])) is None

    def test_exponents_of_large_d_are_told_apart(self):
        d = np.array([25, 49, 100, 196, 784])
        values = np.where(d < 100, 10.0, np.sqrt(d))
        good = xr.DataArray(values[:, None], {"d": d, "seed": [0]}, ("d", "seed"))
        assert wang_claims._far(good).startswith("; over d >= 100 exponent 0.50 (0.50 to 0.50)")
        assert wang_claims._far(good.isel(d=slice(4))) == ""  # too few of them
        assert wang_claims._far(good.isel(d=slice(2, None))) == ""  # all are

    def test_the_step_of_figure_7_is_judged_where_the_paper_measured_it(self):
        steps = xr.DataArray(np.array([0.03, 0.04, np.nan, 0.05]), dims="point")
        results = figure_7(steps)
        (claim,) = wang_claims.step_of_figure_7(results)
        assert claim.holds
        assert claim.measured == (
            "median 0.040, half from 0.035 to 0.045, nine tenths from 0.031 to 0.049 "
            "(d = 784, k = 100000, C0 = 10)"
        )
        (far,) = wang_claims.step_of_figure_7(results.assign(point_eta=steps * 3))
        assert far.holds is False
        (other,) = wang_claims.step_of_figure_7(results.assign_coords(d=100))
        assert other.holds is None
        (random,) = wang_claims.step_of_figure_7(results.assign_coords(data="sphere"))
        assert random.holds is None
        for status in (jk.Status.STEP_CAP, jk.Status.DIVERGED):
            (failed,) = wang_claims.step_of_figure_7(figure_7(steps, status))
            assert failed.holds is None
            assert failed.measured.startswith("no test point counts")

    def test_eta_in_the_tail_of_the_steps_is_not_what_they_concentrate_around(self):
        steps = xr.DataArray(np.linspace(0.012, 0.05, 100), dims="point")
        (claim,) = wang_claims.step_of_figure_7(figure_7(steps))
        assert claim.holds is False

    def test_without_points_that_count_figure_7_is_not_judged(self):
        nothing = xr.DataArray(np.full(3, np.nan), dims="point")
        (claim,) = wang_claims.step_of_figure_7(figure_7(nothing))
        assert claim.holds is None
        assert claim.measured == "no test point counts (d = 784, k = 100000, C0 = 10)"

    def test_crossings_lie_between_sizes(self):
        sizes = np.array([0.1, 0.2, 0.4, 0.8])
        assert wang_fits.crossing(sizes, np.array([1, 0.9, 0.1, 0]), False) == pytest.approx(
            0.08**0.5
        )
        assert wang_fits.crossing(sizes, np.array([0, 0.5, 1, 1]), True) == pytest.approx(0.2)
        assert np.isnan(wang_fits.crossing(sizes, np.ones(4), False))
        assert np.isnan(wang_fits.crossing(sizes[:1], np.ones(1), False))
        one_failed = np.array([1, 0.9, np.nan, 0.1])
        assert wang_fits.crossing(sizes, one_failed, False) == pytest.approx(0.4)

    def test_crossings_are_of_the_way_that_is_asked_for(self):
        sizes, first_failed = np.array([0.1, 0.2, 0.4, 0.8]), np.array([0.4, 0.9, 0.1, 0])
        assert wang_fits.crossing(sizes, first_failed, False) == pytest.approx(0.08**0.5)
        assert wang_fits.crossing(sizes, first_failed, True) == pytest.approx(0.1 * 2**0.2)
        assert np.isnan(wang_fits.crossing(sizes, np.array([0, 0.4, 0.6, 1]), False))

    def test_where_accuracy_does_not_cross_is_told(self):
        where, reach = ["(d = 25)", "(d = 49)"], np.array([0.2, 0.25, 0.3])
        told = wang_thresholds.crossings(np.array([np.nan, 0.27]), where, reach, False)
        assert told == (
            "crosses 1/2 at 0.270 (d = 49); does not fall through 1/2 between 0.2 and 0.3 (d = 25)"
        )
        told = wang_thresholds.crossings(np.array([np.nan, np.nan]), where, reach[2:], True)
        assert told == "no crossing can be told from 0.3 alone (d = 25), (d = 49)"

    def test_exponents_of_too_few_d_are_not_decided(self):
        found = wang_claims.claims(steps_table(d=[25, 49], status=jk.Status.LEFT_BALL))
        assert [c.measured for c in found] == ["too few d with runs that count: 2"] * 3
        assert [c.holds for c in found] == [None] * 3
        assert found[0].text == "the gradient ~ d^(1/2), k = 20"

    @pytest.mark.parametrize(
        ("failed", "told"),
        [
            ({"d": [49, 100], "ball": [20.0, 30.0]}, "3.00, nan, nan times; 0 of 2 steps fall"),
            ({"ball": [20.0]}, "3.00, 3.00, 3.00 times; 0 of 3 steps fall"),
            ({"d": [49, 100], "ball": [10.0, 20.0]}, "3.00, nan, nan times; 0 of 2 steps fall"),
        ],
    )
    def test_growth_is_told_of_the_balls_that_have_means(self, failed, told):
        table = steps_table([25, 49, 100], jk.Status.LEFT_BALL, ball=[10.0, 20.0, 30.0])
        grows = table.assign({n: table[n] * table.ball for n in wang_claims.EXPONENTS})
        grows.status.loc[failed] = jk.Status.STEP_CAP
        (claim,) = (c for c in wang_claims.claims(grows) if c.text == "the gradient grows with C0")
        assert claim.holds is True
        assert claim.measured == f"30 against 10, by d: {told}"

    def test_growth_between_balls_around_one_without_a_mean(self):
        table = steps_table([25], jk.Status.LEFT_BALL, ball=[10.0, 20.0, 30.0])
        falls = table.assign({n: table[n] / table.ball for n in wang_claims.EXPONENTS})
        falls.status.loc[{"ball": 20.0}] = jk.Status.STEP_CAP
        found = [c for c in wang_claims.claims(falls) if "grows" in c.text]
        assert [claim.holds for claim in found] == [False] * 3
        assert all("1 of 1 steps fall" in claim.measured for claim in found)

    def test_without_runs_that_count_nothing_is_decided(self):
        capped = jk.Status.STEP_CAP
        table = steps_table(d=[25, 49, 100], status=capped, data="digits", ball=[10.0, 20.0])
        found = wang_claims.claims(table)
        assert len(found) == 2 * 3 + 3 + 1
        assert {c.holds for c in found} == {None}
        assert not any("nan" in c.measured for c in found)
        assert "there is no mean" in wang_claims.notes(table)

    @pytest.mark.parametrize(("constant", "exponent"), [(5, -0.5), (5, -0.1), (1, -0.5)])
    def test_thresholds_hold_where_they_should(self, constant, exponent):
        d = np.array([25, 100, 400])
        radii = np.geomspace(0.001, 10, 400)
        accuracy = (radii[None] < constant * d[:, None] ** exponent).astype(float)
        accuracy = np.stack([accuracy, 1 - accuracy], axis=-1)  # of the second, which diverged
        dims = ("d", "radius", "seed")
        table = xr.Dataset(
            {
                name: (dims, accuracy)
                for name in ("robust_accuracy", "robust_accuracy_normalized", "accuracy")
            },
            coords={"d": d, "radius": radii, "seed": [0, 1]},
        ).assign(half_way=(dims, np.full((3, 400, 2), 0.25)))
        status = [jk.Status.SETTLED, jk.Status.DIVERGED]
        table = table.assign(status=(dims, np.broadcast_to(status, (3, 400, 2))))
        found = wang_thresholds.thresholds(table, "left")
        good = constant == 5 and exponent == -0.5
        assert [claim.holds for claim in found] == [good, good]
        assert all(f"exponent {exponent:.2f}" in claim.measured for claim in found)
        assert "median: 0.250 (d = 25)" in wang_thresholds.notes(table, "left")
        # The paper's accuracy drops there: one that rises is another finding.
        names = ("robust_accuracy", "robust_accuracy_normalized")
        rising = wang_thresholds.thresholds(table.assign({n: 1 - table[n] for n in names}), "left")
        assert [claim.holds for claim in rising] == [None, None]
        assert "does not fall through 1/2 between" in rising[0].measured
