"""P1 to P6 of samples of clusters, and how probable they are at least.

Probabilities are those under Assumption 2.2, of one d and n; they raise ValueError for several, and
for a dimension or a number of samples below 1.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxkkt.networks import PRECISION
from jaxkkt.numerics.requirements import (
    require_at_least_one,
    require_places,
    require_points,
)
from jaxkkt.theory.checks import Assumption, Check, at_least, at_most
from jaxkkt.theory.frei.distribution import Clusters


class Sample(NamedTuple):
    """Samples x (n, d) with the cluster (n,) that each came from; which are `real`, where some are
    padding."""

    x: Float[Array, "n d"]
    cluster: Int[Array, " n"]
    real: Bool[Array, " n"] | None = None


PROPERTIES = (
    "P1: |xi_i| <= sigma sqrt(2d)",
    "P2: |<xi_i, xi_l>| <= sigma^2 sqrt(2d) ln(d)",
    "P3: |<mu_q, xi_i>| <= sigma sqrt(d) ln(d)",
    "P4: |<x_i, x_l>| <= p + Delta across clusters",
    "P5: <x_i, x_l> >= d - Delta within one",
    "P5: <x_i, x_l> <= 3d + Delta within one",
    "P6: every cluster has a sample",
)


def properties(c: Clusters, sample: Sample) -> dict[str, Check]:
    """P1 to P6 of a training sample, as in Section A.1; each holds with high probability.

    Raises ValueError for no points, and unless each has the number of a cluster that there is; of
    traced ones no number is looked at.
    """
    x, cluster, real = sample
    require_points(x=x)
    real = jnp.ones(len(x), bool) if real is None else real
    require_places("cluster", cluster, len(x), len(c.labels))
    xi = x - c.means[cluster]
    log, root = jnp.log(c.d), jnp.sqrt(c.d)
    products = jnp.dot(x, x.T, precision=PRECISION)
    noise = jnp.abs(jnp.dot(xi, xi.T, precision=PRECISION))
    pairs = real[:, None] & real[None]
    same = (cluster[:, None] == cluster[None]) & pairs
    others = ~jnp.eye(len(x), dtype=bool) & pairs
    longest_noise = jnp.max(jnp.where(real, jnp.linalg.norm(xi, axis=1), 0))
    along_means = jnp.abs(jnp.dot(xi, c.means.T, precision=PRECISION))
    on_means = jnp.max(jnp.where(real[:, None], along_means, 0))
    counts = jnp.zeros(len(c.labels), x.dtype).at[cluster].add(jnp.where(real, 1.0, 0.0))
    across = jnp.max(jnp.where(pairs & ~same, jnp.abs(products), 0))
    within = jnp.min(jnp.where(same, products, jnp.inf))
    longest = jnp.max(jnp.where(same, products, -jnp.inf))
    none: dict[str, Assumption] = {}
    found = (
        at_most(longest_noise, c.sigma * jnp.sqrt(2 * c.d), none),
        at_most(jnp.max(jnp.where(others, noise, 0)), c.sigma**2 * jnp.sqrt(2 * c.d) * log, none),
        at_most(on_means, c.sigma * root * log, none),
        at_most(across, c.p + c.delta, none),
        at_least(within, c.d - c.delta, none),
        at_most(longest, 3 * c.d + c.delta, none),
        at_least(jnp.min(counts), 1.0, none),
    )
    return dict(zip(PROPERTIES, found, strict=True))


def separated(d: int) -> float:
    """Lemma 2.1, under Assumption 2.2: u separates a fresh point with probability at least
    1 - 2 d^(1 - ln(d)/2)."""
    require_at_least_one(d=d)
    log = np.log(float(d))
    return float(-np.expm1(np.log(2) + (1 - log / 2) * log))


def nice_sample(n: int, d: int) -> float:
    """Proposition A.1, under Assumption 2.2: P1 to P6 hold with probability at least
    1 - (3 n^2 d^(-ln(d)/2) + n^2 e^(-d/16) + d^(1 - ln(d))), for n >= k ln(d)^2."""
    require_at_least_one(n=n, d=d)
    dim, squared = float(d), float(n) ** 2  # not in 32 bits
    log = np.log(dim)
    failing = 3 * squared * dim ** (-log / 2) + squared * np.exp(-dim / 16) + dim ** (1 - log)
    return float(1 - failing)


def test_error(n: int, d: int) -> float:
    """Theorem A.1, under Assumption 2.2: the test error of any KKT point is at most
    4 n d^(-ln(d)/2), where P1 to P6 hold. One at least where it says nothing."""
    require_at_least_one(n=n, d=d)
    return float(4 * n * float(d) ** (-np.log(float(d)) / 2))
