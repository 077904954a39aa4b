"""Lemma B.5: how large outputs are, and the network of the ball where one is largest."""

import jax.numpy as jnp

from jaxkkt.networks import Params, apply
from jaxkkt.numerics.arithmetic import unit
from jaxkkt.theory.checks import Check, at_most, below
from jaxkkt.theory.wang.premises import Point, Real, inside_ball, require, sizes


def output(params: Params, start: Params, x: Point, c0: Real, gamma: Real = 0.05) -> Check:
    """Lemma B.5: |f(x)| <= sqrt(2 log(2/gamma)) + 2 log(2/gamma) / sqrt(k) + C0."""
    require(c0=c0, gamma=gamma)
    log = jnp.log(2 / gamma)
    bound = jnp.sqrt(2 * log) + 2 * log / jnp.sqrt(sizes(start)[0]) + c0
    return at_most(jnp.abs(apply(params, x)), bound, inside_ball(params, start, x, c0))


def output_of_wide(params: Params, start: Params, x: Point, c0: Real, gamma: Real = 0.05) -> Check:
    """Lemma B.5 for k large enough: |f(x)| <= 2 sqrt(log(2/gamma)) + C0.

    Asks for k >= 4 log(2/gamma) / (2 - sqrt(2))^2, from where on this is above the bound of
    `output`; the paper names no constant.
    """
    require(c0=c0, gamma=gamma)
    log = jnp.log(2 / gamma)
    least = 4 * log / (2 - 2**0.5) ** 2
    asked = inside_ball(params, start, x, c0)
    asked["4 log(2/gamma) / (2 - sqrt(2))^2 <= k"] = below(least, sizes(start)[0])
    return at_most(jnp.abs(apply(params, x)), 2 * jnp.sqrt(log) + c0, asked)


def worst_output(start: Params, x: Point, c0: Real) -> Params:
    """The network of the ball with the largest |f(x)|: w_j = w_j,0 + s C0 v_j x/|x|, s = 1 or -1.

    It is exact: s v_j relu(w_j . x) does not fall as s v_j w_j . x grows, and over
    |w_j - w_j,0| <= C0 |v_j| that is largest there, for every neuron at once. s is that of the
    larger |f(x)| of the two. The lemmas hold for all networks of the ball at once, so for this one.
    """
    require(c0=c0)
    toward = start.v[:, None] * unit(x)[None] * c0
    both = [start._replace(w=start.w + s * toward) for s in (1, -1)]
    up, down = (jnp.abs(apply(one, x)) for one in both)
    return start._replace(w=jnp.where(up >= down, both[0].w, both[1].w))
