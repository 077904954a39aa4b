"""What a type checker tells a user: the names that are called most have types, not Any."""

import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

EXPECTED = {
    "jk.train(params, x, y)": "Result",
    "jk.train(params, x, y).log_loss": "Array",
    "jk.networks.margins(params, x, y)": "Array",
    "jk.grid(d=[4], alpha=[1.0], width=[3], seed=[0])": "list[Run]",
    "jk.sweep(jk.grid(d=[4], alpha=[1.0], width=[3], seed=[0]))": "Dataset",
    "jk.kkt.certificate(params, x, y)": "Certificate",
    "jk.kkt.polish(params, x, y)": "Polished",
    "jk.kkt.follow_flow(params, x, y, -60.0, [-70.0])": "FlowTrace",
    "jk.kkt.multipliers(params, x, y)": "Array",
}
SCRIPT = """\
import jax
import jax.numpy as jnp
import jaxkkt as jk

params = jk.networks.torch_linear(jax.random.key(0), 10, 4)
x, y = jnp.ones((2, 4)), jnp.array([1.0, -1.0])
"""


@pytest.fixture(scope="module")
def revealed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("typing")
    lines = [SCRIPT, *(f"reveal_type({name})\n" for name in EXPECTED)]
    (folder / "script.py").write_text("".join(lines))
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir=cache"]
    ran = subprocess.run([*command, "script.py"], cwd=folder, capture_output=True, text=True)
    errors = [line for line in ran.stdout.splitlines() if "error:" in line]
    assert (errors, ran.stderr) == ([], "")
    notes = [line for line in ran.stdout.splitlines() if "Revealed type is" in line]
    return dict(zip(EXPECTED, notes, strict=True))


def short(revealed):
    """A type without its modules, and a NamedTuple without its fields."""
    if revealed.startswith("tuple["):
        revealed = revealed.rsplit("fallback=", 1)[-1].removesuffix("]")
    return re.sub(r"(\w+\.)+", "", revealed)


@pytest.mark.parametrize("name", EXPECTED)
def test_calls_of_a_user_have_types(name, revealed):
    assert short(revealed[name].split('"')[1]) == EXPECTED[name]
