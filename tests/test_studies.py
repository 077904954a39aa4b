"""The shape of a study: options, presets, files, errors."""

import json
import logging
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import jax
import matplotlib.style
import pytest
import xarray as xr
from matplotlib.figure import Figure

import jaxkkt as jk
from jaxkkt import studies
from jaxkkt.engine.tables import results as results_module
from jaxkkt.process import files
from jaxkkt.studies import command, study

LOG = logging.getLogger("jaxkkt")


@dataclass(frozen=True)
class Options(studies.Options):
    d: tuple[int, ...] = (3,)
    """input dimensions"""
    seeds: int = 2
    """number of seeds"""
    slack: float = 1.1
    """on the margin"""
    figure: tuple[str, ...] = ("",)
    """parts"""
    certify: bool = False
    """an option to turn on"""


def width(figure, results):
    figure.subplots().plot(results.d, results.flip_size_exact.mean(("alpha", "width", "seed")))


def parts(options):
    runs = jk.grid(
        d=options.d,
        alpha=0.5,
        width=20,
        seed=range(options.seeds),
        measure=jk.Flips(slack=options.slack),
    )

    def claims(results):
        largest = float(results.flip_size_exact.max())
        found = [studies.Claim("c | is small", f"c = {largest:.2f}", largest < 100)]
        return [*found, studies.Claim("nothing\nis known", "nothing")]

    panels = (studies.Panel("figure", width), studies.Panel("empty", lambda figure, results: None))
    return [
        studies.Part(
            runs,
            name=name,
            claims=claims,
            notes=lambda results: "A note.",
            panels=panels,
            texts=(studies.Text("table", lambda results: "| a |\n| --- |"),),
            derived=studies.Derived("derived", derive),
        )
        for name in options.figure
    ]


def derive(results, context):
    norms = {
        name: float(abs(context.network(run).w).max())
        for name, run in enumerate(context.runs)
        if Path(context.folder, "networks").exists()
    }
    return results.assign_attrs(norms=len(norms))


PRESETS = {
    "quick": studies.Preset("two runs"),
    "more": studies.Preset("four runs", d=(3, 4), certify=True),
}
STUDY = studies.Study("made-up", "What it is about.", Options, parts, PRESETS)


def read(*arguments):
    return STUDY.read([*map(str, arguments)])


class TestOptions:
    def test_values_come_from_the_preset_the_file_and_the_command_line(self, tmp_path):
        path = tmp_path / "mine.toml"
        path.write_text('preset = "more"\nd = [5, 6]\nslack = 1.3\n')
        assert read().d == (3,)
        assert read("--preset", "more").d == (3, 4)
        assert read("--preset=more", "--d", 7).d == (7,)
        chosen = read("--config", path, "--slack", 1.4)
        assert (chosen.preset, chosen.d, chosen.slack) == ("more", (5, 6), 1.4)
        assert read("--config", path, "--preset", "quick").d == (5, 6)
        assert not read("--config", path, "--preset", "quick").certify
        assert isinstance(chosen, Options)

    def test_a_preset_that_turns_an_option_on_can_be_overruled(self, tmp_path):
        path = tmp_path / "mine.json"
        path.write_text(json.dumps({"certify": False, "dry-run": True, "log_file": None}))
        assert read("--preset", "more").certify
        assert not read("--preset", "more", "--no-certify").certify
        assert not read("--preset", "more", "--config", path).certify
        assert read("--config", path).dry_run
        assert read("--config", path).log_file is None

    def test_the_output_folder_has_the_presets_name(self):
        assert read().out == Path("results/made-up-quick")
        assert read("--preset", "more").out == Path("results/made-up-more")
        assert read("--out", "here").out == Path("here")
        bare = studies.Study("bare", "", Options, parts, folder="plain")
        assert bare.read([]).out == Path("results/plain")

    def test_help_tells_presets_and_their_values(self, capsys):
        with pytest.raises(SystemExit, match="0"):
            read("--preset", "more", "--help")
        told = " ".join(capsys.readouterr().out.split())
        for words in ("What it is about.", "quick: two runs; more: four runs", "(default: 3 4)"):
            assert words in told
        assert "jaxkkt sweep made-up" in told

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("a.json", '{"seed": 3}', "no field is called 'seed'; did you mean 'seeds'?"),
            ("a.json", '{"config": "b"}', "no field is called 'config'"),
            ("a.json", "[3]", "must hold options by name"),
            ("a.json", "{", "cannot be read"),
            ("a.toml", "= 3", "cannot be read"),
            ("a.toml", "[d]\na = 1", "d must be a value or a list of values"),
            ("a.toml", 'd = ["x"]', "cannot be used, for the reason above"),
            ("a.yaml", "d: 3", "a configuration file is called *.json or *.toml"),
        ],
    )
    def test_a_file_that_cannot_be_used_is_told(self, name, content, message, tmp_path, capsys):
        (tmp_path / name).write_text(content)
        assert STUDY.main(["--config", str(tmp_path / name)]) == 2
        told = capsys.readouterr().err
        assert message in told

        assert name in told

    def test_a_missing_file_is_told(self, tmp_path, capsys):
        assert STUDY.main(["--config", str(tmp_path / "none.json")]) == 2
        assert "error: [Errno 2]" in capsys.readouterr().err


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The output folder of one whole run."""
    out = tmp_path_factory.mktemp("studies") / "out"
    assert STUDY.main(["--out", str(out), "--log-file", str(out / "logs/log.txt")]) == 0
    return out


class TestFiles:
    def test_everything_is_there(self, ran):
        names = {path.name for path in ran.iterdir()}
        written = {"results.nc", "derived.nc", "claims.md", "claims.json", "table.md"}
        assert written | {"figure.png", "figure.pdf", "provenance.json"} <= names
        assert not any(name.startswith("empty") for name in names)
        assert not any(name.endswith(".part") for name in names)
        assert not (ran / "networks").exists()

    def test_programs_of_a_part_are_let_go_where_it_says_so(self, tmp_path, monkeypatch):
        did = []
        monkeypatch.setattr(study.Study, "_report", lambda _, part, *rest: did.append(part.name))
        monkeypatch.setattr(study.engine, "forget", lambda: did.append("forget"))
        some = [studies.Part([], name, forget=name == "2") for name in "123"]
        one = studies.Study("made-up", "", Options, lambda options: some)
        list(one.reports(Options(out=tmp_path)))
        assert did == ["1", "2", "forget", "3"]

    def test_claims_for_people(self, ran):
        told = (ran / "claims.md").read_text()
        assert (
            "| claim of the paper | measured | |\n| --- | --- | --- |\n| c \\| is small |" in told
        )
        assert "| nothing is known | nothing | not decided |" in told
        assert "\n\n2 runs: 2 converged.\n\nA note.\n" in told

    def test_claims_for_machines(self, ran):
        found = json.loads((ran / "claims.json").read_text())
        assert found["study"] == "made-up"
        assert [claim["holds"] for claim in found["claims"]] == [True, None]
        assert found["claims"][0]["text"] == "c | is small"
        assert found["runs"] == {"planned": 2, "converged": 2}
        assert found["preset"] == "quick"
        assert found["versions"]["jax"] == jax.__version__
        assert re.match(r"20\d\d-\d\d-\d\dT", found["date"])

    def test_provenance(self, ran):
        found = json.loads((ran / "provenance.json").read_text())
        assert found["options"]["d"] == [3]
        assert found["options"]["out"] == str(ran)
        assert found["versions"]["jax"] == jax.__version__

    def test_the_log_file_has_the_plan_and_what_was_written(self, ran):
        told = (ran / "logs/log.txt").read_text()
        assert "2 runs in 1 buckets" in told
        assert "INFO wrote " in told

    def test_figures_have_the_same_bytes_again(self, ran, tmp_path):
        with xr.open_dataset(ran / "results.nc") as results:
            study.draw(studies.Panel("figure", width), results.load(), tmp_path)
        for name in ("figure.png", "figure.pdf"):
            assert (tmp_path / name).read_bytes() == (ran / name).read_bytes()

    def test_figures_are_those_of_matplotlib(self, ran, tmp_path):
        with (
            matplotlib.style.context(jk.plotting.STYLE),
            xr.open_dataset(ran / "results.nc") as results,
        ):
            figure = Figure()
            width(figure, results.load())
            figure.savefig(tmp_path / "figure.png")
            figure.set_layout_engine("none")
            figure.savefig(tmp_path / "figure.pdf", metadata={"CreationDate": None})
        for name in ("figure.png", "figure.pdf"):
            assert (tmp_path / name).read_bytes() == (ran / name).read_bytes()

    def test_every_file_lands_whole(self, ran, monkeypatch):
        landed = []

        def write_whole(path, content):
            landed.append(path.name)
            files.write_whole(path, content)

        before = {path: path.stat().st_mtime_ns for path in ran.iterdir() if path.is_file()}
        monkeypatch.setattr(study, "write_whole", write_whole)
        monkeypatch.setattr(results_module, "write_whole", write_whole)
        assert STUDY.main(["--out", str(ran), "--landed"]) == 0
        changed = {path.name for path, time in before.items() if path.stat().st_mtime_ns > time}
        assert changed == set(landed)
        assert {"derived.nc", "claims.md", "claims.json", "table.md", "figure.pdf"} <= changed

    def test_a_table_of_runs_that_have_landed(self, ran, tmp_path, capsys):
        out = tmp_path / "out"
        assert STUDY.main(["--out", str(out), "--landed"]) == 2
        assert f"error: no row of these runs has landed in {out}" in capsys.readouterr().err
        assert not out.exists()
        before = (ran / "results.nc").stat().st_mtime_ns
        (ran / "claims.md").unlink()
        assert STUDY.main(["--out", str(ran), "--landed"]) == 0
        assert "2 runs: 2 converged." in (ran / "claims.md").read_text()
        assert (ran / "results.nc").stat().st_mtime_ns == before
        assert "c | is small" not in capsys.readouterr().err

    def test_without_a_run_that_converged_there_are_files_but_no_figure(self, tmp_path, capsys):
        def drawn(figure, results):
            raise ValueError("there are no means")

        def unfinished(options):
            runs = jk.grid(d=3, alpha=0.5, width=20, seed=0, measure=(), max_steps=1)
            panels = [studies.Panel("figure", drawn)]
            return [studies.Part(runs, claims=lambda results: [], panels=panels)]

        one = studies.Study("made-up", "", Options, unfinished)
        assert one.main(["--out", str(tmp_path), "--quiet"]) == 0
        assert "no run converged: nothing to draw" in capsys.readouterr().err
        assert {"results.nc", "claims.md", "provenance.json"} <= {
            p.name for p in tmp_path.iterdir()
        }
        assert not (tmp_path / "figure.png").exists()

    def test_parts_have_folders_of_their_own(self, tmp_path, capsys):
        arguments = ["--figure", "2", "3", "--keep", "--quiet", "--out", str(tmp_path)]
        assert STUDY.main(arguments) == 0
        printed = capsys.readouterr()
        for name in ("2", "3"):
            assert (tmp_path / name / "claims.json").exists()
            assert f"{name}\n\n| claim" in printed.out
        assert xr.load_dataset(tmp_path / "2/derived.nc").attrs["norms"] == 2
        assert printed.err == ""
        assert STUDY.main(["--figure", "2", "2", "--out", str(tmp_path)]) == 2
        assert "several parts '2'" in capsys.readouterr().err
        assert STUDY.main(["--figure", "--out", str(tmp_path)]) == 2
        assert "nothing to run: name a value for --figure" in capsys.readouterr().err

    def test_the_page_names_the_preset_of_each_study_of_a_folder(self, ran, tmp_path, capsys):
        """It was that of the study that ran last: they share the file that says so."""
        out = tmp_path / "out"
        shutil.copytree(ran, out)
        about = json.loads((out / "provenance.json").read_text())
        other = {**about, "study": "other", "options": {"preset": "huge"}, "date": "1999-01-01"}
        (out / "provenance.json").write_text(json.dumps(other))
        assert command.main(["claims", str(out)]) == 0
        shown = capsys.readouterr().out
        assert shown.startswith("## made-up, preset quick\n")
        assert f"of 2 runs 2 converged. {about['date'][:10]}, jaxkkt {jk.__version__}, " in shown
        # Written before claims.json told it: nothing is said where another study ran since.
        found = json.loads((out / "claims.json").read_text())
        older = {name: found[name] for name in ("study", "part", "claims", "runs")}
        (out / "claims.json").write_text(json.dumps(older))
        assert command.main(["claims", str(out)]) == 0
        shown = capsys.readouterr().out
        assert shown.startswith("## made-up\n")
        assert shown.endswith("of 2 runs 2 converged.\n")


class TestEnds:
    def test_a_plan_and_tables_of_what_is_there_are_not_one(self, ran, capsys):
        before = (ran / "claims.md").stat().st_mtime_ns
        assert STUDY.main(["--out", str(ran), "--landed", "--dry-run"]) == 2
        told = capsys.readouterr().err
        assert "error: give either --dry-run, what the runs would cost, or --landed" in told
        assert "buckets" not in told
        assert (ran / "claims.md").stat().st_mtime_ns == before

    @pytest.mark.parametrize("option", [["--keep"], ["--shard", "1/2"], ["--workers", "2"]])
    def test_landed_rows_are_not_trained(self, ran, capsys, option):
        """A shard of them said that all of its runs were there, workers started for nothing."""
        assert STUDY.main(["--out", str(ran), "--landed", *option]) == 2
        assert f"error: --landed trains nothing: leave out {option[0]}" in capsys.readouterr().err

    def test_a_plan_is_of_all_shards(self, tmp_path, capsys):
        """Of a shard it printed the cost of all runs, and did not say so."""
        assert STUDY.main(["--out", str(tmp_path), "--dry-run", "--shard", "1/2"]) == 2
        told = capsys.readouterr().err
        assert "error: --dry-run prints what all shards together would cost: leave out" in told
        assert "buckets" not in told

    def test_dry_run_trains_and_writes_nothing(self, tmp_path, capsys, monkeypatch):
        monkeypatch.setattr(study.engine, "sweep", None)
        out = tmp_path / "none"
        assert STUDY.main(["--dry-run", "--out", str(out), "--figure", "2", "3"]) == 0
        told = capsys.readouterr().err
        for word in ("2:", "3:", "2 runs in 1 buckets", "FLOP", "minutes"):
            assert word in told
        assert not out.exists()

    def test_a_dry_run_looks_at_what_is_there(self, ran, capsys):
        """It told the cost of all runs, of a folder that had them."""
        assert STUDY.main(["--out", str(ran), "--dry-run"]) == 0
        told = capsys.readouterr().err
        assert "2 of the 2 runs are in the store already" in told
        assert "about 0.0 minutes" in told

    @pytest.mark.slow
    @pytest.mark.parametrize("name", list(command.studies("sweeps")))
    def test_every_study_here_can_be_planned(self, name, tmp_path, capsys, unchecked):
        assert command.sweep([name, "--dry-run", "--out", str(tmp_path)], "sweeps") == 0
        assert "minutes" in capsys.readouterr().err

    @pytest.mark.parametrize("name", list(command.studies("sweeps")))
    def test_every_option_of_every_study_has_help(self, name, capsys):
        """--d of the optimizers had a default value alone."""
        with pytest.raises(SystemExit, match="0"):
            command.sweep([name, "--help"], "sweeps")
        told = " ".join(capsys.readouterr().out.replace("│", " ").split())
        assert "--out PATH output folder (default" in told
        assert re.findall(r"(--[a-z-]+) (?:[A-Z]+|\[[][A-Z. ]*\]+|\{[^}]*\}) \(default", told) == []

    def test_an_interruption_says_how_to_go_on(self, tmp_path, capsys, monkeypatch):
        def interrupted(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr(study.engine, "sweep", interrupted)
        assert STUDY.main(["--out", str(tmp_path), "--quiet"]) == 130
        told = capsys.readouterr().err
        assert f"stopped; the same command goes on with the rows in {tmp_path}" in told

    @pytest.mark.parametrize("error", [ValueError, OSError, ImportError])
    def test_an_error_is_one_line_and_code_2(self, error, tmp_path, capsys, monkeypatch):
        def failed(*_, **__):
            raise error("it went\nwrong")

        monkeypatch.setattr(study.engine, "sweep", failed)
        log = tmp_path / "log.txt"
        arguments = ["--out", str(tmp_path), "--quiet", "--log-file", str(log)]
        assert STUDY.main(arguments) == 2
        assert capsys.readouterr().err == "error: it went wrong\n"
        assert "ERROR it went wrong" in log.read_text()

    def test_other_errors_are_not_hidden(self, tmp_path, monkeypatch):
        monkeypatch.setattr(study.engine, "sweep", None)
        with pytest.raises(TypeError):
            STUDY.main(["--out", str(tmp_path)])

    def test_the_log_is_left_as_it_was(self, tmp_path, monkeypatch):
        before = LOG.level, list(LOG.handlers)
        assert STUDY.main(["--dry-run", "--log-file", str(tmp_path / "log.txt")]) == 0
        assert STUDY.main(["--seeds", "0"]) == 2
        assert (LOG.level, LOG.handlers) == before

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--preset", "huge"], "invalid choice 'huge' ('quick', 'more')"),
            (["--sedes", "5"], "--sedes --seeds"),
            (["--seeds", "x"], "--seeds x"),
        ],
    )
    def test_misspelled_options_list_what_exists(self, arguments, words, capsys):
        with pytest.raises(SystemExit, match="2"):
            STUDY.main(arguments)
        told = capsys.readouterr().err
        for word in words.split():
            assert word in told
