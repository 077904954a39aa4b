"""Where the runs of a command train: here, in processes of this machine, or in a Dask cluster."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jaxkkt import engine
from jaxkkt.studies.options import Options


@contextmanager
def executor_of(options: Options) -> Iterator[Any]:
    """The executor that the options name; None for this process.

    Raises ValueError for one that there is not, ImportError where its package is missing, OSError
    where it does not answer.
    """
    if options.workers and options.executor:
        raise ValueError("give either --workers or --executor")
    if options.workers:
        with engine.Workers(options.workers) as workers:
            yield workers
        return
    if not options.executor:
        yield None
        return
    kind, _, address = options.executor.partition("=")
    if kind != "dask" or not address:
        raise ValueError(f"--executor is dask=ADDRESS, as dask=tcp://host:8786, got {kind!r}")
    try:
        from dask.distributed import Client
    except ImportError as error:
        raise ImportError("--executor dask=... needs dask: pip install 'jaxkkt[dask]'") from error
    with Client(address, set_as_default=False) as client:
        yield client.get_executor(pure=False)


def shard_of(options: Options) -> tuple[int, int] | None:
    """3/16 as (3, 16); ValueError for anything else."""
    if not options.shard:
        return None
    which, _, count = options.shard.partition("/")
    if not (which.isdecimal() and count.isdecimal() and 1 <= int(which) <= int(count)):
        raise ValueError(f"--shard is one of 1/n to n/n, got {options.shard!r}")
    return int(which), int(count)
