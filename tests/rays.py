"""Networks on a line and in the plane of a ray, and float64 references for their flips."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from cases import normal

from jaxkkt import networks, perturbations
from jaxkkt.networks import Params
from jaxkkt.perturbations import flip_sizes_exact

EPS = float(np.finfo(np.float32).eps)


def line(*neurons, constant=0.0):
    """A network on the real line from at most five (w, b, v), plus a constant."""
    unused = [(0.0, 0.0, 0.0)] * (5 - len(neurons))  # one shape to compile for all
    w, b, v = np.array([*neurons, (0.0, 1.0, constant), *unused], np.float32).T
    return jax.device_put(Params(w[:, None], b, v))


def on_line(params, points, labels=None, bracket=20.0, direction=1.0, search=flip_sizes_exact):
    x = np.array(points, np.float32)[:, None]
    y = np.ones(len(x), np.float32) if labels is None else np.array(labels, np.float32)
    return search(params, x, y, np.array([direction], np.float32), y != 0, bracket)


def classified(seed=0, d=7, m=9, k=40):
    """A random network, points labelled by its own outputs, a direction, and an odd choice."""
    return _classified(seed, normal(seed, m, d), k)


@partial(jax.jit, static_argnames="k")
def _classified(seed, x, k):
    keys, (m, d) = jax.random.split(jax.random.key(seed), 3), x.shape
    params = networks.gaussian(keys[0], k, d, 3.0)
    x = x * jnp.linspace(0.5, 2, m)[:, None]
    y = jnp.where(networks.apply(params, x) > 0, jnp.ones(m), -1)
    chosen = jax.random.bernoulli(keys[2], 0.7, (m,)).at[0].set(True)
    return params, x, y, perturbations.universal_direction(x, y, chosen), chosen


def outputs64(params, x, y, direction, c):
    """y_i N(x_i - y_i c u) in float64, (sizes, m); 0 where only rounding is left."""
    w, b, v, x, y, u = (np.asarray(a, np.float64) for a in (*params, x, y, direction))
    moved = x - y[:, None] * c[:, None, None] * u
    outputs = y * (np.maximum(moved @ w.T + b, 0) @ v)
    return np.where(np.abs(outputs) < 1e-13 * np.abs(v).sum(), 0.0, outputs)


def zeros64(params, x, y, direction, bracket):
    """Where outputs change sign, 0 and the bracket: between a sample's breakpoints it is linear."""
    w, b, u = (np.asarray(a, np.float64) for a in (params.w, params.b, direction))
    found = [0.0, bracket]
    for xi, yi in zip(np.asarray(x), np.asarray(y), strict=True):
        with np.errstate(divide="ignore", invalid="ignore"):
            at = (w @ xi + b) / (yi * (w @ u))
        at = np.unique([0.0, *at[(at > 0) & (at < bracket)], bracket])
        f = outputs64(params, xi[None], yi[None], direction, at)[:, 0]
        n = np.flatnonzero((f[:-1] < 0) != (f[1:] < 0))
        found.extend(at[n] + (at[n + 1] - at[n]) * f[n] / (f[n] - f[n + 1]))
    return np.unique(found)


def reference(params, x, y, direction, chosen, bracket):
    """First flips, first un-flips and the flip of all at once: the signs between all zeros."""
    at = zeros64(params, x, y, direction, bracket)
    flipped = outputs64(params, x, y, direction, (at[:-1] + at[1:]) / 2) < 0

    def first(where):
        return np.where(where.any(0), at[where.argmax(0)], np.inf)

    seen = np.cumsum(flipped, axis=0) > 0
    everybody = flipped[:, np.asarray(chosen)].all(axis=1)
    return first(flipped), first(seen & ~flipped), first(everybody[:, None])[0]


def rounding(params, x, y, direction, c, slack=8):
    """What float32 may do to a zero at c: the rounding of the terms over the slope there."""
    w, b, v, x, u = (np.asarray(a, np.float64) for a in (*params, x, direction))
    pre, along = np.abs(x) @ np.abs(w.T) + np.abs(b), np.abs(w @ u)
    terms = pre @ np.abs(v) + c * (along @ np.abs(v))
    h = 1e-6 * c
    ends = [np.diagonal(outputs64(params, x, y, direction, c + s * h)) for s in (-1, 1)]
    return slack * EPS * terms / np.abs((ends[1] - ends[0]) / (2 * h))
