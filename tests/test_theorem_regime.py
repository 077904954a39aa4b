"""The study of the theorems where their assumptions hold, in small."""

from math import log, sqrt

import numpy as np
import pytest
import xarray as xr

from sweeps import theorem_regime


@pytest.mark.parametrize("d", [1e4, 1e5, 1e7])
def test_as_many_samples_as_the_theorem_allows(d):
    """One more would break m <= (d+1)/(3 (p+1)) at the p that is reckoned with."""
    m = theorem_regime.allowed(d)

    def inside(m):
        p = 1.1 * sqrt(2 * d * log(m**2 / 2))
        return m <= (d + 1) / (3 * (p + 1))

    assert inside(m)
    assert not inside(m + 1)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_both_parts_run(tmp_path):
    sizes = ["--d", "1e4", "--width", "30", "--tests", "10", "--seeds", "2"]
    clusters = ["--orthogonal-clusters", "2", "--noisy-clusters", "2"]
    out = str(tmp_path)
    assert theorem_regime.STUDY.main([*sizes, *clusters, "--out", out, "--quiet"]) == 0
    first = xr.open_dataset(tmp_path / "vardi" / "results.nc")
    inside = first.ledger_assumed == 1
    assert (first.ledger_holds.where(inside, 1) == 1).all()
    table = theorem_regime.rows(first)
    assert len(table) == 2
    # Of points with two that are too near to each other the theorem says nothing: one in eleven.
    inside = table[np.isfinite(table.z_norm)]
    assert len(inside) >= 1
    assert (inside.polished_flip_size < inside.z_norm).all()
    second = xr.open_dataset(tmp_path / "frei" / "results.nc")
    assert len(theorem_regime.rows(second)) == 4
    lemma = theorem_regime.lemmas(second)
    assert lemma.holds
    broken = second.assign(ledger_holds=second.ledger_holds * 0)
    assert not theorem_regime.lemmas(broken).holds
    assert (tmp_path / "vardi" / "sizes.png").stat().st_size > 10_000
