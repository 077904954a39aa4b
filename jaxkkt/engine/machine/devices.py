"""Where a sweep runs, and what its bits depend on there."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from threadpoolctl import ThreadpoolController

from jaxkkt._version import __version__
from jaxkkt.specs.identity import PACKAGE, digest_of_code
from jaxkkt.specs.same import SETTINGS

_CONFIG: Any = jax.config  # its attributes are those of the thread
_SETTINGS: dict[str, Any] = {name: getattr(jax, name.removeprefix("jax_")) for name in SETTINGS}


class NoDevice(RuntimeError):
    """A kind of device was asked for that is not there."""


def device() -> jax.Device:
    """Where arrays of this thread go; NoDevice where JAX was asked for what is not there."""
    asked = _CONFIG.jax_default_device
    return asked if isinstance(asked, jax.Device) else _device(asked, _CONFIG.jax_platforms)


@cache
def _device(*_: Any) -> jax.Device:
    """By what JAX was asked for: asking an array takes longer than many a run's other parts."""
    try:
        return next(iter(jnp.zeros(()).devices()))
    except (RuntimeError, AssertionError) as error:  # both are JAX's, by what was asked for
        if _backends():
            raise
        asked = _CONFIG.jax_platforms
        raise NoDevice(
            f"JAX was asked for {asked!r} (JAX_PLATFORMS), and finds no such device here, only "
            f"{_without_asking()}: install the JAX of that device (pip install 'jax[cuda13]'), or "
            "do not ask for it"
        ) from error


def out_of_memory(error: BaseException) -> bool:
    """Whether a device's memory did not hold what it was asked to."""
    return isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)


def require_platform(name: str) -> None:
    """Raises NoDevice unless arrays go to a device of this platform: "cpu", "gpu" or "tpu"."""
    here = device().platform
    if here != name:
        raise NoDevice(
            f"{name} was asked for, and there is only {_without_asking()} here, of which JAX uses "
            f"{here}: install the JAX of that device, or do not ask for it"
        )


def _backends() -> bool:
    try:
        return bool(jax.devices())
    except (RuntimeError, AssertionError):
        return False


def _without_asking() -> str:
    """The platforms that a process finds that is not asked for any."""
    code = "import jax; print(*sorted({d.platform for d in jax.devices()}))"
    environ = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    return found.stdout.strip() or "none"


def devices() -> list[jax.Device]:
    """This process's devices that a sweep uses: all that are of the default one's kind.

    In a `with jax.default_device(...)` it is that one.
    """
    here = device()
    if _CONFIG.jax_default_device is not None:
        return [here]
    local = jax.local_devices(backend=here.platform)
    return [other for other in local if other.device_kind == here.device_kind]


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads() -> int:
    """Among how many threads XLA splits large products and sums of this process's CPU.

    As many as the process had cores when JAX was first used, or what PJRT_NPROC said then. Sums
    that are split differently are rounded differently.
    """
    return _started() or int(os.environ.get("PJRT_NPROC") or cores())


def split_among(threads: int) -> None:
    """Lets XLA use so many threads, where JAX has not been used in this process yet."""
    if not _started() and not os.environ.get("PJRT_NPROC"):
        os.environ["PJRT_NPROC"] = str(threads)


def _started() -> int:
    """How many of its threads XLA has started; 0 also where the system does not tell."""
    return [_name(path) for path in Path("/proc/self/task").glob("*/comm")].count("tf_XLAEigen")


def _name(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # a thread that has ended meanwhile
        return ""


@contextmanager
def alone() -> Iterator[None]:
    """Decompositions and NumPy's products run on one thread each: they too are rounded by how they
    are split, and would be split among the cores there are.

    That is the process's setting: threads may be within at once, and the last one out restores it.
    """
    with _LOCK:
        _LIMITS.enter_context(_libraries(len(sys.modules)).limit(limits=1, user_api="blas"))
        _WITHIN.append(None)
    try:
        yield
    finally:
        with _LOCK:
            _WITHIN.pop()
            if not _WITHIN:
                _LIMITS.close()


# A list, one entry for each that is within: a number bound anew makes the package look changed.
_LOCK, _LIMITS, _WITHIN = Lock(), ExitStack(), list[None]()


@lru_cache(maxsize=1)
def _libraries(_: int) -> ThreadpoolController:
    """Those that this process has loaded, by how many modules it has imported: to look for them
    takes as long as a small sweep's plan."""
    return ThreadpoolController()


def settings() -> dict[str, Any]:
    """JAX's settings in this thread that change numbers."""
    return {name: getattr(_CONFIG, name) for name in _SETTINGS}


def _hardly_optimized() -> dict[str, Any]:
    """The setting by which JAX compiles to other bits, where it is on: it is the process's."""
    name = "jax_disable_most_optimizations"
    return {name: True} if _CONFIG.values.get(name) else {}


def refuse_debugging() -> None:
    """Raises ValueError under those of JAX's settings under which a sweep cannot be computed."""
    debugging = "jax_disable_jit", "jax_debug_nans", "jax_debug_infs"
    found = [name for name in debugging if getattr(_CONFIG, name)]
    if found:
        raise ValueError(
            f"sweeps cannot be computed under {' and '.join(found)}: they are compiled, and hold "
            "NaN and infinity where nothing is yet. Turn that off around jk.sweep; the run that "
            "you look for trains under it by itself, jk.train(params, *data, run.protocol) of "
            "params, data = jk.draw(run)"
        )


class Here(NamedTuple):
    """Where and how this thread computes: what a compiled program is told by."""

    device: jax.Device
    settings: tuple[tuple[str, Any], ...]


def here() -> Here:
    """The place and settings of this thread."""
    return Here(device(), tuple((settings() | _hardly_optimized()).items()))


@contextmanager
def using(values: Mapping[str, Any], place: jax.Device | None = None) -> Iterator[None]:
    """Enters `settings()` of another thread or process, and a device as its place.

    What is so already is left: whatever is entered makes JAX trace and compile anew.
    """
    with ExitStack() as stack:
        for name, value in values.items():
            if getattr(_CONFIG, name) != value:
                stack.enter_context(_SETTINGS[name](value))
        if place is not None and place != device():
            stack.enter_context(jax.default_device(place))
        yield


_version = cache(version)  # read from a file each time


def environment() -> dict[str, Any]:
    """What a row's bits depend on beside the run, its bucket and the protocol."""
    here, names = device(), ("jax", "jaxlib", "optax")
    simd: Any = np.show_config(mode="dicts")
    return {
        "versions": {"jaxkkt": __version__, **{name: _version(name) for name in names}},
        "code": digest_of_code(PACKAGE),
        "platform": here.client.platform_version,
        "device": here.device_kind,
        "cpu_instructions": " ".join(simd["SIMD Extensions"]["found"]),
        "settings": settings(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        **_hardly_optimized(),
        **({"threads": threads()} if here.platform == "cpu" else {}),
    }


def written_by() -> dict[str, Any]:
    """What a row's bits do not depend on, and who reads it later wants to know."""
    commit, date = _commit(), datetime.now(UTC).isoformat(timespec="seconds")
    told = {"date": date, "host": socket.gethostname(), "cores": cores()}
    return told | ({"commit": commit} if commit else {})


@cache
def _commit() -> str:
    """The commit of the package's source, "+" after it where files differ; "" if it has none."""
    file = Path(__file__)
    folder = file.parents[2]

    def git(*words: str) -> str:
        command = ["git", "-C", str(folder), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if not git("ls-files", "--", str(file.relative_to(folder))):
            return ""  # installed inside another project's repository
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""
