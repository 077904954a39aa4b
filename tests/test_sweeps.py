"""The studies of Vardi et al. (2022): runs, claims, panels, transfer."""

import json

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure

import jaxkkt as jk
from jaxkkt import studies
from jaxkkt.engine.running.rows import Row
from jaxkkt.engine.tables import results
from sweeps import vardi_claims, vardi_figures, vardi_transfer

TINY = ["--d", "12", "16", "--alpha", "0.5", "1.0", "--width", "30", "50", "--seeds", "2"]


def synthetic(flip_size=1.0, share=1.0, **axes) -> xr.Dataset:
    """Results of made-up numbers over the grid of `axes`; values may be functions of the run."""
    rows = []
    for run in jk.grid(seed=range(2), **axes):
        value, part = (f(run) if callable(f) else f for f in (flip_size, share))
        sizes = dict.fromkeys(("exact", "99", "90", "half", "least"), value)
        values = {f"flip_size_{name}": size for name, size in sizes.items()}
        values |= {"on_margin_share": part, "status": 1, "steps": 1}
        rows.append(Row(run, {**values, "off_margin_count": run.samples * (1 - part)}))
    return results.to_dataset(rows, {})


def verdicts(table: xr.Dataset) -> dict[str, bool | None]:
    return {claim.text: claim.holds for claim in vardi_claims.claims(table)}


def loss_of(run: jk.Run) -> str:
    return run.protocol.loss


class TestClaims:
    def test_flip_sizes_against_sqrt_d(self):
        axes = {"d": [100, 400], "alpha": [0.5, 1.0], "width": [1000]}
        below, much = "c stays below sqrt(d)", "c is much smaller than sqrt(d)"
        assert verdicts(synthetic(lambda r: 0.4 * r.d**0.5, **axes))[much]
        half = verdicts(synthetic(lambda r: 0.6 * r.d**0.5, **axes))
        assert half[below]
        assert not half[much]
        one_above = verdicts(synthetic(lambda r: 11.0 if r.d == 100 else 0.1, **axes))
        assert not one_above[below]
        assert one_above[much]

    def test_shares_on_the_margin(self):
        axes = {"d": [50, 100], "alpha": [0.5, 1.2], "width": [1000]}
        found = verdicts(synthetic(share=lambda r: 0.9 if r.d == 50 else 0.95, **axes))
        assert not found["m = d^0.5: every sample is on the margin"]
        assert found["m = d^1.2: at least 92% of the samples are on the margin"]
        assert not found["m = d^1.2: at least 92% of the samples are on the margin (d < 100: ours)"]

    def test_widths(self):
        text = "the width has no significant effect on c"
        axes = {"d": [100], "alpha": [1.0], "width": [100, 1000, 8000]}
        assert verdicts(synthetic(lambda r: 2 + r.width / 1e5, **axes))[text]
        assert not verdicts(synthetic(lambda r: 2 + r.width / 1e4, **axes))[text]
        assert text not in verdicts(synthetic(d=[100], alpha=[1.0], width=[1000]))

    def test_other_loss_and_data(self):
        axes = {"d": [100], "alpha": [1.0], "width": [1000], "loss": ["exponential", "logistic"]}
        text = "the logistic loss gives similar results"
        assert verdicts(synthetic(lambda r: 1.05 if loss_of(r) == "logistic" else 1.0, **axes))[
            text
        ]
        assert not verdicts(synthetic(lambda r: 1.2 if loss_of(r) == "logistic" else 1.0, **axes))[
            text
        ]
        axes = {"d": [100], "alpha": [1.0], "width": [1000], "data": ["gaussian", "sphere"]}
        text = "Gaussian data, x of variance 1/d, gives similar results"
        # |x| is 10 on this sphere and 1 for Gaussian data: a tenth of the size is the same.
        table = synthetic(lambda r: 0.2 if r.data.label == "gaussian" else 2.0, **axes)
        assert verdicts(table)[text]
        assert not verdicts(synthetic(2.0, **axes))[text]

    def test_pairs_with_a_failed_run_are_not_compared(self):
        axes = {"d": [100], "alpha": [1.0], "width": [1000], "loss": ["exponential", "logistic"]}
        table = synthetic(1.0, **axes)
        failed = {"loss": "logistic", "seed": 1}
        table.status.loc[failed] = jk.Status.DIVERGED
        table.flip_size_exact.loc[failed] = 1e9
        (claim,) = [c for c in vardi_claims.claims(table) if "the logistic loss" in c.text]
        assert "+0.0% on average" in claim.measured
        assert "1 pairs of runs" in claim.measured
        assert claim.holds

    @pytest.mark.parametrize("data", ["gaussian", "unit sphere"])
    def test_data_alone_are_held_against_their_own_norm(self, data):
        """|x| is about 1 there: c = 2 is no small perturbation, though it is below sqrt(100)."""
        table = synthetic(2.0, d=[100], alpha=[1.0], width=[1000], data=data)
        found = verdicts(table)
        assert not any("sqrt(d)" in text for text in found)
        below = {text: holds for text, holds in found.items() if text.startswith("c stays below")}
        (text,) = below
        assert f"(data = {data})" in text
        assert not below[text]
        shown = [c.measured for c in vardi_claims.claims(table) if c.text == text]
        assert shown == ["largest mean c over the norm of x: 2.00"]
        small = synthetic(0.3, d=[100], alpha=[1.0], width=[1000], data=data)
        assert verdicts(small)[text]

    def test_another_loss_alone_is_named(self):
        table = synthetic(2.0, d=[100], alpha=[1.0], width=[1000], loss="logistic")
        found = verdicts(table)
        assert found["c stays below sqrt(d) (loss = logistic)"]
        assert "c stays below sqrt(d)" not in found
        assert all("(loss = logistic)" in text for text in found)

    def test_without_the_papers_setting_the_first_is_the_baseline(self):
        axes = {"d": [100], "alpha": [1.0], "width": [1000]}
        table = synthetic(2.0, **axes, initialization=["lazy", "gaussian"])
        found = verdicts(table)
        assert "c stays below sqrt(d) (initialization = gaussian)" in found
        assert found["initialization = lazy gives results similar to gaussian"]

    def test_rows_of_another_setting_alone_make_no_claims_of_the_papers(self):
        """A stopped sweep may have landed none of the paper's setting at the paper's width yet."""
        axes = {"d": [100], "alpha": [1.0], "loss": ["exponential", "logistic"]}
        table = synthetic(1.0, **axes, width=[1000])
        for name in ("flip_size_exact", "on_margin_share"):
            table[name].loc[{"loss": "exponential"}] = np.nan
        table.status.loc[{"loss": "exponential"}] = results.NOT_RUN
        assert verdicts(table) == {}
        assert "alpha" in vardi_claims.notes(table)

    def test_failed_runs_are_left_out_and_counted(self):
        table = synthetic(1.0, d=[100], alpha=[1.0], width=[1000])
        table.status[0, 0, 0, 0] = jk.Status.DIVERGED
        table.flip_size_exact[0, 0, 0, 0] = 1e9
        (below, *_) = vardi_claims.claims(table)
        assert below.measured == "largest mean c/sqrt(d): 0.10"
        assert studies.endings(table) == "2 runs: 1 converged, 1 diverged"
        text = vardi_claims.notes(table)
        assert "0 converged without a flip in the bracket, 1 failed" in text
        assert "| 1 | 100 | 0.100 | 0.100 | 0.100 | 0.100 | 0.100 | 1 | 1 |" in text

    def test_notes_say_what_c_is_and_how_else_it_may_be_measured(self):
        table = synthetic(3.0, d=[100], alpha=[1.0], width=[1000], measure=jk.Flips(slack=1.3))
        table["flip_size_99"] *= 0.5
        text = vardi_claims.notes(table)
        assert "`flip_size_exact`" in text
        assert "slack = 1.3" in text
        assert "| 1 | 100 | 0.300 | 0.150 | 0.300 | 0.300 | 0.300 | 2 | 0 |" in text

    def test_certificates_are_counted_where_they_were_asked_for(self):
        table = synthetic(1.0, d=[100], alpha=[1.0, 1.2], width=[1000])
        assert "certified" not in vardi_claims.notes(table)
        status = table.status * 0
        status.loc[{"alpha": 1.0, "seed": 1}] = jk.kkt.CertificateStatus.STOPPED_EARLY
        status.loc[{"alpha": 1.2}] = -1
        table["certificate_status"] = status
        table["residual_clarke"] = table.flip_size_exact * 0 + 0.25
        table["residual_clarke"].loc[{"alpha": 1.0, "seed": 0}] = 0.5
        table["residual_gap"] = table.flip_size_exact * 0 + 2e-10
        text = vardi_claims.notes(table)
        assert "1 runs certified, 1 stopped early, 2 of too many samples not certified" in text
        assert "0.25 to 0.50, squares at most 2.0e-10 above" in text


class TestFigures:
    def test_leaves_rows_panels_and_claims(self, tmp_path, capsys):
        arguments = [*TINY, "--out", str(tmp_path), "--quiet"]
        assert vardi_figures.STUDY.main(arguments) == 0
        table = xr.load_dataset(tmp_path / "results.nc")
        assert dict(table.sizes) == {"d": 2, "alpha": 2, "width": 2, "seed": 2}
        for name in ("flip_size", "flip_size_exact", "on_margin_share", "off_margin_count"):
            assert np.isfinite(table[name]).all()
            assert table[name].attrs["long_name"]
            assert table[name].attrs["units"]
        for panel in ("1a", "1b", "2a", "2b"):
            for suffix in ("png", "pdf"):
                assert (tmp_path / f"figure{panel}.{suffix}").stat().st_size > 5000
        printed = capsys.readouterr().out
        assert printed.strip() == (tmp_path / "claims.md").read_text().strip()
        assert "16 runs: 16 converged" in printed
        assert f"All networks have {table.width.values[0]} neurons, except" in printed
        assert json.loads((tmp_path / "claims.json").read_text())["runs"]["converged"] == 16

        (segment,) = (tmp_path / "segments").iterdir()
        lines = segment.read_bytes().splitlines(keepends=True)
        rows = [line for line in lines if b'"row": "d16-a1-' in line]
        segment.write_bytes(b"".join(line for line in lines if line not in rows[:3]))
        for name in ("figure1a.png", "claims.md"):
            (tmp_path / name).unlink()
        assert vardi_figures.STUDY.main([*arguments, "--landed"]) == 0
        assert "13 of 16 runs: 13 converged" in (tmp_path / "claims.md").read_text()
        assert (tmp_path / "figure1a.png").exists()

    @pytest.mark.parametrize(("data", "drawn"), [("sphere", True), ("gaussian", False)])
    def test_the_line_sqrt_d_is_the_norm_of_sphere_data_alone(self, data, drawn):
        table = synthetic(2.0, d=[50, 100], alpha=[1.0], width=[1000], data=data)
        figure = Figure()
        vardi_figures.PANELS[0].draw(figure, table)
        labels = figure.axes[0].get_legend_handles_labels()[1]
        assert (r"$\sqrt{d}$" in labels) == drawn

    @pytest.mark.parametrize(("width", "told"), [([50, 100], "$d$, width 50"), ([50, 1000], "$d$")])
    def test_networks_of_another_width_than_the_paper_s_are_told(self, width, told):
        table = synthetic(2.0, d=[50, 100], alpha=[1.0], width=width)
        figure = Figure()
        vardi_figures.PANELS[0].draw(figure, table)
        assert figure.axes[0].get_xlabel() == f"input dimension {told}"

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--d", "0"], "d must be at least 1"),
            (["--seeds", "0"], "the grid is empty: no values for seed"),
            (["--d", "4", "--init-scale", "-1"], "init_scale must be positive"),
            (["--d", "4", "--slack", "0.5"], "slack must be at least 1, got 0.5"),
        ],
    )
    def test_bad_values_are_one_line_and_code_2(self, arguments, message, tmp_path, capsys):
        assert vardi_figures.STUDY.main([*arguments, "--out", str(tmp_path / "x")]) == 2
        assert f"error: {message}" in capsys.readouterr().err

    def test_presets(self):
        quick, paper = vardi_figures.preset("quick"), vardi_figures.preset("paper")
        assert len(quick) == len(set(quick)) == 138
        assert len(paper) == len(set(paper)) == 550
        assert {r.d for r in paper} == set(range(100, 1001, 100))
        assert {r.fields()["alpha"] for r in quick} == {0.5, 0.8, 1.0, 1.2, 1.5}
        assert {r.fields()["alpha"] for r in paper} == {0.5, 0.8, 1.0, 1.2, 1.5}
        assert len({r.d for r in quick}) >= 5
        assert max(r.samples for r in paper) == 31623

    def test_options_reach_the_runs(self):
        def runs(*arguments):
            return vardi_figures.runs(vardi_figures.STUDY.read(arguments))

        assert len(runs("--preset", "paper")) == 550
        (run,) = runs(
            "--d", "7", "--alpha", "1.2", "--width", "30", "--seeds", "1", "--loss", "logistic"
        )
        assert (run.d, run.width, run.seed, loss_of(run)) == (7, 30, 0, "logistic")
        assert run.samples == round(7**1.2)
        assert len(runs("--d", "50", "60")) == 2 * 5 * 3
        assert {r.data.label for r in runs("--data", "gaussian", "sphere")} == {
            "gaussian",
            "sphere",
        }
        scaled = runs("--init", "lazy", "--init-scale", "0.5", "--d", "7")
        assert {(r.initialization.label, r.initialization.scale) for r in scaled} == {("lazy", 0.5)}
        certified = runs("--certify", "--slack", "1.2", "--protocol", "paper")
        assert [m.label for m in certified[0].measure] == ["flips", "certificates"]
        assert certified[0].measure[0].slack == 1.2
        assert certified[0].protocol.optimizer == jk.PaperSchedule()


class TestTransfer:
    ARGUMENTS = ("--d", "12", "--alpha", "0.8", "--width", "20", "30", "--seeds", "1", "--quiet")

    @pytest.mark.slow
    def test_every_direction_is_tried_on_every_network(self, tmp_path, capsys):
        assert vardi_transfer.STUDY.main([*self.ARGUMENTS, "--out", str(tmp_path)]) == 0
        sizes = xr.load_dataset(tmp_path / "transfer.nc").flip_size.sel(alpha=0.8)
        assert dict(sizes.sizes) == {"direction": 4, "network": 4}
        assert "torch, width 30, seed 0" in sizes.network
        assert np.isfinite(sizes).all()
        # All 7 samples are on the margin of all networks: one direction, one size a network.
        np.testing.assert_allclose(sizes, np.broadcast_to(np.diag(sizes), (4, 4)), rtol=1e-4)
        printed = capsys.readouterr().out
        assert "| 0.8 | 4 |" in printed
        assert "12 of 12 pairs flipped | holds" in printed
        swept = xr.load_dataset(tmp_path / "results.nc")
        own = np.sort(swept.flip_size_exact.values.ravel())
        np.testing.assert_allclose(np.sort(np.diag(sizes)), own, rtol=1e-5)

        swept.status.loc[{"initialization": "torch", "width": 30}] = jk.Status.DIVERGED
        (part,) = vardi_transfer.parts(vardi_transfer.STUDY.read(self.ARGUMENTS))
        left = vardi_transfer.transfer(swept, studies.Context(part.runs, tmp_path)).flip_size
        gone = np.array(["torch, width 30" in name for name in left.network.values])
        assert gone.sum() == 1
        np.testing.assert_array_equal(np.isnan(left.sel(alpha=0.8)), gone[:, None] | gone[None, :])
        assert "6 of 6 pairs flipped" in vardi_transfer.claims(left.to_dataset())[0].measured

    def test_all_seeds_have_the_same_data(self):
        first, second = vardi_transfer.parts(vardi_transfer.Options(alpha=(0.5,), width=(9,)))[
            0
        ].runs[:2]
        assert (first.seed, second.seed) == (0, 1)
        drawn = [run.data.draw_training(run.seed) for run in (first, second)]
        np.testing.assert_array_equal(drawn[0].x, drawn[1].x)
        starts = [run.initialization.draw_start(run.seed, 9, 100) for run in (first, second)]
        assert (starts[0].w != starts[1].w).any()

    @pytest.mark.slow
    def test_failed_networks_are_left_out_and_counted(self, tmp_path, capsys):
        arguments = ["--d", "2", "--alpha", "3", "--width", "1", "--seeds", "1", "--quiet"]
        assert vardi_transfer.STUDY.main([*arguments, "--out", str(tmp_path)]) == 0
        printed = capsys.readouterr().out
        assert "| 0 of 0 pairs flipped | not decided |" in printed
        assert "2 runs: 2 stalled" in printed or "2 runs: " in printed
        assert np.isnan(xr.load_dataset(tmp_path / "transfer.nc").flip_size).all()
