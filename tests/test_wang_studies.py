"""The studies of Wang et al. (2022): command lines, preparation, peers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from cases import note_trained

import jaxkkt as jk
from jaxkkt import draw, held_out, images, studies
from jaxkkt.adversarial import AdversarialProtocol, adversarial_training
from jaxkkt.studies.study import draw as draw_panel
from jaxkkt.theory import wang
from sweeps import (
    wang_lemmas,
    wang_open,
    wang_preparation,
    wang_robust,
    wang_thresholds,
)


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
        # The last asks for k >= d^2.4, B.8 for d > 20.7.
        assert ("does not apply" if "B.9" in lemma else "| 100% | ") in line
    table = xr.load_dataset(tmp_path / "results.nc").squeeze()
    assert table.lemma_measured.shape == (9, 30)
    assert table.c2.shape == (30,)
    # B.5 for the trained network, by the function alone.
    (run,) = wang_lemmas.parts(wang_lemmas.STUDY.read(arguments))[0].runs
    start, data = jax.device_put(draw(run))
    trained = jk.train(start, *data, run.protocol).params
    outputs = jk.networks.apply(trained, jnp.asarray(held_out(run).x[:10]))
    np.testing.assert_allclose(table.lemma_measured[2, :10], abs(outputs), rtol=1e-2, atol=1e-3)
    # The third network's output is the largest of the ball at each point.
    assert (table.lemma_measured[2, 20:] >= table.lemma_measured[2, :10]).all()
    assert (table.lemma_measured[2, 20:] >= table.lemma_measured[2, 10:20]).all()


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
