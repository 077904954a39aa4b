"""The benchmarks' peers train as jaxkkt does, and their timing and records are right."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from cases import problem, stacked

import jaxkkt as jk
from benchmarks import (
    gradients,
    lazy,
    peers,
    protocols,
    shared,
    start,
    sweep,
    throughput,
    timing,
    training,
)
from benchmarks.stages import COMPILING, STAGES, compiling
from benchmarks.timing import Contestant
from benchmarks.training import Case
from jaxkkt import representations
from jaxkkt.engine.programs import draws, measuring
from jaxkkt.engine.running import slots
from jaxkkt.engine.running.rows import Row
from jaxkkt.engine.tables import results

SMALL = Case(20, 12, 50, networks=2, steps=20, speedup=1, share=0.5)
STEPS = 220  # two changes of the learning rate
# log L falls by 0.02 in these steps, so the benchmark's own tolerance would tell too little.
TOLERANCE = 1e-5


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """PyTorch's threads wait for each other by spinning, for long where the cores are shared."""
    if timing.version("torch") is None:
        yield
        return
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def drawn():
    return training.draw(SMALL)


@pytest.fixture(scope="module")
def ours(drawn):
    return training.trajectory(*training.prepare(*drawn), STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("name", training.PEERS)
def test_peers_follow_the_same_trajectory(name, drawn, ours):
    if name != "vmap":
        pytest.importorskip("torch")
    advance = training.PEERS[name](*drawn)
    theirs = np.concatenate([advance(STEPS - 100), advance(100)], axis=1)  # resumes where it was
    assert theirs.shape == (SMALL.networks, STEPS)
    assert training.deviation(ours, theirs) < TOLERANCE
    assert np.all(np.diff(theirs) < 0)


@pytest.mark.slow
def test_the_trajectory_shows_the_growth_of_the_learning_rate(drawn, ours, monkeypatch):
    """A peer whose learning rate stands still is told apart: the comparison can fail."""
    monkeypatch.setattr(peers, "GROWTH", 1.0)
    assert training.deviation(ours, peers.jax_vmap(*drawn)(STEPS)) > 50 * TOLERANCE


@pytest.mark.slow
def test_advance_ends_where_the_trajectory_does(drawn, ours):
    state = training.advance(*training.prepare(*drawn), STEPS)
    np.testing.assert_allclose(state.log_loss, ours[:, -1], rtol=1e-6)
    assert state.steps.tolist() == [STEPS] * SMALL.networks


@pytest.mark.slow
def test_torch_loop_stops_at_the_target(drawn, monkeypatch):
    pytest.importorskip("torch")
    params, data = drawn
    monkeypatch.setattr(peers, "TARGET", 1e3)
    one = jax.tree.map(lambda a: a[:1], (params, data))
    assert peers.torch_loop(*one)(STEPS).shape == (1, 1)


def test_torch_is_asked_for_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in ("loop", "batched"):
        with pytest.raises(ImportError, match=r"pip install -e '\.\[benchmarks\]'"):
            training.PEERS[name](*stacked(problem()))


def test_torch_is_imported_only_by_its_peers():
    code = "import sys, benchmarks.training; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_deviation_is_relative_but_absolute_near_zero():
    assert training.deviation([100.0, 2.0], [101.0, 2.0]) == pytest.approx(1 / 101)
    assert training.deviation([1e-3], [-1e-3]) == pytest.approx(2e-3)


def test_interleaved_takes_turns_and_divides_by_the_units():
    now, calls = [0.0], []

    def contestant(name, timed, units):
        durations = itertools.chain.from_iterable((60, 40, t) for t in timed)  # two to warm up

        def run():
            calls.append(name)
            now[0] += next(durations)

        return Contestant(run, units)

    contestants = {"a": contestant("a", [2, 4, 18], 2), "b": contestant("b", [4, 12, 27], 1)}
    seconds = timing.interleaved(contestants, 3, clock=lambda: now[0], warm_up=100)
    assert calls == ["a", "a", "a", "b", "b", "b"] * 3
    assert seconds == {"a": [1, 2, 9], "b": [4, 12, 27]}
    assert timing.medians(seconds) == {"a": 2, "b": 12}
    assert timing.ratio(seconds, "b", "a") == 4  # of 4, 6, 3: not 12 / 2


def test_interleaved_waits_for_the_result():
    waited = []

    class Pending:
        def block_until_ready(self):
            waited.append(True)

    timing.interleaved({"a": Contestant(Pending, 1)}, 2, warm_up=0)
    assert len(waited) == 4


@pytest.mark.parametrize("library", ["JAX", "NumPy", "PyTorch"])
def test_products_are_those_of_the_shape(library):
    if library == "PyTorch":
        pytest.importorskip("torch")
    contestant = training.products(8, 24, lanes=3, seconds=1e-6)[library]
    assert contestant.units % 3 == 0
    result = contestant.run()
    if library == "JAX":
        result = np.stack(result)
        assert result.shape == (3, 8, 24)
        assert result.dtype == np.float32
        # orthogonal factors: columns keep their norm however often they are multiplied
        b = np.random.default_rng(0)
        b.standard_normal((3, 8, 8))
        start = np.linalg.norm(b.standard_normal((3, 8, 24)), axis=1)
        np.testing.assert_allclose(np.linalg.norm(result, axis=1), start, rtol=1e-4)


@pytest.mark.slow
def test_a_case_is_written_read_and_reported(tmp_path):
    case = training.measure(SMALL, ["vmap"], repeats=2, quick=True)
    squares = {n: {"JAX": 1.0} for n in ("1000", "2048")}
    record = {"settings": {}, "cases": [case], "squares": squares}
    path = timing.write("training", record, tmp_path / "new")
    read = json.loads(path.read_text())
    assert read["cases"] == json.loads(json.dumps(record["cases"]))
    assert set(read["machine"]) >= {
        "date", "cpu", "cores", "platform", "python", "jax", "jaxlib", "torch", "numpy", "device",
        "dtype",
    }  # fmt: skip
    assert read["machine"]["dtype"] == "float32"
    assert read["machine"]["cpu"]
    assert case["deviations"]["vmap"] < training.TOLERANCE
    assert case["lowering_s"] > 0
    assert case["compiling_s"] > 0
    assert case["step_flops"] == 2 * 12 * 12 * 50
    assert len(case["raw"]["step jaxkkt"]) == 2
    text = training.report(read)
    assert "20, 12, 50" in text
    assert "0.5, not met" in text


def test_targets_are_marked():
    assert training._against(3.0, 3) == "3, met"
    assert training._against(2.99, 3) == "3, not met"
    assert training._against(1.0, None) == ""


def test_markdown_aligns_and_rounds():
    assert timing.markdown([{"n": 1.23456, "name": "a"}, {"n": 12345.6, "name": "bcdef"}]) == (
        "|     n | name  |\n| ----: | ----- |\n|  1.23 | a     |\n| 12346 | bcdef |"
    )


def test_protocols_are_compared_run_by_run():
    runs = jk.grid(d=[50], alpha=[1.0, 1.5], width=[100], seed=range(3))

    def results_of(factor, steps, failed=()):
        rows = [
            Row(
                run,
                {
                    "flip_size_exact": 2.0 * (factor if run.seed == 1 else 1.0),
                    "on_margin_share": 1.0 if run.seed else 0.9 * factor,
                    "normalized_margin": 0.3 * factor,
                    "steps": steps,
                    "status": int(jk.Status.STEP_CAP if run in failed else jk.Status.CONVERGED),
                },
            )
            for run in runs
        ]
        return results.to_dataset(rows, {})

    tables = {"flow": results_of(1.005, 900, failed=runs[2:3]), "paper": results_of(1.0, 72_000)}
    square, many = protocols.compare(tables, "flow", "paper")
    assert (square["runs"], square["compared"], square["within_limit"]) == (3, 2, 1)
    assert (many["runs"], many["compared"], many["within_limit"]) == (3, 3, 3)
    for record in (square, many):
        assert record["c_largest_error"] == pytest.approx(0.005)
        assert record["share_largest_error"] == pytest.approx(0.0045)
        assert record["normalized_margin_largest_error"] == pytest.approx(0.005)
        assert (record["mean_steps"], record["least_steps_ratio"]) == (900, 80)
    printed = protocols.table([square, many])
    for words in ("2 of 3", "1 within 0.1%", "3 within 1.0%", "900", "1/80"):
        assert words in printed


@pytest.mark.slow
def test_throughput_has_all_its_parts(tmp_path, capsys):
    options = ["--repeats", "1", "--runs", "100", "--scale", "0.02", "--out", str(tmp_path)]
    assert throughput.main(options) == 0
    record = json.loads((tmp_path / "throughput.json").read_text())
    assert [row["d, m, k"] for row in record["shapes"]] == [
        "10, 10, 50",
        "20, 20, 100",
        "50, 50, 300",
        "100, 10, 1000",
    ]
    for row in record["shapes"]:  # which takes longer is not told by so few runs
        assert row["training alone"] > 0
        assert row["sweep, ms a run"] > 0
    assert record["store"][0]["runs"] == 100
    assert record["numbers"][0]["runs"] == 100
    assert record["numbers"][0]["seeds, ms a run"] > 0
    assert 1.5 * record["uneven"][0]["fewest steps"] < record["uneven"][0]["most steps"]
    assert 0 < record["accelerator"][0]["dispatches a run"] < 1
    padding = [row["padding"] for row in record["search"]]
    assert padding[1] >= padding[0] > padding[-1]
    assert record["search"][1]["programs"] <= record["search"][0]["programs"]
    assert "lanes" in capsys.readouterr().out


@pytest.mark.slow
def test_processes_that_share_a_device_are_timed(tmp_path, capsys):
    options = ["--runs", "5", "--processes", "2", "--out", str(tmp_path)]
    assert shared.main(options) == 0
    (row,) = json.loads((tmp_path / "shared.json").read_text())["shared"]
    assert (row["runs"], row["processes"]) == (5, 2)
    assert 0 < row["cached, ms a run"] == 200 * row["cached, s"]
    assert "| processes |" in capsys.readouterr().out


@pytest.mark.slow
def test_starts_are_timed_beside_those_of_another_checkout(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(start, "SHAPES", ((3, 4, 5, 100),))
    monkeypatch.setattr(start, "SEVERAL", ((3, 4), 4, (5, 6)))
    here = str(Path(start.__file__).parents[1])
    options = ["--repeats", "1", "--runs", "2", "--search", "2", "--out", str(tmp_path)]
    assert start.main([*options, "--beside", here]) == 0
    rows = json.loads((tmp_path / "start.json").read_text())["shapes"]
    assert [row["d, m, k"] for row in rows] == ["3, 4, 5", "3/4, 4, 5/6", "2 at random"]
    assert [row["runs of each"] for row in rows] == [2, 2, 1]
    for row, name in itertools.product(rows, ("", "beside: ")):
        told = [row[f"{name}{what}"] for what in ("same process", "kept", "nothing kept")]
        assert 0 < told[0] < told[1] < told[2]
    assert capsys.readouterr().out.startswith("| d, m, k ")


@pytest.mark.slow
def test_gradients_in_blocks_are_timed_beside_those_at_once(tmp_path, monkeypatch, capsys):
    traced = []
    joined = representations._joined
    monkeypatch.setattr(representations, "_joined", lambda *a: traced.append(a) or joined(*a))
    gradients.main(["--sizes", "1", "--repeats", "2", "--seconds", "0.01", "--out", str(tmp_path)])
    (row,) = json.loads((tmp_path / "gradients.json").read_text())["sizes"]
    assert traced  # in blocks, though training takes this size at once
    assert row["in training"] == "at once"
    assert row["d, m, k"] == "100, 1000, 1000"
    assert row["weights are off by"] < 1e-6
    assert len(row["raw"]["blocks"]) == len(row["raw"]["at once"]) == 2
    assert representations.BLOCKS_FROM > 1000 * 1000
    assert "times faster" in capsys.readouterr().out


def test_a_command_is_timed_with_its_memory(tmp_path):
    script = "import numpy, os; numpy.ones(2**27); assert os.environ['GIVEN'] == 'yes'"
    ran = sweep.timed([sys.executable, "-c", script], tmp_path, {"GIVEN": "yes"})
    assert ran.seconds > 0
    assert 1 < ran.peak_gb < 1.5
    small = sweep.timed([sys.executable, "-c", "pass"], tmp_path, {})
    assert small.peak_gb < 0.1  # its own, not that of this process


def test_a_command_that_fails_is_told_with_what_it_said(tmp_path):
    script = "import sys; print('what went wrong'); sys.exit(3)"
    with pytest.raises(RuntimeError, match="ended with 3:\nwhat went wrong"):
        sweep.timed([sys.executable, "-c", script], tmp_path, {})


def test_the_loop_is_timed_at_every_size_and_counted_for_every_network():
    pytest.importorskip("torch")
    runs = [
        *jk.grid(d=4, samples=6, width=5, seed=range(3)),
        *jk.grid(d=5, samples=6, width=5, seed=0),
    ]
    loop = sweep.loop_of(runs)
    assert list(loop.ms_a_step) == [(4, 6, 5), (5, 6, 5)]
    small, large = loop.ms_a_step.values()
    assert loop.seconds == pytest.approx(sweep.PAPER_STEPS * (3 * small + large) / 1e3)


def test_a_speedup_is_the_median_of_the_turns_own_ratios():
    runs = jk.grid(d=4, samples=6, width=5, seed=range(2))

    def turn(loop, wall):
        commands = {name: sweep.Command({"compiled": wall}, 0.5) for name in ("here", "beside")}
        return sweep.Turn(commands, sweep.Loop(loop, {(4, 6, 5): loop}))

    turns = [turn(10.0, 5.0), turn(90.0, 15.0), turn(40.0, 40.0)]
    record = sweep.record_of(runs, turns, 2.0, {"advance": 1.0})
    assert record["speedup"] == {"compiled": 2, "products alone": 20}  # not 40 over 15
    assert record["wall_s"] == {"compiled": 15, "products alone": 2}
    assert record["sizes"] == [{"d": 4, "m": 6, "k": 5, "runs": 2, "loop ms a step": 40}]
    assert "| beside, s |" in sweep.tables(record)


def test_the_parts_of_a_sweep_are_timed_and_what_timed_them_is_gone():
    runs = jk.grid(d=4, samples=6, width=5, seed=range(4), max_steps=100)
    taken = sweep.parts(runs)
    assert list(taken) == [*COMPILING.values(), *STAGES, "else"]
    assert all(seconds > 0 for seconds in taken.values())
    assert slots.draw_batch is draws.draw_batch
    assert slots.measure_batch is measuring.measure_batch
    before = dict(taken)
    with compiling() as again:
        jk.sweep(runs, progress=False)
    assert again["compile"] < taken["compile"]
    assert taken == before


def test_only_a_checkout_is_timed_beside(tmp_path, capsys):
    """Python would import the installed package there."""
    with pytest.raises(SystemExit):
        sweep.main(["--beside", str(tmp_path)])
    assert f"{tmp_path} is no checkout of jaxkkt" in capsys.readouterr().err


@pytest.mark.slow
def test_steps_of_descent_are_timed(tmp_path):
    pytest.importorskip("torch")
    sizes = ["--d", "9", "--width", "20", "--repeats", "1", "--out", str(tmp_path)]
    assert lazy.main(["--only", "steps", *sizes]) == 0
    (row,) = json.loads((tmp_path / "lazy-steps.json").read_text())["steps"]
    assert 0 < row["two products, ms a step"] < row["jaxkkt, ms a step"]


@pytest.mark.slow
def test_a_network_that_has_ended_is_not_timed(monkeypatch):
    protocol = jk.protocols.lazy_sgd(ball=1e6, biases=True, max_steps=3)
    monkeypatch.setattr(jk.protocols, "lazy_sgd", lambda **_: protocol)
    with pytest.raises(RuntimeError, match="the network ended after 4 of 20 steps"):
        lazy.steps(9, 20, 1)
