"""Gradients of many samples, in blocks and of all at once.

`python -m benchmarks.gradients` times steps of descent on both, a network a core as the engine
trains, in turns, and writes results/gradients.json. Sizes are m = d^1.5 as in the grid of Vardi et
al. (2022); the first is one at which training takes all samples at once.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax

from benchmarks import timing
from benchmarks.timing import Contestant
from benchmarks.training import deviation, spread
from jaxkkt import datasets, networks, representations
from jaxkkt.engine.machine.devices import cores
from jaxkkt.losses import exponential
from jaxkkt.networks import Params

SIZES = ((100, 1000, 1000), (200, 2828, 1000), (400, 8000, 1000), (700, 18520, 1000))
# From so many preactivations on a gradient goes through blocks: here always, and never.
WAYS = {"blocks": 0, "at once": 2**62}


def descent(params: Params, data: datasets.Dataset, blocks_from: int) -> Callable[..., Any]:
    """Compiled: a number of steps of 0.001 in log-loss time; the network after them."""

    def step(_: Any, params: Params) -> Params:
        here = representations.gradient(params, data, exponential)
        return jax.tree.map(lambda p, g: p - 1e-3 / here.squared_norm * g, params, here.gradient)

    before = representations.BLOCKS_FROM
    representations.BLOCKS_FROM = blocks_from
    try:
        steps = jax.jit(lambda count, params: jax.lax.fori_loop(0, count, step, params))
        compiled: Callable[..., Any] = steps.lower(0, params).compile()
        return compiled
    finally:
        representations.BLOCKS_FROM = before


def measure(size: Sequence[int], repeats: int, seconds: float) -> dict[str, Any]:
    """Milliseconds a step of one network, where every core trains one."""
    d, m, k = size
    data = datasets.sphere(jax.random.key(0), samples=m, dim=d)
    params = networks.torch_linear(jax.random.key(1), width=k, dim=d)
    flops = representations.step_flops("plain", samples=m, dim=d, width=k)
    steps, lanes = max(1, round(seconds * 1e11 / flops)), cores()
    ways = {name: descent(params, data, blocks_from) for name, blocks_from in WAYS.items()}
    ends = [way(2, params) for way in ways.values()]
    off = max(map(deviation, *map(jax.tree.leaves, ends)))

    def train(way: Callable[..., Any]) -> None:
        spread(lambda _: jax.block_until_ready(way(steps, params)), lanes)

    contestants = {n: Contestant(partial(train, way), steps) for n, way in ways.items()}
    times = timing.interleaved(contestants, repeats)
    each = timing.medians(times)
    return {
        "d, m, k": ", ".join(map(str, size)),
        "in training": "blocks" if representations.samples_at_once(m, k) < m else "at once",
        **{f"{name}, ms a step": 1e3 * each[name] for name in WAYS},
        "times faster": timing.ratio(times, "at once", "blocks"),
        "products, GFLOP/s": lanes * flops / each["blocks"] / 1e9,
        "weights are off by": off,
        "raw": times,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gradients", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="turns of both (5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn, about (2)")
    parser.add_argument("--sizes", type=int, default=len(SIZES), help="the first so many (all)")
    parser.add_argument("--out", type=Path, default=timing.RESULTS, help="folder of the JSON")
    options = parser.parse_args(arguments)
    rows = [measure(size, options.repeats, options.seconds) for size in SIZES[: options.sizes]]
    shown = [{name: v for name, v in row.items() if name != "raw"} for row in rows]
    print(timing.markdown(shown))
    print("wrote", timing.write("gradients", {"sizes": rows}, options.out))


if __name__ == "__main__":
    main()
