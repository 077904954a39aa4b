"""Ctrl-C and SIGTERM: what has ended is kept, and the process says how it ended."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from time import monotonic, sleep

import pytest
from cases import rows_in, sweep

import jaxkkt as jk
from jaxkkt import engine
from jaxkkt.engine.running.interrupts import SIGNALS

SIZES = {"d": 8, "samples": 6, "width": 20}

# A study whose measurements take their time.
STUDY = """
import sys, time
import jaxkkt as jk
from jaxkkt import studies

class Slow(jk.Measurement):
    on_host = True

    def measure(self, params):
        sys.stdout.write("measuring\\n")  # in one piece: two threads measure
        sys.stdout.flush()
        time.sleep(seconds)
        return {"one": 1.0}

seconds = float(sys.argv.pop())
Slow.__module__ = "jaxkkt.own"  # told by the package's source: a store takes it

def parts(options):
    return [studies.Part(jk.grid(d=8, samples=6, width=20, seed=range(12), measure=Slow))]

sys.exit(studies.Study("slow", "", studies.Options, parts).main(sys.argv[1:]))
"""


@contextmanager
def started(folder, seconds):
    script = folder / "study.py"
    script.write_text(STUDY)
    with subprocess.Popen(
        [sys.executable, script, "--out", folder / "out", "--quiet", str(seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def rows(folder):
    return rows_in(folder / "out")


@pytest.mark.slow
def test_a_command_ends_in_order_and_goes_on(tmp_path):
    with started(tmp_path, 0.3) as process:
        while len(rows(tmp_path)) < 2 and process.poll() is None:
            sleep(0.05)
        process.send_signal(signal.SIGTERM)
        told = process.communicate(timeout=60)[1]
    assert process.returncode == 143
    assert "SIGTERM: stopping after this chunk of steps" in told
    assert "the same command goes on with the rows in" in told
    kept = rows(tmp_path)
    assert 2 <= len(kept) < 12
    with started(tmp_path, 0) as again:
        assert again.communicate()[1] == ""
    assert again.returncode == 0
    assert len(rows(tmp_path)) == 12
    assert kept.items() <= rows(tmp_path).items()


@pytest.mark.slow
def test_the_second_leaves_at_once(tmp_path):
    with started(tmp_path, 60) as process:
        assert process.stdout.readline() == "measuring\n"
        process.send_signal(signal.SIGINT)
        sleep(1)
        assert process.poll() is None
        asked = monotonic()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert monotonic() - asked < 5


def kills_itself(number):
    left = [number]

    class Kills(jk.Measurement):
        on_host = True

        def measure(self, params):
            while left:
                os.kill(os.getpid(), left.pop())
            sleep(0.5)
            return {"one": 1.0}

    return Kills()


def test_a_bar_that_is_stopped_does_not_say_that_it_compiles(one_lane, capsys):
    runs = jk.grid(**SIZES, seed=range(12), measure=kills_itself(signal.SIGINT))
    with pytest.raises(engine.Stopped):
        sweep(runs, progress=True)
    last = capsys.readouterr().err.rpartition("\r")[2]
    assert "/12 runs" in last
    assert "compiling" not in last


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_sweep_stops_with_what_has_ended(number, code, one_lane):
    handlers = [signal.getsignal(one) for one in SIGNALS]
    runs = jk.grid(**SIZES, seed=range(12), measure=kills_itself(number))
    with pytest.raises(
        engine.Stopped, match=r"stopped after [12] of 12 runs; nothing is kept"
    ) as e:
        sweep(runs)
    assert e.value.code == code
    assert [signal.getsignal(one) for one in SIGNALS] == handlers


def test_a_request_from_above_is_heard():
    with engine.listening() as asked, engine.listening() as same:
        assert same is asked
        os.kill(os.getpid(), signal.SIGTERM)
        while not asked.is_set():
            sleep(0.01)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(engine.Stopped):
            sweep(jk.grid(**SIZES, seed=range(3), measure=()))
    with engine.listening() as asked:
        assert not asked.is_set()


def test_a_command_that_is_not_sweeping_stops_at_once():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        with engine.listening(command=True) as asked, engine.listening():
            assert asked.sweeps == 1
        with (
            engine.listening(command=True),
            pytest.raises(engine.Stopped, match="stopped by SIGTERM") as caught,
        ):
            signal.raise_signal(signal.SIGTERM)
        assert caught.value.code == 143
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_handlers_that_are_not_pythons_are_left_alone(monkeypatch):
    """Of a program that Python runs within: to put them back raised, after all was trained."""
    monkeypatch.setattr(signal, "getsignal", lambda _: None)
    monkeypatch.setattr(signal, "signal", lambda *_: pytest.fail("replaced"))
    with engine.listening() as asked:
        assert not asked.is_set()


def test_signals_of_other_threads_are_left_alone():
    found = []

    def elsewhere():
        with engine.listening() as asked:
            found.append((signal.getsignal(signal.SIGTERM), asked.is_set()))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [(before, False)]


STOPPED = """
import os, signal, sys, threading, time
import jaxkkt as jk
from jaxkkt.engine.running import executors
from jaxkkt.engine.running import workers as engine_workers

class Slow(jk.Measurement):
    on_host = True

    def measure(self, data):
        open(sys.argv[1] + "/measured-" + str(os.getpid()) + str(time.time()), "w").close()
        time.sleep(0.5)
        return {"one": 1.0}

Slow.__module__ = "jaxkkt.own"  # told by the package's source: a store takes it

if __name__ == "__main__":
    executors.SHARE_PER_TASK = 1.0
    os.makedirs(sys.argv[1], exist_ok=True)

    def ask():
        while len(os.listdir(sys.argv[1])) < 3:
            time.sleep(0.1)
        os.killpg(0, signal.SIGINT)  # as a terminal does

    os.setpgrp()
    threading.Thread(target=ask, daemon=True).start()
    runs = jk.grid(d=8, samples=6, width=20, seed=range(30), measure=Slow)
    with jk.Workers(1) as workers:
        try:
            jk.sweep(runs, store=sys.argv[2], executor=workers, progress=False)
        except jk.engine.Stopped as stopped:
            print(stopped)
"""


@pytest.mark.slow
def test_ctrl_c_lets_workers_end_their_chunks(tmp_path):
    """The terminal sends it to them as well; the rows that had ended land."""
    script = tmp_path / "script.py"
    script.write_text(STOPPED)
    done = subprocess.run(
        [sys.executable, script, tmp_path / "marks", tmp_path / "out"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "stopped after" in done.stdout, done.stderr
    assert 2 <= len(rows_in(tmp_path / "out")) < 30
