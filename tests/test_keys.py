"""Keys for large draws: the numbers of JAX's own, without a loop that a CPU cannot vectorize."""

from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxkkt import datasets, mixtures, networks, spans
from jaxkkt.numerics.keys import fold, key_of, unrolled

KEY = jax.random.key(20)
SHAPES = [(), (7,), (2, 30, 5)]


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


@pytest.mark.parametrize("seed", [0, 7, 2**31 - 1, 2**31, 2**32 - 1])
def test_a_seed_is_one_key_whatever_jax_is_set_to(seed, request):
    numbers = jax.random.key_data(jax.random.key(seed))
    request.addfinalizer(lambda: jax.config.update("jax_random_seed_offset", 0))
    jax.config.update("jax_random_seed_offset", 7)
    with jax.default_prng_impl("rbg"):
        for found in (key_of(seed), jax.jit(key_of)(jnp.uint32(seed))):
            assert found.dtype == KEY.dtype
            np.testing.assert_array_equal(jax.random.key_data(found), numbers)


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
    for shape in ((), 1, 2, (3, 4)):
        for mine in (unrolled(KEY), unrolled(fold(KEY, "a", 5))):
            own = jax.random.wrap_key_data(jax.random.key_data(mine))
            for make in (jax.random.split, lambda key, n: jax.random.fold_in(key, np.sum(n))):
                keys = make(mine, shape), make(own, shape)
                np.testing.assert_array_equal(*map(jax.random.key_data, keys))


def test_folded_is_jaxs_own_key():
    found, own = fold(KEY, "tag", 2**32 - 1, jnp.int32(4)), KEY
    for number in (crc32(b"tag"), 2**32 - 1, 4):
        own = jax.random.fold_in(own, number)
    assert found == own
    assert found.dtype == own.dtype
    assert jax.random.poisson(found, 3.0) == jax.random.poisson(own, 3.0)


def test_gamma_variates_are_those_of_the_key():
    found, own = (jax.random.gamma(key, 2.5, (20,)) for key in (unrolled(KEY), KEY))
    np.testing.assert_array_equal(found, own)


def test_keys_of_another_kind_stay():
    other = jax.random.key(0, impl="rbg")
    assert unrolled(other) is other
    assert fold(other, "a") == jax.random.fold_in(other, crc32(b"a"))
    with jax.threefry_partitionable(False):  # other numbers, by other means
        assert unrolled(KEY) is KEY
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
        lambda key: spans.sphere(key, 40, 100.0),
        lambda key: mixtures.sample(key, np.eye(2).tolist(), [1.0, -1.0], 1.0, 40),
        lambda key: fold(key, "data", 40, 30),
    ],
    ids=["torch", "gaussian", "points", "clusters", "span", "sphere", "mixture", "a run's key"],
)
def test_no_draw_loops_over_rounds(draw):
    """Such a loop carries four rotations, twice."""
    assert "4xui32>, tensor<4xui32>" in _loops(lambda key: jax.random.bits(key, (40, 30)))
    assert "4xui32>" not in _loops(draw)


def _loops(draw) -> str:
    program = jax.jit(draw).trace(KEY).lower(lowering_platforms=("cpu",)).as_text()
    return "\n".join(line for line in program.splitlines() if "stablehlo.while" in line)


@pytest.mark.parametrize("make", [jax.random.bits, jax.random.split], ids=["bits", "keys"])
def test_more_than_a_word_counts_are_jaxs_own(make):
    assert "4xui32>" in _loops(lambda key: make(unrolled(key), (2**16, 2**16)))
    assert "4xui32>" not in _loops(lambda key: make(unrolled(key), (2**15, 2**16)))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("draw", [networks.torch_linear, datasets.sphere])
def test_a_seed_is_no_key(draw):
    with pytest.raises(ValueError, match=r"a random key is needed, as jax.random.key\(0\), got 0"):
        draw(0, 4, 3)
