"""Whether a transformation is linear in the gradients, as its first steps tell."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from jaxkkt.networks import Params
from jaxkkt.optimizers.transformations import LinearTransformation, update


def linear(transformation: optax.GradientTransformation) -> LinearTransformation:
    """Declares an optax transformation linear, for instance `linear(optax.sgd(0.1, 0.9))`.

    True of descent and momentum with any schedule; false of whatever looks at single entries or
    norms of the gradient (Adam, sign descent, clipping) or at the weights (weight decay). Raises
    ValueError where its first steps show that it is not.
    """
    extended = optax.with_extra_args_support(transformation)
    found = LinearTransformation(extended.init, extended.update)
    require_linear(found)
    return found


def require_linear(transformation: optax.GradientTransformation) -> None:
    """Raises ValueError unless the updates from gradients g and h, from their sum and from g with
    its coordinates mixed are the sum and the mixture: for two steps, at two scales."""
    require_linear_steps(jax.jit(partial(two_steps, transformation)))


def two_steps(transformation: optax.GradientTransformation, gradient: Params) -> Array:
    """The updates of w in two steps by the same gradient, from weights that are not 0."""
    weights = jax.tree.map(jnp.asarray, _some(np.random.default_rng(1)))
    return updates_by(transformation, weights, [gradient, gradient]).w


# What rules are told, that some look at the sign of.
_LOG_LOSSES = (1.5, -1.5)


def updates_by(
    transformation: optax.GradientTransformation, weights: Params, gradients: Sequence[Params]
) -> Params:
    """The updates by these gradients, one after the other, at the same weights: stacked."""
    told = {"squared_norm": jnp.float32(2), "samples": jnp.int32(1)}
    state, found = transformation.init(weights), []
    for gradient, log_loss in zip(gradients, cycle(_LOG_LOSSES)):
        losses = {"log_loss": jnp.float32(log_loss), **told}
        updates, state = update(transformation, gradient, state, weights, **losses)
        found.append(updates)
    return jax.tree.map(lambda *steps: jnp.stack(steps), *found)


def require_linear_steps(moved: Callable[[Params], Array]) -> None:
    """As `require_linear`, of what gives the `two_steps` by a gradient."""
    turn = np.array([[0.6, 0.8], [-0.8, 0.6]], np.float32)
    rng = np.random.default_rng(0)
    first, second = (_some(rng) for _ in range(2))
    mixed = first._replace(w=first.w @ turn)
    for scale in np.array([1e-3, 1e3], np.float32):
        one, other, both, turned = (
            np.asarray(moved(jax.tree.map(lambda a, by=scale: by * a, g)))
            for g in (first, second, jax.tree.map(np.add, first, second), mixed)
        )
        size = np.abs(one).max() + np.abs(other).max()
        if max(np.abs(one + other - both).max(), np.abs(one @ turn - turned).max()) > 1e-4 * size:
            raise ValueError(
                "the optimizer is declared linear, and is not: its update for the sum of two "
                "gradients is not the sum of its updates, or depends on the coordinates. Leave "
                "`linear` out; it is for descent and momentum"
            )


def _some(rng: np.random.Generator) -> Params:
    """Weights, or a gradient: NumPy arrays, for which nothing is compiled."""
    arrays: list[Any] = [rng.normal(size=n).astype(np.float32) for n in ((3, 2), 3, 3)]
    return Params(*arrays)
