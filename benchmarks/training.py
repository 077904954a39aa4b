"""Time of a training step beside PyTorch and plain JAX, and beside the machine's matrix products.

`python -m benchmarks.training` trains the same networks on the same data by the schedule of
Vardi et al. (2022), Section 6, in every contestant, in turns, and writes results/training.json.
jaxkkt trains them as its engine does: one network a core on a CPU, all in one batch elsewhere.

The useful rate of a step counts the operations of the products that it needs
(`representations.step_flops`) over its whole time. Its share is of the rate of the fastest float32
product of two 1000 x 1000 matrices that NumPy, PyTorch and JAX have, timed in the same repeats.
"""

import argparse
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from benchmarks import peers, timing
from benchmarks.timing import Contestant
from jaxkkt import datasets, networks, protocols, representations, training
from jaxkkt.datasets import Dataset
from jaxkkt.engine.machine.devices import cores
from jaxkkt.networks import PRECISION, Params
from jaxkkt.representations import GramDataset, GramParams
from jaxkkt.training import State, Status

Result = TypeVar("Result")

PROTOCOL = protocols.paper_protocol()
TOLERANCE = 1e-3  # of `deviation`
MOST_STEPS = 20_000  # of one network

PEERS: dict[str, Callable[[Params, Dataset], peers.Advance]] = {
    "loop": peers.torch_loop,
    "loop-100": partial(peers.torch_loop, check_every=100),
    "batched": peers.torch_batched,
    "vmap": peers.jax_vmap,
}
TITLES = {
    "jaxkkt": "jaxkkt",
    "loop": "PyTorch loop",
    "loop-100": "PyTorch loop, loss read every 100 steps",
    "batched": "PyTorch batched",
    "vmap": "jax.vmap",
}


class Case(NamedTuple):
    """Networks of one size, the steps of one call, and what is aimed at.

    `speedup` is over the PyTorch loop, `share` of the useful rate in that of the best product.
    """

    dim: int
    samples: int
    width: int
    networks: int
    steps: int
    speedup: float
    share: float | None = None


CASES = (
    Case(100, 10, 1000, networks=5, steps=1000, speedup=12),
    Case(100, 100, 1000, networks=5, steps=300, speedup=3, share=0.5),
    Case(200, 69, 1000, networks=5, steps=300, speedup=5),
    Case(1000, 32, 1000, networks=5, steps=100, speedup=30),
    Case(1000, 1000, 1000, networks=2, steps=10, speedup=2.4, share=0.85),
)


def draw(case: Case) -> tuple[Params, Dataset]:
    """The networks and data of a case, stacked."""
    weights, points = jax.random.split(jax.random.key(0), (2, case.networks))
    params = jax.vmap(lambda key: networks.torch_linear(key, case.width, case.dim))(weights)
    return params, jax.vmap(lambda key: datasets.sphere(key, case.samples, case.dim))(points)


def prepare(params: Params, data: Dataset) -> tuple[State, Dataset | GramDataset]:
    """The states before the first step and the data, as `jk.train` sets them up."""
    representation = PROTOCOL.representation_for(*data.x.shape[1:])
    position, encoded = jax.vmap(lambda p, x: representations.encode(p, x, representation))(
        params, data
    )
    position = jax.tree.map(jnp.copy, position)  # `advance` gives its buffers away
    keys = jax.random.split(jax.random.key(0), len(data.y))
    states = jax.vmap(lambda p, x, key: training.init(p, x, PROTOCOL, key))(position, encoded, keys)
    return states, encoded


@partial(jax.jit, donate_argnums=0)
def advance(state: State, data: Dataset | GramDataset, steps: Any) -> State:
    """All networks by `steps` steps, each frozen where it meets the stopping rule."""

    def going(carry: tuple[Array, State]) -> Array:
        return (carry[0] < steps) & jnp.any(carry[1].status == Status.RUNNING)

    def body(carry: tuple[Array, State]) -> tuple[Array, State]:
        return carry[0] + 1, _step(carry[1], data)

    return jax.lax.while_loop(going, body, (jnp.zeros((), jnp.int32), state))[1]


@partial(jax.jit, static_argnames="steps")
def trajectory(
    state: State, data: Dataset | GramDataset, steps: int
) -> Float[Array, "networks steps"]:
    """log L before each of the first steps."""

    def record(state: State, _: None) -> tuple[State, Array]:
        state = _step(state, data)
        return state, state.log_loss

    return jax.lax.scan(record, state, length=steps)[1].T


def batches(start: State, data: Dataset | GramDataset) -> list[tuple[State, Any]]:
    """States and data in the parts that the engine trains side by side."""
    if jax.default_backend() != "cpu":
        return [(start, data)]

    def one(i: int) -> tuple[State, Any]:
        return jax.tree.map(lambda a: a[i : i + 1], (start, data))

    return [one(i) for i in range(len(data.y))]


def spread(work: Callable[[int], Result], count: int) -> list[Result]:
    """work(0), ..., work(count - 1), as many at a time as the engine has streams on a CPU."""
    with ThreadPoolExecutor(min(count, cores())) as pool:
        return list(pool.map(work, range(count)))


def deviation(ours: Any, theirs: Any) -> float:
    """Largest |a - b| / max(|b|, 1): relative, but absolute where log L passes through zero."""
    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    return float(np.max(np.abs(a - b) / np.maximum(np.abs(b), 1)))


def products(size: int, columns: int, lanes: int, seconds: float) -> dict[str, Contestant]:
    """float32 (size, size) @ (size, columns) in each lane, by every library there is.

    JAX takes lanes as jaxkkt does; the others multiply all lanes at once.

    The unit is one lane's product; a call does as many as take `seconds` at 200 GFLOP/s,
    or at 100 µs each if that is fewer.
    """
    rng = np.random.default_rng(0)
    # Orthogonal, so that JAX may multiply over and over within one call: nothing grows.
    a = np.linalg.qr(rng.standard_normal((lanes, size, size)))[0].astype(np.float32)
    b = rng.standard_normal((lanes, size, columns)).astype(np.float32)
    count = round(seconds * 2e11 / (2 * size * size * columns * lanes))
    count = max(1, min(count, round(1e4 * seconds)))

    @jax.jit
    def chain(a: Array, b: Array) -> Array:
        return jax.lax.fori_loop(0, count, lambda _, c: jnp.matmul(a, c, precision=PRECISION), b)

    parts = [(jnp.asarray(a), jnp.asarray(b))]
    if lanes > 1 and jax.default_backend() == "cpu":
        parts = [(jnp.asarray(a[i]), jnp.asarray(b[i])) for i in range(lanes)]

    def repeat(product: Callable[[], object]) -> None:
        for _ in range(count):
            product()

    runs: dict[str, Callable[[], object]] = {
        "JAX": lambda: spread(lambda i: chain(*parts[i]).block_until_ready(), len(parts)),
        "NumPy": partial(repeat, partial(np.matmul, a, b, out=np.empty_like(b))),
    }
    if timing.version("torch"):
        runs["PyTorch"] = partial(repeat, peers.torch_product(a, b))
    return {name: Contestant(run, count * lanes) for name, run in runs.items()}


def measure(case: Case, names: list[str], repeats: int, quick: bool = False) -> dict[str, Any]:
    """One case as it stands in the results file; times in seconds, per network-step or product."""
    scale = 10 if quick else 1
    steps, horizon, blink = max(2, case.steps // scale), 1000 // scale, 0.1 / scale
    params, data = draw(case)
    start, encoded = prepare(params, data)
    if not isinstance(start.position, GramParams):
        raise ValueError(f"only cases of the Gram step can be measured, with m < 2 d: {case}")
    lanes, size, width = start.position.preactivations.shape
    sizes = {"samples": case.samples, "dim": case.dim, "width": case.width}
    flops = representations.step_flops("gram", **sizes)
    ours = trajectory(start, encoded, horizon)
    deviations = {
        name: deviation(ours, PEERS[name](params, data)(horizon))
        for name in names
        if name != "loop-100"
    }

    parts = batches(start, encoded)
    begin = [jax.tree.map(jnp.copy, state) for state, _ in parts]
    compiled, compile_times = timing.split(advance, *parts[0], steps)

    def train(i: int) -> None:
        state, data = parts[i]
        state = jax.block_until_ready(compiled(state, data, steps))
        # Again from the start, long before the stopping rule, where nothing is left to time.
        again = state.steps.max() >= MOST_STEPS
        parts[i] = jax.tree.map(jnp.copy, begin[i]) if again else state, data

    runs = {"jaxkkt": partial(spread, train, len(parts))} | {
        n: partial(PEERS[n](params, data), steps) for n in names
    }
    contestants = (
        {("step", n): Contestant(run, steps * case.networks) for n, run in runs.items()}
        | {("product", n): c for n, c in products(size, width, lanes, blink).items()}
        | {("square", n): c for n, c in products(1000, 1000, 1, blink).items()}
    )
    seconds = timing.interleaved(contestants, repeats)
    times: dict[str, dict[str, float]] = {"step": {}, "product": {}, "square": {}}
    for (kind, name), median in timing.medians(seconds).items():
        times[kind][name] = median
    square = min(times["square"], key=times["square"].__getitem__)

    def ratio(slow: tuple[str, str]) -> float:
        return timing.ratio(seconds, slow, ("step", "jaxkkt"))

    return {
        **case._asdict(),
        "steps": steps,
        "step_flops": flops,
        "times": times,
        **compile_times,
        "slower_than_jaxkkt": {name: ratio(("step", name)) for name in names},
        "deviation_steps": horizon,
        "deviations": deviations,
        "log_loss_fall": float(jnp.max(ours[:, 0] - ours[:, -1])),
        "gflops": {
            "useful": flops / times["step"]["jaxkkt"] / 1e9,
            "product": {n: flops / t / 1e9 for n, t in times["product"].items()},
            "square": {n: 2 / t for n, t in times["square"].items()},
        },
        "useful_share": ratio(("square", square)) * flops / 2e9,
        "product_share_of_time": ratio(("product", "JAX")),
        "raw": {f"{kind} {name}": raw for (kind, name), raw in seconds.items()},
    }


def squares(repeats: int, seconds: float) -> dict[str, dict[str, float]]:
    """GFLOP/s of float32 products of square matrices, by size and library."""
    return {
        str(n): {
            name: 2e-9 * n**3 / median
            for name, median in timing.medians(
                timing.interleaved(products(n, n, 1, seconds), repeats)
            ).items()
        }
        for n in (1000, 2048)
    }


def report(record: dict[str, Any]) -> str:
    """The results as Markdown tables, each target marked met or not met."""
    steps, rates, compiling = [], [], []
    peak = max(record["squares"]["2048"].values())
    horizon = record["cases"][0]["deviation_steps"]
    for case in record["cases"]:
        size = {"d, m, k": f"{case['dim']}, {case['samples']}, {case['width']}"}
        slower, micro = case["slower_than_jaxkkt"], case["times"]["step"]
        speedup = min((r for n, r in slower.items() if n.startswith("loop")), default=None)
        loop = min((t for n, t in micro.items() if n.startswith("loop")), default=None)
        steps.append(
            size
            | {"jaxkkt, µs": 1e6 * micro["jaxkkt"]}
            | ({"PyTorch loop, µs": 1e6 * loop, "times": speedup} if loop else {})
            | ({"target": _against(speedup, case["speedup"])} if speedup else {})
            | {f"{TITLES[n]}, times": r for n, r in slower.items() if not n.startswith("loop")}
            | {"log L falls by": case["log_loss_fall"]}
            | {"and is off by": f"{max(case['deviations'].values(), default=0):.0e}"}
        )
        gflops, share = case["gflops"], case["useful_share"]
        rates.append(
            size
            | {"useful GFLOP/s": gflops["useful"], "share of 1000²": share}
            | {"target": _against(share, case["share"])}
            | {"share of 2048²": gflops["useful"] / peak}
            | {"time in the product": f"{case['product_share_of_time']:.0%}"}
            | {f"product alone, {n}": rate for n, rate in gflops["product"].items()}
        )
        compiling.append(
            size
            | {"lowering, s": case["lowering_s"], "compiling, s": case["compiling_s"]}
            | {"a call, s": micro["jaxkkt"] * case["steps"] * case["networks"]}
        )
    square = [{"size": f"{n}²", **by_library} for n, by_library in record["squares"].items()]
    return "\n\n".join(
        [
            "Time of a step of one network. `times`: a peer's time over jaxkkt's, median over "
            "interleaved pairs.\n`off by`: largest |a - b| / max(|b|, 1) of log L against any peer "
            f"over the first {horizon} steps (at most {TOLERANCE:g}).",
            timing.markdown(steps),
            "Rates in GFLOP/s. Time outside the product goes into passes over (m, k) arrays and "
            "the dispatch of operations.",
            timing.markdown(rates),
            timing.markdown(square),
            timing.markdown(compiling),
        ]
    )


def main(arguments: list[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    load = os.getloadavg()[0]
    if load > 0.3:
        print(f"load average {load:.1f}: other work slows some contestants more than others")
    cases = []
    for case in CASES:
        print(f"measuring d={case.dim} m={case.samples} k={case.width} ...", flush=True)
        cases.append(measure(case, options.peers, options.repeats, options.quick))
    record = {
        "settings": {"repeats": options.repeats, "quick": options.quick, "load": load},
        "cases": cases,
        "squares": squares(options.repeats, 0.01 if options.quick else 0.1),
    }
    path = timing.write("training", record, options.out)
    print(f"\n{report(record)}\n\nwritten to {path}")


def _step(state: State, data: Dataset | GramDataset) -> State:
    return jax.vmap(lambda s, x: training.step(s, x, PROTOCOL))(state, data)


def _against(value: float, target: float | None) -> str:
    return "" if target is None else f"{target:g}, {'met' if value >= target else 'not met'}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training",
        description="Time of a training step beside PyTorch, plain JAX and bare matrix products.",
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps, for a look")
    parser.add_argument("--repeats", type=int, default=7, help="turns of every contestant (7)")
    parser.add_argument(
        "--out", type=Path, default=timing.RESULTS, help="folder of training.json (%(default)s)"
    )
    parser.add_argument(
        "--peers", nargs="*", choices=PEERS, default=list(PEERS), help="contestants (all)"
    )
    return parser


if __name__ == "__main__":
    main()
