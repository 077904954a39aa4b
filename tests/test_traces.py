"""What JAX traced, kept between processes: read where it would be the same, and nowhere else."""

import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path
from shutil import copytree
from stat import S_IMODE

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import export

import jaxkkt as jk
from jaxkkt import engine, losses, optimizers, training
from jaxkkt.engine.machine import traces
from jaxkkt.engine.machine.traces import Program
from jaxkkt.process import loaded


@pytest.fixture
def folder(tmp_path):
    """Where JAX keeps compiled programs, and this package what was traced."""
    before, always = jax.config.jax_compilation_cache_dir, loaded.was_always_so()
    loaded.forget_changes()  # that other tests made
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    yield tmp_path / traces.FOLDER
    jax.config.update("jax_compilation_cache_dir", before)
    if not always:
        loaded._changes.add("seen")


def no_options(name):
    return {}


class Asking:
    """Asks for something, and counts how often it was made."""

    def __init__(self):
        self.made = 0

    def __call__(self, asked):
        def make():
            self.made += 1
            return "made", self.made

        return traces.kept(asked, make)


def test_what_was_made_is_read(folder):
    ask = Asking()
    assert [ask("this"), ask("this"), ask("that"), ask("this")] == [
        ("made", 1),
        ("made", 1),
        ("made", 2),
        ("made", 1),
    ]
    assert len(list(folder.iterdir())) == 2
    assert S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "other",
    [
        lambda: jax.enable_x64(True),
        lambda: jax.default_matmul_precision("highest"),
        lambda: jax.threefry_partitionable(False),
        lambda: jax.numpy_rank_promotion("allow"),
    ],
)
def test_other_settings_of_jax_are_another_trace(folder, other):
    ask = Asking()
    ask("this")
    with other():
        assert ask("this") == ("made", 2)
    assert ask("this") == ("made", 1)


def test_where_programs_are_kept_is_no_such_setting(folder):
    ask = Asking()
    ask("this")
    jax.config.update("jax_compilation_cache_dir", f"{folder.parent}/")
    assert ask("this") == ("made", 1)


class Mine(jk.Optimizer):
    """An optimizer that a user wrote."""

    rate: jk.Number = 0.1

    def transformation(self):
        return optax.sgd(self.rate)


class MySgd(type(jk.optimizer(optax.sgd, learning_rate=0.1))):
    """One of optax's, made another."""

    def transformation(self):
        return optax.sgd(2 * self.learning_rate)


def made_by_me(rate):
    return optax.sgd(rate)


def mine(params, data):
    return {"norm": jnp.linalg.norm(params.v)}


@pytest.mark.parametrize(
    "asked",
    [
        Mine(),
        Mine,
        mine,
        jax.tree.structure(Mine()),
        jax.tree.structure(jk.measurements.measurement(mine)),
        jax.tree.structure(jk.optimizer(made_by_me, rate=0.1)),
        jax.tree.structure(jk.optimizer(optax.sgd, learning_rate=lambda count: 0.1)),
        jax.tree.structure(jk.optimizer(optax.sgd(0.1))),
        jax.tree.structure(MySgd(learning_rate=0.1)),
    ],
)
def test_what_a_name_does_not_tell_is_made_each_time(folder, asked):
    ask = Asking()
    assert ask(asked) != ask(asked)
    assert not folder.exists()


@pytest.mark.parametrize(
    "spec", [jk.Flow(), jk.optimizer(optax.adam, learning_rate=0.1), jk.Flips()]
)
def test_the_packages_own_specs_are_told(folder, spec):
    ask = Asking()
    assert ask(jax.tree.structure(spec)) == ask(jax.tree.structure(spec))


@pytest.mark.parametrize(
    "replaced",
    [
        lambda patch: patch.setattr(training, "step", None),
        lambda patch: patch.setattr(optimizers, "LARGEST", 3.0),
        lambda patch: patch.setattr(jk.Flow, "transformation", None),
        lambda patch: patch.setitem(losses.LOSSES, "exponential", losses.logistic),
        lambda patch: patch.setitem(losses.LOSSES, "hinge", losses.logistic),
        lambda patch: patch.setattr(training, "another", 1, raising=False),
        lambda patch: patch.delattr(training, "step"),
    ],
    ids=["function", "number", "method", "entry", "new entry", "new name", "gone"],
)
def test_nothing_is_read_or_written_once_the_package_was_changed(folder, monkeypatch, replaced):
    ask = Asking()
    ask("before")
    with monkeypatch.context() as patch:
        replaced(patch)
        assert not loaded.is_as_written()
        assert ask("before") == ("made", 2)
        ask("meanwhile")
    assert ask("before") == ("made", 1)
    # What JAX traced meanwhile it still has.
    assert ask("after") != ask("after")
    assert len(list(folder.iterdir())) == 1
    engine.forget()
    assert ask("after") == ask("after")


def test_what_changes_while_it_is_made_is_not_kept(folder):
    def make():
        jax.config.update("jax_default_matmul_precision", "highest")
        return "made"

    try:
        traces.kept("this", make)
    finally:
        jax.config.update("jax_default_matmul_precision", None)
    assert not list(folder.iterdir())


def test_reloading_the_package_is_no_way_around(folder, monkeypatch):
    monkeypatch.setattr(training, "step", None)
    loaded.remember()  # as the end of its import does
    assert not loaded.is_as_written()


EDITS = """
from pathlib import Path
import jax
from jaxkkt.process import loaded
from jaxkkt.engine.machine import traces
jax.config.update("jax_compilation_cache_dir", str(Path.cwd()))
print(loaded.__file__)
print(traces._path("this").name)
path = Path(loaded.__file__).parents[1] / "losses.py"
path.write_text(path.read_text() + "# edited")
print(traces._path("this"))
"""


@pytest.mark.slow
def test_files_that_are_edited_are_seen_at_once_and_by_the_next_process(tmp_path):
    copytree(Path(jk.__file__).parent, tmp_path / "jaxkkt")

    def run():
        command = [sys.executable, "-c", EDITS]
        told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        where, before, after = told.stdout.split()
        assert where == str(tmp_path / "jaxkkt" / "process" / "loaded.py")
        assert after == "None"
        return before

    assert run() != run()


@pytest.mark.parametrize(
    "broken",
    [
        lambda whole: b"",
        lambda whole: b"something else",
        lambda whole: whole[:-1],
        lambda whole: whole.replace(b"made", b"mode"),
    ],
    ids=["empty", "foreign", "cut short", "a flipped bit"],
)
def test_a_broken_file_is_made_anew(folder, broken):
    ask = Asking()
    ask("this")
    (path,) = folder.iterdir()
    path.write_bytes(broken(path.read_bytes()))
    assert ask("this") == ("made", 2)
    assert ask("this") == ("made", 2)


@pytest.mark.parametrize("setting", [None, "gs://bucket/programs"])
def test_without_a_folder_of_programs_nothing_is_kept(folder, setting):
    jax.config.update("jax_compilation_cache_dir", setting)
    ask = Asking()
    assert ask("this") != ask("this")


def test_where_jax_keeps_no_programs_nothing_is_kept(folder):
    ask = Asking()
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        assert ask("this") != ask("this")
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
    assert not folder.exists()


def test_what_cannot_be_written_is_used_all_the_same(folder, caplog):
    caplog.set_level(logging.DEBUG, "jaxkkt")
    made = []

    def make():
        made.append(lambda: None)
        return made[-1]

    assert traces.kept("this", make) is made[0]
    assert traces.kept("this", make) is made[1]
    assert "a trace is not kept" in caplog.text
    assert not list(folder.iterdir())


def test_anothers_file_is_not_read(folder):
    ask = Asking()
    ask("this")
    (path,) = folder.iterdir()
    content = path.read_bytes()
    ask("that")
    (other,) = set(folder.iterdir()) - {path}
    other.write_bytes(content)
    assert ask("that") == ("made", 3)
    assert ask("this") == ("made", 1)


def test_those_not_used_for_longest_make_room(tmp_path, monkeypatch):
    content, names = bytes(100), {name: name * 64 for name in "abcd"}
    size = traces.DIGEST_BYTES + len(pickle.dumps(content))
    monkeypatch.setattr(traces, "MOST_BYTES", 3 * size)
    (tmp_path / "not ours").write_bytes(bytes(1000))

    def write(name):
        path = tmp_path / names[name]
        path.write_bytes(traces._digest(path, pickle.dumps(content)) + pickle.dumps(content))

    for age, name in enumerate("acb"):
        write(name)
        os.utime(tmp_path / names[name], (1e9 - age, 1e9 - age))
    part = tmp_path / f"{names['d']}.{'0' * 16}.part"  # of a process that was killed
    part.write_bytes(bytes(10))
    os.utime(part, (1e9 - 9, 1e9 - 9))
    traces._read(tmp_path / names["b"])  # used now
    write("d")
    traces._make_room(tmp_path)
    left = {names["a"], names["b"], names["d"], "not ours"}
    assert {path.name for path in tmp_path.iterdir()} == left


def test_a_program_that_was_read_computes_the_same(folder):
    def function(batch, numbers):
        array, key = batch
        return {"sum": array + numbers["b"], "key": jax.random.fold_in(key, 3)}, numbers["a"]

    batch = jnp.arange(3.0), jax.random.key(1)
    given = {"a": jnp.int32(2), "b": jnp.ones(3)}
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (batch, given))
    wanted = function(batch, given)

    def make():
        return "beside", {"it": Program(function, shapes, donates=True)}

    for _ in range(2):
        beside, programs = traces.compiled("this", make, no_options)
        assert "jit_function" in programs["it"].as_text()
        found = programs["it"](jax.tree.map(jnp.copy, batch), given)
        assert beside == "beside"
        assert jax.tree.structure(found) == jax.tree.structure(wanted)
        for one, other in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
            assert one.dtype == other.dtype
            assert (one == other).all()


@pytest.mark.parametrize("before", [True, False], ids=["before", "never"])
def test_programs_that_jax_cannot_read_are_traced(folder, monkeypatch, before):
    shape = jax.ShapeDtypeStruct((3,), jnp.float32)

    def make():
        return None, {"it": Program(lambda x: x + 1, (shape,))}

    def fails(code):
        raise ImportError("flatbuffers")

    if before:
        traces.compiled("this", make, no_options)
    monkeypatch.setattr(export, "deserialize", fails)
    _, programs = traces.compiled("this", make, no_options)
    assert (programs["it"](jnp.zeros(3)) == 1).all()
    assert before or not list(folder.iterdir())


BATCHES = {"optimizer": jk.Descent(learning_rate=0.1), "batch_size": 2, "max_steps": 50}


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        pytest.param({}, id="flow"),
        pytest.param(BATCHES, id="batches", marks=pytest.mark.rare),
        pytest.param({"curve": jk.Curve([-0.5])}, id="curve", marks=pytest.mark.rare),
    ],
)
def test_a_sweep_of_programs_that_were_read_has_the_same_bits(folder, how):
    runs = jk.grid(d=4, samples=5, width=6, seed=range(3), measure=jk.Flips(), **how)
    traced = set()

    def heard(event, _, fun_name="", **more):
        if event == "/jax/core/compile/jaxpr_trace_duration":
            traced.add(fun_name)

    def swept():
        engine.forget()
        traced.clear()
        jax.monitoring.register_event_duration_secs_listener(heard)
        table = jk.sweep(runs, progress=False)
        jax.monitoring.unregister_event_duration_listener(heard)
        return table, set(traced)

    (first, made), (second, again) = swept(), swept()
    jax.config.update("jax_compilation_cache_dir", None)
    third, _ = swept()
    its_own = {"measured", "drawn", "_load", "_ended", "of_leaves"}
    assert made >= its_own
    assert not again & its_own
    for table in (second, third):
        for name in ("network", "flip_size_exact", "log_loss"):
            np.testing.assert_array_equal(table[name], first[name])
