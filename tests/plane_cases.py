"""Networks, points and samples of the plane, and the least size at which anything flips there."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxkkt.networks import Params

ANGLES = np.linspace(0, 2 * np.pi, 721)
CIRCLE = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)
SIZES = np.linspace(0, 6, 601)


def outputs(params, points):
    w, b, v = map(np.asarray, params)
    return np.maximum(points @ w.T + b, 0) @ v


def plane(seed, width=7):
    """A network, points and samples of the plane; the points have the network's own labels."""
    rng = np.random.default_rng(seed)
    params = Params(rng.normal(size=(width, 2)), rng.normal(size=width), rng.normal(size=width))
    points, x = rng.normal(size=(6, 2)), rng.normal(size=(9, 2))
    y = np.where(np.arange(9) % 3 == 0, 1.0, -1.0)
    labels = np.where(outputs(params, points) > 0, 1.0, -1.0)
    return jax.tree.map(jnp.asarray, params), points, labels, x, y


def smallest(margin, point):
    """The least size, on a grid, at which any direction of the plane makes the margin negative."""
    moved = point + SIZES[:, None, None] * CIRCLE[None]
    flipped = (margin(moved) < 0).any(axis=1)
    return SIZES[np.argmax(flipped)] if flipped.any() else np.inf
