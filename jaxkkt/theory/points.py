"""A network with the multipliers by which it is a KKT point of the max-margin problem."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxkkt import networks
from jaxkkt.kkt import Certificate, kinks
from jaxkkt.networks import PRECISION, Params, preactivations, relu
from jaxkkt.numerics.arithmetic import ratio
from jaxkkt.numerics.requirements import unshared
from jaxkkt.theory.checks import Assumption, below

# How far from 0 a residual, a slackness and a preactivation's share of |(w_j, b_j)| |(x_i, 1)|,
# from 1 a margin, and from relu's derivative a slope may be of what was polished.
NEAR = 1e-5


class KKTPoint(NamedTuple):
    """A network at min margin 1, with multipliers lambda_i (m,) and slopes sigma'_ij (m, k).

    At a KKT point w_j = sum_i lambda_i y_i v_j sigma'_ij x_i, b_j = sum_i lambda_i y_i v_j
    sigma'_ij, v_j = sum_i lambda_i y_i relu(w_j . x_i + b_j), lambda_i >= 0, and lambda_i = 0 where
    q_i > 1. sigma'_ij is relu's derivative at w_j . x_i + b_j, any number in [0, 1] where that is
    0. Samples with y = 0 are padding. Vardi, Yehudai, Shamir (2022), equations 9 and 10.
    """

    params: Params
    x: Float[Array, "m d"]
    y: Float[Array, " m"]
    multipliers: Float[Array, " m"]
    slopes: Float[Array, "m k"]

    @property
    def margins(self) -> Float[Array, " m"]:
        """q_i = y_i N(x_i)."""
        return networks.margins(self.params, self.x, self.y)

    @property
    def pulls(self) -> Float[Array, "m k"]:
        """lambda_i sigma'_ij, of which the lemmas are sums."""
        return self.multipliers[:, None] * self.slopes

    @property
    def positive(self) -> Bool[Array, " k"]:
        """Which neurons are in J+: v_j >= 0."""
        return self.params.v >= 0

    @property
    def live(self) -> Bool[Array, " k"]:
        """Neurons with an output; at a KKT point the others are zero, and true to every lemma."""
        return self.params.v != 0

    @property
    def weight(self) -> Float[Array, " k"]:
        """sum_i |v_j| lambda_i sigma'_ij, which bounds what a neuron does."""
        return jnp.abs(self.params.v) * jnp.sum(self.pulls, axis=0)

    def along(self, u: Float[Array, " d"]) -> Float[Array, " k"]:
        """sign(v_j) w_j . u."""
        found = jnp.dot(self.params.w, u, precision=PRECISION)
        return jnp.where(self.positive, found, -found)

    def conditions(self) -> dict[str, Assumption]:
        """The KKT conditions, up to `NEAR`: what every claim about such a point asks for."""
        theta = self.params
        pull = self.y[:, None] * self.pulls
        pre = preactivations(theta, self.x)
        active = relu(pre)
        left = Params(
            theta.w - theta.v[:, None] * jnp.dot(pull.T, self.x, precision=PRECISION),
            theta.b - theta.v * jnp.sum(pull, axis=0),
            theta.v - jnp.dot(self.multipliers * self.y, active, precision=PRECISION),
        )
        residual = jnp.sqrt(networks.squared_norm(left) / networks.squared_norm(theta))
        real = self.y != 0
        free = kinks(theta, self.x, self.y, NEAR, Params._fields)
        derivative = jnp.where(free, jnp.clip(self.slopes, 0, 1), jnp.where(pre > 0, 1.0, 0.0))
        off = jnp.where(real[:, None] & self.live[None], jnp.abs(self.slopes - derivative), 0)
        q = jnp.where(real, self.margins, 1)
        slackness = ratio(jnp.sum(self.multipliers * (q - 1)), jnp.sum(self.multipliers))
        return {
            "residual = 0": below(residual, NEAR),
            "q_i >= 1": below(1 - NEAR, jnp.min(q)),
            "lambda_i >= 0": below(0.0, jnp.min(self.multipliers)),
            "sigma'_ij is relu's": below(jnp.max(off), NEAR),
            "slackness = 0": below(slackness, NEAR),
        }


def kkt_point(
    params: Params,
    x: Float[Array | np.ndarray, "m d"],
    y: Float[Array | np.ndarray, " m"],
    certificate: Certificate,
) -> KKTPoint:
    """The network, of any scale, at min margin 1, with the multipliers of its certificate.

    Whether it is a KKT point is for `KKTPoint.conditions` to tell. Raises ValueError for data and
    parameters that do not fit.
    """
    params, x, y = networks.checked_samples(params, unshared(x), unshared(y))
    q = networks.margins(params, x, y)
    smallest = jnp.min(jnp.where(y != 0, q, jnp.inf))
    scale = jnp.sqrt(jnp.where(smallest > 0, smallest, jnp.nan))
    found = certificate.clarke
    return KKTPoint(
        Params(*(leaf / scale for leaf in params)),
        x,
        y,
        found.multipliers.astype(x.dtype),
        found.slopes.astype(x.dtype),
    )
