"""All tests run with the shapes and types of the package's signatures checked at every call."""

from collections.abc import Iterator

import jax
import jaxtyping
import pytest

# A shape or dtype that meets another by accident is an error.
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# The package must be imported after this. Numeric tower: a float parameter takes an int.
jaxtyping.install_import_hook(
    "jaxkkt", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
)


@pytest.fixture
def float64() -> Iterator[None]:
    """Arrays made inside the test hold 64 bits."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def unchecked() -> Iterator[None]:
    """As for a user: signatures are not checked, so the package's own errors come to light, and
    shapes and types are promoted as JAX does by default."""
    strict = {"jax_numpy_rank_promotion": "raise", "jax_numpy_dtype_promotion": "strict"}
    jaxtyping.config.update("jaxtyping_disable", True)
    jax.config.update("jax_numpy_rank_promotion", "allow")
    jax.config.update("jax_numpy_dtype_promotion", "standard")
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
    for name, value in strict.items():
        jax.config.update(name, value)
