"""Studies that are no sweep: any function that gives a part of the results, in threads, resumed."""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import xarray as xr
from tqdm import tqdm

from jaxkkt.engine.devices import cores, device, environment, settings, using
from jaxkkt.store import Store


def compute_parts(
    tasks: Mapping[str, Callable[[], xr.Dataset]],
    store: str | Path,
    configuration: Mapping[str, Any],
    workers: int | None = None,
    progress: bool = True,
) -> list[xr.Dataset]:
    """What every task returns, in their order; `workers` at a time, one a core by default.

    Parts land in the folder `store` under their tasks' names as they end, as JSON: numbers become
    float64 or int64, with the same values. The same call again computes those that are missing,
    and so does one with more tasks; after an error or an interruption the parts under way end and
    land first. A part may depend on its task's name, on `configuration` and on versions and device:
    ValueError where the folder holds parts of others.
    """
    saved, about = Store(store), {**configuration, **environment()}
    found = _landed(saved, tasks, about)
    mode, place = settings(), device()

    def compute(name: str) -> None:
        with using(mode, place):
            part = tasks[name]().to_dict()
        writer.add(name, part)
        found[name] = part

    with ExitStack() as stack:
        if found.keys() < tasks.keys():
            writer = stack.enter_context(saved.writing(about))
            found = _landed(saved, tasks, about)  # what others wrote meanwhile, too
        progress_bar = tqdm(total=len(tasks), initial=len(found), disable=not progress, unit="part")
        bar = stack.enter_context(progress_bar)
        pool = stack.enter_context(ThreadPoolExecutor(workers or cores()))
        try:
            missing = [name for name in tasks if name not in found]
            for future in as_completed([pool.submit(compute, name) for name in missing]):
                future.result()
                bar.update()
        finally:
            pool.shutdown(cancel_futures=True)
    return [xr.Dataset.from_dict(found[name]) for name in tasks]


def _landed(store: Store, names: Collection[str], about: Mapping[str, Any]) -> dict[str, Any]:
    return {name: records[-1].value for name, records in store.landed(names, about).items()}
