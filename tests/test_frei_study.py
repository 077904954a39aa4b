"""The study of clustered data, at a size that takes seconds."""

import json
import re

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import jaxkkt as jk
from jaxkkt.theory import frei
from sweeps import frei_claims, frei_clusters

SIZES = "--d 40 80 --clusters 3 4 --width 20 30 --sigma 0.5 1 --per-cluster 1 4 --seeds 1"
LIMIT = "--init-scale 0.1 1 --limit-sigma 1 0.0003"


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clusters")
    arguments = [*SIZES.split(), *LIMIT.split(), "--means", "orthogonal", "--quiet"]
    assert frei_clusters.STUDY.main([*arguments, "--out", str(folder)]) == 0
    return folder


@pytest.mark.parametrize("option", ["d", "clusters", "width", "init-scale"])
def test_a_grid_without_values_is_told(option, tmp_path, capsys):
    """Python's traceback told of an index out of range."""
    arguments = [f"--{option}", "--dry-run", "--out", str(tmp_path)]
    assert frei_clusters.STUDY.main(arguments) == 2
    name = option.replace("-", "_")
    assert f"error: the grid is empty: no values for {name}\n" in capsys.readouterr().err


def table_of(out, part):
    return xr.load_dataset(out / part / "results.nc")


def claims_of(out, part):
    return json.loads((out / part / "claims.json").read_text())["claims"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "panel", "count", "runs"),
    [("generalization", "errors", 4, 8), ("flips", "flips", 9, 10), ("limit", "limit", 6, 2)],
)
def test_parts_leave_claims_rows_and_panels(out, part, panel, count, runs):
    assert len(claims_of(out, part)) == count
    assert int((table_of(out, part).status >= 0).sum()) == runs
    assert (out / part / f"{panel}.png").stat().st_size > 5000


@pytest.mark.slow
def test_samples_are_counted_a_cluster(out):
    table = table_of(out, "generalization")
    assert table.samples.values.tolist() == [4, 16]  # of 4 clusters, at d = 80
    assert table.d.item() == 80
    # With four samples of every cluster points near their means are told apart by everyone.
    few, many = (table.sel(sigma=0.5, samples=n) for n in (4, 16))
    for name in ("test_error", "neighbour_error", "linear_error"):
        assert float(many[name].max()) <= 0.02
        assert float(few[name].max()) > float(many[name].max()) - 1e-9


@pytest.mark.slow
def test_other_classifiers_stand_beside(out):
    table = table_of(out, "flips").isel(samples=0).sel(init_scale=1.0)
    ratio = table.cluster_flip_half / np.sqrt(table.d / table.clusters)
    assert ((ratio > 0.5) & (ratio < 2)).all()
    # u/|u| takes a point of its cluster to the boundary of the linear predictor at (d - |u| c)/d.
    expected = table.d / table.direction_norm
    np.testing.assert_allclose(table.means_flip_half / expected, 1, atol=0.1)
    assert (table.robust_flip_half > table.cluster_flip_half).all()
    # Orthogonal means: the other class is as near as the own at 2d - 4 c sqrt(d/k) = 0.
    near = np.sqrt(table.d * table.clusters) / 2
    np.testing.assert_allclose(table.neighbour_flip_half / near, 1, atol=0.2)
    assert table.promised.isnull().all()  # far from Assumption 2.2


@pytest.mark.slow
def test_initial_scales_share_their_data_and_one_z_is_for_all(out):
    """The same classifiers beside it at every scale; the largest size flips 99% of each."""
    table = table_of(out, "flips").isel(samples=0).sel(d=80, clusters=4)
    for name in ("neighbour_flip_half", "direction_norm"):
        assert float(table[name].max() - table[name].min()) == 0
    spread = float(table.cluster_flip_99.max() / table.cluster_flip_99.min())
    largest = float(table.cluster_flip_99.max()) / np.sqrt(80 / 4)
    (claim,) = (c for c in claims_of(out, "flips") if "all networks" in c["text"])
    assert "up to 4 networks" in claim["measured"]
    assert float(re.search(r"to (\S+) of the smallest", claim["measured"])[1]) >= spread - 0.01
    assert float(re.search(r"to (\S+) sqrt", claim["measured"])[1]) >= largest - 0.01


@pytest.mark.slow
def test_fresh_points_become_the_means(out):
    table = table_of(out, "limit").isel(samples=0, d=0)
    away = abs(table.cluster_flip_99 / table.means_flip - 1)
    assert float(away.sel(sigma=0.0003).max()) < 0.02 < float(away.sel(sigma=1.0).min())
    # Samples on their means: trained on them or on the means, c is nearly the same.
    last = table.sel(sigma=0.0003)
    np.testing.assert_allclose(last.trained_on_means / last.means_flip, 1, atol=0.1)
    assert table.promised.sel(sigma=1.0).isnull().all()
    assert (last.promised > last.cluster_flip_99).all()


@pytest.mark.slow
def test_both_theorems_by_hand():
    """Four orthogonal means in d = 1,000 with p = 0, c = 1/2: the formulas of both papers."""
    d, k, sigma = 1000, 4, 1e-4
    means, labels = jnp.sqrt(1000.0) * jnp.eye(k, d), jk.mixtures.labels(k)
    found = frei_claims.promised(frei.clusters(means, labels, sigma))
    noise = 4 * sigma * d**0.5 * np.log(d)
    mass, room = k * (noise + 1) / (d - noise + 1), d - noise - k * noise
    second = 3 * (3 * d + noise + 1) * (1 - 2 * mass) / (room * (1 - 3 * mass) * 0.5 * k)
    assert found["promised_eta1"] == pytest.approx((2 * noise + 1) / room, rel=1e-4)
    assert found["promised_eta2"] == pytest.approx(second, rel=1e-4)
    assert found["promised_vardi_eta1"] == pytest.approx(1 / d, rel=1e-4)
    theirs = 2 * (0.5 * k / (d + 1) + 1) * (d + 1) / (k * 0.5 * d)
    assert found["promised_vardi_eta2"] == pytest.approx(theirs, rel=1e-4)
    norm = (k * d) ** 0.5
    expected = ((2 * noise + 1) / room + second) * norm, (1 / d + theirs) * norm
    assert found["promised"] == pytest.approx(expected[0], rel=1e-4)
    assert found["promised_vardi"] == pytest.approx(expected[1], rel=1e-4)


def test_as_sigma_falls_eta1_is_the_first_papers_and_eta2_nine_halves():
    means, labels = 100 * jnp.eye(4, 10_000), jk.mixtures.labels(4)
    found = [frei_claims.promised(frei.clusters(means, labels, s)) for s in (0.1, 1e-2, 1e-7)]
    assert np.isnan(found[0]["promised"])  # Assumption 2.2 does not hold: nothing is promised
    assert found[0]["promised_vardi"] == found[1]["promised_vardi"]
    first, second = (
        [one[f"promised_eta{i}"] / one[f"promised_vardi_eta{i}"] for one in found[1:]]
        for i in (1, 2)
    )
    assert first[0] > 10
    assert first[1] == pytest.approx(1, abs=2e-3)
    assert second[1] == pytest.approx(4.5, abs=5e-3)
