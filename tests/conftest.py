"""All tests run with the shapes and types of the package's signatures checked at every call."""

import gc
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jaxtyping
import pytest

# A shape or dtype that meets another by accident is an error.
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

check = jaxtyping.jaxtyped


def _checked(function: Any = None, **settings: Any) -> Any:
    """Functions that others make at each call take milliseconds to be checked: of these only those
    whose arrays have shapes are."""
    if function is None:
        return partial(_checked, **settings)
    if "<locals>" in getattr(function, "__qualname__", ""):
        kinds = getattr(function, "__annotations__", {}).values()
        if not any(isinstance(k, type) and issubclass(k, jaxtyping.AbstractArray) for k in kinds):
            return function
    return check(function, **settings)


# The package must be imported after this. Numeric tower: a float parameter takes an int.
jaxtyping.jaxtyped = _checked
jaxtyping.install_import_hook(
    "jaxkkt", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
)


# Most of the tests' time is XLA's, compiling what runs for milliseconds. Its older way of writing
# loops for CPUs, one module instead of many, none of LLVM's passes, neither unrolled loops nor
# straight code made into vectors compile sooner. `XLA_FLAGS= pytest` compiles as users do.
SOONER = (
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    " --xla_backend_extra_options=xla_cpu_disable_loop_unrolling,xla_cpu_disable_slp_vectorizer"
    " --xla_backend_optimization_level=0"
)
# A single program may be told to run faster, for longer to compile.
FASTER = {"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": True}


def pytest_configure(config: pytest.Config) -> None:
    """What one process compiles the others read: workers, and the commands that tests start; with
    JAX_COMPILATION_CACHE_DIR=/some/folder the next run of the tests, too."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    if "XLA_FLAGS" not in os.environ and _is_known(SOONER):
        os.environ["XLA_FLAGS"] = SOONER
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if folder is None:
        folder = tempfile.mkdtemp()
        config.add_cleanup(lambda made=folder: shutil.rmtree(made, ignore_errors=True))
    cache = {
        "jax_compilation_cache_dir": folder,
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in cache.items():
        jax.config.update(name, value)
        os.environ[name.upper()] = str(value)


def pytest_collection_finish() -> None:
    """JAX's modules and the tests themselves are there to the end: a collection that looks at them
    takes half a second, and JAX makes objects enough for one every ten seconds."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def pytest_sessionfinish() -> None:
    """At its end pytest collects five times."""
    gc.freeze()


def _is_known(flags: str) -> bool:
    """An XLA that does not know a flag ends its process."""
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    return subprocess.run(command, env=env, capture_output=True).returncode == 0


@pytest.fixture
def float64() -> Iterator[None]:
    """Arrays made inside the test hold 64 bits."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def unchecked() -> Iterator[None]:
    """As for a user: signatures are not checked, so the package's own errors come to light, and
    shapes and types are promoted as JAX does by default."""
    strict = {"jax_numpy_rank_promotion": "raise", "jax_numpy_dtype_promotion": "strict"}
    jaxtyping.config.update("jaxtyping_disable", True)
    jax.config.update("jax_numpy_rank_promotion", "allow")
    jax.config.update("jax_numpy_dtype_promotion", "standard")
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
    for name, value in strict.items():
        jax.config.update(name, value)


@pytest.fixture
def one_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small networks train one by one, as large ones do, instead of many at a time."""
    monkeypatch.setattr("jaxkkt.engine.planning.lane_counts.LANES_OF_A_CORE", ())


@pytest.fixture
def trains_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """What trains is compiled to run faster."""
    from jaxkkt.engine.machine import traces
    from jaxkkt.engine.programs import training as programs

    compiled = traces.compiled

    def faster(asked, make, options):
        def of(name):
            return {**options(name), **FASTER} if name in programs.OFTEN else options(name)

        return compiled(asked, make, of)

    if os.environ.get("XLA_FLAGS") == SOONER:
        monkeypatch.setattr(traces, "compiled", faster)
