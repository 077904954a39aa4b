"""Time of a training step beside PyTorch and plain JAX, and beside the machine's matrix products.

`python -m benchmarks.training` trains the same networks on the same data by the schedule of
Vardi et al. (2022) in every contestant, in turns, and writes `results/training.json`.

The useful rate counts the multiply-adds of the products that a step needs
(`representations.step_flops`) over its whole time; its share is of the best float32 product of two
1000 x 1000 matrices that NumPy, PyTorch or JAX reached in the same repeat.
"""

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import peers, timing
from benchmarks.timing import Contestant
from jaxkkt import datasets, networks, representations, training
from jaxkkt.datasets import Dataset
from jaxkkt.networks import PRECISION, Params
from jaxkkt.representations import GramDataset, Representation
from jaxkkt.training import State, Status

PROTOCOL = training.paper_protocol()
TRAJECTORY = 1000  # steps over which log losses are compared
TOLERANCE = 1e-3
SQUARES = (1000, 2048)

MAKERS: dict[str, dict[str, Callable[[Params, Dataset], peers.Advance]]] = {
    "loop": {
        "PyTorch loop": peers.torch_loop,
        "PyTorch loop, loss read every 100 steps": partial(peers.torch_loop, check_every=100),
    },
    "batched": {"PyTorch batched": peers.torch_batched},
    "vmap": {"jax.vmap": peers.jax_vmap},
}


class Case(NamedTuple):
    """A size to measure: networks of one shape, the steps of one call, and what is aimed at.

    `speedup` is over the PyTorch loop, `share` the useful rate over the best product's rate.
    """

    dim: int
    samples: int
    width: int
    networks: int
    steps: int
    speedup: float | None = None
    share: float | None = None


CASES = (
    Case(100, 10, 1000, 5, 1000, speedup=12),
    Case(100, 100, 1000, 5, 300, speedup=3, share=0.5),
    Case(200, 69, 1000, 5, 300, speedup=5),
    Case(1000, 32, 1000, 5, 100, speedup=30),
    Case(1000, 1000, 1000, 2, 10, speedup=2.4, share=0.85),
)


class Batch(NamedTuple):
    """The lanes of jaxkkt's contestant, encoded, before their first step."""

    state: State
    data: Dataset | GramDataset
    representation: Representation


def draw(case: Case) -> tuple[Params, Dataset]:
    """The networks and data of a case, stacked."""
    weights, points = jax.random.split(jax.random.key(0), (2, case.networks))
    params = jax.vmap(lambda key: networks.torch_linear(key, case.width, case.dim))(weights)
    return params, jax.vmap(lambda key: datasets.sphere(key, case.samples, case.dim))(points)


def prepare(params: Params, data: Dataset) -> Batch:
    """What `training.train` sets up under vmap, in the cheapest exact representation."""
    representation = PROTOCOL.representation_for(*data.x.shape[1:])
    encode = jax.vmap(lambda p, x: representations.encode(p, x, representation))
    position, encoded = encode(params, data)
    keys = jax.random.split(jax.random.key(0), len(data.y))
    state = jax.vmap(lambda p, key: training.init(p, PROTOCOL, key))(position, keys)
    return Batch(state, encoded, representation)


@partial(jax.jit, donate_argnums=0)
def advance(state: State, data: Dataset | GramDataset, steps: int) -> State:
    """All lanes by `steps` steps, each frozen where its stopping rule is met."""

    def going(carry: tuple[Any, State]) -> Any:
        return (carry[0] < steps) & jnp.any(carry[1].status == Status.RUNNING)

    return jax.lax.while_loop(going, lambda c: (c[0] + 1, _step(c[1], data)), (0, state))[1]


@partial(jax.jit, static_argnames="steps")
def trajectory(state: State, data: Dataset | GramDataset, steps: int) -> jax.Array:
    """log L before each of the first steps, shape (networks, steps)."""

    def record(state: State, _: None) -> tuple[State, jax.Array]:
        state = _step(state, data)
        return state, state.log_loss

    return jax.lax.scan(record, state, length=steps)[1].T


def deviation(ours: Any, theirs: Any) -> float:
    """Largest |a - b| / max(|b|, 1): relative, but absolute where log L passes through zero."""
    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    return float(np.max(np.abs(a - b) / np.maximum(np.abs(b), 1)))


def products(rows: int, inner: int, columns: int, lanes: int, seconds: float) -> dict[str, Contestant]:
    """A float32 product (rows, inner) @ (inner, columns) in each lane, by NumPy, PyTorch and JAX.

    The unit is one product; a call does as many as take about `seconds` at 200 GFLOP/s.
    """
    count = max(1, round(seconds * 2e11 / (2 * rows * inner * columns * lanes)))
    rng = np.random.default_rng(0)
    a = rng.standard_normal((lanes, rows, inner), np.float32)
    b = rng.standard_normal((lanes, inner, columns), np.float32)
    found = {"JAX": _jax_product(a, b, count), "NumPy": _numpy_product(a, b, count)}
    if timing.machine()["torch"] is not None:
        found["PyTorch"] = _torch_product(a, b, count)
    return {name: Contestant(run, count * lanes) for name, run in found.items()}


def measure(case: Case, names: list[str], repeats: int, quick: bool) -> dict[str, Any]:
    """Everything about one case, as it stands in the results file."""
    params, data = draw(case)
    start = prepare(params, data)
    steps = max(2, case.steps // 10) if quick else case.steps
    horizon = TRAJECTORY // 10 if quick else TRAJECTORY

    compiled, compile_seconds = timing.split(advance, start.state, start.data, steps)
    lane = [jax.tree.map(jnp.array, start.state)]

    def jaxkkt() -> Any:
        lane[0] = compiled(lane[0], start.data, steps)
        return lane[0]

    units = steps * case.networks
    contestants = {"jaxkkt": Contestant(jaxkkt, units)}
    deviations = {}
    ours = trajectory(start.state, start.data, horizon)
    for group in names:
        for name, make in MAKERS[group].items():
            if not deviations or group != "loop":
                deviations[name] = deviation(ours, make(params, data)(horizon))
            contestants[name] = Contestant(partial(make(params, data), steps), units)

    blink = 0.02 if quick else 0.1
    shape = _operands(start, case)
    for prefix, sizes in (("step's product", shape), ("square", (1000, 1000, 1000, 1))):
        for name, contestant in products(*sizes, seconds=blink).items():
            contestants[f"{prefix}, {name}"] = contestant

    seconds = timing.interleaved(contestants, repeats)
    median = timing.medians(seconds)
    flops = representations.step_flops(start.representation, case.samples, case.width, case.dim)
    square = min((n for n in seconds if n.startswith("square")), key=median.__getitem__)
    product_flops = 2 * shape[0] * shape[1] * shape[2]
    trained = {n: s for n, s in seconds.items() if "," not in n or n.startswith("PyTorch loop")}
    loops = [n for n in trained if n.startswith("PyTorch loop")]
    reference = min(loops, key=median.__getitem__) if loops else None
    best = {n: 2e-9 * 1000**3 / t for n, t in median.items() if n.startswith("square")}
    return {
        "dim": case.dim,
        "samples": case.samples,
        "width": case.width,
        "networks": case.networks,
        "steps_per_repeat": steps,
        "representation": start.representation,
        "step_flops": flops,
        **compile_seconds,
        "microseconds_per_network_step": {n: 1e6 * median[n] for n in trained},
        "times_slower_than_jaxkkt": {n: timing.ratio(seconds, n, "jaxkkt") for n in trained},
        "reference": reference,
        "trajectory_steps": horizon,
        "trajectory_deviation": deviations,
        "useful_gflops": 1e-9 * flops / median["jaxkkt"],
        "square_gflops": best,
        "product_shape": shape,
        "product_gflops": {
            n: 1e-9 * product_flops / t for n, t in median.items() if n.startswith("step's")
        },
        "useful_share": flops / 2e9 * timing.ratio(seconds, square, "jaxkkt"),
        "product_time_share": timing.ratio(seconds, "step's product, JAX", "jaxkkt")
        * (flops / product_flops),
        "target_speedup": case.speedup,
        "target_share": case.share,
        "seconds": seconds,
    }


def main(arguments: list[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    cases = []
    for case in CASES:
        print(f"measuring (d, m, k) = ({case.dim}, {case.samples}, {case.width}) ...", flush=True)
        cases.append(measure(case, options.peers, options.repeats, options.quick))
    squares = {
        str(n): {
            name: 2e-9 * n**3 / seconds
            for name, seconds in timing.medians(
                timing.interleaved(products(n, n, n, 1, seconds=0.1), options.repeats)
            ).items()
        }
        for n in SQUARES
    }
    settings = {"repeats": options.repeats, "quick": options.quick, "protocol": PROTOCOL.name}
    record = {"settings": settings, "cases": cases, "square_gflops": squares}
    print(report(record))
    print(f"\nwritten to {timing.write('training', record, options.out)}")
