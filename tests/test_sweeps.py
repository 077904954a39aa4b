"""The study of Vardi et al. (2022): command line, claims, panels."""

import numpy as np
import pytest
import xarray as xr

import jaxkkt as jk
from jaxkkt.engine import results
from jaxkkt.engine.lanes import Row
from sweeps import vardi_claims, vardi_figures, vardi_transfer

TINY = ["--d", "12", "16", "--alpha", "0.5", "1.0", "--width", "30", "50", "--seeds", "2"]


def synthetic(flip_size=1.0, share=1.0, **axes) -> xr.Dataset:
    """Results of made-up numbers over the grid of `axes`; values may be functions of the run."""
    rows = []
    for run in jk.grid(seed=range(2), **axes):
        value, part = (f(run) if callable(f) else f for f in (flip_size, share))
        values = {"flip_size_exact": value, "on_margin_share": part, "status": 1, "steps": 1}
        rows.append(Row(run, {**values, "off_margin_count": run.samples * (1 - part)}))
    return results.to_dataset(rows, {}, {})


def verdicts(table: xr.Dataset) -> dict[str, bool]:
    return {claim.text: claim.holds for claim in vardi_claims.claims(table)}


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
        assert verdicts(synthetic(lambda r: 1.05 if r.loss == "logistic" else 1.0, **axes))[text]
        assert not verdicts(synthetic(lambda r: 1.2 if r.loss == "logistic" else 1.0, **axes))[text]
        axes = {"d": [100], "alpha": [1.0], "width": [1000], "data": ["gaussian", "sphere"]}
        text = "Gaussian data, x of variance 1/d, gives similar results"
        # |x| is 10 on this sphere and 1 for Gaussian data: a tenth of the size is the same.
        assert verdicts(synthetic(lambda r: 0.2 if r.data == "gaussian" else 2.0, **axes))[text]
        assert not verdicts(synthetic(2.0, **axes))[text]

    def test_failed_runs_are_left_out_and_counted(self):
        table = synthetic(1.0, d=[100], alpha=[1.0], width=[1000])
        table.status[0, 0, 0, 0] = jk.Status.DIVERGED
        table.flip_size_exact[0, 0, 0, 0] = 1e9
        text = vardi_claims.claims_table(table)
        assert "2 runs: 1 converged, 1 diverged" in text
        assert "largest mean c/sqrt(d): 0.10" in text

    def test_certificates_are_counted_where_they_were_asked_for(self):
        table = synthetic(1.0, d=[100], alpha=[1.0, 1.2], width=[1000])
        assert "certified" not in vardi_claims.claims_table(table)
        status = table.status * 0
        status.loc[{"alpha": 1.0, "seed": 1}] = jk.kkt.CertificateStatus.STOPPED_EARLY
        status.loc[{"alpha": 1.2}] = -1
        table["certificate_status"] = status
        table["residual_clarke"] = table.flip_size_exact * 0 + 0.25
        table["residual_clarke"].loc[{"alpha": 1.0, "seed": 0}] = 0.5
        table["residual_gap"] = table.flip_size_exact * 0 + 2e-10
        text = vardi_claims.claims_table(table)
        assert "1 runs certified, 1 stopped early, 2 of too many samples not certified" in text
        assert "0.25 to 0.50, squares at most 2.0e-10 above" in text


class TestCommandLine:
    def test_leaves_rows_panels_and_claims(self, tmp_path, capsys):
        assert vardi_figures.main([*TINY, "--out", str(tmp_path), "--quiet"]) == 0
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

    def test_landed_reports_a_stopped_sweep(self, tmp_path, capsys):
        arguments = [*TINY, "--out", str(tmp_path), "--quiet"]
        assert vardi_figures.main([*arguments, "--landed"]) == 2
        assert f"no row has landed in {tmp_path}" in capsys.readouterr().err
        vardi_figures.main(arguments)
        gone = sorted((tmp_path / "rows").glob("d16-a1-*"))[:3]
        being_written = tmp_path / "rows" / "next.json.part"
        being_written.write_text("by the sweep that runs")
        for path in [*gone, tmp_path / "figure1a.png", tmp_path / "claims.md"]:
            path.unlink()
        assert vardi_figures.main([*arguments, "--landed"]) == 0
        assert "13 of 16 runs: 13 converged" in (tmp_path / "claims.md").read_text()
        assert (tmp_path / "figure1a.png").exists()
        assert not gone[0].exists()
        assert being_written.exists()

    def test_interrupt_says_how_to_go_on(self, tmp_path, capsys, monkeypatch):
        def interrupted(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(vardi_figures.engine, "sweep", interrupted)
        assert vardi_figures.main([*TINY, "--out", str(tmp_path)]) == 130
        assert "the same command goes on" in capsys.readouterr().err

    def test_dry_run_prints_the_plan_and_writes_nothing(self, tmp_path, capsys):
        out = tmp_path / "none"
        assert vardi_figures.main(["--preset", "paper", "--dry-run", "--out", str(out)]) == 0
        printed = capsys.readouterr().err
        for word in ("550 runs", "buckets", "lanes", "padding", "FLOP", "MiB", "minutes"):
            assert word in printed
        assert not out.exists()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--preset", "huge"], "invalid choice: 'huge' (choose from 'quick', 'paper')"),
            (["--widht", "5"], "--width"),
            (["--loss", "hinge"], "choose from 'exponential', 'logistic'"),
        ],
    )
    def test_misspelled_options_list_what_exists(self, arguments, message, capsys):
        with pytest.raises(SystemExit, match="2"):
            vardi_figures.main(arguments)
        assert message in capsys.readouterr().err

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
        assert vardi_figures.main([*arguments, "--out", str(tmp_path / "x")]) == 2
        assert f"error: {message}" in capsys.readouterr().err

    def test_presets(self):
        quick, paper = vardi_figures.preset("quick"), vardi_figures.preset("paper")
        assert len(quick) == len(set(quick)) == 138
        assert len(paper) == len(set(paper)) == 550
        assert {r.d for r in paper} == set(range(100, 1001, 100))
        assert {r.alpha for r in quick} == {r.alpha for r in paper} == {0.5, 0.8, 1.0, 1.2, 1.5}
        assert len({r.d for r in quick}) >= 5
        assert max(r.samples for r in paper) == 31623


class TestTransfer:
    ARGUMENTS = ("--d", "12", "--alpha", "0.8", "--width", "20", "30", "--seeds", "1")

    @pytest.mark.slow
    def test_every_direction_is_tried_on_every_network(self, tmp_path, capsys):
        assert vardi_transfer.main([*self.ARGUMENTS, "--out", str(tmp_path)]) == 0
        sizes = xr.load_dataset(tmp_path / "transfer.nc").flip_size.sel(alpha=0.8)
        assert dict(sizes.sizes) == {"direction": 4, "network": 4}
        assert "torch, width 30, seed 0" in sizes.network
        assert np.isfinite(sizes).all()
        # All 7 samples are on the margin of all networks: one direction, one size a network.
        np.testing.assert_allclose(sizes, np.broadcast_to(np.diag(sizes), (4, 4)), rtol=1e-4)
        assert "| 0.8 | 4 |" in capsys.readouterr().out
        assert "12 of 12" in vardi_transfer.summary(0.8, sizes)

    def test_a_failed_network_is_an_error(self, tmp_path, capsys):
        arguments = ["--d", "2", "--alpha", "3", "--width", "1", "--seeds", "1"]
        assert vardi_transfer.main([*arguments, "--out", str(tmp_path)]) == 2
        assert "error: a network of width 1 did not converge" in capsys.readouterr().err
