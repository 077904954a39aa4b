"""Processes that train for a sweep: killed, stopped, gone, left alone by their parent."""

import errno
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import CancelledError, Future
from time import monotonic, sleep

import pytest
import xarray as xr
from cases import rows_in, sweep
from executor_cases import Inline

import jaxkkt as jk
from jaxkkt.engine.running import executors
from jaxkkt.engine.running import workers as engine_workers
from jaxkkt.engine.running.workers import KILLS, WorkerKilled, Workers

SIZES = {"d": 8, "samples": 6, "width": 20}


def kill(number=0, path=None):
    """Kills its own process; with a path, the first time alone."""
    if path is None or not os.path.exists(path):
        if path is not None:
            open(path, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def square(number):
    return number**2, os.getpid()


def slow_square(number):
    sleep(0.3)
    return square(number)


def kill_beside(path):
    """Kills its own process once the other one has begun."""
    while not os.path.exists(path + ".begun"):
        sleep(0.05)
    kill()


def wait_for(path, seconds):
    with open(path + ".begun", "a") as file:
        file.write(f"{os.getpid()}\n")
    began = monotonic()
    while not os.path.exists(path) and monotonic() - began < seconds:
        sleep(0.05)
    return "lived"


def test_where_no_process_can_be_started_that_is_told(monkeypatch):
    """And is not waited for."""
    with Workers(1) as workers:

        def submit(*_):
            raise OSError("cannot allocate memory")

        monkeypatch.setattr(workers._pool, "submit", submit)
        for future in [workers.submit(square, i) for i in range(2)]:
            with pytest.raises(OSError, match="cannot allocate memory"):
                future.result(timeout=30)


@pytest.mark.rare
@pytest.mark.slow
def test_a_worker_that_would_start_workers_says_what_its_script_lacks(tmp_path):
    """Its parent waited for it, and it for its own, for ever."""
    script = tmp_path / "script.py"
    script.write_text(
        "from jaxkkt.engine.running.workers import Workers\n"
        "with Workers(1) as workers:\n"
        "    print(workers.submit(int, 1).result())\n"
    )
    command = [sys.executable, str(script)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 1
    assert 'put what starts them below `if __name__ == "__main__":`' in ended.stderr
    assert "WorkerKilled: 3 processes died while they did this" in ended.stderr


@pytest.mark.slow
class TestWorkers:
    def test_do_what_they_are_given(self):
        with Workers(2) as workers:
            futures = [workers.submit(square, i) for i in range(6)]
            assert [future.result()[0] for future in futures] == [0, 1, 4, 9, 16, 25]
            failing = workers.submit(square, "x")
            with pytest.raises(TypeError):
                failing.result()
            assert workers.submit(square, 3).result()[0] == 9
        with pytest.raises(RuntimeError, match="these workers were closed"):
            workers.submit(square, 1)
        with pytest.raises(ValueError, match="number of workers must be at least 1, got 0"):
            Workers(0)

    @pytest.mark.usefixtures("unchecked")
    def test_text_is_no_number_of_them(self):
        with pytest.raises(ValueError, match="number of workers must be an integer, got '2'"):
            Workers("2")

    def test_what_kills_them_is_told_and_the_others_go_on(self, tmp_path):
        with Workers(2) as workers:
            futures = [workers.submit(slow_square, i) for i in range(4)]
            killer = workers.submit(kill)
            once = workers.submit(kill, 7, str(tmp_path / "once"))
            futures += [workers.submit(slow_square, i) for i in range(4, 8)]
            assert [future.result()[0] for future in futures] == [i**2 for i in range(8)]
            assert once.result() == 7
            with pytest.raises(
                WorkerKilled, match=f"{KILLS} processes died while they did this: it kills them$"
            ):
                killer.result()

    @pytest.mark.rare
    def test_what_runs_beside_is_not_blamed(self, tmp_path):
        """However long it takes: it lasts until the killer has been told, or alone a while."""
        path = tmp_path / "told"
        with Workers(2) as workers:
            beside = workers.submit(wait_for, str(path), 10.0)
            killer = workers.submit(kill_beside, str(path))
            with pytest.raises(WorkerKilled):
                killer.result()
            path.touch()
            assert beside.result() == "lived"

    def test_a_death_is_seen_while_others_work(self, tmp_path):
        """Also of the process that the pool started last, and does not watch yet."""
        path, begun = tmp_path / "told", tmp_path / "told.begun"

        def pids(count):
            began = monotonic()
            while not begun.exists() or len(begun.read_text().split()) < count:
                assert monotonic() - began < 30
                sleep(0.05)
            return [int(pid) for pid in begun.read_text().split()]

        with Workers(2) as workers:
            futures = [workers.submit(wait_for, str(path), 90.0) for _ in range(2)]
            os.kill(max(pids(2)), signal.SIGKILL)
            pids(3)
            path.touch()
            assert [future.result() for future in futures] == ["lived", "lived"]

    def test_a_death_that_is_not_seen_yet(self):
        """Idle, so that nothing tells of it: the next task finds the pool broken."""
        with Workers(1) as workers:
            pid = workers.submit(square, 1).result()[1]
            os.kill(pid, signal.SIGKILL)
            began = monotonic()
            while not workers._pool._broken:
                assert monotonic() - began < 20
                sleep(0.05)
            assert workers.submit(square, 3).result(timeout=60)[0] == 9

    def test_one_that_is_killed_from_outside_is_replaced(self):
        with Workers(2) as workers:
            pid = workers.submit(square, 1).result()[1]
            futures = [workers.submit(slow_square, i) for i in range(6)]
            sleep(0.2)
            os.kill(pid, signal.SIGKILL)
            assert [future.result()[0] for future in futures] == [i**2 for i in range(6)]
            assert pid not in {future.result()[1] for future in futures[2:]}

    def test_where_no_other_pool_can_be_made_that_is_told(self, monkeypatch):
        """The thread that gives out tasks ended, and a sweep waited for ever."""

        def none(count):
            raise OSError(errno.EMFILE, "too many open files")

        with Workers(1) as workers:
            monkeypatch.setattr(engine_workers, "_new_pool", none)
            some = [workers.submit(kill), workers.submit(square, 3)]
            for future in some:
                with pytest.raises(OSError, match="too many open files"):
                    future.result(timeout=60)
            with pytest.raises(RuntimeError, match="closed"):
                workers.submit(square, 3)

    @pytest.mark.rare
    def test_where_none_lives_all_is_told(self):
        with Workers(1) as workers:
            futures = [workers.submit(kill) for _ in range(3)]
            for future in futures:
                with pytest.raises(WorkerKilled, match="and have what starts workers below"):
                    future.result()

    def test_what_was_cancelled_is_not_done(self, tmp_path):
        with Workers(1) as workers:
            first = workers.submit(slow_square, 1)
            second = workers.submit(kill)
            assert second.cancel()
            assert first.result()[0] == 1
            with pytest.raises(CancelledError):
                second.result()

    def test_end_with_their_block(self):
        with Workers(2) as workers:
            pid = workers.submit(square, 1).result()[1]
            workers.submit(sleep, 60)
        began = monotonic()
        while _alive(pid):
            assert monotonic() - began < 20
            sleep(0.1)


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().split()[2] not in "ZX"
    except OSError:
        return False


PARENT = """
import sys
from time import sleep
import jaxkkt as jk
from concurrent.futures import ProcessPoolExecutor
import multiprocessing, os

if __name__ == "__main__":
    if sys.argv[1] == "ours":
        executor = jk.Workers(2)
    else:
        context = multiprocessing.get_context("spawn")
        executor = ProcessPoolExecutor(2, context, initializer=jk.engine.end_with_parent)
    print(*{executor.submit(os.getpid).result() for _ in range(9)}, flush=True)
    sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ours", pytest.param("pool", marks=pytest.mark.rare)])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_they_end_with_their_parent(tmp_path, kind, number):
    script = tmp_path / "script.py"
    script.write_text(PARENT)
    process = subprocess.Popen([sys.executable, script, kind], stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert pids
    process.send_signal(number)
    process.wait()
    process.stdout.close()
    began = monotonic()
    while any(map(_alive, pids)):
        assert monotonic() - began < 10
        sleep(0.1)


class FromInline(Inline):
    """Runs tasks here; those of the runs that are told raise what a killed worker does."""

    def __init__(self, kills):
        super().__init__()
        self.kills, self.asked = kills, []

    def submit(self, function, common, references, *rest):
        seeds = {reference.seed for reference in references}
        self.asked.append(seeds)
        if seeds & self.kills:
            future = Future()
            future.set_exception(WorkerKilled("died"))
            return future
        return super().submit(function, common, references, *rest)


@pytest.mark.rare
@pytest.mark.slow
def test_a_task_that_kills_its_worker_is_split(monkeypatch):
    monkeypatch.setattr(executors, "SHARE_PER_TASK", 1.0)
    runs = jk.grid(**SIZES, seed=range(4))
    executor = FromInline({2})
    table = sweep(runs, executor=executor)
    assert executor.asked == [{0, 1, 2, 3}, {0}, {1}, {2}, {3}]
    assert (table.status == jk.Status.RAISED).values.ravel().tolist() == [False, False, True, False]
    assert "WorkerKilled: died" in table.error.values.ravel()[2]
    whole = sweep(runs)
    xr.testing.assert_equal(
        table.drop_vars("error").isel(seed=[0, 1, 3]), whole.isel(seed=[0, 1, 3])
    )


def test_all_workers_gone():
    class Nobody:
        def submit(self, *_):
            return Future()

    began = monotonic()
    with pytest.raises(TimeoutError, match=r"no task has ended for 0.5 seconds.*workers left"):
        sweep(jk.grid(**SIZES), executor=Nobody(), patience=0.5)
    assert monotonic() - began < 20


def test_an_executor_that_drops_its_tasks_is_told():
    class Drops:
        def submit(self, *_):
            future = Future()
            future.cancel()
            return future

    with pytest.raises(CancelledError):
        sweep(jk.grid(**SIZES), executor=Drops())


SWEEP = """
import json, os, signal, sys
import jaxkkt as jk

class Kills(jk.Measurement):
    on_host = True

    def measure(self, data):
        if float(data.x[0, 0]) in bad:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"one": 1.0}

Kills.__module__ = "jaxkkt.own"  # told by the package's source: a store takes it
runs = jk.grid(d=8, samples=6, width=20, seed=range(4), measure=Kills)
bad = [float(jk.draw(runs[2])[1].x[0, 0])]

if __name__ == "__main__":
    with jk.Workers(2) as workers:
        table = jk.sweep(runs, store=sys.argv[1], executor=workers, progress=False)
    print(json.dumps([table.status.values.ravel().tolist(), table.error.values.ravel().tolist()]))
"""


@pytest.mark.rare
@pytest.mark.slow
def test_a_run_that_kills_its_worker_ends_with_that(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SWEEP)
    done = subprocess.run(
        [sys.executable, script, tmp_path / "out"], capture_output=True, text=True, check=True
    )
    statuses, errors = json.loads(done.stdout)
    assert statuses == [1, 1, jk.Status.RAISED, 1]
    assert "it kills them" in errors[2]
    assert len(rows_in(tmp_path / "out")) == 4


class Deadly:
    """Workers of which two are killed, each the first time that it does a certain task."""

    def __init__(self, workers, folder):
        self.workers, self.folder, self.tasks = workers, folder, 0

    def submit(self, function, *args):
        self.tasks += 1
        if self.tasks in (1, 3):
            args = (str(self.folder / f"killed{self.tasks}"), function, *args)
            function = killed_in_the_middle
        return self.workers.submit(function, *args)


def killed_in_the_middle(path, function, *args):
    """Kills its own process the first time, when it has the first rows of a task."""
    run_streams = executors.run_streams

    def then_kill(*args):
        for rows in run_streams(*args):
            yield rows
            kill(path=path)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(executors, "run_streams", then_kill)
        return function(*args)


@pytest.mark.slow
@pytest.mark.usefixtures("one_lane")
def test_a_killed_worker_loses_no_row(tmp_path, monkeypatch):
    """One of two is killed in the middle, twice; the rows are those of a serial sweep."""
    runs = jk.grid(d=[8, 12], alpha=[0.8, 1.5], width=[20], seed=range(6))
    whole = sweep(runs)
    monkeypatch.setattr(executors, "SHARE_PER_TASK", 1 / 5)
    with Workers(2) as workers:
        deadly = Deadly(workers, tmp_path)
        table = sweep(runs, store=tmp_path / "store", executor=deadly)
    assert sorted(path.name for path in tmp_path.glob("killed*")) == ["killed1", "killed3"]
    assert deadly.tasks > 3
    xr.testing.assert_identical(table, whole)
