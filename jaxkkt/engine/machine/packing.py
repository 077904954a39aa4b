"""Numbers packed into one array: many small ones cross between host and device in one transfer."""

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxkkt.numerics.requirements import require_number_held
from jaxkkt.specs.same import by_identity

WORD = 4  # bytes


def number(leaf: Any) -> np.ndarray:
    """A number of a spec as an array of the type that lanes have."""
    whole = np.issubdtype(np.asarray(leaf).dtype, np.integer)
    return np.asarray(leaf, np.int32 if whole else jax.dtypes.canonicalize_dtype(float))


def numbers(tree: Any) -> Any:
    """The numbers of specs as such arrays."""
    return jax.tree.map(number, tree)


@by_identity
def require_numbers_held(spec: Any) -> None:
    """Raises ValueError for a number of a spec that lanes would take for infinity or 0."""
    for path, leaf in jax.tree.leaves_with_path(spec):
        if isinstance(leaf, float):
            dtype = jax.dtypes.canonicalize_dtype(float)
            require_number_held(f"{path[-1].name} of {spec.label!r}", leaf, dtype)


def sent_once(words: np.ndarray, place: jax.Device) -> Array:
    """Words on a device that are sent again and again: the same ones cross once."""
    return _sent(words.tobytes(), words.shape, place)


@lru_cache(maxsize=256)
def _sent(words: bytes, shape: tuple[int, ...], place: jax.Device) -> Array:
    return jax.device_put(np.frombuffer(words, np.int32).reshape(shape), place)


class Layout(NamedTuple):
    """The structure, shapes and types of a pytree of numbers that travels as 32-bit words."""

    tree: Any
    leaves: tuple[tuple[tuple[int, ...], str], ...]

    @classmethod
    def of(cls, example: Any) -> "Layout":
        """The layout of trees like this one, of arrays or of their shapes."""
        leaves, tree = jax.tree.flatten(example)
        return cls(tree, tuple((np.shape(leaf), str(leaf.dtype)) for leaf in leaves))

    @property
    def words(self) -> int:
        return sum(_words(shape, dtype) for shape, dtype in self.leaves)

    @property
    def shapes(self) -> Any:
        """A tree of this layout, of shapes and types."""
        leaves = [jax.ShapeDtypeStruct(*leaf) for leaf in self.leaves]
        return jax.tree.unflatten(self.tree, leaves)

    def pack_on_host(self, trees: Sequence[Any]) -> np.ndarray:
        """Each tree as a row of words, by NumPy; a leaf of them all at a time, for there may be
        many."""
        leaves = zip(*map(jax.tree.leaves, trees), strict=True)
        parts = [
            np.array(some, _kept_as(dtype)).reshape(len(trees), -1).view(np.int32)
            for some, (_, dtype) in zip(leaves, self.leaves, strict=True)
        ]
        return np.concatenate([np.zeros((len(trees), 0), np.int32), *parts], axis=1)

    def unpack(self, words: Int[Array, " n"]) -> Any:
        """Traced: the tree in these words."""
        found, at = [], 0
        for shape, dtype in self.leaves:
            size = _words(shape, dtype)
            found.append(_leaf(words[at : at + size], shape, dtype))
            at += size
        return jax.tree.unflatten(self.tree, found)

    def pack(self, tree: Any) -> Int[Array, " n"]:
        """Traced: the tree as words."""
        parts = [_flat(leaf) for leaf in jax.tree.leaves(tree)]
        return jnp.concatenate(parts) if parts else jnp.zeros(0, jnp.int32)

    def unpack_on_host(self, words: np.ndarray) -> Any:
        """The tree in these words, by NumPy, its leaves with any axes of `words` before them."""
        found, at = [], 0
        for shape, dtype in self.leaves:
            size = _words(shape, dtype)
            kept = np.ascontiguousarray(words[..., at : at + size]).view(_kept_as(dtype))
            found.append(kept.reshape((*words.shape[:-1], *shape)).astype(dtype, copy=False))
            at += size
        return jax.tree.unflatten(self.tree, found)


def rows_of(columns: Mapping[str, np.ndarray], count: int) -> list[dict[str, Any]]:
    """On the host: what so many places of columns hold, as Python numbers and lists of them."""
    if not columns:
        return [{} for _ in range(count)]
    values = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, some, strict=True)) for some in values]


@cache
def _kept_as(dtype: str) -> Any:
    """The type of whole words that holds another."""
    kind = np.dtype(dtype)
    if kind.itemsize % WORD == 0:
        return kind
    # To NumPy a bfloat16 is no kind of float.
    return np.dtype(np.float32 if jnp.issubdtype(kind, jnp.floating) else np.int32)


@cache
def _words(shape: tuple[int, ...], dtype: str) -> int:
    return prod(shape) * (_kept_as(dtype).itemsize // WORD)


def _flat(leaf: Array) -> Array:
    kept = jnp.asarray(leaf).astype(_kept_as(str(leaf.dtype))).reshape(-1)
    return jax.lax.bitcast_convert_type(kept, jnp.int32).reshape(-1)


def _leaf(words: Array, shape: tuple[int, ...], dtype: str) -> Array:
    kind = _kept_as(dtype)
    each = kind.itemsize // WORD
    kept = words.reshape(*shape, each) if each > 1 else words.reshape(shape)
    return jax.lax.bitcast_convert_type(kept, kind).astype(dtype)
