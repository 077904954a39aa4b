"""The notebooks' code runs."""

import json
from pathlib import Path

import jax
import matplotlib
import matplotlib.pyplot as plt
import pytest

matplotlib.use("Agg")
NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path):
    names: dict[str, object] = {}
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):  # as for users
        for cell in json.loads(path.read_text())["cells"]:
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), path.name, "exec"), names)
    plt.close("all")


def test_there_are_notebooks():
    assert NOTEBOOKS
