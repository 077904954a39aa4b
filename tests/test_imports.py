"""What `import jaxkkt` must not do to the program that imports it."""

import ast
import importlib
import pkgutil
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import jaxkkt as jk


@pytest.mark.slow
def test_importing_the_package_does_not_load_matplotlib():
    """A sweep and its workers need none, and pyplot chooses a backend, which is the importing
    program's choice."""
    code = """
import sys, jaxkkt as jk
assert "matplotlib" not in sys.modules and "plotting" in dir(jk)
sweep = jk.sweep(jk.grid(d=8, samples=6, width=20, seed=0, measure=()), progress=False)
assert "matplotlib" not in sys.modules
assert jk.plotting.STYLE.is_file() and "matplotlib.axes" in sys.modules
assert "matplotlib.pyplot" not in sys.modules
from jaxkkt import plotting
from jaxkkt.process import loaded
assert plotting is jk.plotting and loaded.is_as_written()  # it changes nothing that is traced
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_all_names_of_all_modules_are_there():
    for found in pkgutil.walk_packages(jk.__path__, "jaxkkt."):
        if found.name.endswith("__main__"):
            continue
        module = importlib.import_module(found.name)
        missing = [name for name in getattr(module, "__all__", ()) if not hasattr(module, name)]
        assert not missing, found.name


def rooms(root: Path) -> dict[str, set[str]]:
    """Each folder of modules, and each module beside folders, with those that its files import."""
    files = {path.relative_to(root.parent): path for path in root.rglob("*.py")}
    modules = {".".join(one.with_suffix("").parts): one for one in files}
    with_folders = {file.parent.parent for file in files if file.name == "__init__.py"}
    found: dict[str, set[str]] = {}

    def room(file: Path) -> str:
        return str(file if file.parent in with_folders else file.parent)

    def asked_for(module: str, name: str) -> Path | None:
        tried = f"{module}.{name}", f"{module}.{name}.__init__", module, f"{module}.__init__"
        return next((modules[one] for one in tried if one in modules), None)

    for file, path in files.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                some = {asked_for(node.module, one.name) for one in node.names} - {None}
                found.setdefault(room(file), set()).update(set(map(room, some)) - {room(file)})
    return found


def test_arrows_between_folders_point_down():
    """As docs/contributing.md promises: no folder knows one that knows it."""
    graph = rooms(Path(jk.__file__).parent)
    assert len(graph) > 30
    assert "jaxkkt/engine/planning" in graph["jaxkkt/engine/running"]
    assert [*TopologicalSorter(graph).static_order()]


def test_mathematics_knows_nothing_of_runs():
    """What is computed of arrays needs no spec, and no sweep."""
    graph = rooms(Path(jk.__file__).parent)
    mathematics = {"kkt", "networks", "numerics", "perturbations", "theory"}
    reached, new = set(), {one for one in graph if one.split("/")[1] in mathematics}
    assert {one.split("/")[1] for one in new} == mathematics
    while new:
        reached |= new
        new = {one for known in new for one in graph.get(known, ())} - reached
    others = "specs", "protocols", "runs", "training", "measurements", "engine"
    assert not [one for one in reached if one.split("/")[1].removesuffix(".py") in others]


def test_an_arrow_that_points_up_is_seen(tmp_path):
    for folder, line in (("low", "from own.high import a"), ("high", "from own.low.b import x")):
        (tmp_path / "own" / folder).mkdir(parents=True)
        (tmp_path / "own" / folder / "__init__.py").touch()
        (tmp_path / "own" / folder / f"{'ab'[folder == 'low']}.py").write_text(line)
    with pytest.raises(CycleError):
        [*TopologicalSorter(rooms(tmp_path / "own")).static_order()]


def test_a_name_that_is_not_there_is_told_as_python_tells_it():
    with pytest.raises(AttributeError, match="'jaxkkt' has no attribute 'plot'"):
        _ = jk.plot


def test_importing_the_package_leaves_its_objects_to_the_oldest_generation():
    """Else the collector goes through them while they are made, and once more at the next few."""
    code = """
import gc
collections = []
gc.callbacks.append(lambda phase, info: collections.append(info["generation"]))
import jaxkkt.process.garbage
young = {id(one) for generation in (0, 1) for one in gc.get_objects(generation)}
assert gc.isenabled() and len(collections) < 30 and 2 not in collections, collections
assert id(jaxkkt.__dict__) not in young and len(young) < 1000, len(young)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
