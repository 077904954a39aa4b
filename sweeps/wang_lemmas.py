"""The lemmas of Wang, Ullah, Mianjy, Arora (2022) on sphere data, number by number.

Draws lazy networks, moves every neuron to the edge of its ball, once by training on random labels
and once in random directions, and holds the bounds of Lemmas B.4 to B.9 against fresh points with
|x| = 1: how many obey them, whether they say anything, and how far they are from what is measured.
Then the constant C2 of Theorem 3.1, and the widths that it asks for. Leaves every run in
results.nc and the table in lemmas.md.
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
from jaxkkt.theory import wang

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
    """Every lemma at fresh points: for the trained network, and for one moved at random."""

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
            for name in RECORDED:
                values = [getattr(c, name) for c in checks.values()]
                stacked = jnp.stack(
                    [jnp.broadcast_to(jnp.asarray(v, x.dtype), x.shape[:1]) for v in values]
                )
                found.setdefault(f"lemma_{name}", []).append(stacked)
            constants = jax.lax.map(partial(wang.step_constant, network), x)
            found.setdefault("c2", []).append(constants)
        return {name: jnp.concatenate(parts, axis=-1) for name, parts in found.items()}


def table(results: xr.Dataset) -> str:
    """A line for every size and lemma, over seeds, points and both kinds of networks."""
    lines = [
        "| d | k | quantity | measured, median | bound | obeyed by | says nothing | assumed |",
        "| ---: | ---: | --- | ---: | ---: | ---: | --- | --- |",
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
                lines.append(
                    f"| {d} | {k} | {name} | {np.median(value['measured']):.3g} | {bound} "
                    f"{np.mean(applies):.0%} |"
                )
            c2 = here.c2.values.ravel()
            least, most = wang.width_window(int(d), float(results.gamma))
            flipped = np.isfinite(c2)
            lines.append(
                f"| {d} | {k} | Theorem 3.1: C2 = eta times the squared gradient | "
                f"{np.median(c2[flipped]):.3g} (largest {c2[flipped].max():.3g}) | a constant | "
                f"{np.mean(flipped):.0%} | | {'100%' if least <= k <= most else '0%'} "
                f"(k from {least:.3g} to {most:.3g}) |"
            )
    return "\n".join(lines)


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
