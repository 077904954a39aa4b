"""Wang, Ullah, Mianjy, Arora (2022): one gradient step flips every network in the lazy ball.

Each lemma holds for a given x, |x| = 1, with probability 1 - gamma over the initial weights, for
all networks with |w_j - w_j,0| <= C0 / sqrt(k) at once. Letters: k width (the paper's m), d input
dimension, C0 and gamma as in the paper. The functions take one point and compare the lemma's bound
with the network at hand; `jax.vmap` takes many.

Padding is no part of a network: k counts the neurons of the start that are not 0, d the coordinates
in which any of them has a weight. So `networks.pad` and `networks.lazy(..., shape=)` change no
bound.
"""

from functools import partial
from math import exp, inf, log
from sys import float_info
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxkkt.lazy import distances
from jaxkkt.networks import PRECISION, Params, apply, preactivations
from jaxkkt.numerics.arithmetic import lengths, ratio, unit
from jaxkkt.numerics.keys import key_of
from jaxkkt.numerics.requirements import (
    require_not_negative,
    require_positive,
    require_probability,
)
from jaxkkt.numerics.truths import any_of
from jaxkkt.perturbations import GradientSteps, StepStatus, gradient_steps, input_gradient
from jaxkkt.theory.checks import Assumption, Check, above, at_least, at_most, below, of_some

Point = Float[Array, " d"]
Real = float | Float[Array, ""]
# How far |x| may be from 1 where |x| = 1 is assumed.
ROUNDING = 1e-5


def sign_changes(start: Params, x: Point, weight_radius: Real, gamma: Real = 0.05) -> Check:
    """Lemma B.4: at most V k + sqrt(k log(1/gamma) / 2) neurons can change their sign at x.

    Measured: neurons with |w_j,0 . x| <= V |x|, those for which a w_j within V = `weight_radius` of
    w_j,0 with another sign exists.
    """
    _require(weight_radius=weight_radius, gamma=gamma)
    k, _ = sizes(start)
    bound = weight_radius * k + jnp.sqrt(k * jnp.log(1 / gamma) / 2)
    near = jnp.abs(preactivations(start, x)) <= weight_radius * jnp.linalg.norm(x)
    near = near & _neurons(start)
    assumed = {**_unit(x), **_without_biases(start)}
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
    _require(weight_radius=weight_radius, gamma=gamma)
    require_positive(perturbation=perturbation)
    k, _ = sizes(start)
    bound = (weight_radius * k + jnp.sqrt(k * jnp.log(1 / gamma) / 2)) * (1 + perturbation)
    near = _near_a_kink(start, x, perturbation, weight_radius)
    asked = {**_unit(x), "R <= 1/2": below(perturbation, 0.5), **_without_biases(start)}
    return at_most(jnp.sum(near, dtype=x.dtype), bound, asked, vacuous=bound >= k)


def output(params: Params, start: Params, x: Point, c0: Real, gamma: Real = 0.05) -> Check:
    """Lemma B.5: |f(x)| <= sqrt(2 log(2/gamma)) + 2 log(2/gamma) / sqrt(k) + C0."""
    _require(c0=c0, gamma=gamma)
    log = jnp.log(2 / gamma)
    bound = jnp.sqrt(2 * log) + 2 * log / jnp.sqrt(sizes(start)[0]) + c0
    return at_most(jnp.abs(apply(params, x)), bound, _inside(params, start, x, c0))


def output_of_wide(params: Params, start: Params, x: Point, c0: Real, gamma: Real = 0.05) -> Check:
    """Lemma B.5 for k large enough: |f(x)| <= 2 sqrt(log(2/gamma)) + C0.

    Asks for k >= 4 log(2/gamma) / (2 - sqrt(2))^2, from where on this is above the bound of
    `output`; the paper names no constant.
    """
    _require(c0=c0, gamma=gamma)
    log = jnp.log(2 / gamma)
    least = 4 * log / (2 - 2**0.5) ** 2
    asked = _inside(params, start, x, c0)
    asked["4 log(2/gamma) / (2 - sqrt(2))^2 <= k"] = below(least, sizes(start)[0])
    return at_most(jnp.abs(apply(params, x)), 2 * jnp.sqrt(log) + c0, asked)


def worst_output(start: Params, x: Point, c0: Real) -> Params:
    """The network of the ball with the largest |f(x)|: w_j = w_j,0 + s C0 v_j x/|x|, s = 1 or -1.

    It is exact: s v_j relu(w_j . x) does not fall as s v_j w_j . x grows, and over
    |w_j - w_j,0| <= C0 |v_j| that is largest there, for every neuron at once. s is that of the
    larger |f(x)| of the two. The lemmas hold for all networks of the ball at once, so for this one.
    """
    _require(c0=c0)
    toward = start.v[:, None] * unit(x)[None] * c0
    both = [start._replace(w=start.w + s * toward) for s in (1, -1)]
    up, down = (jnp.abs(apply(one, x)) for one in both)
    return start._replace(w=jnp.where(up >= down, both[0].w, both[1].w))


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
    asked = {**_unit(x), "|delta| <= 1/2": below(size, 0.5), **_without_biases(start)}
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
    _require(weight_radius=weight_radius, epsilon=epsilon)
    k, d = sizes(start)
    size = jnp.linalg.norm(delta)
    least, most = jnp.minimum(size, 0.5), jnp.minimum(epsilon, 1.0)
    bound = sign_change_probability(weight_radius, most, d, least)
    near = _near_a_kink(start, x + delta, epsilon, weight_radius)
    asked = {
        **_unit(x),
        "|delta| <= 1/2": below(size, 0.5),
        "epsilon <= 1": below(epsilon, 1.0),
        **_without_biases(start),
    }
    return at_most(jnp.sum(near, dtype=x.dtype) / k, bound, asked, vacuous=bound >= 1)


def gradient_norm(params: Params, start: Params, x: Point, c0: Real, gamma: Real = 0.05) -> Check:
    """Lemma B.7: |grad f(x)| is at least

    sqrt(1/2 - sqrt(2 l/k) - l/k) sqrt(d - 5 sqrt(d log(8/gamma)))
    - C0 - sqrt((C0 + sqrt(l/2)) / sqrt(k)) sqrt(d + 4 sqrt(d log(8 k/gamma))),  l = log(4/gamma),

    0 where a square root has a negative argument.
    """
    _require(c0=c0, gamma=gamma)
    k, d = sizes(start)
    log = jnp.log(4 / gamma)
    active = jnp.maximum(0.5 - jnp.sqrt(2 * log / k) - log / k, 0)
    length = jnp.maximum(d - 5 * jnp.sqrt(d * jnp.log(8 / gamma)), 0)
    changed = (c0 + jnp.sqrt(log / 2)) / jnp.sqrt(k)
    longest = d + 4 * jnp.sqrt(d * jnp.log(8 * k / gamma))
    bound = jnp.sqrt(active * length) - c0 - jnp.sqrt(changed * longest)
    norm = jnp.linalg.norm(input_gradient(params, x))
    return at_least(norm, bound, _inside(params, start, x, c0), vacuous=bound <= 0)


def quarter_of_the_dimension(params: Params, start: Params, x: Point, c0: Real) -> Check:
    """Lemma B.7, for k and d large enough: |grad f(x)| >= sqrt(d) / 4. It names no constants."""
    norm = jnp.linalg.norm(input_gradient(params, x))
    return at_least(norm, jnp.sqrt(sizes(start)[1]) / 4, _inside(params, start, x, c0))


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
    _require(c0=c0, gamma=gamma)
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
    asked = {**_inside(params, start, x, c0), **_unit(direction, "|r| = 1")}
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
    _require(c0=c0, c1=c1, gamma=gamma)
    k, d = sizes(start)
    bound = gradient_difference_bound(k, d, c0, c1)
    radius = c1 / jnp.sqrt(d)
    norm, difference = _largest_difference(params, start, x, radius, key, samples)
    asked = {
        **_inside(params, start, x, c0),
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
    _require(c0=c0, c1=c1, c=c)
    root = jnp.sqrt(sizes(start)[1])
    norm, difference = _largest_difference(params, start, x, c1 / root, key, samples)
    asked = {**_inside(params, start, x, c0), "C1/sqrt(d) <= 1/2": below(c1 / root, 0.5)}
    return at_most(difference, c * root, asked, vacuous=c * root >= norm)


def gradient_difference_bound(k: Real, d: Real, c0: Real, c1: Real) -> Array:
    """The bound of Lemma B.9, at a width and a dimension that no network need have."""
    _require(k=k, d=d, c0=c0, c1=c1)
    log = jnp.log(k * d)
    return (
        9 * (c1 * d**2 * log**2 * jnp.sqrt(jnp.log(d) / d)) ** 0.25
        + 15 * d * log / jnp.sqrt(k)
        + 327 * jnp.maximum(1.0, c0) * c0 * d**0.25
    )


def one_step(params: Params, start: Params, x: Point, c0: Real, c2: Real) -> Check:
    """Theorem 3.1 with one C2 = `c2` for all points: the step |eta| = C2 / |grad f(x)|^2 flips x.

    The claim is that -sign(f(x)) f(x + delta) is above 0, where delta is that step towards the
    other sign. Its constants have no values in the paper: a width inside `width_window` is not
    asked for. `step_constant` is the least C2 that flips; a larger one may step too far.
    """
    _require(c0=c0, c2=c2)
    here, gradient = apply(params, x), input_gradient(params, x)
    eta = ratio(jnp.asarray(c2, x.dtype), jnp.sum(gradient**2))
    there = apply(params, x - jnp.sign(here) * eta * gradient)
    return above(-jnp.sign(here) * there, 0.0, _inside(params, start, x, c0))


def step_constant(params: Params, x: Point, bracket: Real = 1.0) -> Array:
    """C2 of Theorem 3.1 for this network and point: |eta| |grad f|^2 of the smallest step eta that
    flips. The theorem promises one C2 for all widths in its window and all d; inf where no step up
    to |delta| = `bracket` |x| does, as where the gradient is 0.
    """
    found = gradient_steps(params, x[None], bracket)
    return _or_none(found, found.eta * found.gradient_norm**2)


def width_window(
    d: int, gamma: Real = 0.05, c3: float = 1.0, c4: float = 1.0
) -> tuple[float, float]:
    """Theorem 3.1: max(d^2.4, C3 log(1/gamma)) <= k <= C4 exp(d^0.24).

    The paper does not state C3 and C4. With C4 = 1 the window is empty below d of some 3 million.
    """
    _require(gamma=gamma, c3=c3, c4=c4)
    power = float(d) ** 0.24
    highest = exp(power) if power < log(float_info.max) else inf
    return max(float(d) ** 2.4, c3 * log(1 / gamma)), c4 * highest


def cone(params: Params, x: Point, scale: Real) -> Check:
    """Theorem 3.1's remark: networks r W of the cone over the ball flip with the same delta; steps
    up to |delta| = |x| are looked at.

    Bound and measurement: |delta| at W, and at r W. For positive r without biases f scales by r.
    Where no such step flips W it says nothing.
    """
    _require(scale=scale)
    scaled = params._replace(w=params.w * scale, b=params.b * scale)
    steps = [gradient_steps(p, x[None]) for p in (params, scaled)]
    here, there = (_or_none(found, found.size) for found in steps)
    (status,) = steps[0].status
    none = (status == StepStatus.NO_FLIP) | (status == StepStatus.NO_GRADIENT)
    return of_some(at_most(there, here * (1 + 1e-3), {}), ~none)


def _or_none(found: GradientSteps, size: Array) -> Array:
    """A size of the first point's step that flips; inf where its gradient is 0, and none does."""
    return jnp.where((found.gradient_norm == 0) & jnp.isfinite(found.output), jnp.inf, size)[0]


LEMMAS = (
    "B.4: neurons that can change their sign",
    "B.4, as printed: those that can within 1/sqrt(d)",
    "B.5: output",
    "B.6: share of signs changed by 1/sqrt(d)",
    "B.6, eq. 4: share of signs that can change",
    "B.7: gradient, at least",
    "B.7: gradient, at least sqrt(d)/4",
    "B.8: gradient difference at 1/sqrt(d) along a direction",
    "B.9: gradient difference within 1/sqrt(d)",
)


def ledger(
    params: Params, start: Params, x: Float[Array, "n d"], c0: Real, gamma: Real = 0.05
) -> dict[str, Check]:
    """Every lemma at every one of the points x: checks of n lanes.

    Perturbations and directions are drawn from the keys 0 and 1, the same at every call: points and
    networks have to come from other keys, for the lemmas ask for draws that know nothing of them.
    """
    k, d = sizes(start)
    keys = jax.random.split(key_of(0), len(x))
    delta = jnp.where(_coordinates(start), jax.random.normal(key_of(1), x.shape, x.dtype), 0)
    delta = delta / jnp.linalg.norm(delta, axis=1, keepdims=True) / jnp.sqrt(d)
    along = jnp.roll(delta, 1, axis=0) * jnp.sqrt(d)
    radius, net = c0 / jnp.sqrt(k), (k * d) ** (-4 / 7)  # the epsilon of the proof of B.9
    near = partial(gradient_difference_along, params, start, c0=c0, gamma=gamma)
    within = partial(gradient_difference, params, start, c0=c0, c1=1.0, gamma=gamma)
    found = (
        jax.vmap(lambda x: sign_changes(start, x, radius, gamma))(x),
        jax.vmap(lambda x: sign_changes_around(start, x, radius, 1 / jnp.sqrt(d), gamma))(x),
        jax.vmap(lambda x: output(params, start, x, c0, gamma))(x),
        jax.vmap(lambda x, delta: sign_change_share(start, x, delta))(x, delta),
        jax.vmap(lambda x, delta: sign_change_share_around(start, x, delta, net, radius))(x, delta),
        jax.vmap(lambda x: gradient_norm(params, start, x, c0, gamma))(x),
        jax.vmap(lambda x: quarter_of_the_dimension(params, start, x, c0))(x),
        jax.vmap(lambda x, delta, r: near(x, r, delta))(x, delta, along),
        jax.vmap(lambda x, key: within(x, key=key))(x, keys),
    )
    return dict(zip(LEMMAS, found, strict=True))


def sizes(start: Params) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The width k and the dimension d of a start, without its padding."""
    k, d = (jnp.sum(there, dtype=jnp.int32) for there in (_neurons(start), _coordinates(start)))
    return k.astype(start.w.dtype), d.astype(start.w.dtype)


def _neurons(start: Params) -> Bool[Array, " k"]:
    """Which neurons are no padding."""
    return any_of(start.w != 0, axis=1) | (start.b != 0) | (start.v != 0)


def _coordinates(start: Params) -> Bool[Array, " d"]:
    """Which coordinates are no padding."""
    return any_of(start.w != 0, axis=0)


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
    return (nearest <= weight_radius) & _neurons(start)


def _largest_difference(
    params: Params, start: Params, x: Point, radius: Array, key: PRNGKeyArray, samples: int
) -> tuple[Array, Array]:
    """|grad f(x)|, and the largest difference from it of those tried at this distance."""
    here = input_gradient(params, x)
    drawn = jax.random.normal(key, (samples, x.shape[0]), x.dtype)
    drawn = jnp.where(_coordinates(start), drawn, 0)
    directions = jnp.concatenate([drawn, here[None], -here[None]])
    length = jnp.linalg.norm(directions, axis=1, keepdims=True)
    deltas = directions / jnp.where(length > 0, length, 1) * radius
    difference = jnp.linalg.norm(input_gradient(params, x[None] + deltas) - here[None], axis=1)
    return jnp.linalg.norm(here), jnp.max(difference)


def _unit(x: Point, name: str = "|x| = 1") -> dict[str, Assumption]:
    return {name: below(jnp.abs(jnp.linalg.norm(x) - 1), ROUNDING)}


def _inside(params: Params, start: Params, x: Point, c0: Real) -> dict[str, Assumption]:
    """The lemmas' premises, with the edge of the ball inside: to the rounding of w."""
    top, eps = jnp.abs(params.v), jnp.finfo(params.w.dtype).eps
    furthest = jnp.max(ratio(distances(params, start), top))
    rounding = c0 * ROUNDING + 4 * eps * jnp.max(ratio(lengths(params.w), top))
    return {
        **_unit(x),
        "|w_j - w_j,0| <= C0 / sqrt(k)": below(furthest, c0 + rounding),
        **_without_biases(params, start),
        **_of_unit_top(params, start),
    }


def _without_biases(*networks: Params) -> dict[str, Assumption]:
    """Definition 2.1 has none."""
    largest = jnp.max(jnp.array([jnp.max(jnp.abs(one.b)) for one in networks]))
    return {"no biases": below(largest, 0.0)}


def _of_unit_top(*networks: Params) -> dict[str, Assumption]:
    """Definition 2.1: v_j = +-1/sqrt(k), at the start and after training."""
    start = networks[-1]
    there, root = _neurons(start), jnp.sqrt(sizes(start)[0])
    off = [jnp.where(there, jnp.abs(jnp.abs(one.v) * root - 1), 0) for one in networks]
    moved = jnp.abs(networks[0].v - start.v) * root
    furthest = jnp.max(jnp.array([jnp.max(a) for a in (*off, moved)]))
    return {"v_j = +-1/sqrt(k), not trained": below(furthest, ROUNDING)}


def _require(gamma: Any = None, **numbers: Any) -> None:
    require_positive(**numbers)
    if gamma is not None:
        require_probability(gamma=gamma)
