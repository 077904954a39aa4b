"""Where a sweep runs, and what its bits depend on there."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp

from jaxkkt._version import __version__

_CONFIG: Any = jax.config  # whose attributes are those of this thread


def device() -> jax.Device:
    """Where arrays of this thread go."""
    return next(iter(jnp.zeros(()).devices()))


def devices() -> list[jax.Device]:
    """This process's devices that a sweep uses: all of the default platform.

    In a `with jax.default_device(...)` it is that one.
    """
    here = device()
    chosen = _CONFIG.jax_default_device is not None
    return [here] if chosen else jax.local_devices(backend=here.platform)


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def same_settings() -> Callable[[jax.Device], AbstractContextManager[None]]:
    """Enters this thread's precision in other threads, on a device of their own."""
    x64 = bool(_CONFIG.jax_enable_x64)

    @contextmanager
    def on(device: jax.Device) -> Iterator[None]:
        with jax.default_device(device), jax.enable_x64(x64):
            yield

    return on


def environment() -> dict[str, Any]:
    """What a row's bits depend on beside the run, its bucket and the protocol."""
    return {
        "versions": {
            "jaxkkt": __version__,
            **{name: version(name) for name in ("jax", "jaxlib", "optax")},
        },
        "device": device().device_kind,
        "x64": bool(_CONFIG.jax_enable_x64),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }
