"""Runs that raise: the others go on, and nothing is lost."""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partialmethod

import jax
import numpy as np
import optax
import pytest
import xarray as xr
from cases import refuse_to_draw, sweep

import jaxkkt as jk
from jaxkkt import studies
from jaxkkt.engine.running import executors, rows, slots
from jaxkkt.store import Writer

SIZES = {"d": 8, "samples": 6, "width": 20}


def fails(seeds, mended=lambda: False, error=OSError):
    """A measurement that raises for the networks of these seeds, told by their data."""
    bad = [float(jk.draw(run)[1].x[0, 0]) for seed in seeds for run in jk.grid(**SIZES, seed=seed)]

    class Fails(jk.Measurement):
        on_host = True

        def measure(self, data):
            if float(data.x[0, 0]) in bad and not mended():
                raise error("no measurement of this")
            return {"first": data.x[0, 0]}

    Fails.__module__ = "jaxkkt.own"  # told by the package's source: a store takes it
    return Fails()


def runs_of(seeds=range(4), bad=()):
    return jk.grid(**SIZES, seed=seeds, measure=fails(bad))


@pytest.fixture(scope="module")
def sound():
    return sweep(runs_of())


def test_the_others_go_on(sound, caplog):
    table = sweep(runs_of(bad=[1]))
    assert table.status.values.ravel().tolist()[1] == jk.Status.RAISED
    assert "OSError: no measurement of this" in table.error.values.ravel()[1]
    assert table.error.values.ravel()[[0, 2, 3]].tolist() == [""] * 3
    others = table.drop_vars("error").isel(seed=[0, 2, 3])
    xr.testing.assert_equal(others, sound.isel(seed=[0, 2, 3]))
    assert np.isnan(table.log_loss.isel(seed=1).item())
    assert "1 of 4 runs failed" in caplog.text
    assert "OSError: no measurement of this" in caplog.text
    assert jk.summarize(table, "first").excluded.item() == 1


def test_the_same_sweep_tries_it_again(sound, tmp_path, monkeypatch):
    mended = tmp_path / "mended"
    runs = jk.grid(**SIZES, seed=range(4), measure=fails([2], mended.exists))
    store = tmp_path / "store"
    broken = sweep(runs, store=store)
    assert "OSError: no measurement of this" in broken.error.values.ravel()[2]
    for saved in (xr.load_dataset(store / "results.nc"), jk.landed(runs, store=store)):
        xr.testing.assert_identical(saved, broken)
    mended.touch()
    found = []
    monkeypatch.setattr(Writer, "add_all", partialmethod(_noting, Writer.add_all, found))
    xr.testing.assert_equal(sweep(runs, store=store), sound)
    assert found == [runs[2].name]
    assert "error" not in jk.landed(runs, store=store)


def test_runs_that_raised_do_not_bar_a_folder(sound, tmp_path):
    with pytest.raises(OSError, match="no measurement of this"):
        sweep(runs_of(range(4, 6), bad=[4, 5]), store=tmp_path)
    assert len(jk.read_rows(tmp_path)) == 2
    with pytest.raises(ValueError, match="no row of these runs has landed"):
        jk.landed(runs_of(), store=tmp_path)
    xr.testing.assert_equal(sweep(runs_of(), store=tmp_path), sound)
    # Beside a result they do.
    with pytest.raises(ValueError, match="holds 4 runs, and none of these"):
        sweep(runs_of(range(6, 8)), store=tmp_path)


def _noting(writer, add, found, rows):
    found += [name for name, *_ in rows]
    add(writer, rows)


@pytest.mark.slow
def test_on_the_way():
    runs = jk.grid(**SIZES, seed=range(4), curve=jk.Curve([-1, -5], measure=fails([0])))
    table = sweep(runs)
    assert (table.status == jk.Status.RAISED).values.ravel().tolist() == [True, False, False, False]
    assert np.isfinite(table.curve_first.isel(seed=slice(1, None))).all()


def test_data_that_cannot_be_drawn(sound, monkeypatch):
    refuse_to_draw(monkeypatch, seed=2)
    table = sweep(runs_of())
    assert "ArithmeticError: an unlucky draw" in table.error.values.ravel()[2]
    others = table.drop_vars("error").isel(seed=[0, 1, 3])
    xr.testing.assert_equal(others, sound.isel(seed=[0, 1, 3]))


def test_an_optimizer_that_raises(sound):
    """Its programs cannot be compiled. Those of the others can, and their runs go on."""

    def broken(learning_rate):
        def update(updates, state, params=None):
            raise ArithmeticError("my rule is broken")

        return optax.GradientTransformation(optax.sgd(learning_rate).init, update)

    wrong = jk.grid(
        **SIZES,
        seed=range(2),
        measure=fails([]),
        optimizer=jk.optimizer(broken, learning_rate=0.1),
    )
    table = sweep(runs_of() + wrong)
    bad = table.status == jk.Status.RAISED
    assert bad.values.sum() == 2
    assert all("ArithmeticError: my rule is broken" in e for e in table.error.values[bad.values])
    mine = table.first.values[~bad.values & np.isfinite(table.first.values)]
    np.testing.assert_array_equal(np.sort(mine), np.sort(sound.first.values.ravel()))
    with pytest.raises(ArithmeticError, match="my rule is broken"):
        sweep(wrong)


def test_the_error_is_told_and_not_what_jax_notes_beside_it(caplog):
    """Every error looked like the next then."""

    class Broken(jk.initializations.Initialization):
        def draw(self, key, width, dim):
            raise ArithmeticError("my initialization is broken")

    runs = runs_of(range(2)) + jk.grid(**SIZES, seed=0, measure=fails([]), initialization=Broken())
    table = sweep(runs)
    assert "JAX has removed its internal frames" not in "".join(table.error.values.ravel())
    assert "ArithmeticError: my initialization is broken" in caplog.text


@pytest.mark.slow
def test_memory_that_runs_out_beside_a_draw_that_raises_loses_nothing(monkeypatch):
    """The runs that were not yet placed are tried again with fewer lanes."""
    draw, full = slots.draw_batch, []

    def drawn(drawing, words, runs, *rest):
        if any(run.seed == 1 for run in runs):
            raise ArithmeticError("an unlucky draw")
        if len(runs) == 1 and runs[0].seed == 2 and not full:
            full.append(1)
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
        return draw(drawing, words, runs, *rest)

    monkeypatch.setattr(slots, "draw_batch", drawn)
    table = sweep(jk.grid(**SIZES, seed=range(4), measure=()))
    assert full
    assert (table.status.values.ravel() == [1, jk.Status.RAISED, 1, 1]).all()


def test_where_all_raise_the_first_error_is_raised(one_lane):
    with pytest.raises(OSError, match="no measurement of this") as caught:
        sweep(runs_of(range(5), bad=range(5)))
    (note,) = caught.value.__notes__
    assert re.match(
        r"as did all of the [345] runs that have ended\. Where the first one did:", note
    )
    assert 'raise error("no measurement of this")' in note
    with pytest.raises(OSError, match="no measurement of this"):
        sweep(runs_of([0], bad=[0]))


def test_one_bad_seed_does_not_end_a_sweep_of_several():
    """Three runs of seed 0 that landed first did."""
    made = [rows.raised(run, OSError("bad")) for run in (*runs_of([0]) * 3, *runs_of([1]))]
    rows.give_up(made[:3], 3, seeds=2)
    for some, seeds in ((made[:3], 1), (made, 2)):
        with pytest.raises(OSError, match="bad"):
            rows.give_up(some, 3, seeds)
    many = {"init_scale": np.linspace(0.5, 1, 40).tolist(), "seed": range(2)}
    with pytest.raises(OSError, match="no measurement") as caught:
        sweep(jk.grid(**SIZES, **many, measure=fails([0, 1])))
    (ended,) = re.findall(r"all of the (\d+) runs", caught.value.__notes__[0])
    assert int(ended) < 40
    axes = {"init_scale": [0.5, 1.0, 2.0], "seed": range(2), "measure": fails([0])}
    table = sweep(jk.grid(**SIZES, **axes))
    failed = (table.status == jk.Status.RAISED).squeeze()
    assert failed.transpose("seed", ...).values.tolist() == [[True] * 3, [False] * 3]


def test_in_workers():
    class Odd(Exception):
        def __reduce__(self):
            raise TypeError("no pickle of this")

    runs = jk.grid(**SIZES, seed=range(4), measure=fails([3], error=Odd))
    with ThreadPoolExecutor(1) as executor:
        table = sweep(runs, executor=executor)
    assert (table.status == jk.Status.RAISED).values.ravel().tolist() == [False] * 3 + [True]
    assert "Odd: no measurement of this" in table.error.values.ravel()[3]
    # What cannot travel is told by what can.
    assert repr(executors._portable(Odd("one"))) == "RuntimeError('Odd: one')"
    assert repr(executors._portable(OSError("one"))) == "OSError('one')"


@dataclass(frozen=True)
class Options(studies.Options):
    bad: int = 0
    """how many runs raise"""


def test_a_study_has_a_code_of_its_own(tmp_path, capsys):
    def parts(options):
        return [studies.Part(runs_of(bad=range(options.bad)))]

    study = studies.Study("made-up", "", Options, parts)
    assert study.main(["--bad", "1", "--quiet", "--out", str(tmp_path / "1")]) == 3
    assert study.main(["--bad", "0", "--quiet", "--out", str(tmp_path / "0")]) == 0


def test_runs_that_had_nothing_to_train_are_told(caplog):
    """A target without its minus sign was CONVERGED, and nothing said so."""
    runs = jk.grid(d=8, samples=6, width=20, seed=range(2), target_log_loss=5.0)
    table = sweep(runs)
    assert (table.steps == 0).all()
    (told,) = (r.message for r in caplog.records if "before the first step" in r.message)
    assert told.startswith("2 of 2 runs were at their target log loss")
