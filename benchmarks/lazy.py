"""The lazy regime beside PyTorch: steps of descent, flip search, Figure 4's quick grid.

Steps: descent in batches of 64 of 12,665 images, each followed by a look at the ball, and what its
two products take at the rate of large ones.

Flip search: exact gradient steps of all test images, and the published code's search in steps of
0.001, image by image; and what the three products of the exact search take at the rate of large
ones. Adversarial training: the whole quick grid of `sweeps.wang_robust`, panel left, with its
compilation and attacks on test images, against what the same epochs take in a PyTorch loop, which
is timed for a few epochs at every dimension. Writes results/lazy-PART.json for each part.
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxkkt as jk
from benchmarks.lazy_peers import torch_adversarial, torch_descent, torch_step_search
from benchmarks.throughput import placed
from benchmarks.timing import RESULTS, Contestant, interleaved, markdown, medians, ratio, write
from jaxkkt.adversarial import AdversarialProtocol
from jaxkkt.datasets import Dataset
from jaxkkt.engine.driver import product_rate
from jaxkkt.engine.programs.training import compile_bucket
from jaxkkt.engine.running.lanes import CHUNK_SECONDS, FIRST_CHUNK
from jaxkkt.perturbations import gradient_steps
from jaxkkt.perturbations.pgd import STEPS
from sweeps import wang_robust

PARTS = ("steps", "search", "training")
# MNIST's zeros and ones.
TRAINING_IMAGES = 12_665
BATCH = 64
# Searches that are timed together: one takes milliseconds.
CALLS = 20


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.lazy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--only", choices=PARTS, help="(default: all)")
    parser.add_argument("--d", type=int, nargs="+", default=[49, 196, 784])
    parser.add_argument("--width", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--images", type=int, default=20, help="that the loop searches")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--epochs", type=int, default=5, help="of the loop, at every dimension, before and after"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the records")
    return parser


def search(d: int, width: int, images: int, repeats: int) -> dict[str, Any]:
    """Seconds an image of both searches, and by how much their answers differ."""
    (run,) = jk.grid(
        data="digits",
        upsample=True,
        d=d,
        samples=100,
        width=width,
        seed=0,
        initialization=jk.initializations.Lazy(biases=True),
        protocol=jk.protocols.lazy_flow(biases=True),
    )
    start, data = jk.draw(run)
    trained = jk.train(start, *data, jk.protocols.lazy_flow(biases=True)).params
    x, y = jk.held_out(run)
    every = partial(gradient_steps, trained, jnp.asarray(x))

    def often() -> None:
        for _ in range(CALLS):
            jax.block_until_ready(every())

    loop = torch_step_search(trained, Dataset(x[:images], y[:images]))
    seconds = interleaved(
        {
            "jaxkkt": Contestant(often, CALLS * len(y)),
            "loop": Contestant(loop, images),
        },
        repeats,
    )
    exact, stepped = np.asarray(every().eta)[:images], loop()
    both = (stepped > 0) & (stepped < 5) & np.isfinite(exact)
    middle = medians(seconds)
    return {
        "d": d,
        "width": width,
        "jaxkkt, ms an image": 1e3 * middle["jaxkkt"],
        "loop, ms an image": 1e3 * middle["loop"],
        "three products, ms an image": 1e3 * 6 * d * width / product_rate(),
        "times faster": ratio(seconds, "loop", "jaxkkt"),
        "loop - exact, largest": float((stepped - exact)[both].max()),
        "least": float((stepped - exact)[both].min()),
        "compared": int(both.sum()),
    }


def steps(d: int, width: int, repeats: int) -> dict[str, Any]:
    """Seconds a step of descent, both looking whether a neuron has left its ball.

    jaxkkt's are those of a sweep's own program, in chunks as long as a sweep makes them.
    """
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(TRAINING_IMAGES, d)).astype(np.float32)
    y = np.where(np.arange(TRAINING_IMAGES) % 2, 1, -1).astype(np.float32)
    runs = jk.grid(
        data=(x, y),
        width=width,
        initialization=jk.initializations.Lazy(biases=True),
        protocol=jk.protocols.lazy_sgd(ball=1e6, biases=True, batch_size=BATCH, max_steps=10**9),
        measure=(),
    )
    (bucket,) = jk.plan_sweep(runs).buckets
    programs = compile_bucket(bucket)
    batch = placed(bucket, programs, runs)

    def chunk(count: int) -> None:
        nonlocal batch
        batch, told = programs.advance(batch, jax.device_put(np.array([count, 1], np.int32)))
        made = int(programs.report.unpack_on_host(np.asarray(told)).trips)
        if made < count:  # a network that has ended steps no more, at no cost
            raise RuntimeError(f"the network ended after {made} of {count} steps: none to time")

    chunk(FIRST_CHUNK)
    started = time.perf_counter()
    chunk(FIRST_CHUNK)
    count = max(1, round(FIRST_CHUNK * CHUNK_SECONDS / (time.perf_counter() - started)))
    start = jk.initializations.Lazy(biases=True).draw_start(0, width, d)
    advance = torch_descent(start, Dataset(x, y), 1e6 / width**0.5, batch_size=BATCH)  # type: ignore[arg-type]
    seconds = interleaved(
        {
            "jaxkkt": Contestant(lambda: chunk(count), count),
            "loop": Contestant(lambda: advance(count), count),
        },
        repeats,
    )
    middle = medians(seconds)
    return {
        "d": d,
        "width": width,
        "jaxkkt, ms a step": 1e3 * middle["jaxkkt"],
        "loop, ms a step": 1e3 * middle["loop"],
        "two products, ms a step": 1e3 * 4 * BATCH * d * width / product_rate(),
        "times faster": ratio(seconds, "loop", "jaxkkt"),
    }


def training(epochs: int) -> dict[str, Any]:
    """Seconds of the whole quick grid, and of its epochs in the loop.

    The loop is timed before and after, since the machine's speed may change meanwhile; medians.
    """
    runs = wang_robust.runs(wang_robust.STUDY.read(["--preset", "quick"]))
    one = {run.d: run for run in runs}
    each: dict[int, list[float]] = {d: [] for d in one}
    _loop_epochs(one, epochs, each)
    started = time.perf_counter()
    results = jk.sweep(runs, progress=False)
    ours = time.perf_counter() - started
    _loop_epochs(one, epochs, each)
    seconds = medians(each)
    theirs = sum(seconds[d] * float(results.steps.sel(d=d).sum()) for d in one)
    # Two products a step of the attack, one to judge where it ended, two of training on that.
    products = (2 * STEPS + 3) * sum(
        float(results.steps.sel(d=d).sum()) * d * run.samples * run.width for d, run in one.items()
    )
    return {
        "networks": int(results.status.size),
        "epochs": int(results.steps.sum()),
        "jaxkkt, s": ours,
        "loop, s": theirs,
        "times faster": theirs / ours,
        "products alone at the rate of large ones, s": 2 * products / product_rate(),
        "loop, s an epoch": seconds,
    }


def _loop_epochs(one: Mapping[int, jk.Run], epochs: int, each: Mapping[int, list[float]]) -> None:
    """Adds the seconds of `epochs` of the loop at every dimension."""
    for d, seconds in each.items():
        protocol = one[d].protocol
        assert isinstance(protocol, AdversarialProtocol)
        advance = torch_adversarial(
            *jk.draw(one[d]),
            float(protocol.radius),
            float(protocol.weight_radius),
            learning_rate=float(protocol.learning_rate),
            batch_size=protocol.batch_size,
        )
        advance(1)
        for _ in range(epochs):
            started = time.perf_counter()
            advance(1)
            seconds.append(time.perf_counter() - started)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    record: dict[str, Any] = {}
    parts = (options.only,) if options.only else PARTS
    sizes = [(d, k) for d in options.d for k in options.width]
    if "steps" in parts:
        record["steps"] = [steps(*size, options.repeats) for size in sizes]
        print(markdown(record["steps"]))
    if "search" in parts:
        record["search"] = [search(*size, options.images, options.repeats) for size in sizes]
        print(markdown(record["search"]))
    if "training" in parts:
        record["training"] = training(options.epochs)
        print("\n".join(f"{name}: {value}" for name, value in record["training"].items()))
    for part, found in record.items():
        print("wrote", write(f"lazy-{part}", {part: found}, options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
