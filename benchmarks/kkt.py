"""Certificates, polish and deep training at the sizes of the paper: targets and seconds.

Trains networks on the sphere (d = 100) to a loss of 1e-30, certifies them, polishes them to KKT
points and certifies those; prints how many meet each target. Or, with --deep, takes networks to
deep log losses and prints what still moves there. Writes benchmarks/results/NAME.json.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxkkt as jk
from benchmarks.timing import markdown, write
from jaxkkt import kkt
from jaxkkt.datasets import Dataset
from jaxkkt.engine.machine.devices import cores
from jaxkkt.networks import Params

RESIDUAL = SLACKNESS = 1e-6
SECONDS = 5.0
# The kink tolerance that suits networks whose steps met kinks, beside the default of 1e-6.
WIDE = 1e-3
LEVELS = (jk.protocols.TARGET, -1e3, -1e4, -1e5)
SIZES = {False: ((10, 40, 100, 251), (50, 200, 1000)), True: ((10, 40, 100), (200, 1000))}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kkt",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--d", type=int, default=100)
    parser.add_argument(
        "--samples", type=int, nargs="+", help="(default: 10 40 100 251; 10 40 100 with --deep)"
    )
    parser.add_argument(
        "--width", type=int, nargs="+", help="(default: 50 200 1000; 200 1000 with --deep)"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--deep",
        action="store_true",
        help="only deep training, of seed 0 at every size, recorded as NAME-deep",
    )
    parser.add_argument("--name", default="kkt", help="of the record (default: kkt)")
    return parser


def trained(run: jk.Run) -> tuple[Params, Dataset]:
    """A network at a loss of 1e-30, and its data."""
    start, data = jk.draw(run)
    data = Dataset(jnp.asarray(data.x), jnp.asarray(data.y))
    return jk.train(start, *data).params, data


def timed(
    function: Callable[..., Any], networks: Sequence[tuple[Params, Dataset]], at_once: int
) -> tuple[list[Any], list[float]]:
    """Results of all networks, `at_once` at a time, and the seconds of each; compilation apart."""

    def one(network: tuple[Params, Dataset]) -> tuple[Any, float]:
        params, data = network
        started = time.perf_counter()
        with jax.enable_x64(True):  # of the results: margins of 1 would not survive float32
            result = jax.block_until_ready(function(params, *data))
        return result, (time.perf_counter() - started) / at_once

    one(networks[0])
    # The last ones have company too.
    filled = [*networks, *networks[: -len(networks) % at_once]]
    with ThreadPoolExecutor(at_once) as pool:
        results, seconds = zip(*pool.map(one, filled), strict=True)
    return list(results[: len(networks)]), list(seconds[: len(networks)])


def polished(runs: Sequence[jk.Run]) -> dict[str, Any]:
    """Certificates before and after polishing, of runs that differ in their seed alone."""
    networks = [trained(run) for run in runs]
    width, samples = runs[0].width, runs[0].samples
    certified = partial(kkt.certificate, budget=(min(width, 256), min(samples, 16)))
    before, certificate_seconds = timed(certified, networks, cores())
    counts = [kkt.kinks(params, *data, WIDE).sum(axis=0).max() for params, data in networks]
    many = partial(kkt.certificate, kink_tolerance=WIDE, budget=(width, int(max(counts))))
    wider, many_seconds = timed(many, networks, cores())
    # A polish's products fill all cores.
    found, polish_seconds = timed(kkt.polish, networks, 1)
    after = [kkt.certificate(p.params, *data) for p, (_, data) in zip(found, networks, strict=True)]
    met = [
        p.status == kkt.PolishStatus.POLISHED
        and c.clarke.residual <= RESIDUAL
        and c.clarke.slackness <= SLACKNESS
        and c.min_margin >= 1
        for p, c in zip(found, after, strict=True)
    ]
    return {
        "samples": samples,
        "width": width,
        "networks": len(runs),
        "residual before": float(np.median([c.clarke.residual for c in before])),
        "gap, largest": max(float(c.clarke.gap) for c in (*before, *wider, *after)),
        "certificate, s": float(np.median(certificate_seconds)),
        f"kinks, {WIDE:g}": float(np.median([c.kinks for c in wider])),
        f"certificate, {WIDE:g}, s": float(np.median(many_seconds)),
        "residual, largest": max(float(c.clarke.residual) for c in after),
        "slackness, largest": max(float(c.clarke.slackness) for c in after),
        "met": int(np.sum(met)),
        "steps": float(np.median([p.steps for p in found])),
        "live neurons": float(np.median([p.live for p in found])),
        "normalized margin": float(np.median([p.normalized_margin for p in found])),
        "before": float(np.median([p.normalized_margin_before for p in found])),
        "polish, s": float(np.median(polish_seconds)),
        "polish, slowest, s": max(polish_seconds),
        "fast": int(np.sum(np.array(polish_seconds) < SECONDS)),
    }


def deep(run: jk.Run) -> list[dict[str, Any]]:
    """One network at each of `LEVELS`, and how long all of them took."""
    start, data = jk.draw(run)
    train = partial(jk.train_through, start, *data, levels=LEVELS)
    jax.block_until_ready(train())
    started = time.perf_counter()
    found = jax.block_until_ready(train())
    seconds = time.perf_counter() - started
    rows = []
    for i, level in enumerate(LEVELS):
        params = jax.tree.map(lambda leaf, i=i: leaf[i], found.params)
        margins = jk.Flips().measure(params, Dataset(jnp.asarray(data.x), jnp.asarray(data.y)))
        certificate = kkt.certificate(
            params, *data, kink_tolerance=1e-3, budget=(run.width, min(run.samples, 64))
        )
        rows.append(
            {
                "samples": run.samples,
                "width": run.width,
                "log L": level,
                "gradients": int(found.steps[i]),
                "reached": bool(found.status[i] == jk.Status.CONVERGED),
                "normalized margin": float(margins["normalized_margin"]),
                "c": float(margins["flip_size_exact"]),
                "residual": float(certificate.clarke.residual),
                "gap": float(certificate.clarke.gap),
                "s to the last": seconds,
            }
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    samples, widths = SIZES[options.deep]
    try:
        runs = jk.grid(
            d=(options.d,),
            samples=options.samples or samples,
            width=options.width or widths,
            seed=range(1 if options.deep else options.seeds),
        )
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.deep:
        rows = [row for run in runs for row in deep(run)]
        print(markdown(rows))
        write(f"{options.name}-deep", {"deep": rows})
    else:
        polish_all(runs, options.name)
    return 0


def polish_all(runs: Sequence[jk.Run], name: str) -> None:
    """Prints and records the polishes of all runs."""
    rows = []
    for size in sorted({(run.samples, run.width) for run in runs}):
        rows.append(polished([r for r in runs if (r.samples, r.width) == size]))
        print(rows[-1], file=sys.stderr, flush=True)
    met, count = sum(r["met"] for r in rows), len(runs)
    fast = sum(r["fast"] for r in rows)
    print(markdown(rows))
    print(
        f"\nresidual <= {RESIDUAL:g} with kink tolerance 1e-6, slackness <= {SLACKNESS:g} and "
        f"margins >= 1: {met} of {count} networks ({met / count:.0%}, target 95%); under "
        f"{SECONDS:g} s a network on {cores()} cores: {fast} of {count}\n"
    )
    write(name, {"polish": rows, "met": met, "fast": fast, "networks": count})


if __name__ == "__main__":
    sys.exit(main())
