"""Long runs that are killed go on from their last checkpoint, to the same bits."""

import errno
import os
import signal
import subprocess
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import inf
from time import sleep

import optax
import pytest
import xarray as xr
from cases import rows_in, sweep

import jaxkkt as jk
from jaxkkt.engine.programs.training import compile_bucket
from jaxkkt.engine.running import checkpoints, lanes, slots, tally
from jaxkkt.engine.running.checkpoints import Checkpoints, Saved

SIZES = {"d": 8, "samples": 6, "width": 20, "seed": range(2)}
KINDS = {
    "flow": {"target_log_loss": -10.0},
    "momentum": {
        "optimizer": jk.optimizer(optax.sgd, learning_rate=1e-3, momentum=0.9),
        "max_steps": 200,
    },
    "batches": {
        "optimizer": jk.optimizer(optax.sgd, learning_rate=1e-3),
        "batch_size": 4,
        "max_steps": 200,
    },
    "ball": {"protocol": jk.protocols.lazy_flow(10.0)},
    "curve": {"curve": jk.Curve([-1, -5, -20], measure=jk.Flips())},
    "adversarial": {"protocol": jk.adversarial.AdversarialProtocol(batch_size=4, patience=20)},
}


@pytest.fixture
def often(monkeypatch, one_lane):
    """A checkpoint after every chunk, and chunks of few steps."""
    monkeypatch.setattr(checkpoints, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    monkeypatch.setattr(checkpoints, "SHARE_FOR_CHECKPOINTS", inf)
    monkeypatch.setattr(slots, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    monkeypatch.setattr(lanes, "CHUNK_SECONDS", 0.0)


class Killed(BaseException):
    pass


@pytest.fixture
def killed(monkeypatch, often):
    """A function that sweeps and is killed after so many checkpoints."""

    def run(count, *args, **kwargs):
        save, left = Checkpoints.save, [count]

        def then_die(self, *found):
            save(self, *found)
            left[0] -= 1
            if not left[0]:
                raise Killed

        with monkeypatch.context() as patched:
            patched.setattr(Checkpoints, "save", then_die)
            with pytest.raises(Killed):
                sweep(*args, **kwargs)

    return run


@pytest.fixture
def loaded(monkeypatch):
    """The runs whose checkpoints are asked for from here on, and what was found."""
    found, load = [], Checkpoints.load

    def noted(self, run, like):
        found.append((run, load(self, run, like)))
        return found[-1][1]

    monkeypatch.setattr(Checkpoints, "load", noted)
    return found


@pytest.mark.slow
def test_those_that_wait_for_a_lane_are_not_saved(tmp_path):
    (bucket,) = jk.plan_sweep(jk.grid(**{**SIZES, "seed": range(6)})).buckets
    bucket = replace(bucket, lanes=2, slots=6)
    stream = slots.Slots(bucket, compile_bucket(bucket), Saved(tmp_path), (), lambda train: train)
    stream.take_in(deque(bucket.trajectories))
    stream.save(0)
    assert not list(tmp_path.iterdir())
    stream.advance(3, ended=2)()
    stream.save(0)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.usefixtures("unchecked")
def test_many_are_saved_more_seldom(tmp_path, monkeypatch):
    """Thousands of lanes take minutes to save: they train for most of the time."""
    (bucket,) = jk.plan_sweep(jk.grid(**SIZES)).buckets
    now = [0.0]
    monkeypatch.setattr(checkpoints, "perf_counter", lambda: now[0])
    monkeypatch.setattr(slots, "perf_counter", lambda: now[0])
    stream = slots.Slots(bucket, None, Saved(tmp_path), (), lambda train: train)
    began, seconds = [], [1.0, 40.0, 40.0]

    def save(_):
        began.append(now[0])
        now[0] += seconds[len(began) - 1]

    monkeypatch.setattr(stream, "save", save)
    while len(began) < 3:
        stream.save_if_due()
        now[0] += 1
    assert began[0] == checkpoints.SECONDS_BETWEEN_CHECKPOINTS
    assert began[1] - (began[0] + 1) == checkpoints.SECONDS_BETWEEN_CHECKPOINTS
    assert began[2] - (began[1] + 40) == 40 / checkpoints.SHARE_FOR_CHECKPOINTS


@pytest.mark.slow
def test_another_stream_goes_on_from_what_one_has_saved(tmp_path):
    """Where that one had no memory for what came next, and gave its runs back."""
    (bucket,) = jk.plan_sweep(jk.grid(**SIZES)).buckets
    bucket = replace(bucket, lanes=2, slots=2)
    programs, saved = compile_bucket(bucket), Saved(tmp_path)
    one, other = (slots.Slots(bucket, programs, saved, (), lambda train: train) for _ in range(2))
    one.take_in(deque(bucket.trajectories))
    one.advance(3, ended=2)()
    one.save(0)
    other.take_in(deque(bucket.trajectories))
    assert other._arrays.state.steps.tolist() == [3, 3]


@pytest.mark.parametrize(
    "kind",
    [k if k == "flow" else pytest.param(k, marks=pytest.mark.slow) for k in KINDS],
)
def test_a_killed_run_goes_on(kind, tmp_path, killed, loaded):
    runs = jk.grid(**SIZES, **KINDS[kind])
    whole = sweep(runs)
    killed(5, runs, store=tmp_path)
    saved = sorted((tmp_path / "checkpoints").iterdir())
    assert saved
    loaded.clear()
    resumed = sweep(runs, store=tmp_path)
    xr.testing.assert_identical(resumed, whole)
    assert sum(under_way is not None for _, under_way in loaded) == len(saved)
    assert not list((tmp_path / "checkpoints").iterdir())


@pytest.mark.rare
@pytest.mark.slow
def test_one_that_went_on_from_another_goes_on(tmp_path, killed, loaded):
    """It was saved as itself, and the other has landed."""
    runs = jk.grid(**{**SIZES, "seed": 0}, max_steps=[10, 5000])
    whole = sweep(runs)
    killed(5, runs, store=tmp_path)
    assert jk.read_rows(tmp_path).max_steps.tolist() == [10]
    loaded.clear()
    xr.testing.assert_identical(sweep(runs, store=tmp_path), whole)
    ((run, under_way),) = loaded
    assert run.protocol.max_steps == 5000
    assert under_way is not None


@pytest.mark.rare
@pytest.mark.slow
def test_one_that_was_saved_does_not_begin_anew_behind_another(tmp_path, killed, loaded):
    runs = jk.grid(**{**SIZES, "seed": 0}, max_steps=[10, 5000])
    whole = sweep(runs)
    killed(5, runs[1:], store=tmp_path)
    loaded.clear()
    xr.testing.assert_equal(sweep(runs, store=tmp_path), whole)
    ((run, under_way),) = loaded  # the other one was never saved
    assert run.protocol.max_steps == 5000
    assert under_way is not None


def test_steps_are_not_done_again(tmp_path, killed, monkeypatch, one_lane):
    runs = jk.grid(**{**SIZES, "seed": 0})
    killed(8, runs, store=tmp_path)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1
    tallies = []
    monkeypatch.setattr(
        jk.engine.driver, "Tally", lambda: tallies.append(tally.Tally()) or tallies[-1]
    )
    table = sweep(runs, store=tmp_path)
    assert 0 < tallies[0].lane_steps < table.steps.item() - 10
    assert 0 < tallies[0].useful_steps <= tallies[0].lane_steps


@pytest.mark.rare
@pytest.mark.slow
def test_one_that_does_not_fit_is_left_out(tmp_path, killed, monkeypatch, caplog):
    runs = jk.grid(**{**SIZES, "seed": 0})
    whole = sweep(runs)
    for harm in ("settings", "bytes", "gone"):
        folder = tmp_path / harm
        killed(5, runs, store=folder)
        (path,) = (folder / "checkpoints").iterdir()
        with monkeypatch.context() as patched:
            if harm == "settings":
                patched.setattr(checkpoints, "environment", lambda: {"device": "another"})
            elif harm == "gone":  # once it was looked for
                patched.setattr(Saved, "__contains__", lambda self, run: True)
                path.unlink()
            else:
                path.write_bytes(path.read_bytes()[:-30])
            caplog.clear()
            xr.testing.assert_identical(sweep(runs, store=folder), whole)
        assert "training begins anew" in caplog.text


@pytest.mark.slow
def test_one_that_cannot_be_written_is_told(tmp_path, often, monkeypatch, caplog):
    def full(path, *_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(checkpoints, "write_arrays", full)
    table = sweep(jk.grid(**SIZES), store=tmp_path)
    assert (table.status == jk.Status.CONVERGED).all()
    assert "no checkpoint of d8" in caplog.text
    assert "No space left" in caplog.text


@pytest.mark.rare
@pytest.mark.slow
def test_in_workers(tmp_path, killed):
    runs = jk.grid(**SIZES)
    whole = sweep(runs)
    with ThreadPoolExecutor(1) as executor:
        killed(5, runs, store=tmp_path, executor=executor)
    assert list((tmp_path / "checkpoints").iterdir())
    with ThreadPoolExecutor(1) as executor:
        xr.testing.assert_identical(sweep(runs, store=tmp_path, executor=executor), whole)
    assert not list((tmp_path / "checkpoints").iterdir())


@pytest.mark.slow
def test_they_are_saved_at_a_stop(tmp_path, monkeypatch):
    """By the first signal, of the runs that are worth it."""
    monkeypatch.setattr(lanes, "SECONDS_WORTH_SAVING", 0.0)
    monkeypatch.setattr(lanes, "CHUNK_SECONDS", 0.0)
    runs = jk.grid(**{**SIZES, "seed": 0})
    whole = sweep(runs)
    clip, count = lanes.np.clip, [0]

    def stop(*args):
        count[0] += 1
        if count[0] == 4:
            os.kill(os.getpid(), signal.SIGINT)
            sleep(0.6)
        return clip(*args)

    with monkeypatch.context() as patched:
        patched.setattr(lanes.np, "clip", stop)
        with pytest.raises(jk.engine.Stopped):
            sweep(runs, store=tmp_path)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1
    assert not rows_in(tmp_path)
    xr.testing.assert_identical(sweep(runs, store=tmp_path), whole)


LONG = """
import sys
import jaxkkt as jk
from jaxkkt.engine.running import checkpoints, lanes, slots

lanes.CHUNK_SECONDS = 0.25
checkpoints.SECONDS_BETWEEN_CHECKPOINTS = slots.SECONDS_BETWEEN_CHECKPOINTS = 0.25
goes_on = slots.Slots._goes_on

def told(self, i):
    state = goes_on(self, i)
    print(0 if state is None else int(state.steps), flush=True)
    return state

slots.Slots._goes_on = told
runs = jk.grid(d=200, samples=300, width=200, delta=0.0003, seed=[0])
jk.sweep(runs, store=sys.argv[1], progress=False)
"""


@pytest.mark.slow
def test_a_killed_process_loses_no_more_than_what_came_after(tmp_path):
    """Killed twice, it goes on from further on each time, and ends with the same bits."""
    script = tmp_path / "script.py"
    script.write_text(LONG)

    def start(folder):
        command = [sys.executable, script, tmp_path / folder]
        return subprocess.Popen(command, stdout=subprocess.PIPE)

    def saved():
        return {p: p.stat().st_mtime_ns for p in (tmp_path / "killed").glob("checkpoints/*.npz")}

    began = []
    for folder in ("whole", "killed", "killed", "killed"):
        process, at, lived = start(folder), saved(), 0
        while folder == "killed" and len(began) < 3 and lived < 2:
            assert process.poll() is None
            sleep(0.02)
            lived, at = lived + (saved() != at), saved()
        if lived:
            process.kill()
        began.append(int(process.communicate()[0] or 0))  # nothing where none was saved
        assert (process.returncode != 0) == bool(lived)
    assert 0 == began[0] == began[1] < began[2] < began[3]
    values = [
        [(r["ending"], r["measured"]) for r in rows_in(tmp_path / folder).values()]
        for folder in ("whole", "killed")
    ]
    assert values[0] == values[1]
