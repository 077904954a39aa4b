"""The form in which a theorem and a measurement are held against each other."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betainc
from jaxtyping import Array, Bool, Float

from jaxkkt.numerics.truths import any_of

# A share refutes a probability that is outside of its two-sided interval of this confidence.
CONFIDENCE = 0.95


class Assumption(NamedTuple):
    """One of the inequalities that a claim asks for: `left` at most, or below, `right`."""

    left: Float[Array, "*lanes"]
    right: Float[Array, "*lanes"]
    holds: Bool[Array, "*lanes"]


class Check(NamedTuple):
    """A bound with the paper's explicit constants beside what was measured.

    assumptions: what the claim asks for, by its formula; a bound is promised only where all hold.
    bound, measured: the two sides. The bound is NaN where the claim does not apply, and measured
    where there was nothing to ask it of, such as a claim about nice points where no point is.
    slack: by how much the measurement is inside the bound; negative where it is not.
    holds: whether the measurement obeys the bound; False where the claim does not apply, and where
    it was asked of nothing.
    vacuous: whether the claim says nothing, as a lower bound of 0 or less on a size does, and as
    a claim that was asked of nothing does.
    """

    assumptions: dict[str, Assumption]
    bound: Float[Array, "*lanes"]
    measured: Float[Array, "*lanes"]
    slack: Float[Array, "*lanes"]
    holds: Bool[Array, "*lanes"]
    vacuous: Bool[Array, "*lanes"]

    @property
    def assumed(self) -> Bool[Array, "*lanes"]:
        """Whether every assumption that can be checked holds."""
        return _all(self.assumptions)

    @property
    def empty(self) -> Bool[Array, "*lanes"]:
        """Whether it applies, but was asked of nothing: it neither holds nor fails."""
        return self.vacuous & jnp.isnan(self.measured)


def below(left: Any, right: Any, *, strictly: bool = False) -> Assumption:
    """The assumption left <= right, or left < right."""
    left, right = jnp.asarray(left), jnp.asarray(right)
    return Assumption(left, right, left < right if strictly else left <= right)


def at_most(
    measured: Any,
    bound: Any,
    assumptions: dict[str, Assumption],
    vacuous: Any = False,
    tolerance: Any = 0.0,
) -> Check:
    """The claim measured <= bound, with `tolerance` for rounding."""
    return _check(1, measured, bound, assumptions, vacuous, tolerance)


def at_least(
    measured: Any,
    bound: Any,
    assumptions: dict[str, Assumption],
    vacuous: Any = False,
    tolerance: Any = 0.0,
) -> Check:
    """The claim measured >= bound, with `tolerance` for rounding."""
    return _check(-1, measured, bound, assumptions, vacuous, tolerance)


def above(measured: Any, bound: Any, assumptions: dict[str, Assumption]) -> Check:
    """The claim measured > bound."""
    found = at_least(measured, bound, assumptions)
    return found._replace(holds=found.slack > 0)


def of_some(check: Check, there: Any) -> Check:
    """The check where there is something to ask it of; where not, it says nothing: it is vacuous,
    does not hold, and NaN is measured."""
    there = jnp.asarray(there)
    return check._replace(
        measured=jnp.where(there, check.measured, jnp.nan),
        slack=jnp.where(there, check.slack, jnp.nan),
        holds=check.holds & there,
        vacuous=jnp.where(there, check.vacuous, check.assumed),
    )


def share_at_most(
    happened: Bool[Array, " n"],
    probability: Any,
    assumptions: dict[str, Assumption],
    vacuous: Any = False,
) -> Check:
    """The claim that something happens with at most this probability, at n independent draws.

    Measured: the share of these draws at which it did. By chance it may be above a bound that is
    true: the claim holds where the bound reaches into the 95% interval of Clopper and Pearson, so
    unless as many would happen in less than 2.5% of such draws. There `slack`, the bound less the
    share, may be negative. A share of few draws refutes large violations alone.
    """
    p = jnp.asarray(probability)
    hits = jnp.sum(happened, dtype=p.dtype)
    found = at_most(hits / happened.shape[0], p, assumptions, vacuous)
    return _unless_by_chance(found, hits, happened.shape[0], p)


def share_at_least(
    happened: Bool[Array, " n"],
    failing: Any,
    assumptions: dict[str, Assumption],
    vacuous: Any = False,
) -> Check:
    """The claim that something happens with probability at least 1 - `failing`, at n independent
    draws; measured and judged as `share_at_most` does it. `failing` may be too small for 1 less it.
    """
    p = jnp.asarray(failing)
    misses = jnp.sum(~happened, dtype=p.dtype)
    found = at_least(1 - misses / happened.shape[0], 1 - p, assumptions, vacuous)
    return _unless_by_chance(found, misses, happened.shape[0], p)


def tightest(
    measured: Array,
    bound: Array,
    assumptions: dict[str, Assumption],
    where: Any = True,
    rounding: float = 0.0,
) -> Check:
    """The claim measured >= bound for all entries `where` it is made, at that with the least slack.

    `rounding` is in units of the largest entry measured. A claim about no entry says nothing, as
    of `of_some`.
    """
    slack = jnp.where(where, measured - bound, jnp.inf)
    place = jnp.argmin(slack)
    here, least = (jnp.broadcast_to(a, slack.shape).ravel()[place] for a in (measured, bound))
    scale = jnp.max(jnp.abs(jnp.where(where, measured, 0)))
    found = at_least(here, least, assumptions, tolerance=rounding * scale)
    return of_some(found, any_of(where))


def table(checks: Mapping[str, Check]) -> str:
    """A Markdown table with a line for each claim about one network.

    A claim that does not apply names the assumptions that do not hold, with both sides; one that
    was asked of nothing "says nothing" and does not hold. Raises ValueError for claims about
    several networks.
    """
    for name, check in checks.items():
        if np.ndim(check.measured):
            raise ValueError(
                f"table takes the claims about one network, and {name!r} holds "
                f"{np.shape(check.measured)} of them: one is jax.tree.map(lambda a: a[i], checks)"
            )
    lines = ["| claim | measured | bound | |", "| --- | ---: | ---: | --- |"]
    for name, check in checks.items():
        failed = [
            f"{text}: {float(one.left):.3g} against {float(one.right):.3g}"
            for text, one in check.assumptions.items()
            if not one.holds
        ]
        verdict = "holds" if check.holds else "DOES NOT HOLD"
        if check.vacuous:
            verdict = "says nothing" if check.empty else f"{verdict}, says nothing"
        if failed:
            verdict = f"does not apply ({'; '.join(failed)})"
        bound = "" if failed else f"{float(check.bound):.4g}"
        cell = name.replace("|", "\\|")
        lines.append(f"| {cell} | {float(check.measured):.4g} | {bound} | {verdict} |")
    return "\n".join(lines)


def _check(
    sign: int,
    measured: Any,
    bound: Any,
    assumptions: dict[str, Assumption],
    vacuous: Any,
    tolerance: Any,
) -> Check:
    measured = jnp.asarray(measured)
    applies = _all(assumptions)
    bound = jnp.where(applies, bound, jnp.nan)
    slack = jnp.where(bound == measured, 0, sign * (bound - measured))  # inf - inf is NaN
    return Check(
        assumptions, bound, measured, slack, slack >= -tolerance, applies & jnp.asarray(vacuous)
    )


def _unless_by_chance(found: Check, hits: Array, draws: int, p: Array) -> Check:
    """The check that holds unless `hits` of the draws, or more, are too rare at probability p."""
    some = jnp.maximum(hits, 1)
    chance = betainc(some, draws + 1 - some, jnp.clip(p, 0, 1))
    likely = (hits == 0) | (chance >= (1 - CONFIDENCE) / 2)
    return found._replace(holds=found.assumed & likely)


def _all(assumptions: dict[str, Assumption]) -> Bool[Array, "*lanes"]:
    found = jnp.array(True)
    for assumption in assumptions.values():
        found = found & assumption.holds
    return found
