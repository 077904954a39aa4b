"""What studies conclude where runs failed, were not flipped, or were not asked for."""

import numpy as np
import pytest
import xarray as xr

import jaxkkt as jk
from jaxkkt import studies
from sweeps import frei_claims, vardi_claims

FAILED = jk.Status.STEP_CAP


def rows(values, status=jk.Status.CONVERGED, **coords):
    """Numbers, or what fits their dimensions: every coordinate that is a list is one of them."""
    dims = [name for name, value in coords.items() if isinstance(value, list)]
    sizes = [len(coords[name]) for name in dims]
    numbers = {**values, "status": int(status)}
    return xr.Dataset(
        {name: (dims, np.broadcast_to(value, sizes).copy()) for name, value in numbers.items()},
        coords,
    )


def unflipped(results, size, **at):
    """The results with an infinite size at this place alone."""
    here = results[size].copy()
    here.loc[at] = np.inf
    return results.assign({size: here})


def verdicts(claims, words=""):
    return [claim.holds for claim in claims if words in claim.text]


def test_a_claim_is_judged_by_what_was_measured():
    assert studies.judged("c", "1", np.bool_(True), 1.0).holds is True
    assert studies.judged("c", "1", xr.DataArray(3.0) < 2, xr.DataArray(3.0)).holds is False
    assert studies.judged("c", "nan", np.nan < 1, 1.0, np.nan).holds is None
    missed = studies.judged("c", "1", True, 1.0, unflipped=2)
    assert missed == ("c", "1; 2 not flipped", False)


def test_unflipped_runs_are_those_that_ended_as_meant():
    status = np.array([jk.Status.CONVERGED, FAILED, jk.Status.CONVERGED, jk.Status.LEFT_BALL])
    results = rows({"size": np.array([np.inf, np.inf, np.nan, np.inf])}, seed=[0, 1, 2, 3])
    assert studies.unflipped(results.assign(status=("seed", status)), "size") == 2


FLIPS = {
    "cluster_flip_half": 3.0,
    "cluster_flip_99": 3.5,
    "robust_flip_half": 9.0,
    "neighbour_flip_half": 9.0,
    "means_flip_half": 3.0,
}


def flips(**more):
    axes = {"samples": [300], "d": [100, 300], "clusters": [10, 30], "width": [50, 300]}
    return rows(FLIPS, **{**axes, "init_scale": [0.1, 1.0], "seed": [0, 1], **more})


class TestFlips:
    def test_one_network_that_is_not_flipped_is_against_it(self):
        assert verdicts(frei_claims.flips(flips())) == [True] * 9
        place = {"clusters": 30, "d": 100, "width": 50, "init_scale": 1.0, "seed": 0}
        found = frei_claims.flips(unflipped(flips(), "cluster_flip_99", **place))
        against = [claim for claim in found if not claim.holds]
        assert [claim.holds for claim in against] == [False] * 3
        assert all("99%" in claim.measured or "99%" in claim.text for claim in against)
        assert all(claim.measured.endswith("; 1 not flipped") for claim in against)
        half = frei_claims.flips(unflipped(flips(), "cluster_flip_half", **place))
        assert verdicts(half) == [False, True, True, False, False, True, False, False, False]

    def test_without_a_run_that_counts_nothing_is_decided(self):
        assert verdicts(frei_claims.flips(flips(status=FAILED))) == [None] * 9

    def test_no_network_that_is_flipped_can_be_compared(self):
        """NumPy's error of a zero-size array ended the study."""
        one = flips(d=[20], clusters=[4], width=[1], init_scale=[1.0])
        never = one.assign({name: one[name] * np.inf for name in FLIPS if "cluster" in name})
        found = frei_claims.flips(never)
        assert verdicts(found, "does not matter") == [None] * 2
        assert verdicts(found, "O(sqrt(d/k))") == [False] * 2

    def test_the_limit(self):
        names = ("cluster_flip_99", "means_flip", "flip_size_exact", "trained_on_means")
        values = {**dict.fromkeys(names, 12.0), "promised": 186.0}
        axes = {"samples": [80], "d": [1000], "width": [300], "sigma": [1.0, 0.001]}
        axes |= {"seed": [0, 1], "clusters": 10}
        measured = [0, 1, 2, 5]

        def judge(results):
            return [frei_claims.limit(results)[i].holds for i in measured]

        assert judge(rows(values, **axes)) == [True] * 4
        assert judge(rows(values, status=FAILED, **axes)) == [None] * 4
        missed = unflipped(rows(values, **axes), "cluster_flip_99", sigma=0.001, seed=1)
        assert judge(missed) == [False, True, True, False]

    def test_errors_of_networks_that_failed_are_not_compared(self):
        values = {"test_error": 0.4, "test_error_low": 0.3, "test_error_high": 0.5}
        values |= {"neighbour_error": 0.1, "linear_error": 0.1}
        axes = {"d": [300], "samples": [10, 400], "width": [50], "seed": [0, 1]}
        axes |= {"sigma": 1.0, "clusters": 10}
        assert verdicts(frei_claims.generalization(rows(values, **axes))) == [False] * 3
        failed = rows(values, status=FAILED, **axes)
        assert verdicts(frei_claims.generalization(failed)) == [None] * 3


class TestDirections:
    """The claims of Vardi et al. (2022)."""

    def table(self, **more):
        axes = {"d": [100, 300], "alpha": [0.5, 1.0], "width": [1000, 2000], "seed": [0, 1]}
        values = {"flip_size_exact": 2.0, "on_margin_share": 1.0}
        return rows(values, **{**axes, **vardi_claims.PAPER, **more})

    def test_what_is_not_flipped_within_four_times_its_norm_has_a_larger_c(self):
        words = ("stays below", "much smaller", "no significant effect")

        def judge(results):
            return [verdicts(vardi_claims.claims(results), one) for one in words]

        assert judge(self.table()) == [[True]] * 3
        near = {"alpha": 1.0, "width": 1000, "seed": 1}
        missed = unflipped(self.table(), "flip_size_exact", d=100, **near)
        assert judge(missed) == [[False], [True], [True]]
        assert vardi_claims.claims(missed)[0].measured.endswith("0.20; 1 not flipped")
        missed = unflipped(self.table(), "flip_size_exact", d=300, **near)
        assert judge(missed) == [[False]] * 3
        never = self.table().assign(flip_size_exact=self.table().flip_size_exact * np.inf)
        assert judge(never)[:2] == [[False]] * 2

    @pytest.mark.parametrize("loss", ["exponential", "logistic"])
    def test_a_setting_flipped_where_the_other_is_not_is_not_like_it(self, loss):
        table = self.table(loss=["exponential", "logistic"])
        words = "the logistic loss"
        assert verdicts(vardi_claims.claims(table), words) == [True]
        missed = unflipped(table, "flip_size_exact", loss=loss, d=300, seed=1, alpha=0.5)
        found = [c for c in vardi_claims.claims(missed) if words in c.text]
        assert [claim.holds for claim in found] == [False]
        assert "; 14 pairs of runs; 2 not flipped" in found[0].measured
