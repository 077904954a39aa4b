"""What the theorems of Vardi, Yehudai, Shamir (2022) promise, drawn over what Figure 1 measures.

Trains networks on points of the sphere and measures c, the smallest universal perturbation that
flips every sample on the margin. Beside it: |z| of Theorem 4.1, and of Corollary 4.1 on the samples
on the margin, where their assumptions on the data hold and nowhere else; the bound of Lemma C.9 on
|z|; and the radius within which the robust network of Theorem 3.1 has no flip, with the size at
which it is flipped along the same direction. Two parts: "few" samples, where the assumptions can
hold, and "alphas", the sample counts of the paper's Figure 1.
"""

import sys
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import jaxkkt as jk
from jaxkkt import kkt, networks, perturbations, studies
from jaxkkt.networks import Params
from jaxkkt.specs.fields import described
from jaxkkt.theory import KKTPoint, kkt_point, vardi

from .vardi_bounds_claims import claims, drawn, table

# Numbers of samples and coordinates that programs are compiled for.
SIZES = (4, 16, 64, 256, 1024)


class Bounds(jk.Measurement):
    """What the theorems promise of a network's samples, and the robust network beside it.

    `applies` are the assumptions on all samples, `margin_applies` those on the samples with
    q <= slack min q, `polished_applies` all assumptions of Corollary 4.1 at the KKT point polished
    from the network. Where they fail the sizes |z| and the bounds are NaN.
    """

    slack: float = described("on the margin: q <= slack min q", default=1.1)
    largest: int = described("most samples that are polished", "samples", default=256)
    on_host = True

    def measure(self, params: Params, data: jk.Dataset) -> dict[str, Any]:
        # All is about inner products: in coordinates of the span few shapes serve every d.
        d, count = jnp.asarray(float(data.x.shape[1])), len(data.y)
        basis = np.linalg.qr(np.asarray(data.x).T)[0]
        m, r = (min(n for n in (*SIZES, size) if n >= size) for size in (count, basis.shape[1]))
        x, y = jk.datasets.pad(jk.Dataset(jnp.asarray(data.x @ basis), jnp.asarray(data.y)), m, r)
        inside = Params(jnp.asarray(params.w @ basis), *map(jnp.asarray, params[1:]))
        network = networks.pad(inside, params.v.size, r)
        chosen = perturbations.on_margin(networks.margins(network, x, y), self.slack, y != 0)
        everything = _promised(x, y, y != 0, d)
        found: dict[str, Any] = dict(everything)
        found |= {f"margin_{name}": a for name, a in _promised(x, y, chosen, d).items()}
        if everything["radius"] > 0:
            found |= _robust(x, y, chosen, d, everything["largest_product"])
        if count <= self.largest and chosen.any():
            found |= _polished(network, x, y, d)
        return found


@jax.jit
def _promised(x: Array, y: Array, chosen: Array, d: Array) -> dict[str, Array]:
    """|z| of the chosen samples and the bound of Lemma C.9, where the theorem applies to them."""
    s = vardi.summary(x, y, chosen, d)
    nothing = Params(jnp.zeros((1, x.shape[1])), jnp.zeros(1), jnp.zeros(1))
    check = vardi.size(KKTPoint(nothing, x, y, jnp.zeros(y.shape), jnp.zeros((*y.shape, 1))), s)
    return {
        "applies": check.assumed.astype(x.dtype),
        "z_norm": jnp.where(check.assumed, check.measured, jnp.nan),
        "bound": check.bound,
        "largest_product": s.p,
        "radius": vardi.robust_radius(s),
    }


@jax.jit
def _robust(x: Array, y: Array, chosen: Array, d: Array, p: Array) -> dict[str, Array]:
    """Sizes at which the robust network is flipped along the trained network's direction: the first
    sample, and all of them at once."""
    network = vardi.robust_network(x, y, p / d, d)
    direction = perturbations.universal_direction(x, y, chosen)
    flips = perturbations.flip_sizes_exact(network, x, y, direction, y != 0)
    right = networks.margins(network, x, y) > 0
    wrong = jnp.sum((y != 0) & ~right)
    return {
        "robust_first": jnp.nanmin(flips.sizes),
        "robust_flip": flips.size,
        "robust_wrong": wrong.astype(x.dtype),
    }


def _polished(params: Params, x: Array, y: Array, d: Array) -> dict[str, Any]:
    """Corollary 4.1 at the KKT point near the network, which has no weights outside the span."""
    status, point = _polish(params, x, y)
    if int(status) != kkt.PolishStatus.POLISHED:
        return {"polish_status": status}
    return {"polish_status": status, **corollary(point, d)}


@jax.jit
def _polish(params: Params, x: Array, y: Array) -> tuple[Array, KKTPoint]:
    made = kkt.polish(params, x, y, trained=("w", "b", "v"))
    found = kkt.certificate(made.params, x, y, trained=("w", "b", "v"))
    return made.status, kkt_point(made.params, x, y, found)


@jax.jit
def corollary(point: KKTPoint, d: Array) -> dict[str, Array]:
    """Corollary 4.1 on the samples that attain the margin, and c of the point along the same z."""
    s = vardi.on_margin(point, d)
    checks = [vardi.flipped(point, s, label) for label in (1, -1)]
    met = jnp.stack([condition.holds for condition in point.conditions().values()]).all()
    norm = jnp.linalg.norm(vardi.perturbation(point, s))
    direction = perturbations.universal_direction(point.x, point.y, s.chosen)
    flips = perturbations.flip_sizes_exact(point.params, point.x, point.y, direction, s.chosen)
    return {
        "polished_kkt": met.astype(norm.dtype),
        "polished_applies": checks[0].assumed.astype(norm.dtype),
        "polished_holds": (checks[0].holds & checks[1].holds).astype(norm.dtype),
        "polished_z_norm": jnp.where(checks[0].assumed, norm, jnp.nan),
        "polished_flip": flips.size,
    }


@dataclass(frozen=True)
class Options(studies.Options):
    part: Literal["both", "few", "alphas"] = "both"
    """which part to run"""
    few: tuple[int, ...] = (2, 3, 4)
    """sample counts at which the assumptions can hold"""
    large_d: tuple[int, ...] = (100, 200, 400, 700, 1000)
    """input dimensions of the few samples"""
    d: tuple[int, ...] = (25, 50, 100, 200, 400)
    """input dimensions of the paper's sample counts"""
    alpha: tuple[float, ...] = (0.5, 0.8, 1.0)
    """m = round(d^alpha) samples"""
    width: int = 1000
    """hidden neurons"""
    seeds: int = 2
    """number of seeds, from 0 on"""
    polish: int = 16
    """most samples of which the KKT point is found as well"""


PRESETS = {
    "quick": studies.Preset(
        "12 networks of 2 or 4 samples, 24 of the paper's counts, d to 400",
        few=(2, 4),
        large_d=(100, 400, 1000),
        d=(50, 100, 200, 400),
    ),
    "page": studies.Preset(
        "30 and 30 networks, 2 to 4 samples or the paper's counts: what docs/bounds.md shows"
    ),
    "full": studies.Preset(
        "d to 1,000 at the paper's counts, to 4,000 for few samples, 5 seeds",
        few=(2, 3, 4, 6, 8),
        large_d=(100, 200, 400, 700, 1000, 2000, 4000),
        d=tuple(range(100, 1001, 100)),
        alpha=(0.5, 0.8, 1.0, 1.2, 1.5),
        seeds=5,
        polish=256,
    ),
}


def parts(options: Options) -> list[studies.Part]:
    measure = [jk.Flips, Bounds(largest=options.polish)]
    common: dict[str, Any] = {"width": options.width, "seed": range(options.seeds)}
    common["measure"] = measure
    kinds: dict[str, dict[str, Any]] = {
        "few": {"d": options.large_d, "samples": options.few},
        "alphas": {"d": options.d, "alpha": options.alpha},
    }
    return [
        studies.Part(
            jk.grid(**common, **sizes),
            name,
            claims=claims,
            texts=[studies.Text("bounds", table)],
            panels=[studies.Panel("bounds", drawn)],
        )
        for name, sizes in kinds.items()
        if options.part in ("both", name)
    ]


STUDY = studies.Study("vardi-bounds", __doc__, Options, parts, PRESETS)

if __name__ == "__main__":
    sys.exit(studies.run_module(__spec__))
