"""Where the time of a sweep goes: to compile, draw, place, train, decode and measure."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax

import jaxkkt as jk
from jaxkkt.engine.planning.buckets import Bucket
from jaxkkt.engine.programs import measuring
from jaxkkt.engine.programs.draws import draw_batch
from jaxkkt.engine.programs.training import Programs, compile_bucket
from jaxkkt.engine.running import slots, streams

STAGES = ("draw", "place", "advance", "decode", "measure")
# JAX's names of what it does before a program first runs.
COMPILING = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}


@contextmanager
def replaced(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """With these attributes, each told as an object, a name and a value."""
    before = [(place, name, getattr(place, name)) for place, name, _ in changes]
    for change in changes:
        setattr(*change)
    try:
        yield
    finally:
        for old in before:
            setattr(*old)


def stages(runs: Sequence[jk.Run]) -> dict[str, float]:
    """Seconds that the streams of a sweep take for each of its parts, added up over the streams;
    "else" is what is left of the whole sweep's time, waiting included.

    Sweep the runs once before: this sweep is meant to compile nothing.
    """
    # A list, since threads may add to it at the same time.
    spent: list[tuple[str, float]] = []

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            started = time.perf_counter()
            result = jax.block_until_ready(function(*args))
            spent.append((name, time.perf_counter() - started))
            return result

        return call

    def timed_programs(bucket: Bucket) -> Programs:
        programs = compile_bucket(bucket)
        return programs._replace(
            place=timed("place", programs.place),
            advance=timed("advance", programs.advance),
            decode=timed("decode", programs.decode),
        )

    def measure_batch(*args: Any) -> Any:
        found = measured(*args)
        return lambda: found

    measured = timed("measure", lambda *args: measuring.measure_batch(*args)())
    count = jk.plan_sweep(runs).streams
    with replaced(
        (streams, "compile_bucket", timed_programs),
        (slots, "draw_batch", timed("draw", draw_batch)),
        (slots, "measure_batch", measure_batch),
    ):
        started = time.perf_counter()
        jk.sweep(runs, progress=False)
        whole = count * (time.perf_counter() - started)
    found = {name: sum(s for stage, s in spent if stage == name) for name in STAGES}
    return {**found, "else": whole - sum(found.values())}


@contextmanager
def compiling() -> Iterator[dict[str, float]]:
    """Seconds of a thread that JAX takes to trace, lower and compile meanwhile."""
    spent, going = dict.fromkeys(COMPILING.values(), 0.0), True

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        if going and event in COMPILING:
            spent[COMPILING[event]] += duration_secs

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield spent
    finally:
        going = False
