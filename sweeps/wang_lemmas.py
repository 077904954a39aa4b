"""The lemmas of Wang, Ullah, Mianjy, Arora (2022) on sphere data, number by number.

Draws lazy networks and moves every neuron to the edge of its ball: by training on random labels, in
random directions, and for each point to where the output is largest. Holds the bounds of Lemmas B.4
to B.9 against fresh points with |x| = 1: how many obey them, whether they say anything, and how far
they are from what is measured. Then the constant C2 of Theorem 3.1, and the widths that it asks
for. Leaves every run in results.nc and the table in lemmas.md.
"""

import sys
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array

import jaxkkt as jk
from jaxkkt import studies
from jaxkkt.numerics.requirements import require_whole
from jaxkkt.specs.data.base import HELD_OUT
from jaxkkt.theory import Check, wang

RECORDED = ("assumed", "bound", "measured", "holds", "vacuous")  # of a Check


@dataclass(frozen=True)
class Options(studies.Options):
    d: tuple[int, ...] = (25, 100, 400)
    """input dimensions"""
    width: tuple[int, ...] = (1000, 10_000)
    """hidden neurons"""
    ball: float = 10.0
    """C0"""
    gamma: float = 0.05
    """probability with which a lemma may fail"""
    points: int = 100
    """fresh points a network, 1 to 256"""
    samples: int = 50
    """training samples"""
    seeds: int = 2
    """number of seeds, from 0 on"""


class Lemmas(jk.Measurement):
    """Every lemma at fresh points: for the trained network, one moved at random, and at each point
    the one of the largest output there."""

    gamma: jk.Number = 0.05
    points: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole("points", self.points, 1, HELD_OUT)
        if not 0 < self.gamma < 1:
            raise ValueError(f"gamma must be a probability between 0 and 1, got {self.gamma}")

    def measure(
        self, params: jk.Params, start: jk.Params, test: jk.Dataset, protocol: jk.Protocol
    ) -> dict[str, Array]:
        c0, x = protocol.ball, test.x[: self.points]
        assert c0 is not None
        noise = jax.random.normal(jax.random.key(2), start.w.shape, start.w.dtype)
        reach = c0 / jnp.sqrt(jnp.asarray(start.v.shape[0], noise.dtype))
        moved = jk.lazy.project(start._replace(w=start.w + noise), start, reach)
        found: dict[str, list[Array]] = {}
        for network in (params, moved):
            checks = wang.ledger(network, start, x, c0, self.gamma)
            constants = jax.lax.map(partial(wang.step_constant, network), x)
            _record(found, checks, constants, x)

        def of_worst(x: Array) -> tuple[dict[str, Check], Array]:
            worst = wang.worst_output(start, x, c0)
            checks = wang.ledger(worst, start, x[None], c0, self.gamma)
            return jax.tree.map(jnp.squeeze, checks), wang.step_constant(worst, x)

        checks, constants = jax.lax.map(of_worst, x)
        _record(found, checks, constants, x)
        return {name: jnp.concatenate(parts, axis=-1) for name, parts in found.items()}


def _record(
    found: dict[str, list[Array]], checks: dict[str, Check], constants: Array, x: Array
) -> None:
    for name in RECORDED:
        # By name: what JAX gives back is sorted.
        values = [jnp.asarray(getattr(checks[lemma], name), x.dtype) for lemma in wang.LEMMAS]
        stacked = jnp.stack([jnp.broadcast_to(value, x.shape[:1]) for value in values])
        found.setdefault(f"lemma_{name}", []).append(stacked)
    found.setdefault("c2", []).append(constants)


def table(results: xr.Dataset) -> str:
    """A line for every size and lemma, over seeds, points and the three kinds of networks."""
    lines = [
        "| d | k | quantity | trained | at random | largest output | bound | obeyed by "
        "| says nothing | assumed |",
        "| ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | --- | --- |",
    ]
    for d in results.d.values:
        for k in results.width.values:
            here = results.sel(d=d, width=k).squeeze("samples")
            for i, name in enumerate(wang.LEMMAS):
                value = {n: here[f"lemma_{n}"][:, i].values for n in RECORDED}
                applies = value["assumed"].astype(bool)
                bound = "does not apply | | |"
                if applies.any():
                    bound = (
                        f"{np.median(value['bound'][applies]):.3g} | "
                        f"{np.mean(value['holds'][applies]):.0%} | "
                        f"{'yes' if value['vacuous'].any() else 'no'} |"
                    )
                told = " | ".join(f"{np.median(m):.3g}" for m in _kinds(value["measured"]))
                lines.append(f"| {d} | {k} | {name} | {told} | {bound} {np.mean(applies):.0%} |")
            c2 = here.c2.values
            least, most = wang.width_window(int(d), float(results.gamma))
            told = " | ".join(
                f"{np.median(c[np.isfinite(c)]):.3g} (largest {c[np.isfinite(c)].max():.3g})"
                for c in _kinds(c2)
            )
            lines.append(
                f"| {d} | {k} | Theorem 3.1: C2 = eta times the squared gradient | {told} "
                f"| a constant | {np.mean(np.isfinite(c2)):.0%} | "
                f"| {'100%' if least <= k <= most else '0%'} (k from {least:.3g} to {most:.3g}) |"
            )
    return "\n".join(lines)


def _kinds(values: np.ndarray) -> list[np.ndarray]:
    """What was found at the trained network, at the one moved at random, and at those of the
    largest outputs: one after the other along the last axis."""
    return np.split(values, 3, axis=-1)


def parts(options: Options) -> list[studies.Part]:
    runs = jk.grid(
        data="unit sphere",
        d=options.d,
        samples=options.samples,
        width=options.width,
        seed=range(options.seeds),
        initialization="lazy",
        protocol=jk.protocols.lazy_flow(options.ball),
        measure=Lemmas(gamma=options.gamma, points=options.points),
    )
    return [studies.Part(runs, texts=[studies.Text("lemmas", table)])]


STUDY = studies.Study("wang-lemmas", __doc__, Options, parts, folder="wang-lemmas")

if __name__ == "__main__":
    sys.exit(studies.run_module(__spec__))
