"""Options of the compiler, and whose word counts; how much is compiled for plain arrays."""

import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxkkt as jk
from jaxkkt.numerics import compiling
from jaxkkt.numerics.compiling import OLDER_EMITTERS, quick_options
from jaxkkt.numerics.truths import all_of, any_of

COMPILED = "/jax/core/compile/backend_compile_duration"


@pytest.mark.parametrize(
    ("flags", "platform", "left"),
    [
        ("", "cpu", OLDER_EMITTERS),
        ("--xla_backend_optimization_level=3", "cpu", {"xla_cpu_use_fusion_emitters": False}),
        ("--xla_cpu_use_fusion_emitters", "cpu", {"xla_backend_optimization_level": 1}),
        ("", "gpu", {}),
    ],
)
def test_what_xla_flags_say_goes_before(flags, platform, left, monkeypatch):
    monkeypatch.setattr(compiling, "_known", compiling._known.__wrapped__)  # not what was found
    monkeypatch.setattr(compiling, "_takes", lambda *option: True)
    monkeypatch.setenv("XLA_FLAGS", flags)
    assert quick_options(platform) == left


def test_an_option_that_this_xla_does_not_know_takes_no_other_with_it(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    options = {"xla_cpu_of_another_version": 1, "xla_backend_optimization_level": 1}
    known = compiling._known.__wrapped__("cpu", tuple(options.items()))
    assert known == {"xla_backend_optimization_level": 1}


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize(
    "truths",
    [
        np.zeros((3, 4), bool),
        np.ones((3, 4), bool),
        np.eye(3, 4, dtype=bool),
        np.array([[0.0, -0.0], [np.nan, 1e-30]], np.float32),
        np.array([[1, 0], [-1, 2]], np.int32),
        np.ones((2, 0), bool),
    ],
    ids=["none", "all", "some", "numbers", "whole numbers", "empty"],
)
def test_truths_that_are_counted_are_those_of_jax(truths, axis):
    for counted, whole in ((any_of, jnp.any), (all_of, jnp.all)):
        for found in (counted(truths, axis), jax.jit(lambda a, f=counted: f(a, axis))(truths)):
            np.testing.assert_array_equal(found, whole(truths, axis), strict=True)


def test_no_function_of_the_package_compiles_an_or_of_many():
    """XLA's CPU compiler takes a quarter of a second for one; `numerics.truths` counts. The one in
    every step of training stays: counting may take a few hundredths longer to run."""
    package = Path(jk.__file__).parent
    for path in set(package.rglob("*.py")) - {package / "representations.py"}:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"jnp\.(any|all)\(", text), path


def certify():
    rng = np.random.default_rng(0)
    w, b, v, x = (rng.normal(size=n).astype(np.float32) for n in ((9, 3), 9, 9, (7, 3)))
    labels = np.where(np.arange(7) % 2, 1, -1).astype(np.float32)
    return jk.kkt.certificate(jk.Params(w, b, v), x, labels)


def declare_linear():
    return jk.optimizers.linear(optax.sgd(optax.cosine_decay_schedule(0.1, 100), 0.9))


def declare_linear_in_many_settings():
    rule = jk.optimizer(optax.sgd, linear=True, learning_rate=0.1, momentum=0.5)
    rates, momenta = np.linspace(0.01, 0.1, 5), (0.0, 0.5, 0.9)
    return jk.grid(d=2, samples=2, width=2, optimizer=rule, learning_rate=rates, momentum=momenta)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "most"), [(certify, 9), (declare_linear, 3), (declare_linear_in_many_settings, 3)]
)
def test_few_programs_are_compiled_for_plain_arrays(call, most):
    """In a notebook each takes a tenth of a second, and every size needs them anew."""
    compiled, going = [], True

    def listen(event, *_, **__):
        if going and event == COMPILED:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    call()
    going = False
    assert 0 < len(compiled) <= most


@pytest.mark.slow
def test_a_mesh_of_several_devices_may_be_set():
    """Where an array lies on all of them, which is its device was an error."""
    code = """
import jax, numpy as np
jax.config.update("jax_num_cpu_devices", 2)
import jaxkkt as jk
x, y = np.eye(2, dtype=np.float32), np.array([1, -1], np.float32)
with jax.set_mesh(jax.make_mesh((2,), ("i",))):
    found = jk.kkt.certificate(jk.Params(x, np.zeros_like(y), y), x, y, trained=("w", "v"))
assert found.clarke.residual < 1e-6
"""
    subprocess.run([sys.executable, "-c", code], check=True)
