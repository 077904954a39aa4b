"""Programs that run once or a few times: compiling them quickly matters more than how they run."""

import os
from collections.abc import Callable, Mapping
from functools import cache, wraps
from threading import Lock
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# LLVM's cheaper passes: a third less to compile, and the same bits.
CHEAPER_PASSES = {"xla_backend_optimization_level": 1}
# XLA's older emitters besides: for large programs of many small operations, with other rounding.
OLDER_EMITTERS = {**CHEAPER_PASSES, "xla_cpu_use_fusion_emitters": False}


def quick_options(platform: str) -> dict[str, Any]:
    """Compiler options for draws and measurements on a device of this platform, but for those that
    XLA_FLAGS sets. Draws that were tried have the same bits without them."""
    return _known(platform, tuple(OLDER_EMITTERS.items()))


@cache
def _known(platform: str, options: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """Those of the options that this XLA knows, on a CPU. XLA_FLAGS go before."""
    if platform != "cpu":
        return {}
    said = {flag.partition("=")[0] for flag in os.environ.get("XLA_FLAGS", "").split()}
    return {
        name: value for name, value in options if f"--{name}" not in said and _takes(name, value)
    }


@cache
def _takes(option: str, value: Any) -> bool:
    """Whether this XLA knows an option."""
    lowered: Any = jax.jit(jnp.negative).lower(np.float32(1))
    try:
        lowered.compile(compiler_options={option: value})
    except jax.errors.JaxRuntimeError as error:
        if "compile option" not in str(error):
            raise
        return False
    return True


def quick_jit(
    function: Callable[..., Any], options: Mapping[str, Any] = CHEAPER_PASSES, **how: Any
) -> Callable[..., Any]:
    """As `jax.jit`, but compiled with these options where it is called with arrays.

    Within another function that is traced it is part of that one's program, and so compiled as that
    is. Of threads that call it for the first time with the same shapes one compiles, and the others
    wait for it.
    """
    locks: dict[Any, Lock] = {}
    ready: set[Any] = set()
    traced = jax.jit(function, **how)
    programs: list[Any] = []

    @cache
    def compiled(platform: str) -> Callable[..., Any]:
        known = _known(platform, tuple(options.items()))
        programs.append(jax.jit(function, compiler_options=known, **how))
        return programs[-1]

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        leaves, structure = jax.tree.flatten((args, named))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return traced(*args, **named)
        device = next(iter(jnp.zeros(()).devices()))  # of a mesh the first
        run = compiled(device.platform)
        key = (device, jax.config.read("jax_enable_x64"), structure, tuple(map(_kind, leaves)))
        if key in ready:
            return run(*args, **named)
        with locks.setdefault(key, Lock()):
            result = run(*args, **named)
        ready.add(key)
        return result

    call._cache_size = lambda: sum(made._cache_size() for made in programs)  # type: ignore[attr-defined]
    return call


def _kind(leaf: Any) -> Any:
    """What a program is compiled for: an array's shape and type, a number's type, or a static value
    itself."""
    if isinstance(leaf, bool | int | str):
        return leaf
    return np.shape(leaf), getattr(leaf, "dtype", type(leaf))
