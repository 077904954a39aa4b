"""A study's command line, and that of the package."""

import importlib
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import jaxkkt as jk
from jaxkkt import studies
from jaxkkt.specs import identity
from jaxkkt.studies import command
from jaxkkt.studies.claims import Claim, as_json


class TestPackage:
    def test_the_wheel_installs_jaxkkt_alone_with_the_studies_in_it(self, tmp_path, monkeypatch):
        backend = pytest.importorskip("hatchling.build")
        root = Path(__file__).parent.parent
        monkeypatch.chdir(root)
        with zipfile.ZipFile(tmp_path / backend.build_wheel(str(tmp_path))) as wheel:
            names = set(wheel.namelist())
            entries = wheel.read(f"jaxkkt-{jk.__version__}.dist-info/entry_points.txt").decode()
        tops = {name.split("/")[0] for name in names}
        assert tops == {"jaxkkt", f"jaxkkt-{jk.__version__}.dist-info"}
        assert {f"jaxkkt/sweeps/{path.name}" for path in (root / "sweeps").glob("*.py")} <= names
        assert "jaxkkt/py.typed" in names  # without it a user's type checker reads no types
        assert "jaxkkt = jaxkkt.studies.command:main" in entries

    def test_studies_import_each_other_as_both_packages_can(self):
        """As `sweeps` in a clone and as `jaxkkt.sweeps` where the package is installed."""
        for path in (Path(__file__).parent.parent / "sweeps").glob("*.py"):
            words = {line.strip() for line in path.read_text().splitlines()}
            assert not [line for line in words if line.startswith(("from sweeps", "import sweeps"))]

    def test_studies_code_is_part_of_the_identity_of_runs(self):
        sweeps = importlib.import_module("sweeps")
        folder = Path(sweeps.__file__).parent
        assert identity._COVERED["sweeps"] == folder
        # A second name, under which the installed package has the same file.
        spec = importlib.util.spec_from_file_location("jaxkkt.sweeps", folder / "__init__.py")
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
        # That is covered already: runs are the same with and without the studies imported.
        assert identity._COVERED["jaxkkt"] == Path(jk.__file__).parent
        assert "jaxkkt.sweeps" not in identity._COVERED


class TestCommand:
    def test_lists_studies_without_importing_them(self, capsys, monkeypatch):
        for name in [name for name in sys.modules if name.split(".")[0] == "sweeps"]:
            monkeypatch.delitem(sys.modules, name)
        assert command.main(["sweep"]) == 0
        told = capsys.readouterr().out
        assert re.search(
            r"  vardi-figures +Figures 1 and 2 of Vardi, Yehudai, Shamir \(2022\)", told
        )
        assert "vardi-claims" not in told
        assert "sweeps.vardi_figures" not in sys.modules

    def test_runs_a_study_by_its_name(self, capsys):
        arguments = ["--d", "4", "--alpha", "1", "--seeds", "1", "--dry-run"]
        assert command.main(["sweep", "vardi-figures", *arguments]) == 0
        assert "1 runs in 1 buckets" in capsys.readouterr().err

    def test_unknown_names_are_told(self, capsys):
        assert command.main(["sweep", "vardi"]) == 2
        told = capsys.readouterr().err
        assert "error: there is no study 'vardi': choose from " in told
        assert "vardi-figures" in told
        assert command.main(["swep"]) == 2
        assert "unknown command 'swep'" in capsys.readouterr().err

    def test_claims_of_all_studies_on_a_page(self, tmp_path, capsys):
        judged = [Claim("a | b", "0.5", np.True_), Claim("c", "none", None)]
        found = {"study": "own", "part": "one", "claims": as_json(judged)}
        (tmp_path / "own" / "one").mkdir(parents=True)
        (tmp_path / "own" / "one" / "claims.json").write_text(
            json.dumps({**found, "runs": {"planned": 3, "converged": 2, "step cap": 1}})
        )
        versions = {"jaxkkt": "0.7.0", "jax": "0.10.2"}
        about = {"date": "2026-11-22T10:00", "versions": versions, "options": {"preset": "quick"}}
        (tmp_path / "own" / "provenance.json").write_text(json.dumps(about))
        assert command.main(["claims", str(tmp_path)]) == 0
        shown = capsys.readouterr().out
        assert shown.startswith("## own one, preset quick\n")
        assert "| a \\| b | 0.5 | holds |" in shown
        assert "1 holds, 1 not decided; of 3 runs 2 converged, 1 step cap. 2026-11-22" in shown
        assert command.main(["claims", str(tmp_path / "own" / "nowhere")]) == 2
        assert "no study has left its claims" in capsys.readouterr().err

    @pytest.mark.parametrize("content", ['{"foo": 1}', "[1]", '{"study": "o', '{"study": 3}'])
    def test_a_file_that_no_study_wrote_is_named(self, content, tmp_path, capsys):
        """Python's traceback did not say which of the files it was."""
        path = tmp_path / "mine" / "claims.json"
        path.parent.mkdir()
        path.write_text(content)
        assert command.main(["claims", str(tmp_path)]) == 2
        assert capsys.readouterr().err.startswith(f"error: {path} ")

    def test_claims_has_help(self, capsys):
        """It was taken for a folder of that name."""
        assert command.main(["claims", "--help"]) == 0
        assert "jaxkkt claims [FOLDER ...]" in capsys.readouterr().out

    def test_version_and_help(self, capsys):
        assert command.main(["--version"]) == 0
        assert capsys.readouterr().out.strip() == jk.__version__
        assert command.main([]) == 0
        assert "usage: jaxkkt sweep" in capsys.readouterr().out

    def test_without_studies_the_command_says_so(self, capsys, monkeypatch):
        def find(name):
            return None

        monkeypatch.setattr(command.importlib.util, "find_spec", find)
        assert command.main(["sweep"]) == 2
        assert "error: there are no studies here" in capsys.readouterr().err

    @staticmethod
    def _started_as_a_module(folder, *lines):
        """What runs a module `mine.one` in the folder, whose study does this."""
        package = folder / "mine"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "one.py").write_text(
            "import sys\n"
            "from pathlib import Path\n"
            "from jaxkkt import studies\n"
            "class STUDY:\n"
            "    def main(arguments):\n"
            + "".join(f"        {line}\n" for line in lines)
            + "if __name__ == '__main__':\n"
            "    sys.exit(studies.run_module(__spec__))\n"
        )
        return [sys.executable, "-m", "mine.one"]

    # in a buffer until the end, and not
    @pytest.mark.parametrize("lines", [1, pytest.param(5000, marks=pytest.mark.slow)])
    def test_a_module_has_its_own_name_and_goes_on_where_nobody_reads_it(self, tmp_path, lines):
        """Under the name __main__ a store could not tell its measurements from others."""
        command = self._started_as_a_module(
            tmp_path,
            f"print('a line of many\\n' * {lines}, flush=True)",
            "print('one more')",
            "Path('written').write_text(' '.join([STUDY.__module__, *sys.argv[1:]]))",
            "return 3",
        )
        pipe = subprocess.PIPE
        command += ["--d", "3"]
        with subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True) as ran:
            ran.stdout.close()
            assert ran.stderr.read() == ""
        assert ran.returncode == 3
        assert (tmp_path / "written").read_text() == "mine.one --d 3"

    @pytest.mark.slow
    def test_the_command_ends_well_where_nobody_reads_it(self):
        command, pipe = [sys.executable, "-m", "jaxkkt", "sweep"], subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as ran:
            ran.stdout.close()
            assert ran.stderr.read() == ""
        assert ran.returncode == 0

    def test_a_locale_that_is_not_utf_8_changes_what_is_read_in_nothing(self, tmp_path):
        """Studies have letters that ASCII lacks, and so may a file of options."""
        path = tmp_path / "options.toml"
        path.write_text("# Größen\nd = [4, 5]\n", encoding="utf-8")
        code = f"""
from pathlib import Path
from importlib import import_module
from jaxkkt.studies import command, options
from jaxkkt.studies.output import whether_read_or_not
assert command.studies("sweeps")["frei-open"]
print(options._from_file(Path({str(path)!r}), import_module("sweeps.optimizers").Options))
with whether_read_or_not():
    print("1", chr(0xB1), 2)
"""
        environ = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0"}
        root = Path(__file__).parent.parent
        ran = subprocess.run(
            [sys.executable, "-c", code], cwd=root, env=environ, capture_output=True, check=False
        )
        assert ran.returncode == 0, ran.stderr.decode()
        assert ran.stdout.decode().splitlines() == ["['--d', '4', '5']", "1 ? 2"]


def test_the_home_folder(tmp_path, monkeypatch):
    """A shell leaves the ~ in --out=~/here."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine.json").write_text(json.dumps({"log-file": "~/log.txt"}))
    study = studies.Study("bare", "", studies.Options, lambda options: ())
    found = study.read(["--out=~/here", "--config=~/mine.json"])
    assert found.out == tmp_path / "here"
    assert found.log_file == tmp_path / "log.txt"
