"""The same training run in fewer coordinates.

Descent moves every (w_j, b_j) by combinations of the points (x_i, 1) alone. Three ways to hold it:

- "plain": the parameters; 4 m k d operations a step.
- "span": the data are rotated onto their own span, r = min(m, d) coordinates; 4 m k r. The part of
  w_j orthogonal to the span never moves and is put back at the end.
- "gram": preactivations P = X W^T + b, which a step moves by G D with G = X X^T + 1; 2 m^2 k.
  The weights are kept as the coefficients of their change in the basis (x_i, 1).

All give the same trajectory for a `LinearTransformation`; "span" and "gram" are wrong for others.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxkkt.datasets import Dataset
from jaxkkt.losses import SampleLoss, log_loss
from jaxkkt.networks import (
    PRECISION,
    Params,
    pad,
    preactivations,
    value_and_pullback,
    value_and_pullback_from,
)

Representation = Literal["plain", "span", "gram"]

# XLA's CPU product with the Gram matrix is up to a tenth faster for widths that are multiples of
# 32, which from about this many samples on outweighs the wider elementwise passes.
ROUND_WIDTHS_FROM = 96

# A gradient of many samples goes through them in blocks: from so many preactivations on, arrays of
# all of them are moved through memory a dozen times (`python -m benchmarks.gradients`).
SAMPLES_OF_A_BLOCK = 512
BLOCKS_FROM = 2**21


class GramDataset(NamedTuple):
    """The Gram matrix G_il = x_i . x_l + 1 of the points (x_i, 1), and the labels."""

    gram: Float[Array, "*lanes m m"]
    y: Float[Array, "*lanes m"]


class GramParams(NamedTuple):
    """Weights relative to their start: (w_j, b_j) = start + sum_i coefficients_ij (x_i, 1).

    `preactivations` = w_j . x_i + b_j is a linear image of the coefficients, so a linear optimizer
    moves it along with them: one product with G a step serves both.
    """

    coefficients: Float[Array, "*lanes m k"]
    preactivations: Float[Array, "*lanes m k"]
    v: Float[Array, "*lanes k"]


class Gradient(NamedTuple):
    """log L of some samples and its gradient, |grad log L|^2, min_i q_i, and whether it is dead.

    `dead`: the gradient is exactly zero, for no neuron is active on any sample that the loss
    weighs, or equal points with opposite labels cancel.
    """

    log_loss: Float[Array, ""]
    samples: Int[Array, ""]
    gradient: Params | GramParams
    squared_norm: Float[Array, ""]
    min_margin: Float[Array, ""]
    dead: Bool[Array, ""]


def cheapest(samples: int, dim: int, *, linear: bool, gram: bool) -> Representation:
    """The exact representation with the fewest operations a step; "gram" only where it may be.

    A mini-batch step in the Gram representation would still move all m preactivations, so
    mini-batches use the span where it is smaller than the input space.
    """
    if not linear:
        return "plain"
    if gram and samples < 2 * dim:
        return "gram"
    return "span" if samples < dim else "plain"


def step_flops(representation: Representation, *, samples: Any, dim: Any, width: Any) -> Any:
    """Floating-point operations of a step's matrix products (a multiply-add counts two).

    Of a size, or of arrays of sizes.
    """
    if representation == "gram":
        return 2 * samples * samples * width
    least = min if isinstance(samples, int) else np.minimum
    coordinates = least(samples, dim) if representation == "span" else dim
    return 4 * samples * width * coordinates


def samples_at_once(samples: int, width: int) -> int:
    """How many samples `gradient` holds the preactivations of, but in the Gram representation."""
    return min(samples, SAMPLES_OF_A_BLOCK) if samples * width >= BLOCKS_FROM else samples


def encode(
    params: Params, data: Dataset, representation: Representation
) -> tuple[Params, Dataset] | tuple[GramParams, GramDataset]:
    """Parameters and data in the coordinates that `gradient` works in."""
    if representation == "gram":
        gram = jnp.dot(data.x, data.x.T, precision=PRECISION) + 1
        m, k = data.x.shape[0], params.v.shape[0]
        start = pad(params, k + (-k % 32 if m >= ROUND_WIDTHS_FROM else 0), data.x.shape[1])
        pre = preactivations(start, data.x)
        return GramParams(jnp.zeros_like(pre), pre, start.v), GramDataset(gram, data.y)
    if representation == "span":
        basis = _basis(data)
        w = jnp.dot(params.w, basis, precision=PRECISION)
        return params._replace(w=w), Dataset(jnp.dot(data.x, basis, precision=PRECISION), data.y)
    return params, data


def decode(
    position: Params | GramParams, start: Params, data: Dataset, representation: Representation
) -> Params:
    """Parameters in input space, from a position and the parameters that training started at."""
    if isinstance(position, GramParams):
        k = start.v.shape[0]
        c = position.coefficients[:, :k]
        w = start.w + jnp.dot(c.T, data.x, precision=PRECISION)
        return Params(w=w, b=start.b + c.sum(axis=0), v=position.v[:k])
    if representation == "span":
        basis = _basis(data)
        moved = position.w - jnp.dot(start.w, basis, precision=PRECISION)
        return position._replace(w=start.w + jnp.dot(moved, basis.T, precision=PRECISION))
    return position


def gradient(
    position: Params | GramParams,
    data: Dataset | GramDataset,
    loss: SampleLoss,
    fixed: Sequence[str] = (),
) -> Gradient:
    """log L and grad log L; samples with y = 0 are padding and take no part.

    The gradient over the parameters named in `fixed` is 0; only `Params` have such.
    """
    m, k = data.y.shape[0], position.v.shape[0]
    if isinstance(position, Params) and samples_at_once(m, k) < m:
        assert isinstance(data, Dataset)
        found = _in_blocks(position, data, loss)
    else:
        found = _of_samples(position, data, loss)
    zeros = {name: jnp.zeros_like(getattr(found.gradient, name)) for name in fixed}
    grads = found.gradient._replace(**zeros)
    return Gradient(
        log_loss=found.log_loss,
        samples=found.samples,
        gradient=grads,
        squared_norm=_squared_norm(grads),
        min_margin=found.min_margin,
        dead=_vanishes(grads, ~jnp.any(grads.v) & (found.min_margin == 0)),
    )


class _Part(NamedTuple):
    """What some of the samples give: log L and its gradient, how many they are, and min_i q_i."""

    log_loss: Float[Array, ""]
    samples: Int[Array, ""]
    gradient: Params | GramParams
    min_margin: Float[Array, ""]


def _of_samples(
    position: Params | GramParams, data: Dataset | GramDataset, loss: SampleLoss
) -> _Part:
    outputs, pullback = _value_and_pullback(position, data)
    real, margins = data.y != 0, data.y * outputs
    value, weights = log_loss(margins, loss, mask=real)
    return _Part(
        log_loss=value,
        samples=jnp.sum(real, dtype=jnp.int32),
        gradient=pullback(-weights * data.y),  # d log L / d N(x_i)
        min_margin=jnp.min(jnp.where(real, margins, jnp.inf)),
    )


def _in_blocks(position: Params, data: Dataset, loss: SampleLoss) -> _Part:
    """The same, so many samples at a time that their hidden outputs stay in a core's cache."""
    size = SAMPLES_OF_A_BLOCK
    whole, left = divmod(data.y.shape[0], size)
    infinite = jnp.full((), jnp.inf, data.y.dtype)
    nothing = jax.tree.map(jnp.zeros_like, position)

    def add(i: Array, so_far: _Part) -> _Part:
        block = (jax.lax.dynamic_slice_in_dim(a, i * size, size) for a in data)
        return _joined(so_far, _of_samples(position, Dataset(*block), loss))

    start = _Part(-infinite, jnp.zeros((), jnp.int32), nothing, infinite)
    found = jax.lax.fori_loop(0, whole, add, start)
    if not left:
        return found
    rest = Dataset(data.x[-left:], data.y[-left:])
    return _joined(found, _of_samples(position, rest, loss))


def _joined(one: _Part, other: _Part) -> _Part:
    """What the samples of both give: grad log L = sum of (L_part / L) grad log L_part."""
    total = jnp.logaddexp(one.log_loss, other.log_loss)

    def weighted(part: _Part) -> Params | GramParams:
        share = jnp.exp(part.log_loss - total)
        # Without a real sample log L is -inf, and its gradient may be NaN.
        return jax.tree.map(lambda g: jnp.where(part.samples > 0, share * g, 0), part.gradient)

    return _Part(
        log_loss=total,
        samples=one.samples + other.samples,
        gradient=jax.tree.map(jnp.add, weighted(one), weighted(other)),
        min_margin=jnp.minimum(one.min_margin, other.min_margin),
    )


def _value_and_pullback(
    position: Params | GramParams, data: Dataset | GramDataset
) -> tuple[Array, Callable[[Array], Params | GramParams]]:
    """The outputs, and what takes a gradient over them to one over the position."""
    if isinstance(position, Params):
        assert isinstance(data, Dataset)
        return value_and_pullback(position, data.x)
    assert isinstance(data, GramDataset)
    outputs, pull = value_and_pullback_from(position.preactivations, position.v)

    def pullback(on_outputs: Array) -> GramParams:
        on_pre, on_v = pull(on_outputs)
        return GramParams(on_pre, jnp.dot(data.gram, on_pre, precision=PRECISION), on_v)

    return outputs, pullback


def _squared_norm(gradient: Params | GramParams) -> Array:
    """|grad|^2 over the weights; in the Gram representation |sum_i c_ij (x_i, 1)|^2 = c^T G c."""
    if isinstance(gradient, Params):
        w = gradient.w.T  # as the product X^T grad P leaves it: a CPU reads it in order
        return _dot(w, w) + _dot(gradient.b, gradient.b) + _dot(gradient.v, gradient.v)
    over_weights = _dot(gradient.coefficients, gradient.preactivations)
    return over_weights + _dot(gradient.v, gradient.v)


def _vanishes(gradient: Params | GramParams, suspected: Array) -> Array:
    """Whether all of a gradient is zero, where that is suspected.

    Few optimizers read the norm. On a CPU one that is not read is a pass over all weights less: a
    loop is skipped where nothing is suspected, and the barrier keeps XLA from computing the norm
    before it. An accelerator would wait for the host to decide on the loop, longer than on a pass.
    """

    def in_a_loop(gradient: Params | GramParams, suspected: Array) -> Array:
        def look(carry: tuple[Array, Array]) -> tuple[Array, Array]:
            again, _ = jax.lax.optimization_barrier((gradient, carry))
            return jnp.array(False), _squared_norm(again) == 0

        before = suspected, jnp.array(False)
        return jax.lax.while_loop(lambda carry: carry[0], look, before)[1]

    def at_once(gradient: Params | GramParams, suspected: Array) -> Array:
        return suspected & (_squared_norm(gradient) == 0)

    found: Array = jax.lax.platform_dependent(gradient, suspected, cpu=in_a_loop, default=at_once)
    return found


def _dot(a: Array, b: Array) -> Array:
    return jnp.vdot(a, b, precision=PRECISION)


def _basis(data: Dataset) -> Float[Array, "d r"]:
    return jnp.linalg.qr(data.x.T)[0]
