"""The code of the docs runs, in order, as a user pastes it."""

import ast
import importlib
import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest

import jaxkkt as jk
from jaxkkt.store.care import verify
from jaxkkt.training import SUCCEEDED
from sweeps import vardi_figures
from tests import functions

matplotlib.use("Agg")
DOCS = Path(__file__).parent.parent / "docs"
PACKAGE = DOCS.parent / "jaxkkt"
PAGES = [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))]
FULL = {"jk": "jaxkkt", "np": "numpy", "jnp": "jax.numpy"}
NO_MODULES = {"results.nc", "state.level"}
SCRIPT = "<!-- a script of its own -->\n"


def blocks(name: str) -> tuple[list[str], list[str]]:
    """A page's code: blocks that share their names, and scripts of their own."""
    found = re.findall(rf"({SCRIPT})?```python\n(.*?)```", (DOCS / name).read_text(), re.DOTALL)
    assert found
    return [code for alone, code in found if not alone], [code for alone, code in found if alone]


def commands() -> list[str]:
    """The studies' command lines on all pages: `python -m sweeps.NAME OPTION ...`; but those of a
    loop over names, and that of the study that contributors are told to write."""
    found = []
    for page in PAGES:
        text = page.read_text()
        fenced = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
        lines = [line for block in fenced for line in block.splitlines()]
        lines += re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
        found += re.findall(r"python -m sweeps\.([^#&|;]+)", "\n;".join(lines))
    names = {" ".join(command.split()) for command in found} - {"tiny"}
    return sorted(name for name in names if not name.startswith("$"))


@pytest.mark.parametrize("command", commands())
def test_commands_of_the_pages_can_be_run(command):
    module, *arguments = shlex.split(command)
    importlib.import_module(f"sweeps.{module}").STUDY.read(arguments)


def links(page: Path) -> list[Path]:
    """The files that a page links to, each as far as its section."""
    targets = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    return [(page.parent / to).resolve() for to in targets if "://" not in to]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS.parent)))
def test_links_of_a_page_lead_somewhere(page):
    assert [path for path in links(page) if not path.exists()] == []


def test_all_pages_and_notebooks_are_listed():
    listed = links(DOCS / "README.md")
    there = *PAGES[1:], *(DOCS.parent / "notebooks").glob("*.ipynb")
    assert {path.resolve() for path in there if path.name != "README.md"} - set(listed) == set()


def test_the_page_of_functions_is_that_of_their_docstrings():
    """`python -m tests.functions` writes it."""
    assert functions.PAGE.read_text(encoding="utf-8") == functions.page()


def test_every_public_name_is_on_the_page_of_functions():
    text = functions.page()
    names = {name for name in jk.__all__ if callable(getattr(jk, name))} - {"Number", "Count"}
    assert {name for name in names if not re.search(rf"`jk\.[a-z.]*{name}[`(]", text)} == set()
    modules = {name for name in jk.__all__ if inspect.ismodule(getattr(jk, name))}
    named = {module for section in functions.SECTIONS for module in section.modules}
    of_page = {module.split(".")[1] for module in named - {"jk"}}
    assert modules - of_page == {"runs", "specs"}  # whose names are those of jk and jk.data
    beside = [name for section in functions.SECTIONS for name in section.beside]
    assert [name for name in beside if f".{name}(" in text] == []


def docstrings() -> list[tuple[str, str]]:
    """The package's docstrings, each with its module's name."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef):
                found.append((module.removesuffix(".__init__"), ast.get_docstring(node) or ""))
    return found


def test_names_in_docstrings_are_there():
    """`module.name`, of whatever module: one named a function that never was."""
    modules = {name for name, _ in docstrings() if not name.endswith("__main__")}

    def is_there(name: str) -> bool:
        first, *rest = name.split(".")
        places = [m for m in modules if m.endswith(f".{first}")] or [FULL.get(first, first)]
        found = [importlib.import_module(place) for place in places]
        for part in rest:
            found = [
                getattr(one, part, None)
                for one in found
                if hasattr(one, part) or part in getattr(one, "__annotations__", ())
            ]
        return bool(found)

    text = "\n".join(docstring for _, docstring in docstrings())
    named = set(re.findall(r"`([a-z]\w*(?:\.\w+)+)`", text)) - NO_MODULES
    assert len(named) > 50
    assert [name for name in sorted(named) if not is_there(name)] == []


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_everything_can_be_brought():
    shared, scripts = blocks("own.md")
    assert len(shared) >= 8
    assert len(scripts) == 1
    names: dict[str, object] = {"__name__": "docs"}
    for code in shared:
        exec(compile(code, "own.md", "exec"), names)


@pytest.mark.slow
def test_workers_get_own_functions(tmp_path):
    (script,) = blocks("own.md")[1]
    path = tmp_path / "script.py"
    path.write_text(script)
    subprocess.run([sys.executable, path], check=True, timeout=500)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_a_folder_that_is_extended_and_read(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "docs"}
    for code in blocks("stores.md")[0]:
        exec(compile(code, "stores.md", "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    for line in printed:
        assert f"```text\n{line}\n```" in (DOCS / "stores.md").read_text()
    assert len(printed) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_workers_of_this_machine(tmp_path):
    """The page's other calls need a cluster."""
    path = tmp_path / "script.py"
    path.write_text(blocks("machines.md")[0][0])
    subprocess.run([sys.executable, path], check=True, cwd=tmp_path, timeout=500)
    assert list((tmp_path / "out" / "segments").iterdir())


@pytest.mark.slow
def test_functions_under_shard_map_are_those_under_vmap():
    (code,) = (block for block in blocks("machines.md")[0] if "jax.shard_map" in block)
    two = "import jax\njax.config.update('jax_num_cpu_devices', 2)\n"
    command = [sys.executable, "-c", two + code + "print(jax.jit(train)(start))"]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=500)
    sharded, mapped = ran.stdout.splitlines()
    assert sharded == mapped
    assert sharded.count(".") == 2


@pytest.mark.slow
def test_processes_that_share_a_device(tmp_path):
    (script,) = blocks("machines.md")[1]
    path = tmp_path / "million.py"
    path.write_text(script.replace("1_000_000", "5"))
    shards = [subprocess.Popen([sys.executable, path, f"{i}/2"], cwd=tmp_path) for i in (1, 2)]
    assert [shard.wait(500) for shard in shards] == [0, 0]
    assert jk.read_store(tmp_path / "out").sizes["seed"] == 5


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_the_theory_of_a_kkt_point(capsys):
    (one, swept), _ = blocks("theory.md")
    names: dict[str, object] = {"__name__": "docs"}
    exec(compile(one, "theory.md", "exec"), names)
    lines = capsys.readouterr().out.splitlines()[2:]
    assert len(lines) == 9
    assert all("| holds" in line for line in lines)
    exec(compile(swept, "theory.md", "exec"), names)
    lines = capsys.readouterr().out.splitlines()[2:]
    assert len(lines) == 18
    assert all("| 1 | 1 | 1 of 1 |" in line for line in lines)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("page", ["limits.md", "table.md"])
def test_the_code_of_a_study_s_page_runs(page):
    for code in blocks(page)[0]:
        exec(compile(code, page, "exec"), {"__name__": "docs"})


@pytest.mark.parametrize(
    "kind", [jk.Flips, jk.Certificates, jk.StepFlips, jk.ClusterFlips, jk.Ledger]
)
def test_every_variable_of_a_table_is_described_as_the_table_does(kind):
    page = (DOCS / "table.md").read_text().replace("\\|", "|")
    (part,) = re.findall(rf"### `jk.{kind.__name__}`\n(.*?)\n#", page + "\n#", re.DOTALL)
    for name, about in kind().attributes().items():
        method = f"; {about['method']}" if "method" in about else ""
        assert f"| `{name}` | {about['long_name']}{method} | {about['units']} |" in part
    assert part.count("\n| `") == len(kind().attributes())


def test_every_end_of_a_run_is_described():
    page = (DOCS / "table.md").read_text()
    for status in set(jk.Status) - {*SUCCEEDED, jk.Status.RUNNING, jk.Status.PAUSED}:
        assert f"| {int(status)}, {status.name} | {status.describe()} |" in page
    for status in SUCCEEDED:
        assert f"{int(status)} ({status.name})" in page


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_clustered_data_are_swept(capsys):
    (code,), _ = blocks("clusters.md")
    exec(compile(code, "clusters.md", "exec"), {"__name__": "docs"})
    assert "clusters" in capsys.readouterr().out


def test_published_rows_are_whole_and_say_what_the_page_says():
    store = DOCS / "rows" / "vardi_paper"
    assert not verify(store)
    rows = jk.read_rows(store)
    assert rows.status.isin(SUCCEEDED).all()
    grid = {(run.d, run.samples, run.width, run.seed) for run in vardi_figures.preset("paper")}
    assert set(zip(rows.d, rows.samples, rows.width, rows.seed, strict=True)) == grid
    assert len(rows) == len(grid)
    rows["scaled"] = rows.flip_size_exact / rows.d**0.5
    page = (DOCS / "results.md").read_text()
    for (d, samples), own in rows[rows.alpha == 1.5].groupby(["d", "samples"]):
        told = f"{own.scaled.mean():.3f} | {own.on_margin_share.min():.3f} | {own.steps.max()}"
        assert f"| {d} | {samples} | {len(own)} | {told} |" in page


@pytest.mark.parametrize(
    ("store", "networks"),
    [
        ("wang_k10000/figure3", 28),
        ("wang_k10000/figure6", 28),
        ("wang_k100000/figure3", 28),
        ("wang_k100000/figure6", 28),
    ],
)
def test_published_rows_of_lazy_networks_say_what_their_page_says(store, networks):
    assert not verify(DOCS / "rows" / store)
    rows = jk.read_rows(DOCS / "rows" / store)
    assert len(rows) == networks
    assert (rows.status == jk.Status.LEFT_BALL).all()
    gradient = rows.pivot_table("step_gradient_norm", "ball", "d")
    grown = ", ".join(f"{g:.2f}" for g in gradient.loc[40] / gradient.loc[10])
    assert f"40 against 10, by d: {grown} times" in (DOCS / "lazy_mnist.md").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_a_study_is_a_page(tmp_path):
    (study,), _ = blocks("contributing.md")
    assert study.count("\n") < 40
    names: dict[str, object] = {"__name__": "tiny"}
    exec(compile(study, "contributing.md", "exec"), names)
    assert names["STUDY"].main(["--d", "8", "--quiet", "--out", str(tmp_path)]) == 0  # type: ignore[attr-defined]
    assert (tmp_path / "against_d.png").stat().st_size > 5000
    assert "| c stays below sqrt(d) |" in (tmp_path / "claims.md").read_text()
