"""Keys of runs, and keys whose random numbers a CPU draws faster, the same numbers."""

from functools import cache, partial
from math import prod
from typing import Any
from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import define_prng_impl, threefry_prng_impl
from jaxtyping import Array, PRNGKeyArray

THREEFRY = "threefry2x32"
# Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


def key_of(seed: Any) -> PRNGKeyArray:
    """`jax.random.key(seed)` by Threefry, of a seed from 0 to 2**32 - 1, which may be traced.

    Neither `jax_default_prng_impl` nor `jax_random_seed_offset` changes it. The numbers of an "rbg"
    key depend on what is drawn beside it under `jax.vmap`, and so a run's on its lane.
    """
    return jax.random.wrap_key_data(jnp.array([0, seed], jnp.uint32), impl=THREEFRY)


def unrolled(key: PRNGKeyArray) -> PRNGKeyArray:
    """The same key, and so are the random numbers and the keys made from it, to the bit.

    On a CPU JAX writes the rounds of Threefry as a loop, which XLA does not vectorize. Without the
    loop bits take a third of the time. `jax.random.poisson` refuses such a key. A key of another
    kind comes back as it is, as do all under `jax_threefry_partitionable=False`. Raises ValueError
    for what is no array, as a seed.
    """
    if not isinstance(key, jax.Array | np.ndarray):
        raise ValueError(f"a random key is needed, as jax.random.key(0), got {key!r}")
    config: Any = jax.config
    if not config.jax_threefry_partitionable or str(jax.random.key_impl(key)) != THREEFRY:
        return key
    return jax.random.wrap_key_data(jax.random.key_data(key), impl=_unrolled())


def fold(key: PRNGKeyArray, tag: str, *numbers: Any) -> PRNGKeyArray:
    """A key of its own, and of the same kind, for every tag and numbers: `jax.random.fold_in` by
    one after the other."""
    found = unrolled(key)
    for number in (crc32(tag.encode()), *numbers):
        found = jax.random.fold_in(found, number)
    return jax.random.wrap_key_data(jax.random.key_data(found), impl=jax.random.key_impl(key))


@cache
def _unrolled() -> Any:
    like = threefry_prng_impl
    return define_prng_impl(
        key_shape=like.key_shape,
        seed=like.seed,
        split=_split,
        fold_in=_fold_in,
        random_bits=_random_bits,
        name=f"{THREEFRY} unrolled",
        tag="unrolled",
    )


@partial(jax.jit, static_argnums=(1, 2), inline=True)
def _random_bits(key: Array, width: int, shape: tuple[int, ...]) -> Array:
    """As many random words of so many bits: word i is the hash of i by the key."""
    if prod(shape) >= 2**32:
        return threefry_prng_impl.random_bits(key, width, shape)
    first, second = _hashed(key, _places(shape))
    if width == 64:
        joined = (first.astype(jnp.uint64) << 32) | second.astype(jnp.uint64)
        return lax.optimization_barrier(joined)
    # Without the barrier XLA computes the hash again for all that is made of it.
    bits = lax.optimization_barrier(first ^ second)
    return bits.astype({8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32}[width])


@partial(jax.jit, inline=True)
def _fold_in(key: Array, number: Array) -> Array:
    """The key for a number: its hash."""
    hashed = _hashed(key, jnp.asarray(number, jnp.uint32))
    return lax.optimization_barrier(jnp.stack(hashed))


@partial(jax.jit, static_argnums=1, inline=True)
def _split(key: Array, shape: tuple[int, ...]) -> Array:
    """As many keys: the i-th is the hash of i."""
    if prod(shape) >= 2**32:
        return threefry_prng_impl.split(key, shape)
    return lax.optimization_barrier(jnp.stack(_hashed(key, _places(shape)), axis=-1))


def _places(shape: tuple[int, ...]) -> Array:
    return lax.iota(jnp.uint32, prod(shape)).reshape(shape)


def _hashed(key: Array, number: Array) -> tuple[Array, Array]:
    """The two words that a key makes of each number."""
    return _threefry(key[0], key[1], jnp.zeros_like(number), number)


# Written into a program once a shape, and called: a draw hashes some twenty times.
@jax.jit
def _threefry(key: Array, other: Array, first: Array, second: Array) -> tuple[Array, Array]:
    """Twenty rounds; after every four the words of the key in turn, and the count, are added."""
    keys = key, other, key ^ other ^ np.uint32(PARITY)
    first, second = first + keys[0], second + keys[1]
    for i in range(5):
        first, second = _rounds(first, second, ROTATIONS[i % 2])
        first = first + keys[(i + 1) % 3]
        second = second + keys[(i + 2) % 3] + np.uint32(i + 1)
    return first, second


@partial(jax.jit, static_argnums=2)
def _rounds(first: Array, second: Array, rotations: tuple[int, ...]) -> tuple[Array, Array]:
    """Rounds by these rotations of the second word to the left."""
    for by in rotations:
        first = lax.add(first, second)
        left = lax.shift_left(second, np.uint32(by))
        right = lax.shift_right_logical(second, np.uint32(32 - by))
        second = lax.bitwise_xor(first, lax.bitwise_or(left, right))
    return first, second
