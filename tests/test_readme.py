"""The README's code runs, and its claims table is what a command printed."""

import re
from pathlib import Path

import matplotlib
import pytest

import jaxkkt

matplotlib.use("Agg")
README = (Path(__file__).parent.parent / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_code_runs(capsys, monkeypatch):
    monkeypatch.setenv("JAXKKT_CACHE", "off")  # what it keeps would stay for other tests
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 4
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    told = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    assert len(told) == 2
    # c of another CPU differs by some percent, the table's shape does not.
    table, sizes = told
    assert sizes in printed
    measured = re.findall(r"^[ 0-9.]+$", printed, re.MULTILINE)[:4]
    for line, here in zip(table.splitlines()[1:-1], measured, strict=True):
        assert float(here.split()[-1]) == pytest.approx(float(line.split()[-1]), rel=0.2)
    assert names["flips"].size.shape == (8,)  # type: ignore[attr-defined]
    assert (names["flips"].status == 0).all()  # type: ignore[attr-defined]


def test_public_names_exist():
    for name in jaxkkt.__all__:
        assert hasattr(jaxkkt, name), name
