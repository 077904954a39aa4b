"""Loops that an accelerator need not wait for."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

T = TypeVar("T")

# After so many trips an accelerator asks whether a loop goes on.
TRIPS_AT_A_TIME = 8


def while_going(going: Callable[[T], Array], step: Callable[[T], T], state: T) -> T:
    """Traced: `jax.lax.while_loop`. An accelerator, which would stop and ask the host after each
    trip, makes several before it does; in those beyond the last the state stays as it is."""
    return jax.lax.platform_dependent(
        state,
        cpu=partial(jax.lax.while_loop, going, step),
        default=partial(_several_at_a_time, going, step),
    )


def _several_at_a_time(going: Callable[[T], Array], step: Callable[[T], T], state: T) -> T:
    def trip(_: Array | int, state: T) -> T:
        goes_on = going(state)
        return jax.tree.map(lambda new, old: jnp.where(goes_on, new, old), step(state), state)

    def some(state: T) -> T:
        return jax.lax.fori_loop(0, TRIPS_AT_A_TIME, trip, state)

    return jax.lax.while_loop(going, some, state)
