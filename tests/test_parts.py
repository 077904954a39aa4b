"""Studies whose parts are any function's: they land, and are computed once."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from cases import rows_in

import jaxkkt as jk
from jaxkkt.engine.parts import compute_parts


def part(i, computed=None):
    if computed is not None:
        computed.append(i)
    values = np.array([i / 3, np.nan, np.inf], np.float32)
    return xr.Dataset(
        {"size": ("level", values), "count": i, "way": ("level", ["a", "b", "c"])},
        {"level": [0.1, 0.2, 1e-300], "seed": i},
    )


def test_parts_come_in_the_order_of_their_tasks_with_the_same_values(tmp_path):
    found = compute_parts({f"p{i}": partial(part, i) for i in (2, 0, 1)}, tmp_path, {}, 2, False)
    for i, here in zip((2, 0, 1), found, strict=True):
        xr.testing.assert_identical(here.assign(size=here["size"].astype(np.float32)), part(i))


def test_what_has_landed_is_not_computed_again(tmp_path):
    def stop():
        raise KeyboardInterrupt

    computed = []
    tasks = {f"p{i}": partial(part, i, computed) for i in range(3)}
    with pytest.raises(KeyboardInterrupt):
        compute_parts({**tasks, "p1": stop}, tmp_path, {"radius": 1}, 1, False)
    landed = {int(name[1:]) for name in rows_in(tmp_path)}
    assert 0 in landed
    computed.clear()
    resumed = compute_parts(tasks, tmp_path, {"radius": 1}, 1, False)
    assert sorted(computed) == sorted({0, 1, 2} - landed)
    whole = compute_parts(tasks, tmp_path / "whole", {"radius": 1}, 1, False)
    for one, other in zip(resumed, whole, strict=True):
        xr.testing.assert_identical(one, other)


def test_another_study_in_the_folder_is_refused_and_a_larger_one_goes_on(tmp_path):
    tasks = {"p0": partial(part, 0)}
    compute_parts(tasks, tmp_path, {"radius": 1}, progress=False)
    with pytest.raises(ValueError, match=r"other settings.*\n.*radius: 1 in the folder, 2 now"):
        compute_parts(tasks, tmp_path, {"radius": 2}, progress=False)
    computed = []
    more = {"p0": partial(part, 0, computed), "p1": partial(part, 1, computed)}
    assert len(compute_parts(more, tmp_path, {"radius": 1}, progress=False)) == 2
    assert computed == [1]


def test_workers_keep_the_precision(tmp_path):
    def precise():
        return xr.Dataset({"third": float(jnp.ones(()) / 3)})

    with jk.engine.devices.using({"jax_enable_x64": True}):
        found = compute_parts({"a": precise}, tmp_path, {}, progress=False)
    assert found[0].third.item() == 1 / 3
