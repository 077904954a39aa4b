"""One direction that flips all samples on the margin at once, and the size it needs.

A sample is flipped at c where y_i N(x_i - y_i c u) < 0, strictly.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxkkt.networks import (
    PRECISION,
    Params,
    checked,
    checked_samples,
    margins,
    preactivations,
)
from jaxkkt.numerics.arithmetic import lengths, unit
from jaxkkt.numerics.derivatives import as_zeros
from jaxkkt.numerics.outcomes import Outcome
from jaxkkt.numerics.requirements import (
    as_arrays,
    as_margins,
    as_mask,
    as_positive,
    as_samples,
    require_one_number,
    require_points,
    require_whole,
)
from jaxkkt.numerics.truths import all_of, any_of
from jaxkkt.perturbations.rays import (
    Ray,
    first_common,
    first_crossings,
    first_flip,
    stay_negative,
)

# Breakpoints sorted at a time; blocks of padding alone are skipped.
BLOCK_ELEMENTS = 2**16


class FlipStatus(Outcome):
    """How the search for a flip ended. `describe` gives each a sentence and a remedy."""

    FLIPPED = 0, "all chosen samples are flipped at once beyond this size"
    NO_FLIP = (
        1,
        "no size within the bracket flips all chosen samples at once: raise the bracket, or try"
        " another direction",
    )
    NOTHING_TO_FLIP = (
        2,
        "no sample is chosen or the direction is zero; a network that misclassifies a sample "
        "has none on its margin: train it until it classifies all",
    )
    NON_FINITE = (
        3,
        "parameters, data or outputs are NaN or infinite: look at the status of the training run",
    )


class Flip(NamedTuple):
    """The smallest size that flips all chosen samples at once, and its `FlipStatus`.

    The size is inf for NO_FLIP, NaN for NOTHING_TO_FLIP and NON_FINITE, 0 where all chosen samples
    are misclassified to begin with.
    """

    size: Float[Array, "*lanes"]
    status: Int[Array, "*lanes"]


class ExactFlips(NamedTuple):
    """Flips along the ray, sample by sample and for all chosen samples at once.

    sizes (m,): where each sample, chosen or not, first flips: 0 if it is misclassified, inf if it
        does not flip within the bracket, NaN for a padded sample.
    unflips (m,): where it is first not misclassified any more, be its output 0 there; inf if not up
        to the bracket.
    size, status: as in `Flip`, for all chosen samples at once.
    monotone: every chosen sample flips within the bracket and stays flipped up to its end. Then
        `size` is the largest of their `sizes`, and bisection finds it.
    """

    sizes: Float[Array, "*lanes m"]
    unflips: Float[Array, "*lanes m"]
    size: Float[Array, "*lanes"]
    monotone: Bool[Array, "*lanes"]
    status: Int[Array, "*lanes"]


def on_margin(
    margins: Float[Array | np.ndarray, " m"] | Sequence,
    slack: float | Float[Array, ""] = 1.1,
    mask: Bool[Array | np.ndarray, " m"] | Sequence | None = None,
) -> Bool[Array, " m"]:
    """q_i <= slack min q: which samples are on the margin. Vardi et al. (2022), Section 6.

    Samples whose `mask` is False take no part; data with padding need mask = (y != 0). None is on
    the margin where min q <= 0, or where a margin is NaN. Raises ValueError for a slack that is not
    one number or below 1, margins that are not those of one network or that JAX would round, and a
    mask that is not one truth value a sample.
    """
    require_slack(slack)
    q = as_margins(margins)
    real = jnp.ones(q.shape, bool) if mask is None else as_mask("mask", mask, q.shape[0])
    smallest = jnp.min(jnp.where(real, q, jnp.inf))
    return real & (smallest > 0) & (q <= slack * smallest)


def require_slack(slack: Any) -> None:
    """Raises ValueError unless this is one number, at least 1; of traced ones the shape alone."""
    require_one_number("slack", slack)
    if not isinstance(slack, jax.core.Tracer) and not slack >= 1:
        raise ValueError(f"slack must be at least 1, got {slack}")


def universal_direction(
    x: Float[Array | np.ndarray, "m d"] | Sequence,
    y: Float[Array | np.ndarray, " m"] | Sequence,
    chosen: Bool[Array | np.ndarray, " m"] | Sequence,
) -> Float[Array, " d"]:
    """u = s / |s| for s = sum_{i chosen} y_i x_i; zero where s is zero or no sample is chosen.

    One direction, from the data alone, for every sample: x_i moves to x_i - y_i c u.
    Raises ValueError for labels other than -1 and 1 (and 0 for padding, a row of zeros), a choice
    that is not one truth value a sample, points that are not rows, and unless x and y hold
    floating-point numbers of one precision that JAX keeps.
    Vardi et al. (2022), Section 6.
    """
    x, y = as_samples(x=x, y=y)
    chosen = as_mask("chosen", chosen, y.shape[0])
    total = jnp.dot(jnp.where(chosen, y, 0), x, precision=PRECISION)
    return unit(total)


def flip_size_bisection(
    params: Params,
    x: Float[Array | np.ndarray, "m d"] | Sequence,
    y: Float[Array | np.ndarray, " m"] | Sequence,
    direction: Float[Array | np.ndarray, " d"] | Sequence,
    chosen: Bool[Array | np.ndarray, " m"] | Sequence,
    bracket: float | Float[Array, ""] | None = None,
    trips: int = 40,
) -> Flip:
    """The smallest c <= bracket with y_i N(x_i - y_i c u) < 0 for all chosen i, by bisection.

    Assumes that samples once flipped stay flipped up to the bracket, which `flip_sizes_exact`
    checks; where they do not, the answer is some c at which all flip, or NO_FLIP. The error is
    bracket / 2^trips and rounding. The default bracket is 4 max_i |x_i|. Derivatives are as those
    of `flip_sizes_exact`.
    Raises ValueError for a bracket that is not positive and finite, trips that are no integer from
    1 on, a network or direction of another dimension than the points, no points, and as
    `universal_direction` for network, data and choice.
    Vardi et al. (2022), Section 6.
    """
    require_whole("trips", trips, 1)
    return _bisection(*_inputs(params, x, y, direction, chosen, bracket), trips)


def flip_sizes_exact(
    params: Params,
    x: Float[Array | np.ndarray, "m d"] | Sequence,
    y: Float[Array | np.ndarray, " m"] | Sequence,
    direction: Float[Array | np.ndarray, " d"] | Sequence,
    chosen: Bool[Array | np.ndarray, " m"] | Sequence,
    bracket: float | Float[Array, ""] | None = None,
) -> ExactFlips:
    """Where samples flip and un-flip along x_i - y_i c u, 0 <= c <= bracket, from breakpoints.

    y_i N is followed from breakpoint to breakpoint, so no flip is missed, monotone or not, save
    those shallower than the rounding of its terms: a few eps sum_j |v_j| (|p_ij| + c |w_j . u|),
    where p are the preactivations.
    `size` is the smallest c at which all chosen samples are flipped at once: the largest first flip
    where no sample has un-flipped by then, else the next c where that holds. The default bracket is
    4 max_i |x_i|.
    Sizes have derivatives over network, points and direction, by `jax.grad` or `jax.jacfwd`: those
    of where the output is 0; 0 for sizes that are 0, infinite or NaN.
    Cost: some thirty passes over m k preactivations, a block of samples at a time, where they tell
    that every sample, chosen or not, is flipped from its first flip on; else m k breakpoints are
    sorted, which takes several times as long, and is done for all networks under `jax.vmap` where
    one needs it.
    Raises ValueError for a bracket that is not positive and finite, a network or direction of
    another dimension than the points, no points, and as `universal_direction` for network, data
    and choice.
    """
    return _exact(*_inputs(params, x, y, direction, chosen, bracket))


def transfer_matrix(
    params: Params,
    x: Float[Array | np.ndarray, "m d"] | Sequence,
    y: Float[Array | np.ndarray, " m"] | Sequence,
    slack: float | Float[Array, ""] = 1.1,
) -> Flip:
    """Exact flip sizes [a, b] (n, n): the direction of network a tried on network b.

    `params` holds n networks along a leading axis, trained on the same data. Each direction is the
    sum over the samples on the margin of a; it has to flip those on the margin of b.
    Raises ValueError for one network without a leading axis, as `on_margin` and, for networks and
    data, as `flip_sizes_exact`.
    Vardi et al. (2022), Section 6: the direction depends on the data alone, so it transfers.
    """
    params = checked(params)
    if params.w.ndim != 3:
        raise ValueError(
            f"transfer_matrix takes n networks stacked, w (n, k, d), got w {params.w.shape}: stack "
            "them by jax.tree.map(lambda *leaves: jnp.stack(leaves), *networks)"
        )
    require_slack(slack)
    return _transfer(params, *as_samples(params.w.dtype, x=x, y=y), slack)


@jax.jit
def _transfer(params: Params, x: Array, y: Array, slack: float | Array) -> Flip:
    def chosen(network: Params) -> Array:
        return on_margin(margins(network, x, y), slack, y != 0)

    def on_all(direction: Array) -> Flip:
        def on_one(network: Params) -> Flip:
            flips = flip_sizes_exact(network, x, y, direction, chosen(network))
            return Flip(flips.size, flips.status)

        return jax.lax.map(on_one, params)

    directions = jax.lax.map(lambda network: universal_direction(x, y, chosen(network)), params)
    return jax.lax.map(on_all, directions)


@partial(jax.jit, static_argnames="trips")
def _bisection(
    params: Params, x: Array, y: Array, direction: Array, chosen: Array, bracket: Array, trips: int
) -> Flip:
    chosen = chosen & (y != 0)
    last = partial(_last, params, x, y, direction, chosen)
    params, x, y, direction, bracket = jax.lax.stop_gradient((params, x, y, direction, bracket))
    along, pre = jnp.dot(params.w, direction, precision=PRECISION), preactivations(params, x)
    size = first_common(pre, along, params.v, y, chosen, bracket, trips)
    size, status = _flip(size, chosen, direction, (params, x, y))
    return Flip(as_zeros(last, size), status)


@jax.jit
def _exact(
    params: Params, x: Array, y: Array, direction: Array, chosen: Array, bracket: Array
) -> ExactFlips:
    chosen = chosen & (y != 0)

    def outputs(sizes: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        flips, unflips, size = sizes
        at = partial(_outputs, params, x, y, direction)
        last = _last(params, x, y, direction, chosen, size)
        return at(flips, after=True), at(unflips, after=False), last

    found = _follow(*jax.lax.stop_gradient((params, x, y, direction, chosen, bracket)))
    flips, unflips, size = as_zeros(outputs, (found.sizes, found.unflips, found.size))
    return found._replace(sizes=flips, unflips=unflips, size=size)


def _outputs(params: Params, x: Array, y: Array, direction: Array, c: Array, after: bool) -> Array:
    """y_i N(x_i - y_i c u), each at its own c or all at one, with the derivatives of one side; 0 of
    padding."""
    along, pre = jnp.dot(params.w, direction, precision=PRECISION), preactivations(params, x)
    rays = Ray(pre, -y[:, None] * along[None], y[:, None] * params.v[None])
    return jax.vmap(partial(Ray.beside, after=after))(rays, jnp.broadcast_to(c, y.shape))


def _last(params: Params, x: Array, y: Array, direction: Array, chosen: Array, c: Array) -> Array:
    """The largest of the chosen: where all of them are flipped at once the last is at 0."""
    found = _outputs(params, x, y, direction, c, after=True)
    return jnp.max(jnp.where(chosen, found, -jnp.inf))


def _follow(
    params: Params, x: Array, y: Array, direction: Array, chosen: Array, bracket: Array
) -> ExactFlips:
    """As `flip_sizes_exact`, without derivatives."""
    along, pre = jnp.dot(params.w, direction, precision=PRECISION), preactivations(params, x)

    def without_a_sort(pre: Array, y: Array) -> tuple[Array, Array]:
        """First flips, and whether they are certain, and no sample un-flips."""
        slope = -y[:, None] * along[None]
        brackets = jnp.full_like(y, bracket)
        flips, certain = first_crossings(pre, slope, params.v, y, brackets)
        stay = stay_negative(pre, slope, params.v, y, flips, brackets)
        return flips, certain & (stay | (flips == jnp.inf))

    def by_a_sort(after: Array, pre: Array, y: Array) -> tuple[Array, Array]:
        def one(pre: Array, y: Array) -> tuple[Array, Array]:
            return first_flip(Ray(pre, -y * along, y * params.v), after, bracket)

        return jax.vmap(one)(pre, y)

    in_blocks = partial(_in_blocks, pre, y)

    def one_is_unflipped(search: _Search) -> Array:
        unflipped = any_of(chosen & (search.until <= search.c))
        return (search.c < 0) | (unflipped & (search.c < jnp.inf))

    def advance(search: _Search) -> _Search:
        started = search.c >= 0
        # Beyond rounding, so that every trip gets ahead.
        beyond = search.c + jnp.finfo(x.dtype).eps * (8 * search.c + bracket)
        flips, until = in_blocks(partial(by_a_sort, jnp.where(started, beyond, 0)))
        return _Search(
            c=jnp.max(jnp.where(chosen, flips, 0)),
            until=until,
            sizes=jnp.where(started, search.sizes, flips),
            unflips=jnp.where(started, search.unflips, until),
        )

    flips, certain = in_blocks(without_a_sort)
    c = jnp.where(all_of(certain | (y == 0)), jnp.max(jnp.where(chosen, flips, 0)), -jnp.inf)
    never = jnp.full_like(y, jnp.inf)
    before = _Search(c, never, flips, never)
    c, _, sizes, unflips = jax.lax.while_loop(one_is_unflipped, advance, before)
    size, status = _flip(c, chosen, direction, (params, x, y))
    known = (y != 0) & (status != FlipStatus.NON_FINITE)
    stay = all_of(~chosen | (unflips == jnp.inf))
    return ExactFlips(
        sizes=jnp.where(known, sizes, jnp.nan),
        unflips=jnp.where(known, unflips, jnp.nan),
        size=size,
        monotone=(status == FlipStatus.FLIPPED) & stay,
        status=status,
    )


def _in_blocks(pre: Array, y: Array, search: Callable[[Array, Array], Any]) -> Any:
    """What a search finds of preactivations and labels, a block of samples at a time; of padding
    zeros."""
    m, width = pre.shape
    size = min(m, max(1, BLOCK_ELEMENTS // width))
    count = -(-m // size)
    more = count * size - m
    padded = jnp.pad(pre, ((0, more), (0, 0))), jnp.pad(y, (0, more))
    blocks = jax.tree.map(lambda a: a.reshape(count, size, *a.shape[1:]), padded)

    def block(samples: tuple[Array, Array]) -> Any:
        def nothing(samples: tuple[Array, Array]) -> Any:
            like = jax.eval_shape(search, *samples)
            return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), like)

        some = any_of(samples[1] != 0)
        return jax.lax.cond(some, lambda given: search(*given), nothing, samples)

    return jax.tree.map(lambda a: a.reshape(-1)[:m], jax.lax.map(block, blocks))


class _Search(NamedTuple):
    """Each sample is flipped at c or before, until `until`; `sizes`, `unflips` are those from 0."""

    c: Float[Array, ""]
    until: Float[Array, " m"]
    sizes: Float[Array, " m"]
    unflips: Float[Array, " m"]


def _flip(
    size: Array, chosen: Array, direction: Array, inputs: tuple[Params, Array, Array]
) -> Flip:
    """The size and its status; NaN in place of a size that means nothing."""
    nothing = ~any_of(chosen) | all_of(direction == 0)
    broken = jnp.isnan(size)
    for array in jax.tree.leaves((inputs, direction)):
        broken = broken | any_of(~jnp.isfinite(array))
    status = jnp.where(size < jnp.inf, FlipStatus.FLIPPED, FlipStatus.NO_FLIP)
    status = jnp.where(nothing, FlipStatus.NOTHING_TO_FLIP, status)
    status = jnp.where(broken, FlipStatus.NON_FINITE, status).astype(jnp.int32)
    return Flip(jnp.where(nothing | broken, jnp.nan, size), status)


def _inputs(
    params: Params, x: object, y: object, direction: object, chosen: object, bracket: Any
) -> tuple[Params, Array, Array, Array, Array, Array]:
    params, x, y = checked_samples(params, x, y)
    require_points(x=x)
    (direction,) = as_arrays(x.dtype, direction=direction)
    if direction.shape != x.shape[1:]:
        raise ValueError(
            f"direction must have the points' dimension, shape {x.shape[1:]}, got {direction.shape}"
        )
    return params, x, y, direction, as_mask("chosen", chosen, y.shape[0]), _bracket(x, bracket)


def _bracket(x: Array, bracket: float | Array | None) -> Array:
    if bracket is None:
        return 4 * jnp.max(lengths(x))
    return as_positive("bracket", bracket, x.dtype)
