"""The study of gradient steps."""

import numpy as np
import pytest
import xarray as xr

import jaxkkt as jk
from jaxkkt import draw, held_out, lazy
from jaxkkt.perturbations import StepStatus
from sweeps import (
    wang_claims,
    wang_steps,
)

TINY = ["--source", "digits", "--d", "16", "25", "64", "--width", "20", "--samples", "12"]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    out = tmp_path_factory.mktemp("steps")
    settings = ["--seeds", "1", "--quiet", "--out", str(out)]
    assert wang_steps.STUDY.main([*TINY, *settings, "--figure", "5", "7"]) == 0
    return out


class TestSteps:
    @pytest.mark.slow
    def test_leaves_rows_panels_and_claims(self, out):
        table = xr.load_dataset(out / "figure5" / "results.nc")
        assert dict(table.sizes)["d"] == 3
        assert (table.status == jk.Status.LEFT_BALL).all()
        assert table.step_eta.attrs["units"]
        claims = (out / "figure5" / "claims.md").read_text()
        assert "| the gradient ~ d^(1/2), k = 20 | exponent" in claims
        for name in ("figure5", "figure7"):
            assert (out / name / f"{name}.png").stat().st_size > 5000

    @pytest.mark.slow
    def test_claims_read_what_was_run(self, out):
        table = xr.load_dataset(out / "figure5" / "results.nc")
        texts = [claim.text for claim in wang_claims.claims(table)]
        assert "test error below 1%" in texts
        random = table.assign_coords(data="sphere")
        assert "test error below 1%" not in [c.text for c in wang_claims.claims(random)]
        assert "at most 5 for the others" in wang_claims.notes(table.assign_coords(published=True))
        assert "at most 5 for the others" not in wang_claims.notes(table)

    @pytest.mark.slow
    def test_balls_are_one_sweep(self, tmp_path):
        options = [*TINY, "--d", "16", "--ball", "2", "5", "--ball-width", "20", "--seeds", "1"]
        study = wang_steps.STUDY
        (report,) = study.reports(
            study.read([*options, "--figure", "6", "--quiet", "--out", str(tmp_path)])
        )
        assert report.results.furthest.sizes["ball"] == 2
        assert (report.results.furthest.squeeze() <= report.results.ball + 1e-3).all()
        assert "the gradient grows with C0" in [claim.text for claim in report.claims]

    @pytest.mark.slow
    def test_points_of_the_histograms_are_those_that_count(self, out):
        points = xr.load_dataset(out / "figure7" / "results.nc").squeeze()
        steps = points.point_eta.values
        assert steps.shape == (72,)
        assert 0 < np.isfinite(steps).sum() <= 72
        np.testing.assert_array_equal(np.isnan(steps), np.isnan(points.point_gradient_norm))

    @pytest.mark.slow
    def test_rows_are_those_of_the_functions_alone(self, out):
        row = xr.load_dataset(out / "figure5" / "results.nc").sel(d=25, seed=0, width=20).squeeze()
        (run,) = wang_steps.runs(wang_steps.STUDY.read([*TINY, "--seeds", "1"]), "5", d=25)
        start, data = draw(run)
        trained = jk.train(start, *data, jk.protocols.lazy_flow(10.0)).params
        x, y = held_out(run)
        found = jk.perturbations.gradient_steps(trained, x)
        kept = np.asarray(found.needs_step(y) & (found.status == StepStatus.FLIPPED))
        needed = np.asarray(found.needs_step(y)).mean()
        assert row.step_needed_share == pytest.approx(float(needed), abs=0.03)
        assert row.step_eta == pytest.approx(np.asarray(found.eta)[kept].mean(), rel=0.05)
        assert row.furthest == pytest.approx(
            float(lazy.distances(trained, start).max()) * 20**0.5, rel=1e-2
        )

    @pytest.mark.slow
    def test_the_published_search_counts_misclassified_images_as_zero(self, tmp_path, capsys):
        arguments = [*TINY, "--d", "25", "--seeds", "1", "--published", "--quiet"]
        assert wang_steps.STUDY.main([*arguments, "--figure", "5", "--out", str(tmp_path)]) == 0
        assert "with eta = 0 for misclassified ones and at most 5" in capsys.readouterr().out
        row = xr.load_dataset(tmp_path / "figure5-published" / "results.nc").squeeze()
        (run,) = wang_steps.runs(wang_steps.STUDY.read([*TINY, "--seeds", "1"]), "5", d=25)
        start, data = draw(run)
        trained = jk.train(start, *data, jk.protocols.lazy_flow(10.0)).params
        x, y = held_out(run)
        found = jk.perturbations.gradient_steps(trained, x)
        eta = found.published_eta(y)
        needed = np.asarray(found.needs_step(y))
        assert 0 < needed.sum() < len(y)
        assert (eta[~needed] == 0).all()
        overshoot = np.asarray(eta - found.eta)[needed]
        assert ((overshoot > -1e-6) & (overshoot <= 0.001 + 1e-6)).all()
        assert row.step_eta == pytest.approx(float(eta.mean()), rel=0.01)
        assert row.step_eta < 0.95 * eta[needed].mean()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--d", "50"], "d must be the square of an image's side, got 50"),
            (["--d", "81"], "64 pixels, got --d 81: take --source 'digits upsampled'"),
            pytest.param(
                ["--samples", "1000"],
                "has 288 training images, but a run asks for 1000 samples",
                marks=pytest.mark.slow,
            ),
            (["--ball", "-1"], "ball (C0) must be positive and finite, got -1"),
            (["--source", "mnist"], "set the environment variable JAXKKT_MNIST"),
        ],
    )
    def test_bad_input_is_told(self, arguments, message, tmp_path, capsys, monkeypatch):
        monkeypatch.delenv("JAXKKT_MNIST", raising=False)
        settings = ["--seeds", "1", "--quiet", "--out", str(tmp_path)]
        assert wang_steps.STUDY.main([*TINY, *settings, *arguments]) == 2
        assert message in capsys.readouterr().err

    def test_dry_run_tells_the_cost(self, capsys, tmp_path):
        arguments = ["--source", "sphere", "--dry-run", "--preset", "paper", "--out"]
        assert wang_steps.STUDY.main([*arguments, str(tmp_path / "no")]) == 0
        assert "105 runs" in capsys.readouterr().err
        assert not (tmp_path / "no").exists()
