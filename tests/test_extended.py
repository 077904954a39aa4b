"""A store takes more seeds, values and measurements of what is there."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from cases import note_trained, rows_in, sweep
from store_cases import RUNS, SIZES, values

import jaxkkt as jk
from jaxkkt.engine import remeasuring
from jaxkkt.engine.programs.hashes import as_text, hash_words
from jaxkkt.engine.running import streams
from jaxkkt.engine.running.rows import Row
from jaxkkt.engine.tables.records import Known
from jaxkkt.store import Store, Writer


class Told(jk.Measurement):
    number: jk.Number = 0.0
    on_host = True
    __module__ = "jaxkkt.own"

    def measure(self, params):
        return {"told": float(self.number)}


def largest(params):
    return jnp.abs(params.v).max()


class TestExtended:
    def test_by_seeds_and_values(self, tmp_path, monkeypatch):
        sweep(RUNS, store=tmp_path)
        before = values(tmp_path)
        more = jk.grid(d=8, samples=[6, 7], width=20, seed=range(4))
        table = sweep(more, store=tmp_path)
        assert len(rows_in(tmp_path)) == 8
        assert before.items() <= values(tmp_path).items()
        assert len(Store(tmp_path).records()) == 8  # no run was computed twice
        assert np.isfinite(table.flip_size).all()
        assert table.sizes == {"d": 1, "samples": 2, "width": 1, "seed": 4}

    def test_in_another_order(self, tmp_path, monkeypatch):
        table = sweep(RUNS, store=tmp_path)
        monkeypatch.setattr(streams, "compile_bucket", None)
        xr.testing.assert_equal(sweep(RUNS[::-1], store=tmp_path), table)

    @pytest.mark.rare
    @pytest.mark.slow
    @pytest.mark.parametrize("keep", [None, "params"])
    def test_by_measurements(self, tmp_path, monkeypatch, keep):
        """Of kept networks they are made without training; others train again, to one network."""
        sweep(RUNS, store=tmp_path, keep=keep)
        trained = note_trained(monkeypatch)
        more = jk.grid(**SIZES, seed=range(3), measure=[jk.Flips(), jk.StepFlips()])
        table = sweep(more, store=tmp_path)
        assert len(trained) == (0 if keep else 3)
        xr.testing.assert_equal(table, sweep(more))
        assert np.isfinite(table.step_size).all()
        trained.clear()
        xr.testing.assert_identical(sweep(more, store=tmp_path), table)
        xr.testing.assert_equal(sweep(RUNS, store=tmp_path), sweep(RUNS))
        fewer = jk.grid(**SIZES, seed=range(3), measure=jk.StepFlips())
        assert "flip_size" not in sweep(fewer, store=tmp_path)
        assert len(trained) == 3  # of the sweep without a store

    @pytest.mark.usefixtures("unchecked")
    def test_networks_are_kept_of_whatever_gives_the_runs(self, tmp_path):
        sweep(RUNS, store=tmp_path, keep=(run for run in RUNS if run.seed == 1))
        kept = [run for run in RUNS if run.seed == 1]
        assert [jk.load_network(tmp_path, run).w.shape for run in kept] == [(20, 8)] * len(kept)
        for wrong in (True, RUNS[0], 3, "all"):
            with pytest.raises(ValueError, match="keep must be 'params', or a list of the runs to"):
                sweep(RUNS, store=tmp_path, keep=wrong)

    @pytest.mark.rare
    @pytest.mark.slow
    def test_by_a_measurement_that_raises(self, tmp_path, monkeypatch):
        sweep(RUNS, store=tmp_path, keep="params")

        def raises(*_):
            raise ArithmeticError("no such number")

        more = jk.grid(**SIZES, seed=range(3), measure=[jk.Flips(), jk.StepFlips()])
        with monkeypatch.context() as patched:
            patched.setattr(remeasuring, "measure_batch", raises)
            with pytest.raises(ArithmeticError, match="no such number"):
                sweep(more, store=tmp_path)
        xr.testing.assert_equal(sweep(RUNS, store=tmp_path), sweep(RUNS))
        xr.testing.assert_equal(sweep(more, store=tmp_path), sweep(more))

    def test_by_a_measurement_that_raises_of_one(self, tmp_path, monkeypatch):
        sweep(RUNS, store=tmp_path, keep="params")
        draw, trained = remeasuring.draw_batch, note_trained(monkeypatch)

        def drawn(drawing, words, runs, *rest):
            if any(run.seed == 1 for run in runs):
                raise OSError("its file is not there")
            return draw(drawing, words, runs, *rest)

        monkeypatch.setattr(remeasuring, "draw_batch", drawn)
        more = jk.grid(**SIZES, seed=range(3), measure=[jk.Flips(), largest])
        table = sweep(more, store=tmp_path)
        assert not trained
        assert (table.status == jk.Status.RAISED).values.ravel().tolist() == [False, True, False]
        others = table.drop_vars("error").isel(seed=[0, 2])
        xr.testing.assert_equal(others, sweep(more).isel(seed=[0, 2]))

    @pytest.mark.parametrize("times", [1, pytest.param(99, marks=pytest.mark.slow)])
    def test_memory_that_runs_out(self, tmp_path, monkeypatch, times):
        """Fewer are measured at a time; those that do not fit even so train again."""
        sweep(RUNS, store=tmp_path, keep="params")
        measure, trained, full = remeasuring.measure_batch, note_trained(monkeypatch), []
        read, load = [], Store.load_network
        monkeypatch.setattr(Store, "load_network", lambda *a: read.append(a[1]) or load(*a))

        def measured(*args):
            if len(full) < times:
                full.append(1)
                raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
            return measure(*args)

        more = jk.grid(**SIZES, seed=range(3), measure=[jk.Flips(), largest])
        with monkeypatch.context() as patched:
            patched.setattr(remeasuring, "measure_batch", measured)
            table = sweep(more, store=tmp_path)
        assert bool(trained) == (times > 1)
        assert sorted(read) == sorted(run.name for run in RUNS)  # each once
        xr.testing.assert_equal(table, sweep(more))

    def test_shapes_are_told_apart(self):
        """Also where one's digits begin as the other's."""
        (bucket,) = jk.plan_sweep(RUNS).buckets
        (m, d, k), told = bucket.measured_at, Row(RUNS[0], {}, computed_as=bucket.computed_with)
        shorter = replace(bucket, measured_at=(m, d, k // 10)).measured_as
        longer = told._replace(computed_as=told.computed_as.replace(f"k{k}", f"k{k // 10}0"))
        for row, parts in ((told, 3), (longer, 3)):
            had = Known(row, (), None)
            found = remeasuring._completed(had, ({}, {}), shorter)
            assert found.computed_as == f"{row.computed_as}, {shorter}"
            assert len(found.computed_as.split(", ")) == parts
            again = remeasuring._completed(Known(found, (), None), ({}, {}), shorter)
            assert again.computed_as == found.computed_as

    @pytest.mark.rare
    @pytest.mark.slow
    def test_what_is_measured_at_another_shape_says_so(self, tmp_path):
        """A sweep of more runs may measure at larger shapes, and so round otherwise: what it has
        measured contradicts nobody."""
        (bucket,) = jk.plan_sweep(RUNS).buckets
        (m, d, k), told = bucket.measured_at, bucket.computed_with
        assert replace(bucket, measured_at=(m, d, k + 1)).computed_with != told
        sweep(RUNS[:1], store=tmp_path, keep="params")
        more = jk.grid(**SIZES, seed=0, measure=[jk.Flips, jk.StepFlips])
        more += jk.grid(d=8, samples=6, width=300, seed=0, measure=[jk.Flips, jk.StepFlips])
        sweep(more, store=tmp_path)
        rows = [record.value["computed_as"] for record in Store(tmp_path).records()]
        narrow = [row.split(", ")[1:] for row in rows if " k20 " in row]
        assert narrow == [narrow[0], [*narrow[0], "measured at m64 d64 k1024"]]

    def test_by_a_name_that_is_there(self, tmp_path):
        """Of measurements by the host, whose names nobody knows before they have run."""
        one, other = Told(number=1.0), Told(number=2.0)
        for measure in (one, other):
            sweep(jk.grid(**SIZES, seed=range(2), measure=measure), store=tmp_path, keep="params")
        with pytest.raises(ValueError, match="returns 'told', which is there already"):
            sweep(jk.grid(**SIZES, seed=range(2), measure=[one, other]), store=tmp_path)

    def test_a_kept_network_of_another_training_is_not_measured(self, tmp_path):
        """Its row counts no more: what is measured belongs to the row that does."""
        sweep(RUNS[:1], store=tmp_path, keep="params")
        (segment,) = Store(tmp_path).segments()
        name, row = segment.rows[0]
        other = {**row, "network": "0" * 20, "ending": {**row["ending"], "steps": 7}}
        with Store(tmp_path).writing(segment.about["settings"]) as writer:
            writer.add(name, other, segment.definitions)
        more = jk.grid(**SIZES, seed=0, measure=[jk.Flips(), jk.StepFlips()])
        xr.testing.assert_equal(sweep(more, store=tmp_path), sweep(more))
        kept = jk.load_network(tmp_path, RUNS[0])
        width, dim = kept.w.shape
        words = jax.jit(hash_words)(kept, jnp.int32(width), jnp.int32(dim))
        assert as_text(np.asarray(words)[None]) == [row["network"]]

    def test_other_settings_mix_by_a_word_alone(self, tmp_path):
        ours = sweep(RUNS[:2], store=tmp_path)
        (path,) = Store(tmp_path).paths()
        (segment,) = Store(tmp_path).segments()
        settings = {**segment.about["settings"], "device": "another"}
        writer = Writer(tmp_path / "segments", {"settings": settings})
        for name, row in segment.rows:
            writer.add(name, row, segment.definitions)
        writer.close()
        path.unlink()
        with pytest.raises(ValueError, match=r"--mix.*\n  device: 'another' in the folder"):
            sweep(RUNS, store=tmp_path)
        with pytest.raises(ValueError, match="device: 'another' in the folder"):
            jk.landed(RUNS, store=tmp_path)
        theirs = jk.landed(RUNS[:2], store=tmp_path, mix=True), jk.read_store(tmp_path)
        assert [table.attrs["device"] for table in theirs] == ["another", "another"]
        mixed = sweep(RUNS, store=tmp_path, mix=True)
        assert len(set(mixed.environment.values.ravel()[:2])) == 1
        assert len(set(mixed.environment.values.ravel())) == 2
        assert '"device": "another"' in mixed.attrs["environments"]
        same = mixed.drop_vars("environment").isel(seed=slice(2))
        xr.testing.assert_equal(same, ours)
        for read in (jk.landed(RUNS, store=tmp_path, mix=True), jk.read_store(tmp_path)):
            xr.testing.assert_equal(read, mixed)
