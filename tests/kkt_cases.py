"""Networks whose KKT conditions are solved by hand, and stationarity in plain numpy."""

from typing import NamedTuple

import jax
import numpy as np

from jaxkkt.networks import Params


class Derived(NamedTuple):
    """A KKT network at min margin 1, its data, multipliers, slopes, and its one-sided residual."""

    params: Params
    x: np.ndarray
    y: np.ndarray
    multipliers: np.ndarray
    slopes: np.ndarray
    one_sided: float


def two_samples(x_plus, x_minus, biases=True):
    """One sample and one neuron of each sign.

    z = (x, 1), or (x, 0) without biases, c = max(0, cos of the angle between z_1 and z_2),
    s = sqrt(1 - c^2). Neuron 1 has v^2 = a and u = v g for the unit vector
    g = (z_1/|z_1| - c z_2/|z_2|) / s: g . z_1 = s |z_1|, and g . z_2 is 0, a kink, where c > 0;
    at most 0 where c = 0. So q_1 = a s |z_1| = 1 gives a.
    v = lambda_1 u . z_1 asks for lambda_1 = 1/(s |z_1|) = a, u = v (lambda_1 z_1 - tau z_2) for
    tau = lambda_1 c |z_1|/|z_2| = c/(s |z_2|) = c lambda_2: the slope at the kink is c. Neuron 2
    has the same slope at z_1.

    With slope 0 at the kinks the neurons part. For lambda = l/|z_1|, neuron 1 leaves the share
    (|g - l z_1/|z_1||^2 + (1 - l s)^2) / 2 = 1 - 2 l s + l^2 (1 + s^2)/2 of its norm, at least
    1 - 2 s^2/(1 + s^2) = c^2/(1 + s^2).
    """
    x, y = np.stack([x_plus, x_minus]), np.array([1.0, -1.0])
    z = np.concatenate([x, np.full((2, 1), float(biases))], axis=1)
    length = np.linalg.norm(z, axis=1)
    unit = z / length[:, None]
    c = max(0.0, unit[0] @ unit[1])
    s = np.sqrt(1 - c**2)
    multipliers = 1 / (s * length)
    directions = (unit - c * unit[::-1]) / s
    params = network(directions, multipliers, y)
    slopes = np.array([[1, c], [c, 1]])
    return Derived(params, x, y, multipliers, slopes, c / np.sqrt(1 + s**2))


def orthogonal(p, n, c):
    """x_i = c e_i, p samples of label 1 and n of label -1; one neuron of each sign.

    z_i . z_l = c^2 [i = l] + 1. The positive neuron has the direction
    g = lambda sum_plus z_i - tau sum_minus z_i with g . z_i = 0 on the minus samples:
    lambda p = tau (c^2 + n). Then g . z_i = lambda h on the plus ones, h = c^2 + p - p n/(c^2 + n),
    |g|^2 = lambda p lambda h = 1 gives lambda = 1/sqrt(p h), and v^2 lambda h = 1 gives v.
    With h' and lambda' for the negative neuron, p <-> n, h (c^2 + n) = h' (c^2 + p), the slope of
    the positive neuron on a minus sample is tau/lambda' = r = sqrt(p n / ((c^2 + n)(c^2 + p))) < 1,
    the same for both.

    With slope 0 at the kinks: as for two samples, with sum_plus z_i for z_1, whose angle with g has
    the sine r: |sum_plus z_i|^2 = p (c^2 + p), (g . sum_plus z_i)^2 = p h = p (c^2 + p)(1 - r^2).
    """
    y = np.concatenate([np.ones(p), -np.ones(n)])
    x = c * np.eye(p + n)
    z = np.concatenate([x, np.ones((p + n, 1))], axis=1)
    r = np.sqrt(p * n / ((c**2 + n) * (c**2 + p)))
    slopes = np.where(y[:, None] == np.array([1.0, -1.0]), 1, r)
    directions, weights, multipliers = [], [], np.zeros(p + n)
    for own, size, others in ((y > 0, p, n), (y < 0, n, p)):
        h = c**2 + size - p * n / (c**2 + others)
        level = 1 / np.sqrt(size * h)
        multipliers[own] = level
        directions.append(level * (own - size / (c**2 + others) * ~own) @ z)
        weights.append(1 / (level * h))
    params = network(np.stack(directions), np.array(weights), np.array([1.0, -1.0]))
    return Derived(params, x, y, multipliers, slopes, r / np.sqrt(2 - r**2))


def network(directions, weights, signs):
    """u_j = sqrt(a_j) g_j, v_j = s_j sqrt(a_j)."""
    u = np.sqrt(weights)[:, None] * directions
    return jax.device_put(Params(u[:, :-1], u[:, -1], signs * np.sqrt(weights)))


def arrays(tree):
    return type(tree)(*(np.asarray(leaf, np.float64) for leaf in tree))


def vector(params):
    """theta as one vector."""
    return np.concatenate([np.ravel(leaf) for leaf in arrays(params)])


def margins(params, x, y):
    w, b, v = arrays(params)
    return y * (np.maximum(x @ w.T + b, 0) @ v)


def at_margin_one(params, x, y):
    scale = 1 / np.sqrt(margins(params, x, y).min())
    return Params(*(scale * leaf for leaf in arrays(params)))


def gradients(params, x, y, slopes):
    """y_i g_i as rows, (m, k (d + 2)), for the slopes sigma'_ij."""
    w, b, v = arrays(params)
    pull = y[:, None] * v * slopes
    hidden = y[:, None] * np.maximum(x @ w.T + b, 0)
    over_w = (pull[:, :, None] * x[:, None]).reshape(y.size, -1)
    return np.concatenate([over_w, pull, hidden], axis=1)


def kinked(params, x, tolerance):
    w, b, v = arrays(params)
    rows, points = np.sqrt((w**2).sum(1) + b**2), np.sqrt((x**2).sum(1) + 1)
    return (np.abs(x @ w.T + b) <= tolerance * points[:, None] * rows) & (v != 0)


def disturbed(params, size, seed=0):
    """theta + size |theta| e for a random unit vector e."""
    rng = np.random.default_rng(seed)
    noise = [rng.normal(size=leaf.shape) for leaf in params]
    theta = vector(params)
    scale = size * np.linalg.norm(theta) / np.linalg.norm(np.concatenate([*map(np.ravel, noise)]))
    return Params(*(a + scale * e for a, e in zip(arrays(params), noise, strict=True)))
