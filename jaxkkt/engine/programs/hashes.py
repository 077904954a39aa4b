"""A hash of a network, computed where the network is."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from jaxkkt.networks import Params

# Odd numbers, those of each of two hashes, that tell rows, columns and words of a number apart.
_PLACES = ((0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D), (0x27D4EB2F, 0x165667B1, 0xD6E8FEB9))


@partial(jax.jit, inline=True)  # traced once a shape
def hash_words(
    params: Params, width: Int[Array, ""], dim: Int[Array, ""]
) -> UInt32[Array, " hashes"]:
    """Traced: a hash of the parameters as words, the same whatever zeros pad them to.

    Equal networks have equal hashes; two that differ in some number by chance have them once in
    2^64. The sum over all numbers of what the finalizer of MurmurHash3 (A. Appleby, in the public
    domain) makes of one and its place: of whole numbers, so its order is of no matter.
    """
    blocks = ((params.b[:, None], 0), (params.v[:, None], 1), (params.w, 2))
    of_each = (_sums(*block, width, dim) for block in blocks)
    return jnp.stack([sum(ones) for ones in zip(*of_each, strict=True)])


def _sums(
    block: Float[Array, "k n"], first: int, width: Int[Array, ""], dim: Int[Array, ""]
) -> Sequence[UInt32[Array, ""]]:
    """One sum for each hash, in one pass over a block of columns that begins with `first`."""
    words = jax.lax.bitcast_convert_type(block, jnp.uint32).reshape(*block.shape, -1)
    row, column, part = (
        jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis) for axis in range(words.ndim)
    )
    columns = dim.astype(jnp.uint32) if first == 2 else np.uint32(1)
    real = (row < width.astype(jnp.uint32)) & (column < columns)
    nothing = np.uint32(0)

    def mixed(by: Sequence[int]) -> Array:
        told = [np.uint32(one) for one in by]
        place = row * told[0] + (column + np.uint32(first)) * told[1] + part * told[2]
        return jnp.where(real, _mixed(words + place), nothing)

    some = [mixed(by) for by in _PLACES]
    add = partial(jax.tree.map, jnp.add)
    return jax.lax.reduce(some, [nothing] * len(some), add, range(words.ndim))


def _mixed(words: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        words = (words ^ (words >> np.uint32(shift))) * np.uint32(factor)
    return words ^ (words >> np.uint32(16))


def as_text(words: UInt32[np.ndarray, "n hashes"]) -> list[str]:
    """On the host: the hashes of several networks."""
    length = 8 * words.shape[1]
    text = words.astype(">u4").tobytes().hex()
    return [text[i : i + length] for i in range(0, len(text), length)]
