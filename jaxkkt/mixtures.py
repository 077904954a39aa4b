"""Clustered data: Gaussians around means of norm sqrt(d), each cluster with one label.

Frei, Vardi, Bartlett, Srebro (2023), Section 2. `theory.frei` has what the paper proves of them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxkkt import spans
from jaxkkt.datasets import LABEL_DRAWS, first_with_both
from jaxkkt.networks import PRECISION
from jaxkkt.numerics.keys import unrolled
from jaxkkt.numerics.requirements import (
    as_arrays,
    require_both_labels,
    require_counts,
    require_not_negative,
    require_one_number,
)

ARRANGEMENTS = ("sphere", "orthogonal")


class Truth(NamedTuple):
    """What a draw of clustered data was made of.

    means (k, d), labels (k,) and sigma of the clusters; cluster (n,) and test_cluster (t,), which
    of them each sample and each fresh point came from; d, more than the columns where the points
    are written in coordinates of their span.
    """

    means: Float[Array, "k d"]
    labels: Float[Array, " k"]
    sigma: Float[Array, ""]
    cluster: Int[Array, " n"]
    test_cluster: Int[Array, " t"]
    d: Float[Array, ""]


def means(
    key: PRNGKeyArray,
    clusters: int,
    dim: int,
    arrangement: str = "sphere",
    correlation: float | Float[Array, ""] = 0.0,
    ambient: float | Float[Array, ""] | None = None,
) -> Float[Array, "k d"]:
    """Means of norm sqrt(d): "sphere", uniform on it, or "orthogonal" to one another.

    With a correlation rho in [0, 1) all share a direction e: mu_q is along
    sqrt(rho) e + sqrt(1 - rho) g_q for the unit vectors g_q of the arrangement, so that
    <mu_q, mu_q'> = rho d where it is orthogonal. With `ambient` they are of that dimension, in the
    first of `dim` coordinates of `spans`. Raises ValueError where d has no room for that
    many orthogonal directions, e among them, for another correlation, and for counts that are no
    integers from 1 on. Frei et al. (2023), Example 1.
    """
    if arrangement not in ARRANGEMENTS:
        raise ValueError(f"unknown arrangement {arrangement!r}: choose from {ARRANGEMENTS}")
    if not isinstance(correlation, jax.core.Tracer) and not 0 <= correlation < 1:
        raise ValueError(f"correlation must be in [0, 1), got {correlation}")
    require_counts(clusters=clusters, dim=dim)
    drawn = _normal(key, clusters + 1, dim, ambient)
    if arrangement == "orthogonal":
        if clusters + 1 > dim:
            raise ValueError(
                f"{clusters} orthogonal means and the direction that they may share need d >= "
                f"{clusters + 1}, got d = {dim}"
            )
        drawn, mixing = jnp.linalg.qr(drawn.T)
        # Signs of its own would prefer some directions.
        drawn = jnp.where(jnp.diagonal(mixing) < 0, -drawn, drawn).T
    unit = drawn / jnp.linalg.norm(drawn, axis=1, keepdims=True)
    rho = jnp.asarray(correlation, unit.dtype)
    mixed = jnp.sqrt(rho) * unit[:1] + jnp.sqrt(1 - rho) * unit[1:]
    length = jnp.sqrt(jnp.asarray(dim if ambient is None else ambient, mixed.dtype))
    return mixed * length / jnp.linalg.norm(mixed, axis=1, keepdims=True)


def labels(clusters: int, balance: float = 0.5) -> Float[Array, " k"]:
    """Labels of the clusters: round(balance k) of them 1, halves to even, at least one of each.

    Raises ValueError for fewer than 2 clusters and a balance outside [0, 1].
    """
    if clusters < 2:
        raise ValueError(f"need at least 2 clusters, one of each label, got {clusters}")
    if not 0 <= balance <= 1:
        raise ValueError(f"balance is a share of the clusters, got {balance}")
    positive = min(max(round(balance * clusters), 1), clusters - 1)
    return jnp.where(jnp.arange(clusters) < positive, 1.0, -1.0)


def sample(
    key: PRNGKeyArray,
    means: Float[Array | np.ndarray, "k d"] | Sequence,
    labels: Float[Array | np.ndarray, " k"] | Sequence,
    sigma: float | Float[Array, ""],
    samples: int,
    ambient: float | Float[Array, ""] | None = None,
    first: int = 0,
) -> tuple[Float[Array, "n d"], Float[Array, " n"], Int[Array, " n"]]:
    """Points x = mu_q + sigma xi with xi standard normal and q uniform, labels y_q, and the q.

    Of 32 draws of all q the first in which both labels occur is taken, since the theory asks for
    both. Where one label is missing in each, as with one sample, the first draw is taken, and all
    y are the same: a sweep ends such a run as RAISED, and `jk.train` raises. With `ambient` the xi
    are vectors of that dimension, those from `first` on in the coordinates of `spans`.
    Raises ValueError for samples that are no integer from 1 on, a sigma that is negative or no
    number, and unless there is a label for every mean, -1 or 1, and both occur (of traced labels
    only the shape is checked), and unless both hold floating-point numbers of one precision that
    JAX keeps; lists of numbers may be whole.
    """
    require_counts(samples=samples)
    given = labels
    means, labels = as_means(means, labels)
    require_one_number("sigma", sigma)
    require_not_negative(sigma=sigma)
    require_both_labels(given, "mean")  # as given: constants turn into tracers under a trace
    cluster_key, noise_key = jax.random.split(unrolled(key))
    drawn = jax.random.randint(cluster_key, (LABEL_DRAWS, samples), 0, labels.shape[0])
    cluster = drawn[first_with_both(labels[drawn])]
    noise = _normal(noise_key, samples, means.shape[1], ambient, first).astype(means.dtype)
    return means[cluster] + jnp.asarray(sigma, means.dtype) * noise, labels[cluster], cluster


def direction(
    means: Float[Array | np.ndarray, "k d"] | Sequence,
    labels: Float[Array | np.ndarray, " k"] | Sequence,
) -> Float[Array, " d"]:
    """u = sum_q y_q mu_q, along which Theorem 4.2 flips every network.

    Raises ValueError unless there is a label for every mean and both hold floating-point numbers of
    one precision that JAX keeps; lists of numbers may be whole. Frei et al. (2023), Lemma 2.1.
    """
    means, labels = as_means(means, labels)
    return jnp.dot(labels, means, precision=PRECISION)


def as_means(means: Any, labels: Any) -> list[Array]:
    """Means (k, d) and labels (k,) by `as_arrays`; ValueError where their shapes do not fit."""
    means, labels = as_arrays(means=means, labels=labels)
    if means.ndim != 2 or labels.shape != means.shape[:1]:
        raise ValueError(
            f"means must be (k, d) and labels (k,), got {means.shape} and {labels.shape}"
        )
    return [means, labels]


def _normal(key: PRNGKeyArray, count: int, dim: int, ambient: Any, first: int = 0) -> Array:
    if ambient is None:
        return jax.random.normal(unrolled(key), (count, dim))
    return spans.gaussian_rows(key, count, dim, ambient, first)
