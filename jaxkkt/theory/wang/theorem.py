"""Theorem 3.1: a single gradient step flips, and its remark on networks beyond the ball."""

from math import exp, inf, log
from sys import float_info

import jax.numpy as jnp
from jaxtyping import Array

from jaxkkt.networks import Params, apply
from jaxkkt.numerics.arithmetic import ratio
from jaxkkt.perturbations import GradientSteps, StepStatus, gradient_steps, input_gradient
from jaxkkt.theory.checks import Check, above, at_most, of_some
from jaxkkt.theory.wang.premises import Point, Real, inside_ball, require


def one_step(params: Params, start: Params, x: Point, c0: Real, c2: Real) -> Check:
    """Theorem 3.1 with one C2 = `c2` for all points: the step |eta| = C2 / |grad f(x)|^2 flips x.

    The claim is that -sign(f(x)) f(x + delta) is above 0, where delta is that step towards the
    other sign. Its constants have no values in the paper: a width inside `width_window` is not
    asked for. `step_constant` is the least C2 that flips; a larger one may step too far.
    """
    require(c0=c0, c2=c2)
    here, gradient = apply(params, x), input_gradient(params, x)
    eta = ratio(jnp.asarray(c2, x.dtype), jnp.sum(gradient**2))
    there = apply(params, x - jnp.sign(here) * eta * gradient)
    return above(-jnp.sign(here) * there, 0.0, inside_ball(params, start, x, c0))


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
    require(gamma=gamma, c3=c3, c4=c4)
    power = float(d) ** 0.24
    highest = exp(power) if power < log(float_info.max) else inf
    return max(float(d) ** 2.4, c3 * log(1 / gamma)), c4 * highest


def cone(params: Params, x: Point, scale: Real) -> Check:
    """Theorem 3.1's remark: networks r W of the cone over the ball flip with the same delta; steps
    up to |delta| = |x| are looked at.

    Bound and measurement: |delta| at W, and at r W. For positive r without biases f scales by r.
    Where no such step flips W it says nothing.
    """
    require(scale=scale)
    scaled = params._replace(w=params.w * scale, b=params.b * scale)
    steps = [gradient_steps(p, x[None]) for p in (params, scaled)]
    here, there = (_or_none(found, found.size) for found in steps)
    (status,) = steps[0].status
    none = (status == StepStatus.NO_FLIP) | (status == StepStatus.NO_GRADIENT)
    return of_some(at_most(there, here * (1 + 1e-3), {}), ~none)


def _or_none(found: GradientSteps, size: Array) -> Array:
    """A size of the first point's step that flips; inf where its gradient is 0, and none does."""
    return jnp.where((found.gradient_norm == 0) & jnp.isfinite(found.output), jnp.inf, size)[0]
