"""The study of clustered data, at a size that takes seconds."""

import json

import numpy as np
import pytest
import xarray as xr

from sweeps import frei_clusters


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clusters")
    sizes = [
        "--d",
        "40",
        "80",
        "--clusters",
        "3",
        "4",
        "--width",
        "20",
        "30",
        "--sigma",
        "0.5",
        "1",
    ]
    arguments = [
        *sizes,
        "--per-cluster",
        "1",
        "4",
        "--seeds",
        "1",
        "--means",
        "orthogonal",
        "--quiet",
    ]
    arguments += ["--out", str(folder)]
    assert frei_clusters.STUDY.main(arguments) == 0
    return folder


@pytest.mark.slow
def test_both_parts_leave_claims_rows_and_panels(out):
    for part, panel, count in (("generalization", "errors", 4), ("flips", "flips", 5)):
        claims = json.loads((out / part / "claims.json").read_text())
        found = claims["claims"] if isinstance(claims, dict) else claims
        assert len(found) == count
        assert (out / part / f"{panel}.png").stat().st_size > 5000


@pytest.mark.slow
def test_samples_are_counted_a_cluster(out):
    table = xr.load_dataset(out / "generalization" / "results.nc")
    assert table.samples.values.tolist() == [4, 16]  # of 4 clusters, at d = 80
    assert table.d.item() == 80
    # With four samples of every cluster points near their means are told apart by everyone.
    few, many = (table.sel(sigma=0.5, samples=n) for n in (4, 16))
    for name in ("test_error", "neighbour_error", "linear_error"):
        assert float(many[name].max()) <= 0.02
        assert float(few[name].max()) > float(many[name].max()) - 1e-9


@pytest.mark.slow
def test_the_robust_network_and_the_linear_predictor_stand_beside(out):
    table = xr.load_dataset(out / "flips" / "results.nc").isel(samples=0)
    ratio = table.cluster_flip_half / np.sqrt(table.d / table.clusters)
    assert ((ratio > 0.5) & (ratio < 2)).all()
    # u/|u| takes a point of its cluster to the boundary of the linear predictor at (d - |u| c)/d.
    expected = table.d / table.direction_norm
    np.testing.assert_allclose(table.means_flip_half / expected, 1, atol=0.1)
    assert (table.robust_flip_half > table.cluster_flip_half).all()
