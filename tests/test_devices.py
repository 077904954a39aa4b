"""Sweeps on several devices, and what of a device bits depend on."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from cases import sweep

import jaxkkt as jk
from jaxkkt.engine.machine.devices import cores, devices, environment, using
from jaxkkt.engine.planning import lane_counts
from jaxkkt.engine.planning.plan import plan

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


BY_SHARDS = """
import json
import jax
jax.config.update("jax_num_cpu_devices", 4)
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
import jaxkkt as jk
from jaxkkt import perturbations
protocol = jk.flow_protocol(target_log_loss=-3)
keys = jax.random.split(jax.random.key(0), (2, 8))
start = jax.vmap(lambda key: jk.networks.torch_linear(key, 10, 5))(keys[0])
data = jax.vmap(lambda key: jk.datasets.sphere(key, 6, 5))(keys[1])
def of_one(start, data):
    trained = jk.train(start, *data, protocol)
    chosen = data.y != 0
    u = perturbations.universal_direction(*data, chosen)
    flips = perturbations.flip_sizes_exact(trained.params, *data, u, chosen)
    return trained, flips, perturbations.pgd(trained.params, *data, 0.3, steps=3)
each = jax.vmap(of_one)
mesh = jax.make_mesh((4,), ("lanes",), axis_types=(AxisType.Auto,))
split = PartitionSpec("lanes")
def by_shards(**options):
    shards = jax.shard_map(each, mesh=mesh, in_specs=split, out_specs=split, **options)
    return jax.jit(shards)(start, data)
try:
    by_shards()
except TypeError as error:
    told = str(error)
placed = jax.device_put((start, data), NamedSharding(mesh, split))
found = by_shards(check_vma=False), jax.jit(each)(*placed)
alone = jax.device_get(jax.jit(each)(start, data))
for one in found:
    assert all(len(leaf.sharding.device_set) == 4 for leaf in jax.tree.leaves(one))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), one, alone)
print(json.dumps([told, alone[0].steps.tolist(), alone[1].size.tolist()]))
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


@pytest.mark.rare
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
    @pytest.mark.parametrize("count", [pytest.param(2, marks=pytest.mark.rare), 4])
    def test_bits_do_not_depend_on_their_number(self, count, one_lane):
        alone = sweep(jk.grid(d=8, samples=6, width=20, seed=range(8)))
        out = subprocess.run(
            [sys.executable, "-c", ON_DEVICES, str(count)], check=True, capture_output=True
        ).stdout
        used, sizes = json.loads(out)
        assert used == [[i, i] for i in range(count)]
        assert np.isfinite(sizes).all()
        np.testing.assert_array_equal(np.array(sizes), alone.flip_size.values.ravel())

    @pytest.mark.slow
    def test_networks_are_split_among_them_by_jax_itself(self):
        """With `check_vma=True`, JAX's default, loops that begin with constants are refused."""
        command = [sys.executable, "-W", "error", "-c", BY_SHARDS]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        told, steps, sizes = json.loads(done.stdout)
        assert "manual axis types do not match" in told
        assert len(set(steps)) > 4
        assert np.isfinite(sizes).any()

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


@pytest.mark.parametrize("change", ["jax_default_prng_impl", "jax_enable_x64"])
def test_settings_are_part_of_the_store(change, tmp_path):
    runs = jk.grid(d=8, samples=6, width=20, seed=0)
    sweep(runs, store=tmp_path)
    other = {"jax_default_prng_impl": "rbg", "jax_enable_x64": True}[change]
    with using({change: other}), pytest.raises(ValueError, match=f"settings.{change}: .* now"):
        sweep(runs, store=tmp_path)


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
