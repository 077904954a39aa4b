"""The study of optimizers: a page of 80 lines, and what it finds on small networks."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from sweeps import optimizers


def test_it_is_a_page():
    assert len(Path(optimizers.__file__).read_text().splitlines()) <= 80


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_optimizers_are_compared_with_the_flow(tmp_path, capsys):
    assert optimizers.STUDY.main(["--d", "20", "--quiet", "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "| c stays below sqrt(d): descent 0.001 | 0 of 9 at 1e-30;" in told
    assert "| not decided |" in told
    results = optimizers.by_rule(xr.load_dataset(tmp_path / "results.nc"))
    assert results.sizes["rule"] == 9
    flow = results.sel(rule="flow")
    for rule in ("sgd 0.001", "momentum 0.001", "normalized 0.001"):
        change = results.normalized_margin.sel(rule=rule) / flow.normalized_margin - 1
        assert abs(change).max() < 0.02
    adam = results.normalized_margin.sel(rule="adam 0.001") / flow.normalized_margin
    assert np.isfinite(adam).all()
    assert (adam < 0.8).all()
    assert (tmp_path / "optimizers.png").stat().st_size > 10_000
