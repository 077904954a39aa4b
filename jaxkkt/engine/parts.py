"""Studies that are no sweep: any function that gives a part of the results, in threads, resumed."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import xarray as xr
from tqdm import tqdm

from jaxkkt.engine.devices import cores, environment, settings, using
from jaxkkt.engine.store import Store


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
    and so does one with more tasks. A part may depend on its task's name, on `configuration` and on
    versions and device: ValueError where the folder holds parts of others.
    """
    saved = Store(store, {**configuration, **environment()})
    saved.tidy()
    found = saved.load(tasks)
    mode = settings()

    def compute(task: Callable[[], xr.Dataset]) -> dict[str, Any]:
        with using(mode):
            return task().to_dict()

    bar = tqdm(total=len(tasks), initial=len(found), disable=not progress, unit="part")
    with bar, ThreadPoolExecutor(workers or cores()) as pool:
        waiting = {pool.submit(compute, tasks[n]): n for n in tasks if n not in found}
        try:
            for future in as_completed(waiting):
                name = waiting[future]
                found[name] = future.result()
                saved.save(name, found[name])
                bar.update()
        finally:
            pool.shutdown(cancel_futures=True)
    return [xr.Dataset.from_dict(found[name]) for name in tasks]
