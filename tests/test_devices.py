"""Sweeps on several devices, and in the workers of an executor."""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.metadata import version
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr
from cases import rows_in, sweep

import jaxkkt as jk
from jaxkkt.engine.machine.devices import cores, devices, environment, using
from jaxkkt.engine.planning import lane_counts
from jaxkkt.engine.planning.plan import plan
from jaxkkt.engine.running import executors
from jaxkkt.store import Writer

RUNS = jk.grid(d=[8, 12], alpha=[0.8, 1.5], width=[20], seed=range(3))

ON_DEVICES = """
import json, sys, threading
import jax
jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
import jaxkkt as jk
from jaxkkt.engine.machine.devices import device
from jaxkkt.engine.planning import lane_counts
from jaxkkt.engine.running import streams
lane_counts.cores = lambda: 4
lane_counts.LANES_OF_A_CORE = ()  # so that few small runs fill several devices
used, run_bucket = set(), streams.run_bucket
all_streams = threading.Barrier(4, timeout=60)  # none takes a run before all are there
def recorded(bucket, queue, programs, *rest):
    (compiled,) = programs.advance.runtime_executable().local_devices()
    used.add((device().id, compiled.id))
    all_streams.wait()
    return run_bucket(bucket, queue, programs, *rest)
streams.run_bucket = recorded
runs = jk.grid(d=8, samples=6, width=20, seed=range(8))
table = jk.sweep(runs, progress=False)
print(json.dumps([sorted(used), table.flip_size.values.ravel().tolist()]))
"""


ON_CORES = """
import json, multiprocessing, os, sys
from concurrent.futures import ProcessPoolExecutor

def pin():
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])

if __name__ == "__main__":
    import jaxkkt as jk

    pinned, in_worker, *store = sys.argv[1:]
    if pinned == "pinned":
        pin()
    (run,) = jk.grid(d=100, samples=1000, width=100, seed=2, max_steps=300)
    runs, options = [run], {"store": store[0]} if store else {}
    if in_worker == "worker":
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, context, initializer=pin) as executor:
            table = jk.sweep(runs, progress=False, executor=executor)
    else:
        table = jk.sweep(runs, progress=False, **options)
    print(json.dumps([table.log_loss.item(), table.attrs["threads"]]))
"""


IN_PROCESSES = """
import json, multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
import jaxkkt as jk

runs = jk.grid(d=[8, 12], samples=[6], width=[20], seed=[0])
with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as executor:
    table = jk.sweep(runs, progress=False, executor=executor)
print(json.dumps(table.flip_size.values.ravel().tolist()))
"""


@pytest.fixture(scope="module")
def whole():
    table = sweep(RUNS)
    assert not np.isnan(table.flip_size).any()  # two of them do not flip: inf
    return table


def test_the_environment_says_all_that_bits_depend_on():
    here, versions = environment(), environment()["versions"]
    others = {name: version(name) for name in ("jax", "jaxlib", "optax")}
    assert versions == {"jaxkkt": jk.__version__, **others}
    assert here["device"] == jax.devices()[0].device_kind
    assert here["platform"] == jax.devices()[0].client.platform_version
    assert here["xla_flags"] == os.environ.get("XLA_FLAGS", "")
    assert here["cpu_instructions"]
    assert here["threads"] >= 1
    assert len(here["code"]) == 64
    assert here["settings"]["jax_enable_x64"] is False


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_a_device_that_is_not_there(platform, tmp_path):
    """Asked for by JAX's own variable, or by the option of a study: both say what there is."""
    if any(device.platform != "cpu" for device in jax.devices()):
        pytest.skip("there is an accelerator")
    study = [sys.executable, "-m", "sweeps.vardi_figures", "--out", str(tmp_path)]
    option = ["--platform", {"cuda": "gpu"}.get(platform, platform)]
    for command, environ in (
        (study, os.environ | {"JAX_PLATFORMS": platform}),
        ([*study, *option], os.environ),
    ):
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "only cpu" in done.stderr
        assert "install the JAX of that device" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_harmed_compilation_cache_changes_nothing(tmp_path):
    script = (
        "import json, jaxkkt as jk\n"
        "table = jk.sweep(jk.grid(d=8, samples=6, width=20, seed=range(2)), progress=False)\n"
        "print(json.dumps(table.flip_size.values.ravel().tolist()))"
    )
    cache = tmp_path / "cache"
    cached = {"JAX_COMPILATION_CACHE_DIR": str(cache)}
    cached["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"

    def sizes():
        command = [sys.executable, "-W", "ignore", "-c", script]
        return subprocess.run(
            command, env=os.environ | cached, capture_output=True, text=True, check=True
        ).stdout

    first = sizes()
    files = sorted(path for path in cache.rglob("*") if path.is_file())
    assert len(files) > 5
    for i, path in enumerate(files):
        content = path.read_bytes()
        harmed = (content[: len(content) // 2], b"", b"x" * len(content), files[0].read_bytes())
        path.write_bytes(harmed[i % 4])
    assert sizes() == first


class TestDevices:
    @pytest.mark.slow
    @pytest.mark.parametrize("count", [2, 4])
    def test_bits_do_not_depend_on_their_number(self, count, one_lane):
        alone = sweep(jk.grid(d=8, samples=6, width=20, seed=range(8)))
        out = subprocess.run(
            [sys.executable, "-c", ON_DEVICES, str(count)], check=True, capture_output=True
        ).stdout
        used, sizes = json.loads(out)
        assert used == [[i, i] for i in range(count)]
        assert np.isfinite(sizes).all()
        np.testing.assert_array_equal(np.array(sizes), alone.flip_size.values.ravel())

    def test_a_chosen_device_is_the_only_one(self):
        with jax.default_device(jax.devices("cpu")[0]):
            assert devices() == [jax.devices("cpu")[0]]
        assert devices() == jax.local_devices()

    @pytest.mark.usefixtures("unchecked")
    def test_accelerators_share_the_runs_and_have_a_stream_each(self):
        runs = jk.grid(d=8, samples=6, width=20, seed=range(40))
        gpus = [SimpleNamespace(platform="gpu")] * 4
        (alone,) = plan(runs, gpus[:1])
        (shared,) = plan(runs, gpus)
        assert alone.lanes == 40
        assert shared.lanes == 10
        assert lane_counts.streams([shared], gpus) == 4
        assert lane_counts.streams([alone], gpus) == 1

    def test_unlike_devices_are_left_out(self, monkeypatch):
        other = SimpleNamespace(device_kind="display")
        local = jax.local_devices()
        monkeypatch.setattr(jax, "local_devices", lambda backend: [*local, other])
        assert devices() == local

    @pytest.mark.slow
    def test_runs_draw_by_threefry_whatever_the_generator_of_the_caller(self):
        """By "rbg" a run's batches were shuffled by another key beside other lanes."""
        sizes = {"d": 8, "samples": 6, "width": 20, "measure": [], "target_log_loss": -5}
        rule = {"optimizer": "descent", "batch_size": 2, "max_steps": 60, "learning_rate": 0.05}
        found = sweep(jk.grid(**sizes, **rule, seed=range(4)))
        with jax.default_prng_impl("rbg"):
            for seeds in (range(4), [3]):
                again = sweep(jk.grid(**sizes, **rule, seed=seeds))
                np.testing.assert_array_equal(again.log_loss, found.log_loss.sel(seed=seeds))


class Inline:
    """The least that an executor can be: no thread, and tasks without callbacks."""

    def __init__(self):
        self.tasks = []

    def submit(self, function, *args):
        try:
            outcome = function(*args)
            task = SimpleNamespace(done=lambda: True, result=lambda: outcome)
        except ValueError as error:
            future = Future()
            future.set_exception(error)
            task = SimpleNamespace(done=lambda: True, result=future.result)
        task.cancelled = False
        task.cancel = lambda: setattr(task, "cancelled", True)
        self.tasks.append(task)
        return task


@pytest.mark.slow
def test_processes_give_the_same_bits():
    here = sweep(jk.grid(d=[8, 12], samples=[6], width=[20], seed=[0]))
    out = subprocess.run(
        [sys.executable, "-c", IN_PROCESSES], check=True, capture_output=True
    ).stdout
    expected = here.flip_size.values.ravel()
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(np.array(json.loads(out)), expected)


@pytest.fixture
def in_process(monkeypatch):
    """Functions whose signatures are checked cannot be pickled: they are kept, under a name."""
    kept = {}

    def dumps(work):
        kept[name := os.urandom(8)] = work
        return name

    monkeypatch.setattr(
        executors, "cloudpickle", SimpleNamespace(dumps=dumps, loads=kept.__getitem__)
    )


@pytest.mark.usefixtures("in_process", "unchecked")
@pytest.mark.slow
@pytest.mark.skipif(cores() < 2, reason="needs two cores")
class TestCores:
    """XLA splits products of these sizes among its threads, and then rounds them differently."""

    def rows(self, folder, *arguments, **settings):
        script = folder / "on_cores.py"
        script.write_text(ON_CORES)
        command = [sys.executable, script, *arguments]
        env = {**os.environ, "PJRT_NPROC": "", **settings}
        return subprocess.run(command, env=env, capture_output=True, text=True)

    def test_what_is_pinned_equals_what_is_not(self, tmp_path):
        whole = self.rows(tmp_path, "free", "here")
        worker = self.rows(tmp_path, "free", "worker")
        threads = json.loads(whole.stdout)[-1]
        pinned = self.rows(tmp_path, "pinned", "here", PJRT_NPROC=threads)
        assert pinned.stdout == worker.stdout == whole.stdout, worker.stderr
        alone = json.loads(self.rows(tmp_path, "pinned", "here").stdout)
        assert alone[-1] == "1"
        assert alone[0] != json.loads(whole.stdout)[0]

    def test_rows_of_another_number_of_threads_are_not_mixed(self, tmp_path):
        store = tmp_path / "store"
        first = self.rows(tmp_path, "free", "here", str(store), PJRT_NPROC="2")
        assert first.returncode == 0
        other = self.rows(tmp_path, "pinned", "here", str(store))
        assert other.returncode != 0
        assert "threads: 2 in the folder, 1 now" in other.stderr


@pytest.mark.usefixtures("one_lane")
class TestExecutors:
    @pytest.mark.slow
    def test_small_tasks_give_the_same_bits(self, monkeypatch, capsys):
        whole = sweep(RUNS)
        monkeypatch.setattr(executors, "OPERATIONS_PER_TASK", 1)
        with ThreadPoolExecutor(2) as executor:
            table = sweep(RUNS, progress=True, executor=executor)
        xr.testing.assert_identical(table, whole)
        shown = capsys.readouterr().err
        assert "12/12 runs" in shown
        assert re.search(r"\(tasks: 12\); (99|100)\.\d% of lane-steps useful", shown)

    def test_a_stopped_sweep_goes_on_in_an_executor(self, tmp_path, monkeypatch):
        whole = sweep(RUNS)
        save, saved = Writer.add_all, []

        def stop(self, *row):
            if len(saved) >= 5:
                raise KeyboardInterrupt
            saved.extend(*row)
            save(self, *row)

        with monkeypatch.context() as patched:
            patched.setattr(Writer, "add_all", stop)
            with pytest.raises(KeyboardInterrupt):
                sweep(RUNS, store=tmp_path)
        executor = Inline()
        table = sweep(RUNS, store=tmp_path, executor=executor)
        xr.testing.assert_identical(table, whole)
        trained = [row for task in executor.tasks for row in task.result()[0]]
        assert len(trained) == 12 - len(saved)
        assert 5 <= len(saved) < 12

    def test_tasks_are_cancelled_when_a_row_cannot_be_saved(self, tmp_path, monkeypatch):
        def full(self, *row):
            raise OSError("no space left")

        monkeypatch.setattr(Writer, "add_all", full)
        monkeypatch.setattr(executors, "OPERATIONS_PER_TASK", 1)
        executor = Inline()
        with pytest.raises(OSError, match="no space left"):
            sweep(RUNS[:3], store=tmp_path, executor=executor)
        assert [task.cancelled for task in executor.tasks] == [False, True, True]

    @pytest.mark.slow
    def test_workers_keep_the_precision(self):
        with jax.enable_x64(True), ThreadPoolExecutor(1) as executor:
            table = sweep(RUNS[:1], executor=executor)
        size = table.flip_size_exact.item()
        assert np.isfinite(size)
        assert size != float(np.float32(size))

    def test_another_kind_of_worker_is_refused(self, monkeypatch):
        monkeypatch.setitem(os.environ, "XLA_FLAGS", "")

        class Elsewhere(Inline):
            def submit(self, function, *args):
                with monkeypatch.context() as patched:
                    patched.setitem(os.environ, "XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
                    return super().submit(function, *args)

        message = r"other bits than .*\n  xla_flags: '' in the sweep, '--xla.*in the worker"
        with pytest.raises(ValueError, match=message):
            sweep(RUNS[:1], executor=Elsewhere())

    @pytest.mark.parametrize("change", ["jax_default_prng_impl", "jax_enable_x64"])
    def test_settings_are_part_of_the_store(self, change, tmp_path):
        sweep(RUNS[:1], store=tmp_path)
        other = {"jax_default_prng_impl": "rbg", "jax_enable_x64": True}[change]
        with using({change: other}), pytest.raises(ValueError, match=f"settings.{change}: .* now"):
            sweep(RUNS[:1], store=tmp_path)

    def test_a_task_that_fails_loses_no_other_row(self, tmp_path, monkeypatch):
        class FirstFails(Inline):
            def submit(self, function, *args):
                task = super().submit(function, *args)
                if len(self.tasks) == 1:
                    future = Future()
                    future.set_exception(ArithmeticError("no such number"))
                    task.result = future.result
                return task

        monkeypatch.setattr(executors, "OPERATIONS_PER_TASK", 1)
        with pytest.raises(ArithmeticError, match="no such number"):
            sweep(RUNS[:3], store=tmp_path, executor=FirstFails())
        assert len(rows_in(tmp_path)) == 2

    def test_tasks_are_cancelled_when_one_cannot_be_submitted(self, monkeypatch):
        class Full(Inline):
            def submit(self, function, *args):
                if len(self.tasks) == 2:
                    raise OSError("the queue is full")
                return super().submit(function, *args)

        executor = Full()
        monkeypatch.setattr(executors, "OPERATIONS_PER_TASK", 1)
        with pytest.raises(OSError, match="the queue is full"):
            sweep(RUNS[:3], executor=executor)
        assert [task.cancelled for task in executor.tasks] == [True, True]

    def test_forks_are_refused(self, monkeypatch):
        monkeypatch.setattr(executors, "_IMPORTED_BY", -1)
        with ThreadPoolExecutor(1) as executor, pytest.raises(RuntimeError, match="is a fork, in"):
            sweep(RUNS[:1], executor=executor)

    def test_there_is_work_for_many_workers(self):
        planned = jk.plan_sweep(jk.grid(d=[40, 60], alpha=[1.0], width=[200], seed=range(200)))
        parts = list(executors._parts(planned.buckets, ()))
        assert 48 <= len(parts) <= 80
        names = sorted(run.name for _, some in parts for one in some for run in one)
        assert names == sorted(run.name for b in planned.buckets for run in b.runs)


@pytest.mark.parametrize("setting", ["disable_jit", "debug_nans", "debug_infs"])
def test_settings_under_which_no_sweep_can_be_computed_are_told(setting):
    """Before, an error from within JAX, or one program an operation, for minutes."""
    (run,) = jk.grid(d=4, samples=3, width=5, seed=0, max_steps=3)
    with getattr(jax, setting)(True):
        with pytest.raises(ValueError, match=f"jax_{setting}.*Turn that off"):
            sweep([run])
        if setting != "disable_jit":
            params, data = jk.draw(run)
            assert jk.train(params, *data, run.protocol).steps == 3
