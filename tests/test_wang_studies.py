"""The studies of Wang et al. (2022): command lines, fits, and measurements in sweeps."""

import jax
import numpy as np
import pytest
import xarray as xr

import jaxkkt as jk
from jaxkkt import lazy
from jaxkkt.engine.draws import draw, held_out
from sweeps import wang_claims, wang_open, wang_robust, wang_steps

TINY = ["--source", "digits", "--d", "16", "25", "64", "--width", "20", "--samples", "12"]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    out = tmp_path_factory.mktemp("steps")
    settings = ["--seeds", "1", "--quiet", "--out", str(out)]
    assert wang_steps.main([*TINY, *settings, "--figure", "5", "7"]) == 0
    return out


class TestFits:
    def test_power_laws_are_found_with_their_interval(self):
        d = np.repeat([25.0, 100.0, 400.0], 2)
        exact = wang_claims.fit(d, 3 * d**-0.5)
        assert exact is not None
        assert exact == pytest.approx((-0.5, -0.5, -0.5))
        noise = np.array([1.1, 0.9, 1.2, 0.85, 0.95, 1.05])
        found = wang_claims.fit(d, 3 * d**-0.5 * noise)
        assert found is not None
        assert found.low < -0.5 < found.high
        assert found.high - found.low > 0.05

    def test_too_few_points_are_not_fitted(self):
        assert wang_claims.fit(np.array([1.0, 2.0]), np.array([1.0, 2.0])) is None
        assert wang_claims.fit(np.array([4.0, 4.0, 4.0]), np.ones(3)) is None
        assert wang_claims.fit(np.array([1.0, 2.0, 4.0]), np.array([1.0, np.nan, 0.0])) is None

    def test_crossings_lie_between_sizes(self):
        sizes = np.array([0.1, 0.2, 0.4, 0.8])
        assert wang_claims.crossing(sizes, np.array([1, 0.9, 0.1, 0])) == pytest.approx(0.08**0.5)
        assert wang_claims.crossing(sizes, np.array([0, 0.5, 1, 1])) == pytest.approx(0.2)
        assert np.isnan(wang_claims.crossing(sizes, np.ones(4)))

    @pytest.mark.parametrize(("constant", "exponent"), [(5, -0.5), (5, -0.1), (1, -0.5)])
    def test_thresholds_hold_where_they_should(self, constant, exponent):
        d = np.array([25, 100, 400])
        radii = np.geomspace(0.001, 10, 400)
        accuracy = (radii[None] < constant * d[:, None] ** exponent).astype(float)[..., None]
        dims = ("d", "radius", "seed")
        table = xr.Dataset(
            {
                name: (dims, accuracy)
                for name in ("robust_accuracy", "robust_accuracy_normalized", "accuracy", "status")
            },
            coords={"d": d, "radius": radii, "seed": [0]},
        ).assign(half_way=(("d", "seed"), np.full((3, 1), 0.25)))
        text = wang_claims.thresholds_table(table, "left")
        good = constant == 5 and exponent == -0.5
        assert text.count("| holds |") == (2 if good else 0)
        assert f"exponent {exponent:.2f}" in text
        assert "other class, median: 0.250 (d = 25)" in text


class TestSteps:
    def test_leaves_rows_panels_and_claims(self, out):
        table = xr.load_dataset(out / "results-5.nc")
        assert dict(table.sizes)["d"] == 3
        assert (table.status == jk.Status.LEFT_BALL).all()
        assert table.step_eta.attrs["units"]
        assert "| the gradient ~ d^(1/2), k = 20 | exponent" in (out / "claims-5.md").read_text()
        assert "test error below 1%" in wang_claims.claims_table(table, "width")
        assert "test error" not in wang_claims.claims_table(table, "width", learnable=False)
        for name in ("figure5", "figure7"):
            assert (out / f"{name}.png").stat().st_size > 5000

    def test_rows_are_those_of_the_functions_alone(self, out):
        row = xr.load_dataset(out / "results-5.nc").sel(d=25, seed=0, width=20, ball=10).squeeze()
        grid = {"source": "digits", "d": (25,), "width": (20,), "samples": 12, "seeds": 1}
        (run,) = wang_steps.runs_of(wang_steps.FIGURES["5"], grid)
        start, data = draw(run)
        trained = jk.train(start, *data, lazy.lazy_flow(10.0)).params
        x, y = held_out(run)
        found = jk.perturbations.gradient_steps(trained, x)
        kept = np.asarray(found.needs_step(y) & (found.status == 0))
        needed = np.asarray(found.needs_step(y)).mean()
        assert row.step_needed_share == pytest.approx(float(needed), abs=0.03)
        assert row.step_eta == pytest.approx(np.asarray(found.eta)[kept].mean(), rel=0.05)
        assert row.furthest == pytest.approx(
            float(lazy.distances(trained, start).max()) * 20**0.5, rel=1e-2
        )

    def test_the_published_search_counts_misclassified_images_as_zero(self, tmp_path, capsys):
        arguments = [*TINY, "--d", "25", "--seeds", "1", "--published", "--quiet"]
        assert wang_steps.main([*arguments, "--figure", "5", "--out", str(tmp_path)]) == 0
        assert "with eta = 0 for misclassified ones and at most 5" in capsys.readouterr().out
        row = xr.load_dataset(tmp_path / "results-5-published.nc").squeeze()
        (run,) = wang_steps.runs_of(
            wang_steps.FIGURES["5"],
            {"source": "digits", "d": (25,), "width": (20,), "samples": 12, "seeds": 1},
        )
        start, data = draw(run)
        trained = jk.train(start, *data, lazy.lazy_flow(10.0)).params
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
            (["--d", "81"], "pass upsample=True"),
            (["--samples", "1000"], "has 288 training images, but a run asks for 1000 samples"),
            (["--ball", "-1"], "ball (C0) must be positive and finite, got -1"),
            (["--source", "mnist"], "set the environment variable JAXKKT_MNIST"),
        ],
    )
    def test_bad_input_is_told(self, arguments, message, tmp_path, capsys, monkeypatch):
        monkeypatch.delenv("JAXKKT_MNIST", raising=False)
        settings = ["--seeds", "1", "--quiet", "--out", str(tmp_path)]
        assert wang_steps.main([*TINY, *settings, *arguments]) == 2
        assert message in capsys.readouterr().err

    def test_dry_run_tells_the_cost(self, capsys, tmp_path):
        arguments = ["--source", "sphere", "--dry-run", "--preset", "paper", "--out"]
        assert wang_steps.main([*arguments, str(tmp_path / "no")]) == 0
        assert "105 runs" in capsys.readouterr().out
        assert not (tmp_path / "no").exists()


def test_test_points_are_others_than_the_training_points():
    run = jk.Run(d=6, samples=300, width=3, seed=1, data="unit sphere")
    _, data = draw(run)
    other = held_out(run)
    assert other.x.shape == (256, 6)
    np.testing.assert_allclose(np.linalg.norm(other.x, axis=1), 1, rtol=1e-5)
    assert not {x.tobytes() for x in data.x} & {x.tobytes() for x in other.x}
    images = jk.Run(d=25, samples=40, width=3, seed=1, data="digits")
    fewer = draw(jk.Run(d=25, samples=10, width=3, seed=1, data="digits"))[1]
    more = draw(images)[1]
    np.testing.assert_array_equal(more.x[:10], fewer.x)
    assert set(fewer.y.tolist()) == {-1.0, 1.0}
    assert len(held_out(images).y) == 72


class TestRobust:
    @pytest.mark.slow
    def test_lanes_of_a_batch_are_those_alone(self, tmp_path):
        grid = {
            "source": "digits normalized",
            "samples": 64,
            "seeds": 1,
            "d": (16,),
            "radius": (0.05, 0.2, 0.4),
            "learning_rate": 0.1,
            "batch_size": 16,
        }
        alone, together = (
            wang_robust.study("left", grid, 2, False, tmp_path / str(lanes), False, lanes)
            for lanes in (1, 2)
        )
        for name in alone.data_vars:
            np.testing.assert_allclose(together[name], alone[name], atol=2.1 / 72)

    def test_leaves_a_panel_and_its_claims_and_goes_on_from_its_parts(
        self, tmp_path, capsys, monkeypatch
    ):
        arguments = ["--d", "16", "25", "--radius", "0.02", "0.9", "--samples", "64"]
        settings = ["--seeds", "1", "--epochs", "2", "--quiet", "--out", str(tmp_path)]
        assert wang_robust.main([*arguments, *settings]) == 0
        assert "crosses 1/2 at" in capsys.readouterr().out
        table = xr.load_dataset(tmp_path / "results-4-left.nc")
        assert dict(table.sizes) == {"d": 2, "radius": 2, "seed": 1}
        assert (table.robust_accuracy.isel(radius=0) >= table.robust_accuracy.isel(radius=1)).all()
        assert (table.robust_accuracy <= table.accuracy).all()
        assert (tmp_path / "figure4-left.png").stat().st_size > 5000

        (part, *others) = (tmp_path / "parts-4-left" / "rows").iterdir()
        assert len(others) == 3
        part.unlink()
        trained, measured = [], wang_robust.measured
        monkeypatch.setattr(
            wang_robust, "measured", lambda *a, **b: trained.append(a) or measured(*a, **b)
        )
        assert wang_robust.main([*arguments, *settings]) == 0
        assert len(trained) == 1
        xr.testing.assert_identical(xr.load_dataset(tmp_path / "results-4-left.nc"), table)

    def test_bad_input_is_told(self, tmp_path, capsys):
        arguments = ["--radius", "0", "--d", "16", "--samples", "64", "--seeds", "1", "--quiet"]
        assert wang_robust.main([*arguments, "--out", str(tmp_path)]) == 2
        assert "radius must be positive and finite, got 0" in capsys.readouterr().err


@pytest.mark.slow
def test_open_questions_from_the_command_line(tmp_path, capsys):
    arguments = ["--d", "16", "25", "--width", "30", "--samples", "12", "--seeds", "1"]
    settings = ["--ball", "1", "10", "--quiet", "--out", str(tmp_path)]
    assert wang_open.main([*arguments, *settings]) == 0
    assert "4 of 4 networks at the edge" in capsys.readouterr().out
    table = xr.load_dataset(tmp_path / "results-open.nc")
    assert (table.ratio <= 1.1).all()
    assert (table.robust_error.diff("radius") >= -1e-6).all()
    assert (tmp_path / "open.png").stat().st_size > 5000


class TestPeers:
    def test_the_stepwise_search_finds_the_published_eta(self):
        pytest.importorskip("torch")
        from benchmarks.lazy_peers import torch_step_search

        start = jk.networks.lazy(jax.random.key(0), 50, 9)
        x, y = jk.datasets.unit_sphere(jax.random.key(1), 12, 9)
        exact = jk.perturbations.gradient_steps(start, x, bracket=100.0)
        found = torch_step_search(start, jk.Dataset(x, y))()
        # A step more or less where rounding decides.
        np.testing.assert_allclose(found, exact.published_eta(y), atol=0.00101)
        assert (found[~np.asarray(exact.needs_step(y))] == 0).all()

    def test_the_loop_trains_as_jaxkkt_does(self):
        pytest.importorskip("torch")
        from benchmarks.lazy_peers import torch_adversarial
        from jaxkkt.adversarial import adversarial_training

        start = jk.networks.lazy(jax.random.key(0), 50, 9)
        x, y = jk.datasets.unit_sphere(jax.random.key(1), 12, 9)
        settings = {"batch_size": 12, "attack_steps": 20}
        advance = torch_adversarial(start, jk.Dataset(x, y), 0.1, 0.5, **settings)
        accuracy = advance(5)
        ours = adversarial_training(start, x, y, 0.1, 0.5, jax.random.key(0), epochs=5, **settings)
        assert accuracy == pytest.approx(float(ours.accuracy), abs=0.09)
