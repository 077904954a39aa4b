"""The smallest single gradient step that flips a prediction, exactly, and what it is made of."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxkkt.networks import (
    PRECISION,
    Params,
    check_parameters,
    checked,
    preactivations,
    value_and_input_gradient,
    value_and_input_gradient_from,
)
from jaxkkt.numerics.arithmetic import lengths, ratio
from jaxkkt.numerics.derivatives import as_zeros
from jaxkkt.numerics.outcomes import Outcome
from jaxkkt.numerics.requirements import as_arrays, as_positive, require_labels, require_rows
from jaxkkt.numerics.truths import all_of
from jaxkkt.perturbations.rays import Ray, first_crossings, first_flip

# Preactivations held at a time: a block of points by all neurons, of no fewer points than make
# large products.
BLOCK_ELEMENTS, BLOCK_POINTS = 2**19, 32
# Step and largest value of eta in the search of the code that was published with the paper.
PUBLISHED_STEP, PUBLISHED_CAP = 0.001, 5.0


class StepStatus(Outcome):
    """How the search along a point's gradient ended. `describe` gives each a sentence."""

    FLIPPED = 0, "the prediction changes beyond this step"
    NO_FLIP = 1, "no step within the bracket changes the prediction: raise the bracket"
    NO_GRADIENT = (
        2,
        "the output or its gradient is exactly 0: there is no prediction, or no direction",
    )
    NON_FINITE = 3, "parameters or points are NaN or infinite"


class GradientSteps(NamedTuple):
    """The smallest step x - sign(f(x)) eta grad f(x) that changes the sign of f, point by point.

    output: f(x). gradient_norm: |grad f(x)|, in outputs a unit of input.
    eta: its size, not below 0; inf for NO_FLIP, NaN for NO_GRADIENT and NON_FINITE.
    size: |delta| = eta |grad f(x)|, in units of the input.
    status: `StepStatus`.
    """

    output: Float[Array, "*lanes n"]
    gradient_norm: Float[Array, "*lanes n"]
    eta: Float[Array, "*lanes n"]
    size: Float[Array, "*lanes n"]
    status: Int[Array, "*lanes n"]

    def needs_step(
        self, y: Float[Array | np.ndarray, "*lanes n"] | Sequence
    ) -> Bool[Array, "*lanes n"]:
        """y f > 0: points that are classified correctly. The others are wrong without a step.

        Labels are -1 or 1, and 0 for padding; ValueError for others, and unless there is one for
        every point.
        """
        require_labels(y)
        (labels,) = as_arrays(self.output.dtype, y=y)
        if labels.shape != self.output.shape:
            raise ValueError(
                f"y must have one label for every point, shape {self.output.shape}, got "
                f"{labels.shape}"
            )
        return labels * self.output > 0

    def published_eta(
        self, y: Float[Array | np.ndarray, "*lanes n"] | Sequence
    ) -> Float[Array, "*lanes n"]:
        """eta as the code published with Wang et al. (2022) counts it.

        Rounded up to a multiple of 0.001, at most 5, and 0 for misclassified points; NaN where the
        output is. That is the first multiple that flips, unless the prediction changes back before
        it. For steps that were searched up to |eta| = 5 or beyond: those that did not
        flip count as 5. Labels as in `needs_step`.
        """
        stepped = jnp.minimum(PUBLISHED_STEP * jnp.ceil(self.eta / PUBLISHED_STEP), PUBLISHED_CAP)
        stepped = jnp.where(jnp.isnan(stepped), PUBLISHED_CAP, stepped)  # no gradient
        eta = jnp.where(self.needs_step(y), stepped, 0)
        return jnp.where(jnp.isnan(self.output), jnp.nan, eta)


def input_gradient(
    params: Params, x: Float[Array | np.ndarray, "*n d"] | Sequence
) -> Float[Array, "*n d"]:
    """grad f(x) = sum_j v_j 1[w_j . x + b_j > 0] w_j, for one point or a stack of them.

    Raises ValueError unless both hold floating-point numbers of one precision that JAX keeps, and
    points of the network's dimension.
    """
    return value_and_input_gradient(params, x)[1]


def gradient_steps(
    params: Params,
    x: Float[Array | np.ndarray, "n d"] | Sequence,
    bracket: float | Float[Array, ""] = 1.0,
) -> GradientSteps:
    """The smallest |eta| for which f(x + eta grad f(x)) and f(x) have opposite signs.

    Such a step goes towards 0, by eta of the sign of -f(x); its size |eta| is told. The output is
    piecewise linear along the ray, so no flip is missed and none is a multiple of a step, as in a
    search in steps of 0.001. Steps up to |delta| = `bracket` |x| are searched. The points are
    independent; labels play no part. Sizes have derivatives over network and points, by `jax.grad`
    or `jax.jacfwd`, those of where the output along the gradient is 0.

    Cost: three products of n k d, and passes over n k preactivations, a block of points at a time:
    a dozen where the outputs are nearly straight along their rays, up to a hundred where one bends.
    A block's breakpoints are sorted where one of its points needs it, since the output bends too
    much to tell or is near 0, and always under `jax.vmap`: use `jax.lax.map` over
    networks.
    Raises ValueError for a bracket that is not positive and finite, points that are not rows of the
    network's dimension, and unless network and points hold floating-point numbers of one precision
    that JAX keeps.
    Wang et al. (2022), Section 5.1.
    """
    params = checked(params)
    (x,) = as_arrays(params.w.dtype, x=x)
    require_rows(x=x)
    check_parameters(params, x.shape[1])
    return _blocks(params, x, as_positive("bracket", bracket, x.dtype))


@jax.jit
def _blocks(params: Params, x: Array, bracket: Array) -> GradientSteps:
    n, k = x.shape[0], params.v.shape[0]
    if n == 0:
        return _steps(params, bracket, x)
    count = -(-n // min(n, max(BLOCK_POINTS, BLOCK_ELEMENTS // k)))
    size = -(-n // count)
    blocks = jnp.pad(x, ((0, count * size - n), (0, 0))).reshape(count, size, -1)
    found = jax.lax.map(partial(_steps, params, bracket), blocks)
    return jax.tree.map(lambda leaf: leaf.reshape(-1)[:n], found)


def _steps(params: Params, bracket: Array, x: Float[Array, "n d"]) -> GradientSteps:
    pre = preactivations(params, x)
    output, gradient = value_and_input_gradient_from(pre, params)
    norm = lengths(gradient)
    sign = jnp.sign(output)
    # In units of |delta|, so that steps of all points are of the scale of their inputs.
    toward = -sign[:, None] * ratio(gradient, norm[:, None])
    nothing = (sign == 0) | (norm == 0)
    finite = jnp.isfinite(output) & jnp.isfinite(norm)

    def outputs(size: Array) -> Array:
        slope = jnp.dot(toward, params.w.T, precision=PRECISION)
        rays = Ray(pre, slope, sign[:, None] * params.v[None])
        return jax.vmap(partial(Ray.beside, after=True))(rays, size)

    skip, brackets = nothing | ~finite, bracket * lengths(x)
    size = _first(*jax.lax.stop_gradient((params, pre, toward, sign, brackets, skip)))
    finite = finite & ~jnp.isnan(size)
    status = jnp.where(size < jnp.inf, StepStatus.FLIPPED, StepStatus.NO_FLIP)
    status = jnp.where(nothing, StepStatus.NO_GRADIENT, status)
    status = jnp.where(finite, status, StepStatus.NON_FINITE).astype(jnp.int32)
    size = as_zeros(outputs, jnp.where(nothing | ~finite, jnp.nan, size))
    flips = jnp.isfinite(size)  # inf / norm would have no derivative that is a number
    eta = jnp.where(flips, ratio(jnp.where(flips, size, 0), norm), size)
    return GradientSteps(output, norm, eta, size, status)


def _first(
    params: Params, pre: Array, toward: Array, sign: Array, brackets: Array, skip: Array
) -> Array:
    """Where outputs first change sign along rays of preactivations; of those to skip anything."""
    slope = jnp.dot(toward, params.w.T, precision=PRECISION)
    size, certain = first_crossings(pre, slope, params.v, sign, brackets)
    settled = certain | skip

    def sort(_: None) -> Array:
        after = jnp.zeros_like(brackets)
        rays = Ray(pre, slope, sign[:, None] * params.v[None])
        return jnp.where(settled, size, jax.vmap(first_flip)(rays, after, brackets)[0])

    return jax.lax.cond(all_of(settled), lambda _: size, sort, None)
