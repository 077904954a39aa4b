"""The study of optimizers: a page of 80 lines, and what it finds on small networks."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import jaxkkt as jk
from sweeps import optimizers


def test_it_is_a_page():
    assert len(Path(optimizers.__file__).read_text().splitlines()) <= 80


def test_runs_that_did_not_flip_are_counted_and_in_no_mean():
    """c of one of three was inf, and so was the mean."""
    dims, values = ("d", "alpha", "width", "seed", "optimizer", "learning_rate"), {}
    shape = (1, 1, 1, 3, 2, 2)
    for name in (*optimizers.PANELS, "steps"):
        values[name] = (dims, np.ones(shape))
    c, status = np.full(shape, 5.0), np.full(shape, int(jk.Status.CONVERGED))
    status[..., 0, 0] = status[..., 1, 1] = jk.engine.NOT_RUN  # flow at a rate, sgd at none
    c[0, 0, 0, :, 1, 0] = 10, 14, np.inf
    values |= {"flip_size_exact": (dims, c), "status": (dims, status)}
    coords = {"d": [400], "optimizer": ["flow", "sgd"], "learning_rate": [0.1, np.nan]}
    table = xr.Dataset(values, coords)
    flow, sgd = optimizers.claims(table)
    assert flow.holds is True
    assert flow.measured.startswith("3 of 3 at 1e-30; c/sqrt(d) 0.25 at most")
    assert sgd.holds is False
    assert sgd.measured.startswith(
        "3 of 3 at 1e-30, 1 of them not flipped; c/sqrt(d) 0.60 at most, means; medians over the "
        "flow's: flip_size_exact 2.800"
    )
    c[0, 0, 0, :, 1, 0] = 10, 14, 12
    assert optimizers.claims(table)[1].holds is True


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
