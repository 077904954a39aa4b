"""Whether an optimizer leaves padding alone, and the rest as it is without padding."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxkkt import networks
from jaxkkt.networks import Params
from jaxkkt.numerics.compiling import quick_jit
from jaxkkt.numerics.truths import all_of
from jaxkkt.optimizers import updates_by
from jaxkkt.specs.optimizers import Optimizer
from jaxkkt.specs.same import by_value

# What rounding may do to an update, as a share of the largest. A mean over a thousand neurons and
# one more is off by ten times as much.
ROUNDING = 1e-4


@by_value
def is_inert(rule: Optimizer, shape: tuple[int, int], padded: tuple[int, int]) -> bool:
    """Whether neurons and coordinates of zeros, as many as pad (k, d) to the other shape, stay
    zeros in two steps, and all else moves as without them.

    So it is with whatever looks at single entries, or at norms. Noise, means and the sizes of the
    arrays themselves make something else of padding.
    """
    if rule.linear or shape == padded:
        return True
    rng, (k, d) = np.random.default_rng(0), shape
    # The mean is far from 0, for rules that look at it.
    dtype = jax.dtypes.canonicalize_dtype(float)
    some: Any = (rng.normal(1, 1, (3, *of_one)).astype(dtype) for of_one in ((k, d), (k,), (k,)))
    alone = Params(*some)
    try:
        with jax.numpy_dtype_promotion("standard"):  # optax's transformations are written for it
            return bool(_is_inert(rule, alone, padded))
    except Exception:  # runs end with what it raises: see RAISED
        return False


@partial(quick_jit, static_argnums=2)
def _is_inert(rule: Optimizer, alone: Params, padded: tuple[int, int]) -> Array:
    def wide(params: Params) -> Params:
        return jax.vmap(partial(networks.pad, width=padded[0], dim=padded[1]))(params)

    def updates(stacked: Params) -> Params:
        weights, *gradients = (jax.tree.map(lambda a, i=i: a[i], stacked) for i in range(3))
        return updates_by(rule.transformation(), weights, gradients)

    mine, beside = updates(alone), updates(wide(alone))
    size = jnp.max(jnp.array([jnp.max(jnp.abs(a)) for a in mine]))
    allowed = wide(jax.tree.map(lambda a: jnp.full_like(a, ROUNDING * size), mine))
    off = jax.tree.map(lambda a, b: jnp.abs(a - b), beside, wide(mine))
    return all_of(jnp.array([all_of(a <= b) for a, b in zip(off, allowed, strict=True)]))
