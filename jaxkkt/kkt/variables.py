"""Which parameters a KKT problem is over: all of them, or w and v of a network without biases.

With trained biases neuron j acts on z_i = (x_i, 1); without them it acts on z_i = x_i. Both make
the network homogeneous of degree 2 in what is trained, as the max-margin problem asks.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxkkt.networks import PRECISION, Params
from jaxkkt.numerics.truths import all_of, any_of

ALL = Params._fields
NO_BIASES = ("w", "v")

UNCLEAR = (
    "the biases do not fit `trained`: pass trained=('w', 'v') for a network without biases, "
    "trained=('w', 'b', 'v') for one whose biases were trained but are all 0; fixed biases other "
    "than 0 are not supported"
)


def chosen(params: Params, trained: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """`trained` in the order of `Params`, and None where it was not given.

    Raises ValueError for other subsets and, unless the parameters are traced, for biases that do
    not fit.
    """
    if trained is not None:
        trained = tuple(sorted(trained, key=(*ALL, *trained).index))
        if trained not in (ALL, NO_BIASES):
            raise ValueError(
                f"trained must be {ALL}, or {NO_BIASES} for a network without biases, got "
                f"{trained}: KKT points are those of networks whose two layers are both trained"
            )
    if any(isinstance(leaf, jax.core.Tracer) for leaf in params):
        return trained
    with jax.ensure_compile_time_eval():  # within a trace of something else, too
        if fit(params, trained):
            return trained
    if trained is None:
        raise ValueError(
            "all biases are 0 and `trained` was not given: pass trained=('w', 'v') for a network "
            "without biases, or trained=('w', 'b', 'v') if the biases were trained"
        )
    raise ValueError(
        f"trained={trained} expects a network without biases, got biases up to "
        f"{float(jnp.max(jnp.abs(params.b))):.3g}: pass trained={ALL} if they were trained; fixed "
        "biases other than 0 are not supported"
    )


@partial(jax.jit, static_argnames="trained")
def fit(params: Params, trained: tuple[str, ...] | None) -> Bool[Array, ""]:
    """Whether the biases are what `trained` says; without it, whether they show that they moved.

    Where all of w is 0, zero biases tell nothing and are accepted, and so are biases that are NaN,
    of which callers tell something else.
    """
    if trained is None:
        return any_of(params.b != 0) | all_of(params.w == 0)
    return jnp.array(True) if "b" in trained else all_of((params.b == 0) | jnp.isnan(params.b))


def biased(trained: tuple[str, ...] | None) -> bool:
    """Whether b is a variable of the problem; it is where `trained` was not given."""
    return trained is None or "b" in trained


def gram(x: Float[Array, "m d"], trained: tuple[str, ...] | None) -> Float[Array, "m m"]:
    """z_i . z_l."""
    inner = jnp.dot(x, x.T, precision=PRECISION)
    return inner + 1 if biased(trained) else inner


def lengths(x: Float[Array, "m d"], trained: tuple[str, ...] | None) -> Float[Array, " m"]:
    """|z_i|."""
    return jnp.sqrt(jnp.sum(x**2, axis=1) + (1 if biased(trained) else 0))


def over_b(values: Float[Array, "m k"], trained: tuple[str, ...] | None) -> Float[Array, " k"]:
    """sum_i values_ij, what coefficients of the points z_i make of b_j; 0 without biases."""
    return values.sum(axis=0) if biased(trained) else jnp.zeros_like(values[0])
