"""What studies conclude where runs failed, were not flipped, or were not asked for."""

import numpy as np
import pytest
import xarray as xr

import jaxkkt as jk
from jaxkkt import studies
from jaxkkt.studies import claims
from sweeps import (
    frei_claims,
    frei_clusters,
    frei_open,
    frei_open_claims,
    limits_probabilities,
    theorem_regime,
    theory_limits,
    vardi_bounds,
    vardi_bounds_claims,
    vardi_claims,
    vardi_transfer,
)

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


def test_a_table_of_claims_tells_of_numbers_that_there_are_none_of():
    measured = f"{np.nan:.2g} to {np.nan:.0%}"
    told = claims.table([studies.judged("all flip", measured, True, np.nan)])
    assert told.splitlines()[-1] == "| all flip | none to none | not decided |"


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


BESIDE = ("robust", "neighbour", "means")


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

    def test_other_classifiers_that_nothing_flips(self):
        """The robust network was then not harder to flip, and the linear one as easy."""
        never = flips().assign({f"{n}_flip_half": flips().means_flip_half * np.inf for n in BESIDE})
        found = {c.text.split(" is ")[0]: c for c in frei_claims.flips(never)[-3:]}
        assert [c.holds for c in found.values()] == [True, True, False]
        assert found["the robust network"].measured == "half flipped at inf to inf of the size"
        place = {"clusters": 30, "d": 100, "width": 50, "init_scale": 1.0, "seed": 0}
        one = frei_claims.flips(unflipped(flips(), "means_flip_half", **place))
        assert verdicts(one)[-3:] == [True, True, False]

    def test_without_a_run_that_counts_nothing_is_decided(self):
        assert verdicts(frei_claims.flips(flips(status=FAILED))) == [None] * 9

    def test_no_network_that_is_flipped_can_be_compared(self):
        """NumPy's error of a zero-size array ended the study."""
        one = flips(d=[20], clusters=[4], width=[1], init_scale=[1.0])
        never = one.assign({name: one[name] * np.inf for name in FLIPS if "cluster" in name})
        found = frei_claims.flips(never)
        assert verdicts(found, "does not matter") == [None] * 2
        assert verdicts(found, "O(sqrt(d/k))") == [False] * 2

    @pytest.mark.slow
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
        assert judge(never) == [[False]] * 3

    def test_a_width_that_is_not_flipped_at_the_largest_d_is_against_it(self):
        """It was judged at a smaller d."""
        table = self.table()
        sizes = table.flip_size_exact.where(~((table.width == 1000) & (table.d == 300)), np.inf)
        (found,) = (
            claim
            for claim in vardi_claims.claims(table.assign(flip_size_exact=sizes))
            if "no significant effect" in claim.text
        )
        assert not found.holds
        assert found.measured.startswith("d = m = 100: ")
        assert found.measured.endswith("; 2 not flipped")

    @pytest.mark.parametrize("loss", ["exponential", "logistic"])
    def test_a_setting_flipped_where_the_other_is_not_is_not_like_it(self, loss):
        table = self.table(loss=["exponential", "logistic"])
        words = "the logistic loss"
        assert verdicts(vardi_claims.claims(table), words) == [True]
        missed = unflipped(table, "flip_size_exact", loss=loss, d=300, seed=1, alpha=0.5)
        found = [c for c in vardi_claims.claims(missed) if words in c.text]
        assert [claim.holds for claim in found] == [False]
        assert "; 14 pairs of runs; 2 not flipped" in found[0].measured
        never = table.assign(
            flip_size_exact=table.flip_size_exact.where(table.loss != loss, np.inf)
        )
        assert verdicts(vardi_claims.claims(never), words) == [False]


def test_a_direction_that_flips_nobody_is_told():
    """It was left out, as that of a network that did not converge."""
    sizes = np.array([[np.inf, np.inf, np.inf], [1.0, 1.0, 2.0], [1.0, np.inf, 1.0]])
    names = ["a", "b", "c"]
    matrix = xr.DataArray(
        sizes[None], {"alpha": [1.0], "direction": names, "network": names}, name="flip_size"
    )
    (claim,) = vardi_transfer.claims(matrix.to_dataset())
    assert (claim.measured, claim.holds) == ("3 of 6 pairs flipped", False)
    told = vardi_transfer.summary(1.0, matrix.sel(alpha=1.0))
    assert told == "| 1 | 3 | 1.000 | 3 of 6 | 2.000 | 2.000 |"
    failed = matrix.copy()
    failed[0, 0], failed[0, :, 0] = np.nan, np.nan
    (claim,) = vardi_transfer.claims(failed.to_dataset())
    assert (claim.measured, claim.holds) == ("1 of 2 pairs flipped", False)


def test_open_questions_and_bounds_of_failed_runs_are_not_decided():
    errors = ("test_error", "neighbour_error", "linear_error", "best_error", "separable")
    values = dict.fromkeys((*errors, "cluster_flip_half", "cluster_flip_99"), 0.5)
    axes = {"d": [20], "clusters": [4, 20], "samples": [32, 160], "sigma": [0.3], "width": [50]}
    for status, holds in ((jk.Status.CONVERGED, True), (FAILED, None)):
        found = frei_open_claims.many(rows(values, status=status, **axes, seed=[0, 1]))
        assert verdicts(found) == [holds] * 4
    names = [f"{of}{what}" for of in ("", "margin_", "polished_") for what in ("applies", "z_norm")]
    names += ["flip_size_exact", "polished_flip", "bound", "robust_first", "radius"]
    axes = {"d": [100, 200], "samples": [2, 4], "width": [100], "seed": [0, 1]}
    values = {**dict.fromkeys(names, 1.0), "radius": 2.0, "robust_first": 3.0}
    good = vardi_bounds_claims.claims(rows(values, **axes))
    assert verdicts(good, "robust") == [True] * 3
    assert verdicts(good) == [True] * 10
    failed = vardi_bounds_claims.claims(rows(values, status=FAILED, **axes))
    assert verdicts(failed) == [None] * 9  # of Lemma C.9 there is nothing to say
    missed = unflipped(rows(values, **axes), "flip_size_exact", d=200, samples=4, seed=0)
    found = vardi_bounds_claims.claims(missed)
    assert verdicts(found, "there c <= |z|") == [False, False, True]
    assert verdicts(found, "radius is larger") == [True, False]


class TestLimits:
    """Where the theorems begin to speak."""

    def table(self, d, seeds):
        kinds = ("robust", "larger_margin", "linear", "neighbour", "trained")
        keys = {"points": 32.0, "violations": 0.0, "guarantee": 5.0, "attack": 6.0, "along": 7.0}
        values = {f"{kind}_{key}": n for kind in kinds for key, n in {**keys, "kept": 1.0}.items()}
        values |= {"larger_margin_attack": 1.4, "paper": 4.0}
        axes = {"data": ["sphere", "axes", "clusters"], "d": d, "width": [50], "clusters": 4}
        return rows(values, **axes, seed=list(range(seeds)))

    def test_one_dimension_is_one(self):
        """It was dropped with the dimensions of what does not vary, after training."""
        table = self.table([100], 1)
        assert verdicts(theory_limits.claims(table)) == [True] * 7
        assert theory_limits.table(table).count("| 100 |") == 15

    def test_a_run_that_failed_is_left_out(self):
        table = self.table([64, 100], 2)
        missing = table.where((table.d == 64) | (table.seed == 0))
        assert verdicts(theory_limits.claims(missing)) == [True] * 7
        none = table.where(table.data != "clusters")
        assert verdicts(theory_limits.claims(none)) == [True] * 3 + [None, True, None, None]
        broken = missing.assign(robust_kept=missing.robust_kept * 0.9)
        assert verdicts(theory_limits.claims(broken), "3.1") == [False]

    def test_a_dimension_that_was_not_measured_is_not_one_without_a_promise(self):
        keys = {"failing": 0.0, "failing_low": 0.0, "failing_high": 0.01, "promised": 1e-4}
        values = {f"{name}_{k}": v for name in limits_probabilities.EVENTS for k, v in keys.items()}
        table = rows({**values, "density_p": 0.5}, d=[10, 100])
        missing = table.where(table.d == 10).assign(status=table.status)
        found = limits_probabilities.claims(missing)
        assert verdicts(found) == [True] * 7
        assert "obeyed at 1 of 1 d; fails in 0.0%" in found[0].measured
        assert "| 100 |" not in limits_probabilities.table(missing)
        nothing = limits_probabilities.claims(table.where(table.d < 0).assign(status=table.status))
        assert verdicts(nothing) == [None] * 7


class TestRegime:
    """The theorems where their assumptions hold."""

    def table(self, z=100.0, assumed=1.0, polish=jk.kkt.PolishStatus.POLISHED, **more):
        axes = {"data_ambient": [1e5, 1e6], "width": [60], "seed": [0, 1], **more}
        values = {"flip_size_exact": 20.0, "polished_flip_size": 20.0, "z_norm": z}
        table = rows({**values, "polish_status": int(polish)}, **axes)
        ledger = xr.ones_like(table.z_norm).expand_dims(claim=["Vardi C.1", "Vardi C.2"], axis=-1)
        return table.assign(
            ledger_assumed=ledger * assumed,
            ledger_holds=ledger,
            ledger_measured=ledger,
            ledger_vacuous=ledger * 0,
        )

    def test_claims_on_nothing_are_not_decided(self):
        claims = theorem_regime.claims
        assert verdicts(claims(self.table())) == [True] * 4
        assert verdicts(claims(self.table(z=np.nan))) == [True, None, True, True]
        assert verdicts(claims(self.table(assumed=0.0))) == [None, True, True, True]
        assert verdicts(claims(self.table(data_ambient=[1e5]))) == [True, True, None, True]

    def test_claims_that_were_asked_of_nothing_do_not_count(self):
        """They held; not holding they would be broken."""
        table = self.table()
        empty = table.ledger_measured.claim == "Vardi C.2"
        table["ledger_measured"] = table.ledger_measured.where(~empty)
        table["ledger_vacuous"] = table.ledger_vacuous.where(~empty, 1)
        table["ledger_holds"] = table.ledger_holds.where(~empty, 0)
        found = theorem_regime.lemmas(table)
        assert (found.holds, found.measured) == (True, "4 of 4")
        nothing = table.sel(claim=["Vardi C.2"])
        assert theorem_regime.lemmas(nothing).holds is None
        # A bound that says nothing, and is broken all the same.
        broken = table.assign(ledger_measured=table.ledger_measured.fillna(1.0))
        assert theorem_regime.lemmas(broken).holds is False

    def test_networks_without_a_kkt_point_do_not_count(self):
        claims = theorem_regime.claims
        stopped = self.table(polish=jk.kkt.PolishStatus.STOPPED_EARLY)
        diverged = self.table(status=jk.Status.DIVERGED)
        for table in (stopped, diverged):
            assert verdicts(claims(table)) == [None] * 4
        one = self.table()
        one.polish_status.loc[{"seed": 1}] = jk.kkt.PolishStatus.STOPPED_EARLY
        assert "2 of 2 networks inside" in claims(one)[1].measured

    def test_clusters_of_failed_runs_are_not_decided(self):
        names = ("cluster_flip_half", "cluster_flip_99", "test_error")
        for status, holds in ((jk.Status.CONVERGED, True), (jk.Status.DIVERGED, None)):
            table = self.table(status=status, clusters=[4]).drop_vars("polish_status")
            table = table.assign({name: table.z_norm * 0 for name in names})
            assert verdicts(theorem_regime.frei_claims(table)) == [holds] * 3


@pytest.mark.parametrize(
    ("study", "part", "other"),
    [
        (frei_clusters, "flips --d 20 --clusters 4 100", "limit"),
        (frei_open, "many --samples", "separable"),
        (vardi_bounds, "alphas --few", "few"),
        (theorem_regime, "vardi --noisy-clusters 0", "frei"),
        (theory_limits, "constructions --drawn-d 1", "probabilities"),
    ],
)
def test_what_another_part_cannot_have_is_no_error_of_this_one(
    study, part, other, tmp_path, capsys
):
    arguments = [*part.split(), "--dry-run", "--out", str(tmp_path)]
    assert study.STUDY.main(["--part", *arguments]) == 0
    assert study.STUDY.main(["--part", other, *arguments[1:]]) == 2
    assert "error: " in capsys.readouterr().err
