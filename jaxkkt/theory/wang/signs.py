"""Lemmas B.4 and B.6: how many neurons change their sign."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from jaxkkt.networks import Params, preactivations
from jaxkkt.numerics.arithmetic import lengths
from jaxkkt.numerics.requirements import require_not_negative, require_positive
from jaxkkt.theory.checks import Check, at_most, below
from jaxkkt.theory.wang.premises import (
    Point,
    Real,
    neurons,
    of_unit_length,
    require,
    sizes,
    without_biases,
)


def sign_changes(start: Params, x: Point, weight_radius: Real, gamma: Real = 0.05) -> Check:
    """Lemma B.4: at most V k + sqrt(k log(1/gamma) / 2) neurons can change their sign at x.

    Measured: neurons with |w_j,0 . x| <= V |x|, those for which a w_j within V = `weight_radius` of
    w_j,0 with another sign exists.
    """
    require(weight_radius=weight_radius, gamma=gamma)
    k, _ = sizes(start)
    bound = weight_radius * k + jnp.sqrt(k * jnp.log(1 / gamma) / 2)
    near = jnp.abs(preactivations(start, x)) <= weight_radius * jnp.linalg.norm(x)
    near = near & neurons(start)
    assumed = {**of_unit_length(x), **without_biases(start)}
    return at_most(jnp.sum(near, dtype=x.dtype), bound, assumed, vacuous=bound >= k)


def sign_changes_around(
    start: Params, x: Point, weight_radius: Real, perturbation: Real, gamma: Real = 0.05
) -> Check:
    """Lemma B.4, second half, as it is printed: at most (V k + sqrt(k log(1/gamma) / 2)) (1 + R)
    neurons can change their sign at any x + delta with |delta| <= R = `perturbation` <= 1/2.

    Measured: neurons for which there are such a delta, and a w_j within V = `weight_radius` of
    w_j,0 that has another sign at x + delta; exact, but for rounding. It is often above the bound:
    a delta of 1/sqrt(d) reaches the kink of most neurons. The proof takes delta for one that was
    fixed before the weights are drawn; for such a one the lemma is `sign_changes` at x + delta.
    """
    require(weight_radius=weight_radius, gamma=gamma)
    require_positive(perturbation=perturbation)
    k, _ = sizes(start)
    bound = (weight_radius * k + jnp.sqrt(k * jnp.log(1 / gamma) / 2)) * (1 + perturbation)
    near = _near_a_kink(start, x, perturbation, weight_radius)
    asked = {**of_unit_length(x), "R <= 1/2": below(perturbation, 0.5), **without_biases(start)}
    return at_most(jnp.sum(near, dtype=x.dtype), bound, asked, vacuous=bound >= k)


def sign_change_share(start: Params, x: Point, delta: Point) -> Check:
    """Lemma B.6, eq. 3: a neuron changes its sign from x to x + delta, |delta| = R <= 1/2, with
    probability at most R sqrt(2 log d) + 1/d.

    Measured: the share of the neurons of this draw that do, so it may exceed the bound by some
    sqrt(bound / k).
    """
    k, d = sizes(start)
    size = jnp.linalg.norm(delta)
    bound = size * jnp.sqrt(2 * jnp.log(d)) + 1 / d
    changed = (preactivations(start, x) > 0) != (preactivations(start, x + delta) > 0)
    asked = {**of_unit_length(x), "|delta| <= 1/2": below(size, 0.5), **without_biases(start)}
    share = jnp.sum(changed, dtype=x.dtype) / k
    return at_most(share, bound, asked, vacuous=bound >= 1)


def sign_change_probability(
    weight_radius: Real, epsilon: Real, d: int | Real, perturbation: Real
) -> Array:
    """Lemma B.6, eq. 4: bounds the probability that some w within V = `weight_radius` of w_j,0
    changes its sign between x + delta and a point within `epsilon` of it,
    |delta| <= R = `perturbation` <= 1/2:

    2 epsilon (sqrt(d) + 2 sqrt(d log(2/epsilon))) + (1 + R + epsilon) V.

    Raises ValueError for a negative V or R, an epsilon outside (0, 1], and R above 1/2.
    """
    require_not_negative(weight_radius=weight_radius, perturbation=perturbation)
    require_positive(epsilon=epsilon)
    if not isinstance(epsilon, jax.core.Tracer) and not epsilon <= 1:
        raise ValueError(f"the lemma's net has an epsilon of at most 1, got {epsilon}")
    if not isinstance(perturbation, jax.core.Tracer) and not perturbation <= 0.5:
        raise ValueError(f"the lemma asks for a perturbation of at most 1/2, got {perturbation}")
    root = jnp.sqrt(d) + 2 * jnp.sqrt(d * jnp.log(2 / epsilon))
    return 2 * epsilon * root + (1 + perturbation + epsilon) * weight_radius


def sign_change_share_around(
    start: Params, x: Point, delta: Point, epsilon: Real, weight_radius: Real
) -> Check:
    """Lemma B.6, eq. 4: its probability is at most `sign_change_probability`.

    Measured: the share of the neurons of this draw that some w within V = `weight_radius` of
    w_j,0 has another sign at x + delta than at a point within `epsilon` of it; exact, but for
    rounding. It may exceed the bound by chance, as in `sign_change_share`. Asks for
    |delta| <= 1/2 and epsilon <= 1.
    """
    require(weight_radius=weight_radius, epsilon=epsilon)
    k, d = sizes(start)
    size = jnp.linalg.norm(delta)
    least, most = jnp.minimum(size, 0.5), jnp.minimum(epsilon, 1.0)
    bound = sign_change_probability(weight_radius, most, d, least)
    near = _near_a_kink(start, x + delta, epsilon, weight_radius)
    asked = {
        **of_unit_length(x),
        "|delta| <= 1/2": below(size, 0.5),
        "epsilon <= 1": below(epsilon, 1.0),
        **without_biases(start),
    }
    return at_most(jnp.sum(near, dtype=x.dtype) / k, bound, asked, vacuous=bound >= 1)


def _near_a_kink(
    start: Params, point: Point, reach: Real, weight_radius: Real
) -> Bool[Array, " k"]:
    """Which neurons have a w within V = `weight_radius` of w_j,0 and a point within `reach` of
    `point` with w . point = 0.

    The hyperplanes of points within `reach` make an angle of up to phi with that of `point`,
    sin(phi) = reach/|point|. With p = |w_j,0 . point|/|point|, and q the length of what is left of
    w_j,0, the nearest such w is at max(0, p cos(phi) - q sin(phi)).
    """
    length = jnp.linalg.norm(point)
    along = jnp.abs(preactivations(start, point)) / length
    across = jnp.sqrt(jnp.maximum(lengths(start.w) ** 2 - along**2, 0))
    sine = jnp.minimum(reach / length, 1)
    nearest = along * jnp.sqrt(1 - sine**2) - across * sine
    return (nearest <= weight_radius) & neurons(start)
