"""The README's code runs, and its claims table is what a command printed."""

import re
from pathlib import Path

import jax
import matplotlib
import pytest

import jaxkkt

matplotlib.use("Agg")
README = (Path(__file__).parent.parent / "README.md").read_text()


@pytest.mark.usefixtures("unchecked")
def test_code_runs():
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 4
    names: dict[str, object] = {}
    with jax.numpy_rank_promotion("allow"):  # as it is for users
        for block in blocks:
            exec(compile(block, "README.md", "exec"), names)
    assert names["flips"].size.shape == (8,)  # type: ignore[attr-defined]
    assert (names["flips"].status == 0).all()  # type: ignore[attr-defined]
    assert dict(names["table"].sizes) == {"d": 2, "alpha": 2, "width": 2, "seed": 2}  # type: ignore[attr-defined]


def test_public_names_exist():
    for name in jaxkkt.__all__:
        assert hasattr(jaxkkt, name), name
