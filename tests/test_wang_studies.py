"""The studies of Wang et al. (2022): command lines, fits, and measurements in sweeps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from cases import note_trained

import jaxkkt as jk
from jaxkkt import draw, held_out, images, lazy, studies
from jaxkkt.adversarial import AdversarialProtocol, adversarial_training
from jaxkkt.perturbations import StepStatus
from jaxkkt.studies.study import draw as draw_panel
from jaxkkt.theory import wang
from sweeps import (
    wang_claims,
    wang_fits,
    wang_lemmas,
    wang_open,
    wang_preparation,
    wang_robust,
    wang_steps,
    wang_thresholds,
)

TINY = ["--source", "digits", "--d", "16", "25", "64", "--width", "20", "--samples", "12"]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    out = tmp_path_factory.mktemp("steps")
    settings = ["--seeds", "1", "--quiet", "--out", str(out)]
    assert wang_steps.STUDY.main([*TINY, *settings, "--figure", "5", "7"]) == 0
    return out


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
        accuracy = (radii[None] < constant * d[:, None] ** exponent).astype(float)[..., None]
        dims = ("d", "radius", "seed")
        table = xr.Dataset(
            {
                name: (dims, accuracy)
                for name in ("robust_accuracy", "robust_accuracy_normalized", "accuracy", "status")
            },
            coords={"d": d, "radius": radii, "seed": [0]},
        ).assign(half_way=(dims, np.full((3, 400, 1), 0.25)))
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
        trained = jk.train(start, *data, lazy.lazy_flow(10.0)).params
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
            (["--d", "81"], "64 pixels, got --d 81: take --source 'digits upsampled'"),
            (["--samples", "1000"], "has 288 training images, but a run asks for 1000 samples"),
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


def test_test_points_are_others_than_the_training_points():
    (run,) = jk.grid(d=6, samples=300, width=3, seed=1, data="unit sphere")
    _, data = draw(run)
    other = held_out(run)
    assert other.x.shape == (256, 6)
    np.testing.assert_allclose(np.linalg.norm(other.x, axis=1), 1, rtol=1e-5)
    assert not {x.tobytes() for x in data.x} & {x.tobytes() for x in other.x}
    few, many = jk.grid(d=25, samples=[10, 40], width=3, seed=1, data="digits")
    fewer, more = draw(few)[1], draw(many)[1]
    np.testing.assert_array_equal(more.x[:10], fewer.x)
    assert set(fewer.y.tolist()) == {-1.0, 1.0}
    assert len(held_out(many).y) == 72


class TestRobust:
    ARGUMENTS = ("--d", "16", "25", "--radius", "0.02", "0.9", "--samples", "64", "--epochs", "2")

    @pytest.mark.slow
    def test_leaves_a_panel_and_its_claims_and_goes_on_from_its_rows(
        self, tmp_path, capsys, monkeypatch
    ):
        arguments = [*self.ARGUMENTS, "--quiet", "--out", str(tmp_path)]
        assert wang_robust.STUDY.main(arguments) == 0
        told = capsys.readouterr()
        assert "crosses 1/2 at" in told.out
        assert "4 runs: 4 last epoch." in told.out
        assert "4 had not settled at the last epoch, and count, too: raise --epochs." in told.out
        assert told.err == ""  # none failed
        folder = tmp_path / "figure4-left"
        table = xr.load_dataset(folder / "results.nc")
        sizes = dict(table.sizes)
        assert sizes == {"d": 2, "samples": 1, "width": 1, "seed": 1, "radius": 2}
        assert (table.robust_accuracy.isel(radius=0) >= table.robust_accuracy.isel(radius=1)).all()
        assert (table.robust_accuracy <= table.accuracy).all()
        assert (folder / "figure4-left.png").stat().st_size > 5000

        (segment,) = (folder / "segments").iterdir()
        lines = segment.read_bytes().splitlines(keepends=True)
        assert sum(b'{"row": ' in line for line in lines) == 4
        segment.write_bytes(b"".join(lines[:-1]))
        trained = note_trained(monkeypatch)
        assert wang_robust.STUDY.main(arguments) == 0
        assert len(trained) == 1
        xr.testing.assert_identical(xr.load_dataset(folder / "results.nc"), table)

    @pytest.mark.slow
    def test_rows_are_those_of_training_alone(self):
        options = wang_robust.STUDY.read([*self.ARGUMENTS, "--d", "16", "--radius", "0.2"])
        (run,) = wang_robust.runs(options)
        row = jk.sweep([run]).squeeze()
        start, data = jax.device_put(draw(run))
        alone = adversarial_training(start, *data, run.protocol, run.shuffle_key())
        margins = jk.networks.margins(alone.params, *map(jnp.asarray, held_out(run)))
        assert row.steps.item() == int(alone.epochs) == 2
        assert row.robust_training_accuracy == pytest.approx(float(alone.best), abs=0.02)
        assert row.accuracy == pytest.approx(float((margins > 0).mean()), abs=0.02)

    @pytest.mark.parametrize(("panel", "along"), [("left", "d"), ("right", "width")])
    def test_one_radius_or_ball_has_a_panel_and_claims(self, tmp_path, panel, along):
        across = {"left": "radius", "right": "weight_radius"}[panel]
        values = xr.DataArray(np.full((2, 1, 1), 0.75), dims=(along, "samples", "seed"))
        names = ("robust_accuracy", "robust_accuracy_normalized", "accuracy", "status", "half_way")
        table = xr.Dataset(
            dict.fromkeys(names, values), {along: [25, 49], "seed": [0], across: 0.3}
        )
        for claim in wang_thresholds.thresholds(table, panel):
            assert claim.holds is None
        assert "2 networks" in wang_thresholds.notes(table, panel)
        drawing = studies.Panel("one", lambda f, results: wang_robust.drawn(f, results, panel))
        assert len(draw_panel(drawing, table, tmp_path)) == 2

    def test_right_panel_varies_width_and_ball(self):
        options = ["--panel", "right", "--width", "20", "30", "--ball", "0.1", "1", "--samples"]
        runs = wang_robust.runs(wang_robust.STUDY.read([*options, "64", "--right-d", "16"]))
        assert {(r.width, r.protocol.weight_radius) for r in runs} == {
            (20, 0.1),
            (20, 1.0),
            (30, 0.1),
            (30, 1.0),
        }
        assert {r.protocol.radius for r in runs} == {0.2}

    def test_bad_input_is_told(self, tmp_path, capsys):
        arguments = ["--radius", "0", "--d", "16", "--samples", "64", "--quiet"]
        assert wang_robust.STUDY.main([*arguments, "--out", str(tmp_path)]) == 2
        assert "radius must be positive and finite, got 0" in capsys.readouterr().err


@pytest.mark.slow
def test_open_questions_from_the_command_line(tmp_path, capsys):
    arguments = ["--d", "16", "25", "--width", "30", "--samples", "12", "--seeds", "1"]
    settings = ["--ball", "1", "10", "--quiet", "--out", str(tmp_path)]
    assert wang_open.STUDY.main([*arguments, *settings]) == 0
    assert "4 of 4 networks at the edge" in capsys.readouterr().out
    table = xr.load_dataset(tmp_path / "open" / "results.nc")
    assert (table.ratio <= 1.1).all()
    assert (table.robust_error.diff("robust_error_0") >= -1e-6).all()
    assert (tmp_path / "open" / "open.png").stat().st_size > 5000
    # Beside it, by descent: a network that stays in its ball counts in no mean.
    descent = ["--protocol", "sgd", "--max-steps", "300", "--ball", "1", "300"]
    assert wang_open.STUDY.main([*arguments, *settings, *descent]) == 0
    told = capsys.readouterr().out
    assert "2 of 4 networks at the edge" in told
    assert "| 1 | 16 | 1 | 0." in told
    assert "| 300 | 16 | 0 |  |  |" in told
    descended = xr.load_dataset(tmp_path / "open-sgd" / "results.nc")
    assert np.isnan(wang_open.means(descended).ratio.sel(ball=300)).all()
    assert np.isfinite(descended.ratio.sel(ball=300)).all()
    assert (tmp_path / "open" / "open.md").is_file()


class TestPreparation:
    def test_every_way_has_the_pixels_that_it_says(self):
        made = {
            way: wang_preparation.Prepared(d=16, samples=20, way=way, source="digits").images()
            for way in wang_preparation.WAYS
        }
        plain = made["as in Figure 2"].train.x
        np.testing.assert_allclose(plain, images.digits(16).train.x, atol=1e-6)
        whole = images.digits(64).train.x.reshape(-1, 8, 8)
        np.testing.assert_array_equal(
            made["nearest pixels"].train.x, whole[:, 1::2, 1::2].reshape(-1, 16)
        )
        np.testing.assert_allclose(made["from -1 to 1"].train.x, 2 * plain - 1, atol=1e-6)
        np.testing.assert_allclose(made["standardized"].train.x * 0.3081 + 0.1307, plain, atol=1e-6)
        np.testing.assert_allclose(np.linalg.norm(made["|x| = 1"].test.x, axis=1), 1, rtol=1e-6)
        assert np.abs(made["cubic"].train.x - plain).max() > 0.01
        for one in made.values():
            np.testing.assert_array_equal(one.train.y, made["cubic"].train.y)

    def test_bad_input_is_told(self, tmp_path, capsys):
        for d in ("100", "26"):
            arguments = ["--d", d, "--quiet", "--out", str(tmp_path)]
            assert wang_preparation.STUDY.main(arguments) == 2
            assert f"d must be a square up to 64, got {d}" in capsys.readouterr().err

    def test_too_few_points_for_an_exponent_are_told(self):
        """The table had None in their place."""
        coords = {"way": list(wang_preparation.WAYS), "d": [16, 36], "seed": [0]}
        one = xr.DataArray(np.ones((len(wang_preparation.WAYS), 2, 1)), coords)
        names = [*wang_preparation.COLUMNS, "length", "step_needed_share"]
        table = wang_preparation.table(
            xr.Dataset({"status": one.astype(int), **dict.fromkeys(names, one)})
        )
        line = table.splitlines()[2]
        assert line.startswith(f"| as in Figure 2 {'| too few points ' * 3}| 1 | 1 | 1 |")

    @pytest.mark.slow
    @pytest.mark.parametrize("biases", ["biases", "no-biases"])
    def test_from_the_command_line(self, tmp_path, capsys, biases):
        sizes = ["--d", "16", "36", "64", "--width", "100", "--samples", "64", "--seeds", "1"]
        more = [f"--{biases}", "--max-steps", "20000", "--quiet", "--out", str(tmp_path)]
        assert wang_preparation.STUDY.main([*sizes, *more]) == 0
        told = capsys.readouterr().out
        assert told == f"{biases}\n\n{(tmp_path / biases / 'exponents.md').read_text()}\n"
        table = xr.load_dataset(tmp_path / biases / "results.nc").squeeze()
        assert set(table.way.values) == set(wang_preparation.WAYS)
        # At the images' own size all interpolations are the same.
        own = table.sel(d=64)
        np.testing.assert_array_equal(
            own.step_eta.sel(way="cubic"), own.step_eta.sel(way="as in Figure 2")
        )
        np.testing.assert_allclose(own.length.sel(way="|x| = 1"), 1, rtol=1e-5)


@pytest.mark.parametrize(("points", "told"), [(-1, "least 1"), (0, "least 1"), (300, "most 256")])
def test_lemmas_take_the_points_that_there_are(points, told, tmp_path, capsys):
    """-1 took all but one, 0 failed after training, and 300 took 256."""
    arguments = ["--points", str(points), "--dry-run", "--out", str(tmp_path)]
    assert wang_lemmas.STUDY.main(arguments) == 2
    assert f"error: points must be at {told}, got {points}" in capsys.readouterr().err


def test_lemmas_may_fail_with_a_probability(tmp_path, capsys):
    """0 failed after training."""
    assert wang_lemmas.STUDY.main(["--gamma", "0", "--dry-run", "--out", str(tmp_path)]) == 2
    assert "error: gamma must be a probability between 0 and 1, got 0.0" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_lemmas_from_the_command_line(tmp_path, capsys):
    arguments = ["--d", "25", "--width", "50", "--points", "10", "--seeds", "1", "--quiet"]
    assert wang_lemmas.STUDY.main([*arguments, "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    for lemma in wang.LEMMAS:
        (line,) = [line for line in lines if f"| {lemma} |" in line]
        # The last asks for k >= d^2.4.
        assert ("does not apply" if "B.9" in lemma else "| 100% | ") in line
    table = xr.load_dataset(tmp_path / "results.nc").squeeze()
    assert table.lemma_measured.shape == (7, 20)
    # B.5 for the trained network, by the function alone.
    (run,) = wang_lemmas.parts(wang_lemmas.STUDY.read(arguments))[0].runs
    start, data = jax.device_put(draw(run))
    trained = jk.train(start, *data, run.protocol).params
    outputs = jk.networks.apply(trained, jnp.asarray(held_out(run).x[:10]))
    np.testing.assert_allclose(table.lemma_measured[1, :10], abs(outputs), rtol=1e-2, atol=1e-3)


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

        start = jk.networks.lazy(jax.random.key(0), 50, 9)
        x, y = jk.datasets.unit_sphere(jax.random.key(1), 12, 9)
        settings = {"batch_size": 12, "attack_steps": 20}
        advance = torch_adversarial(start, jk.Dataset(x, y), 0.1, 0.5, **settings)
        accuracy = advance(5)
        protocol = AdversarialProtocol(radius=0.1, weight_radius=0.5, epochs=5, **settings)
        ours = adversarial_training(start, x, y, protocol, jax.random.key(0))
        assert accuracy == pytest.approx(float(ours.accuracy), abs=0.09)
