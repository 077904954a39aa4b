"""Code of a user's that JAX has to trace."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax


@contextmanager
def require_traceable(what: str, instead: str = "") -> Iterator[None]:
    """Raises ValueError, with what to do, where the code below cannot be traced by JAX: `what` it
    is, and what to write `instead`."""
    try:
        yield
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
        raise ValueError(
            f"{what} cannot be traced by JAX: write it with jax.numpy{instead}. {error}"
        ) from error
