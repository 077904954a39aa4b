"""Programs that run once or a few times: compiling them quickly matters more than how they run."""

from collections.abc import Callable
from functools import cache, wraps
from threading import Lock
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@cache
def quick_options(platform: str) -> dict[str, Any]:
    """Compiler options for a device of this platform.

    On a CPU XLA's older emitters compile large programs of many small operations in two thirds of
    the time and memory. None elsewhere, and where this XLA does not know the option.
    """
    options = {"xla_cpu_use_fusion_emitters": False}
    if platform != "cpu":
        return {}
    try:
        lowered: Any = jax.jit(jnp.negative).lower(np.float32(1))
        lowered.compile(compiler_options=options)
    except Exception:
        return {}
    return options


def quick_jit(function: Callable[..., Any], **how: Any) -> Callable[..., Any]:
    """As `jax.jit`, compiled with `quick_options`; not to be called within another one.

    Of threads that call it for the first time with the same shapes one compiles, and the others
    wait for it.
    """
    locks: dict[Any, Lock] = {}
    ready: set[Any] = set()

    @cache
    def compiled(platform: str) -> Callable[..., Any]:
        return jax.jit(function, compiler_options=quick_options(platform), **how)

    @wraps(function)
    def call(*args: Any) -> Any:
        (device,) = jnp.zeros(()).devices()
        key = (device, jax.config.jax_enable_x64, _shapes(args))  # type: ignore[attr-defined]
        run = compiled(device.platform)
        if key in ready:
            return run(*args)
        with locks.setdefault(key, Lock()):
            result = run(*args)
        ready.add(key)
        return result

    return call


def _shapes(args: tuple[Any, ...]) -> Any:
    leaves, structure = jax.tree.flatten(args)
    return structure, tuple(
        leaf if isinstance(leaf, int) else (np.shape(leaf), getattr(leaf, "dtype", type(leaf)))
        for leaf in leaves
    )
