"""Lemmas B.7 to B.9: how long gradients over the input are, and how much they change nearby."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxkkt.networks import PRECISION, Params
from jaxkkt.perturbations import input_gradient
from jaxkkt.theory.checks import Check, at_least, at_most, below
from jaxkkt.theory.wang.premises import (
    Point,
    Real,
    coordinates,
    inside_ball,
    of_unit_length,
    require,
    sizes,
)


def gradient_norm(params: Params, start: Params, x: Point, c0: Real, gamma: Real = 0.05) -> Check:
    """Lemma B.7: |grad f(x)| is at least

    sqrt(1/2 - sqrt(2 l/k) - l/k) sqrt(d - 5 sqrt(d log(8/gamma)))
    - C0 - sqrt((C0 + sqrt(l/2)) / sqrt(k)) sqrt(d + 4 sqrt(d log(8 k/gamma))),  l = log(4/gamma),

    0 where a square root has a negative argument.
    """
    require(c0=c0, gamma=gamma)
    k, d = sizes(start)
    log = jnp.log(4 / gamma)
    active = jnp.maximum(0.5 - jnp.sqrt(2 * log / k) - log / k, 0)
    length = jnp.maximum(d - 5 * jnp.sqrt(d * jnp.log(8 / gamma)), 0)
    changed = (c0 + jnp.sqrt(log / 2)) / jnp.sqrt(k)
    longest = d + 4 * jnp.sqrt(d * jnp.log(8 * k / gamma))
    bound = jnp.sqrt(active * length) - c0 - jnp.sqrt(changed * longest)
    norm = jnp.linalg.norm(input_gradient(params, x))
    return at_least(norm, bound, inside_ball(params, start, x, c0), vacuous=bound <= 0)


def quarter_of_the_dimension(params: Params, start: Params, x: Point, c0: Real) -> Check:
    """Lemma B.7, for k and d large enough: |grad f(x)| >= sqrt(d) / 4. It names no constants."""
    norm = jnp.linalg.norm(input_gradient(params, x))
    return at_least(norm, jnp.sqrt(sizes(start)[1]) / 4, inside_ball(params, start, x, c0))


def gradient_difference_along(
    params: Params,
    start: Params,
    x: Point,
    direction: Point,
    delta: Point,
    c0: Real,
    gamma: Real = 0.05,
) -> Check:
    """Lemma B.8: r . (grad f(x) - grad f(x + delta)) for a fixed unit r and |delta| = R is at most

    2 sqrt(l) ((4 R sqrt(log d))^(1/4) + sqrt(l/k)) + C0
    + 5 (C0 + sqrt(l)) (sqrt(log(4 k/gamma)) + 3)
    + 3 sqrt((C0 + sqrt(l/2)) / sqrt(k)) sqrt(d + 4 sqrt(d log(8 k/gamma))),  l = log(4/gamma).

    Asks for R <= C1/sqrt(d), with a C1 that it does not name. Its proof asks for more, and so does
    this function: R <= 1/2, and d > log(k/gamma) log(1/gamma). The lemma prints the third term
    without the 3 that its proof arrives at. The last step of the proof drops C1, as if it were at
    most 1: that is not asked for.
    """
    require(c0=c0, gamma=gamma)
    k, d = sizes(start)
    log = jnp.log(4 / gamma)
    size = jnp.linalg.norm(delta)
    bound = (
        2 * jnp.sqrt(log) * ((4 * size * jnp.sqrt(jnp.log(d))) ** 0.25 + jnp.sqrt(log / k))
        + c0
        + 5 * (c0 + jnp.sqrt(log)) * (jnp.sqrt(jnp.log(4 * k / gamma)) + 3)
        + 3
        * jnp.sqrt((c0 + jnp.sqrt(log / 2)) / jnp.sqrt(k))
        * jnp.sqrt(d + 4 * jnp.sqrt(d * jnp.log(8 * k / gamma)))
    )
    here, there = input_gradient(params, x), input_gradient(params, x + delta)
    measured = jnp.dot(direction, here - there, precision=PRECISION)
    asked = {**inside_ball(params, start, x, c0), **of_unit_length(direction, "|r| = 1")}
    asked["|delta| <= 1/2"] = below(size, 0.5)
    least = jnp.log(k / gamma) * jnp.log(1 / gamma)
    asked["log(k/gamma) log(1/gamma) < d"] = below(least, d, strictly=True)
    return at_most(measured, bound, asked, vacuous=bound >= jnp.linalg.norm(here))


def gradient_difference(
    params: Params,
    start: Params,
    x: Point,
    c0: Real,
    c1: Real,
    key: PRNGKeyArray,
    gamma: Real = 0.05,
    samples: int = 64,
) -> Check:
    """Lemma B.9: |grad f(x) - grad f(x + delta)| for all |delta| <= R <= C1/sqrt(d) is at most

    9 (C1 d^2 log^2(k d) sqrt(log(d)/d))^(1/4) + 15 d log(k d)/sqrt(k) + 327 max(1, C0) C0 d^(1/4).

    Asks for k >= d^2.4 and d >= log(4/gamma)^2. Its proof asks for more, and so does this function:

    - d >= log(4 k/gamma)^2. With k >= d^2.4 that gives the proof's k >= 58 and
      log(k) + 2 log(8/gamma)/sqrt(k) <= sqrt(d).
    - 0.33 d log(k d) <= sqrt(k). The proof takes it from k >= d^2.4, which gives it for d up
      to 3 and for d of a million or more.
    - R <= 1/2, as Lemmas B.4, B.6 and B.8 do.

    The last steps of the proof put 50 d^(1/4) below 100 max(1, C0) C0 d^(1/4), which holds for
    C0 >= 1/2: that is not asked for. Measured: the largest of `samples` deltas, uniform on the
    sphere of radius C1/sqrt(d), and the two along the gradient; a lower bound of the largest of
    all. The theorem needs a difference below the gradient: the bound is called vacuous above it.
    """
    require(c0=c0, c1=c1, gamma=gamma)
    k, d = sizes(start)
    bound = gradient_difference_bound(k, d, c0, c1)
    radius = c1 / jnp.sqrt(d)
    norm, difference = _largest_difference(params, start, x, radius, key, samples)
    asked = {
        **inside_ball(params, start, x, c0),
        "d^2.4 <= k": below(d**2.4, k),
        "log(4 k/gamma)^2 <= d": below(jnp.log(4 * k / gamma) ** 2, d),
        "0.33 d log(k d) <= sqrt(k)": below(0.33 * d * jnp.log(k * d), jnp.sqrt(k)),
        "C1/sqrt(d) <= 1/2": below(radius, 0.5),
    }
    return at_most(difference, bound, asked, vacuous=bound >= norm)


def gradient_difference_share(
    params: Params,
    start: Params,
    x: Point,
    c0: Real,
    c1: Real,
    c: Real,
    key: PRNGKeyArray,
    samples: int = 64,
) -> Check:
    """Lemma B.9 for k and d large enough: |grad f(x) - grad f(x + delta)| <= c sqrt(d) for all
    |delta| <= C1/sqrt(d), for any c. It names no constants. Measured as in `gradient_difference`.
    """
    require(c0=c0, c1=c1, c=c)
    root = jnp.sqrt(sizes(start)[1])
    norm, difference = _largest_difference(params, start, x, c1 / root, key, samples)
    asked = {**inside_ball(params, start, x, c0), "C1/sqrt(d) <= 1/2": below(c1 / root, 0.5)}
    return at_most(difference, c * root, asked, vacuous=c * root >= norm)


def gradient_difference_bound(k: Real, d: Real, c0: Real, c1: Real) -> Array:
    """The bound of Lemma B.9, at a width and a dimension that no network need have."""
    require(k=k, d=d, c0=c0, c1=c1)
    log = jnp.log(k * d)
    return (
        9 * (c1 * d**2 * log**2 * jnp.sqrt(jnp.log(d) / d)) ** 0.25
        + 15 * d * log / jnp.sqrt(k)
        + 327 * jnp.maximum(1.0, c0) * c0 * d**0.25
    )


def _largest_difference(
    params: Params, start: Params, x: Point, radius: Array, key: PRNGKeyArray, samples: int
) -> tuple[Array, Array]:
    """|grad f(x)|, and the largest difference from it of those tried at this distance."""
    here = input_gradient(params, x)
    drawn = jax.random.normal(key, (samples, x.shape[0]), x.dtype)
    drawn = jnp.where(coordinates(start), drawn, 0)
    directions = jnp.concatenate([drawn, here[None], -here[None]])
    length = jnp.linalg.norm(directions, axis=1, keepdims=True)
    deltas = directions / jnp.where(length > 0, length, 1) * radius
    difference = jnp.linalg.norm(input_gradient(params, x[None] + deltas) - here[None], axis=1)
    return jnp.linalg.norm(here), jnp.max(difference)
