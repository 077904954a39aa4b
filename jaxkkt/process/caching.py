"""Programs kept between processes, in a folder that is its user's alone."""

import logging
import os
from pathlib import Path
from stat import S_IMODE, S_IWGRP, S_IWOTH
from typing import Any

import jax
from filelock import FileLock

log = logging.getLogger("jaxkkt")

# A folder for compiled programs, or "off".
VARIABLE = "JAXKKT_CACHE"
MOST_BYTES = 2 * 2**30
PRIVATE = 0o700
# JAX's lock, the ends of its files' names, and how long it waits for that lock.
LOCK, PROGRAM, LAST_USED = ".lockfile", "-cache", "-atime"
SECONDS_TO_TIDY = 10.0


def keep_programs(folder: str | Path | None = None) -> Path | None:
    """Keeps programs in a folder, as JAX traced and compiled them, and takes those that are there:
    the second run of a command starts at once. The numbers are the same.

    Without a `folder` that is `~/.cache/jaxkkt`, or what the environment variable JAXKKT_CACHE
    names; "off" there keeps nothing. It holds at most 2.25 GiB; what was not used for longest goes
    first. Commands of jaxkkt do this by themselves, a notebook calls it before its first sweep.
    Processes that are started from here share the folder.

    Whoever can write there can run code as you. So the folder gets mode 0700, and one that belongs
    to somebody else, or that others can write to, is not used, with a warning. Returns the folder;
    None where nothing is kept. A folder that JAX was given by its own settings stays.
    """
    config: Any = jax.config
    if config.jax_compilation_cache_dir:
        return Path(config.jax_compilation_cache_dir)
    told = str(folder or os.environ.get(VARIABLE, ""))
    if told == "off":
        return None
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    chosen = Path(told or base / "jaxkkt").expanduser().absolute()
    try:
        make_private(chosen)
        _tidy(chosen)
    except OSError as error:
        log.warning("compiled programs are not kept: %s", error)
        return None
    settings = {
        "jax_compilation_cache_dir": str(chosen),
        "jax_compilation_cache_max_size": MOST_BYTES,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    for name, value in settings.items():
        jax.config.update(name, value)
        os.environ[name.upper()] = str(value)
    return chosen


def make_private(folder: Path) -> None:
    """The folder with mode 0700; OSError where it cannot be made, is another user's, or others
    could write to it."""
    folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    if not hasattr(os, "getuid"):
        return
    about = folder.stat()
    if about.st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user: name another one in {VARIABLE}")
    if about.st_mode & (S_IWGRP | S_IWOTH):
        raise PermissionError(
            f"others can write to {folder}, and programs there may be theirs: empty it and give it "
            f"mode 0700, or name another one in {VARIABLE}"
        )
    if S_IMODE(about.st_mode) != PRIVATE:
        folder.chmod(PRIVATE)


def _tidy(folder: Path) -> None:
    """Removes programs of which a process that was killed, or had no room, wrote a part: JAX keeps
    no other beside them. OSError where somebody holds the folder's lock all the time."""
    with FileLock(folder / LOCK, timeout=SECONDS_TO_TIDY):
        for path in folder.glob(f"*{PROGRAM}"):
            if not path.with_name(path.name.removesuffix(PROGRAM) + LAST_USED).exists():
                path.unlink()
