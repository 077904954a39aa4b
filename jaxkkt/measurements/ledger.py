"""The theorems and lemmas of all three papers, held against every network of a sweep."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from jaxkkt import kkt
from jaxkkt.datasets import Dataset
from jaxkkt.measurements.base import Measurement
from jaxkkt.networks import Params
from jaxkkt.numerics.compiling import OLDER_EMITTERS, quick_jit
from jaxkkt.numerics.requirements import require_probability, require_whole
from jaxkkt.specs.fields import Number, described
from jaxkkt.theory import Check, frei, kkt_point, vardi, wang
from jaxkkt.theory.points import NEAR

# Claims by the paper and the number that they have there.
CLAIMS = (
    *(f"Vardi {name}" for name in vardi.LEMMAS),
    *(f"Vardi, on the margin, {name}" for name in vardi.LEMMAS),
    *(f"Frei {name}" for name in (*frei.PROPERTIES, *frei.LEMMAS, *frei.THEOREMS)),
    *(f"Wang {name}" for name in wang.LEMMAS),
)
RECORDED = ("measured", "bound", "slack", "assumed", "holds", "vacuous")  # of a Check


class Ledger(Measurement):
    """Every lemma that speaks of the run: over the dimension `claim`, the fields of its `Check`.

    KKT points: the lemmas of Vardi et al. (2022), of all samples (Theorem 4.1) and of those on the
    margin (Corollary 4.1), and on clustered data those of Frei et al. (2023). They are asked of the
    network polished by `kkt.polish`, since a trained one is no KKT point yet, or of the network as
    it is without `polish`; multipliers are the certificate's. Lazy networks, trained in a ball
    (`ball`, or `weight_radius` with v fixed): those of Wang et al. (2022), at the first `points`
    held-out points, or those that it trained on where there are none, each at the point of least
    slack, by perturbations and directions that are the same for every run (`wang.ledger`); a lemma
    may fail at a share `gamma` of the points, as Theorems 3.1 and 4.2 of Frei et al. may for a
    share `gamma` of all samples. NaN where a claim does not speak of the run, as
    beyond `largest` samples; `ledger_assumed` is 0 where it does, but its assumptions fail. Where a
    claim about fresh points finds none that it is about, `ledger_vacuous` is 1, `ledger_holds` 0,
    and `ledger_measured` NaN.
    """

    polish: bool = described("lemmas of KKT points are asked of the polished network", default=True)
    largest: int = described("most samples that are certified", "samples", default=256)
    points: int = described("points at which lemmas of lazy networks are asked", default=64)
    gamma: Number = described("probability with which a claim may fail", default=0.05)
    on_host: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_probability(gamma=self.gamma)
        require_whole("largest", self.largest, 1)
        require_whole("points", self.points, 1)

    def measure(
        self,
        params: Params,
        data: Dataset,
        start: Params,
        protocol: Any,
        test: Dataset | None = None,
        truth: Any = None,
    ) -> dict[str, Any]:
        checks: dict[str, Check] = {}
        ball = _ball(protocol, start)
        if ball is not None:
            x = (data if test is None else test).x[: self.points]
            lazy = _at_points(params, start, jnp.asarray(x), jnp.asarray(ball), self.gamma)
            checks |= {f"Wang {name}": check for name, check in lazy.items()}
        elif len(data.y) <= self.largest and set(protocol.trained) == set(Params._fields):
            checks |= self._of_kkt_points(params, data, test, truth, protocol.trained)
        empty = np.full(len(CLAIMS), np.nan)
        found = {f"ledger_{field}": empty.copy() for field in RECORDED}
        for name, check in checks.items():
            for field in RECORDED:
                found[f"ledger_{field}"][CLAIMS.index(name)] = float(getattr(check, field))
        return found

    def _of_kkt_points(
        self,
        params: Params,
        data: Dataset,
        test: Dataset | None,
        truth: Any,
        trained: tuple[str, ...],
    ) -> dict[str, Check]:
        x, y = jnp.asarray(data.x), jnp.asarray(data.y)
        network, truth = jax.tree.map(jnp.asarray, (params, truth))
        if self.polish:
            network = kkt.polish(network, x, y, trained=trained).params
        point = kkt_point(network, x, y, kkt.certificate(network, x, y, trained=trained))
        d = None if truth is None else getattr(truth, "d", None)
        found = {f"Vardi {name}": c for name, c in _vardi(point, vardi.summary(x, y, d=d)).items()}
        near = np.asarray(y[point.margins <= 1 + NEAR])
        if {-1.0, 1.0} <= set(near.tolist()):
            margin = _vardi(point, vardi.on_margin(point, d))
            found |= {f"Vardi, on the margin, {name}": check for name, check in margin.items()}
        if test is not None and hasattr(truth, "test_cluster"):
            clusters = frei.clusters(truth.means, truth.labels, truth.sigma, truth.d)
            setting = frei.Setting(
                point,
                clusters,
                truth.cluster,
                jnp.asarray(test.x),
                truth.test_cluster,
            )
            clustered = _frei(setting, jnp.asarray(self.gamma, x.dtype))
            found |= {f"Frei {name}": check for name, check in clustered.items()}
        return found

    def attributes(self) -> Mapping[str, Mapping[str, str]]:
        return _ATTRIBUTES

    def axes(self) -> Mapping[str, Mapping[str, Sequence[Any]]]:
        return {f"ledger_{field}": {"claim": CLAIMS} for field in RECORDED}


def ledger_table(results: xr.Dataset) -> str:
    """A Markdown table of a sweep with `Ledger`: how often each claim applied, and held there.

    A line for every claim that speaks of any run; the least slack is over the runs where it
    applies, over the bound's size. Runs where it was asked of nothing, as of nice points where no
    point is, "say nothing": they count neither as holding nor as failing.
    """
    lines = [
        "| claim | runs | assumptions hold | holds there | least slack, relative | says nothing |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in results.claim.values:
        one = {f: results[f"ledger_{f}"].sel(claim=name).values.ravel() for f in RECORDED}
        asked = np.isfinite(one["assumed"])
        applies = asked & (one["assumed"] == 1)
        if not asked.any():
            continue
        holds = vacuous = least = "-"
        if applies.any():
            vacuous = f"{int(one['vacuous'][applies].sum())} of {applies.sum()}"
        told = applies & ~((one["vacuous"] == 1) & np.isnan(one["measured"]))
        if told.any():
            holds = f"{int(one['holds'][told].sum())} of {told.sum()}"
            size = np.abs(one["bound"][told])
            relative = one["slack"][told] / np.where(size > 0, size, 1)
            least = f"{relative.min() + 0.0:.3g}"  # no -0
        cell = name.replace("|", "\\|")
        lines.append(
            f"| {cell} | {asked.sum()} | {applies.sum()} | {holds} | {least} | {vacuous} |"
        )
    return "\n".join(lines)


def _ball(protocol: Any, start: Params) -> Any:
    """C0 of the lazy ball that training stays in, and None where there is none."""
    ball, radius = (getattr(protocol, name, None) for name in ("ball", "weight_radius"))
    if ball is None and radius is not None and "v" not in protocol.trained:
        ball = float(radius) * float(wang.sizes(start)[0]) ** 0.5
    return ball


_vardi = quick_jit(vardi.ledger, OLDER_EMITTERS)
_frei = quick_jit(frei.ledger, OLDER_EMITTERS)


@jax.jit
def _at_points(params: Params, start: Params, x: Any, c0: Any, gamma: Any) -> dict[str, Check]:
    """Each lemma at the point of least slack, among those where it applies if there are any."""
    found = {}
    for name, check in wang.ledger(params, start, x, c0, gamma).items():
        lanes = jax.tree.map(lambda a: jnp.broadcast_to(a, x.shape[:1]), check)
        place = jnp.argmin(jnp.where(lanes.assumed, lanes.slack, jnp.inf))
        found[name] = jax.tree.map(lambda a, place=place: a[place], lanes)
    return found


_ATTRIBUTES = {
    "ledger_measured": {
        "long_name": "what the claim speaks of; NaN where there is nothing",
        "units": "the claim's",
    },
    "ledger_bound": {
        "long_name": "the claim's bound; NaN where it does not apply",
        "units": "same",
    },
    "ledger_slack": {"long_name": "by how much it is inside the bound", "units": "same"},
    "ledger_assumed": {"long_name": "1 where all assumptions hold", "units": "1"},
    "ledger_holds": {"long_name": "1 where the claim holds", "units": "1"},
    "ledger_vacuous": {"long_name": "1 where the claim says nothing", "units": "1"},
}
