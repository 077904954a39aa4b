"""Theorems 3.1, 4.1 and 4.2, each held against fresh points.

Of the fresh points of a `Setting` they speak in shares: `theory.share_at_most` has how a share of
few points is judged. 3.1 and 4.2 are about the setting's network and may fail for a share delta of
training samples; 4.1 is about the network that is built from the means.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxkkt import networks
from jaxkkt.numerics.requirements import require_probability
from jaxkkt.numerics.truths import any_of
from jaxkkt.theory.checks import (
    Assumption,
    Check,
    above,
    at_least,
    below,
    of_some,
    share_at_least,
    share_at_most,
)
from jaxkkt.theory.constructions import guaranteed_sizes
from jaxkkt.theory.frei.distribution import robust_network, robust_radius
from jaxkkt.theory.frei.lemmas import LEMMAS, Setting
from jaxkkt.theory.frei.samples import properties

Real = float | Float[Array, ""]


def generalization(s: Setting, delta: Real = 0.05) -> Check:
    """Theorem 3.1: y N(x) <= 0 at a fresh point with probability at most
    epsilon = 4 n d^(-ln(d)/2), for all but a share delta of training samples.

    epsilon is the smallest that the theorem's bound on n allows. Measured: the share of these test
    points, which have to be drawn from the clusters; an output that is NaN is an error. The claim
    says nothing where epsilon is 1 or more. Raises ValueError unless 0 < delta < 1, and for no test
    points.
    """
    wrong = ~(networks.margins(s.point.params, s.test_x, s.test_y) > 0)
    epsilon = s.not_nice
    return share_at_most(wrong, epsilon, _asked(s, delta), vacuous=epsilon >= 1)


def fresh_flipped(s: Setting, delta: Real = 0.05) -> Check:
    """Theorem 4.2: N(x) and N(x - y z) have different signs at a fresh point with probability at
    least 1 - epsilon, epsilon = 4 n d^(-ln(d)/2), for all but a share delta of training samples.

    z is that of `Clusters.z`; Lemma D.9 (`size`) is the theorem's bound on it. Measured: the share
    of these test points, as in `generalization`; outputs of 0 count as negative, and NaN as not
    flipped. The claim says nothing where epsilon is 1 or more. Raises ValueError unless
    0 < delta < 1, and for no test points.
    """
    moved = s.test_x - s.test_y[:, None] * s.clusters.z[None]
    here, there = (networks.apply(s.point.params, x) for x in (s.test_x, moved))
    flipped = ((here > 0) != (there > 0)) & jnp.isfinite(here) & jnp.isfinite(there)
    epsilon = s.not_nice
    return share_at_least(flipped, epsilon, _asked(s, delta), vacuous=epsilon >= 1)


def robust_margins(s: Setting) -> Check:
    """Theorem 4.1, first part: y N(x) >= 1 for `robust_network` at every nice test point.

    The paper's event is |<mu_q, xi>| <= sigma sqrt(d) ln(d) for all q. Nice points, with P1 to P6,
    have at most 2 Delta there, for which Assumption 2.2 leaves its inequalities 18 and 19 true.
    Measured: the smallest.
    """
    q = networks.margins(robust_network(s.clusters), s.test_x, s.test_y)
    least = jnp.min(jnp.where(s.nice, q, jnp.inf))
    return of_some(at_least(least, 1.0, s.of_samples()), any_of(s.nice))


def robust_sizes(s: Setting) -> Check:
    """Theorem 4.1, second part: to flip `robust_network` at a nice test point takes a perturbation
    larger than `robust_radius`, sqrt(d)/8.

    Measured: the smallest of `theory.constructions.guaranteed_sizes`, within which y N(x) >= 0. The
    paper counts an output of 0 as -1; within its radius |N(x)| is at least 1/2 here.
    """
    sizes = guaranteed_sizes(robust_network(s.clusters), s.test_x, s.test_y)
    least = jnp.min(jnp.where(s.nice, sizes, jnp.inf))
    found = above(least, robust_radius(s.clusters), s.of_samples())
    return of_some(found, any_of(s.nice))


THEOREMS: dict[str, Callable[[Setting, Real], Check]] = {
    "3.1: test error": generalization,
    "4.1: margins of the robust network": lambda s, _: robust_margins(s),
    "4.1: radius of the robust network": lambda s, _: robust_sizes(s),
    "4.2: share of fresh points flipped": fresh_flipped,
}


def ledger(s: Setting, delta: Real = 0.05) -> dict[str, Check]:
    """P1 to P6, every lemma that Theorems 3.1 and 4.2 rest on, in the paper's order, and Theorems
    3.1, 4.1 and 4.2, of which the first and the last may fail with probability delta.

    Raises ValueError unless 0 < delta < 1, and for no test points.
    """
    return {
        **properties(s.clusters, s.sample),
        **{name: lemma(s) for name, lemma in LEMMAS.items()},
        **{name: theorem(s, delta) for name, theorem in THEOREMS.items()},
    }


def _asked(s: Setting, delta: Real) -> dict[str, Assumption]:
    """What Theorems 3.1 and 4.2 ask for: a KKT point, labels without noise, Assumption 2.2, and the
    bounds on n and delta. P1 to P6 follow with probability 1 - delta (Proposition A.1), and are not
    asked for."""
    require_probability(delta=delta)
    c, n, log = s.clusters, s.n, jnp.log(s.clusters.d)
    return {
        **s.point.conditions(),
        **s.of_labels(),
        **c.assumptions(),
        "k ln(d)^2 <= n": below(c.k * log**2, n),
        "3 d^(1 - ln(d)) <= delta": below(3 * jnp.exp(log - log**2), delta),
        "n <= sqrt(delta/3) e^(d/32)": below(n, jnp.sqrt(delta / 3) * jnp.exp(c.d / 32)),
        "n <= sqrt(delta)/3 d^(ln(d)/4)": below(n, jnp.sqrt(delta) / 3 * jnp.exp(log**2 / 4)),
    }
