"""Programs that run once or a few times: compiling them quickly matters more than how they run."""

from collections.abc import Callable
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
    """Compiler options for measurements on a device of this platform."""
    return _known(platform, tuple(OLDER_EMITTERS.items()))


@cache
def _known(platform: str, options: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """The options, on a CPU; none where this XLA does not know them."""
    if platform != "cpu":
        return {}
    try:
        lowered: Any = jax.jit(jnp.negative).lower(np.float32(1))
        lowered.compile(compiler_options=dict(options))
    except Exception:
        return {}
    return dict(options)


def quick_jit(function: Callable[..., Any], **how: Any) -> Callable[..., Any]:
    """As `jax.jit`, compiled quickly to the same bits; not to be called within another one.

    Of threads that call it for the first time with the same shapes one compiles, and the others
    wait for it.
    """
    locks: dict[Any, Lock] = {}
    ready: set[Any] = set()

    @cache
    def compiled(platform: str) -> Callable[..., Any]:
        options = _known(platform, tuple(CHEAPER_PASSES.items()))
        return jax.jit(function, compiler_options=options, **how)

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
