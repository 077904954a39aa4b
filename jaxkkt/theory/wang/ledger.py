"""All lemmas at the same points, by name."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxkkt.networks import Params
from jaxkkt.numerics.keys import key_of
from jaxkkt.theory.checks import Check
from jaxkkt.theory.wang.gradients import (
    gradient_difference,
    gradient_difference_along,
    gradient_norm,
    quarter_of_the_dimension,
)
from jaxkkt.theory.wang.outputs import output
from jaxkkt.theory.wang.premises import Real, coordinates, sizes
from jaxkkt.theory.wang.signs import (
    sign_change_share,
    sign_change_share_around,
    sign_changes,
    sign_changes_around,
)

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
    delta = jnp.where(coordinates(start), jax.random.normal(key_of(1), x.shape, x.dtype), 0)
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
