"""Keys for large draws: the numbers of JAX's own, without a loop that a CPU cannot vectorize."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxkkt import datasets, mixtures, networks, spans
from jaxkkt.keys import unrolled

KEY = jax.random.key(20)
SHAPES = [(), (1,), (7,), (3, 5), (2, 300, 9)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "draw",
    [
        jax.random.bits,
        lambda key, shape: jax.random.bits(key, shape, "uint8"),
        lambda key, shape: jax.random.bits(key, shape, "uint16"),
        jax.random.uniform,
        jax.random.normal,
        jax.random.rademacher,
    ],
    ids=["32 bits", "8 bits", "16 bits", "uniform", "normal", "signs"],
)
def test_numbers_are_those_of_the_key(draw, shape):
    for key in (KEY, jax.random.key(2**31 + 5), jax.random.fold_in(KEY, 3)):
        np.testing.assert_array_equal(draw(unrolled(key), shape), draw(key, shape))


def test_numbers_in_double_precision():
    with jax.enable_x64(True):
        for draw in (jax.random.normal, jax.random.uniform):
            found = draw(unrolled(KEY), (50, 3))
            assert found.dtype == jnp.float64
            np.testing.assert_array_equal(found, draw(KEY, (50, 3)))


def test_under_jit_and_vmap_and_of_keys_made_from_it():
    keys = jax.random.split(KEY, 4)
    some = jax.jit(jax.vmap(lambda key: jax.random.normal(unrolled(key), (6,))))(keys)
    np.testing.assert_array_equal(some, jnp.stack([jax.random.normal(key, (6,)) for key in keys]))
    for mine, own in zip(jax.random.split(unrolled(KEY)), jax.random.split(KEY), strict=True):
        np.testing.assert_array_equal(jax.random.key_data(mine), jax.random.key_data(own))
    folded = jax.random.fold_in(unrolled(KEY), 9)
    np.testing.assert_array_equal(
        jax.random.key_data(folded), jax.random.key_data(jax.random.fold_in(KEY, 9))
    )


def test_keys_of_another_kind_stay():
    other = jax.random.key(0, impl="rbg")
    assert unrolled(other) is other
    raw = jax.random.PRNGKey(3)
    np.testing.assert_array_equal(jax.random.bits(unrolled(raw), (5,)), jax.random.bits(raw, (5,)))


@pytest.mark.parametrize(
    "draw",
    [
        lambda key: networks.torch_linear(key, 40, 30).w,
        lambda key: networks.gaussian(key, 40, 30).w,
        lambda key: datasets.sphere(key, 40, 30).x,
        lambda key: mixtures._normal(key, 40, 30, None),
        lambda key: spans.gaussian_rows(key, 4, 30, 100.0),
    ],
    ids=["torch", "gaussian", "points", "clusters", "span"],
)
def test_large_draws_have_no_loop(draw):
    """Of the numbers themselves: keys are still made by loops, which touch no array of 30."""
    program = jax.jit(draw).lower(KEY).as_text()
    loops = [line for line in program.splitlines() if "stablehlo.while" in line]
    assert not [line for line in loops if "40x3" in line or "4x30" in line]
