"""What arguments have to be. Values are checked where they are known: not under a trace."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

# The largest size: arrays are made at multiples of 1024, counted in 32 bits.
LARGEST = 2**31 - 1024


def require_positive(**numbers: object) -> None:
    """Raises ValueError unless all numbers, or arrays of them, are positive and finite."""
    for name, number in numbers.items():
        _require(name, number, lambda values: values > 0, "positive")


def require_not_negative(**numbers: object) -> None:
    """Raises ValueError unless all numbers, or arrays of them, are 0 or more, and finite."""
    for name, number in numbers.items():
        _require(name, number, lambda values: values >= 0, "at least 0")


def require_probability(**numbers: Any) -> None:
    """Raises ValueError unless all are above 0 and below 1."""
    require_positive(**numbers)
    for name, number in numbers.items():
        if not isinstance(number, jax.core.Tracer) and number >= 1:
            raise ValueError(f"{name} is a probability below 1, got {number}")


def require_whole(name: str, value: Any, least: int, most: int = LARGEST) -> None:
    """Raises ValueError unless this is an integer from `least` to `most`."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    if value > most:
        raise ValueError(f"{name} must be at most {most}, got {value}")


def require_at_least_one(**counts: Any) -> None:
    """Raises ValueError for a number below 1, of any size above, for several numbers, and for one
    that is traced: what is asked for so is computed by Python."""
    for name, count in counts.items():
        if isinstance(count, jax.core.Tracer):
            raise ValueError(f"{name} cannot be traced: this is computed of known numbers alone")
        if np.shape(count) != ():
            raise ValueError(
                f"{name} must be one number, got shape {np.shape(count)}: call it for each"
            )
        if not count >= 1:
            raise ValueError(f"{name} must be at least 1, got {count!r}")


def require_places(name: str, places: Any, count: int, known: int) -> None:
    """Raises ValueError unless these are `count` whole numbers from 0 to known - 1; of traced ones
    no number is looked at."""
    dtype, shape = jnp.result_type(places), np.shape(places)
    if shape != (count,) or not jnp.issubdtype(dtype, jnp.integer):
        raise ValueError(f"{name} must be {count} whole numbers, got {dtype} of shape {shape}")
    if not isinstance(places, jax.core.Tracer) and not np.isin(places, range(known)).all():
        raise ValueError(f"{name} is numbered from 0 to {known - 1}, got {np.unique(places)}")


def require_one_number(name: str, number: Any) -> None:
    """Raises ValueError for several numbers, where one is needed."""
    if np.shape(number) != ():
        raise ValueError(
            f"{name} must be one number, got shape {np.shape(number)}: of several, map over them "
            "by jax.vmap"
        )


def require_counts(**counts: Any) -> None:
    """Raises ValueError unless all are integers from 1 on; of traced ones the kind is checked."""
    for name, count in counts.items():
        array = isinstance(count, jax.Array | np.ndarray) and count.shape == ()
        if array and np.issubdtype(count.dtype, np.integer):
            if isinstance(count, jax.core.Tracer):
                continue
            count = int(count)
        require_whole(name, count, 1)


def require_precision(**arrays: object) -> None:
    """Raises ValueError unless all are arrays of floating-point numbers of one precision.

    That is float32 or float64; float64 arrays are refused while JAX would round them to float32
    without saying so.
    """
    expected = None
    for name, array in arrays.items():
        if not isinstance(array, jax.Array | np.ndarray | np.generic):
            raise ValueError(f"{name} must be an array, got {_kind(array)}")
        if array.dtype not in (np.float32, np.float64):
            floating = jnp.issubdtype(array.dtype, jnp.floating)
            wanted = f"'{jax.dtypes.canonicalize_dtype(float)}'"
            for other, one in arrays.items():
                if getattr(one, "dtype", None) in (np.float32, np.float64):
                    wanted = f"{other}.dtype"
            raise ValueError(
                f"{name} must hold floating-point numbers{' of 32 or 64 bits' if floating else ''},"
                f" got {array.dtype}: for example {name}.astype({wanted})"
            )
        if array.dtype == np.float64 and not jax.config.read("jax_enable_x64"):
            raise ValueError(
                f"{name} is float64, which JAX would round to float32: pass float32, or call "
                "jax.config.update('jax_enable_x64', True) first"
            )
        expected = array.dtype if expected is None else expected
        _require_same_precision(name, array.dtype, expected)


def require_held(name: str, numbers: object, dtype: Any) -> None:
    """Raises ValueError for a finite number that this precision has not, but infinity; not of
    traced ones."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(numbers)):
        return
    values = np.ravel(np.asarray(numbers, float))
    with np.errstate(over="ignore"):
        infinite = np.isinf(values.astype(dtype))
    lost = values[infinite & np.isfinite(values)] if infinite.any() else values[:0]
    if lost.size:
        most, hint = float(np.finfo(dtype).max), ""
        if np.dtype(dtype) == np.float32:
            hint = ", or call jax.config.update('jax_enable_x64', True) and give float64 throughout"
        raise ValueError(
            f"{name} has {lost[0]:g}, but {np.dtype(dtype)} ends at {most:.4g}: rescale it{hint}"
        )


def require_number_held(name: str, number: Any, dtype: Any) -> None:
    """Raises ValueError for a finite number that this precision takes for infinity or 0."""
    require_held(name, number, dtype)
    least = float(np.finfo(dtype).tiny)
    if 0 < abs(float(number)) < least:
        raise ValueError(
            f"{name} is {float(number):g}, but what is smaller than {least:.4g} is 0 in "
            f"{np.dtype(dtype)}: give a larger one, or 0, or call "
            "jax.config.update('jax_enable_x64', True)"
        )


def as_arrays(dtype: Any = None, **given: object) -> list[Array]:
    """What is given as JAX arrays of one precision: `dtype`, by default that of the arrays given.

    Lists of numbers, and arrays of whole numbers, take that precision. Raises ValueError for
    anything else, for a finite number that would be infinite in that precision, and as
    `require_precision` does.
    """
    arrays: dict[str, Any] = {n: a for n, a in given.items() if not _takes_any_precision(a)}
    require_precision(**arrays)
    for name, array in arrays.items():
        dtype = array.dtype if dtype is None else dtype
        _require_same_precision(name, array.dtype, dtype)
    dtype = jax.dtypes.canonicalize_dtype(float) if dtype is None else dtype
    for name in [name for name in given if name not in arrays]:
        try:
            arrays[name] = _rounded(given[name], dtype)
        except (TypeError, ValueError, OverflowError) as error:
            message = f"{name} must be an array, or lists of numbers that make one: {error}"
            raise ValueError(message) from error
        require_held(name, given[name], dtype)
    return [on_device(arrays[name]) for name in given]


def on_device(array: Any) -> Array:
    """A JAX array. Compiles nothing; `jnp.asarray` does, for every new shape of NumPy arrays."""
    return array if isinstance(array, jax.Array) else jax.device_put(array)


def unshared(array: Any) -> Any:
    """What is given back to the caller as it was: of a NumPy array a copy, since on a CPU a JAX
    array may share its memory, and would change with it. Device arrays are not copied."""
    return array.copy() if isinstance(array, np.ndarray) else array


def as_margins(margins: Any) -> Float[Array, " m"]:
    """The margins of one network by `as_arrays`; ValueError unless they are (m,) with m >= 1."""
    (q,) = as_arrays(margins=margins)
    if q.ndim != 1 or q.size == 0:
        raise ValueError(
            f"margins must be those of one network, shape (m,) with m >= 1, got {q.shape}: of "
            "several networks, map over them by jax.vmap"
        )
    return q


def as_mask(name: str, mask: object, samples: int) -> Bool[Array, " m"]:
    """The choice of samples as a JAX array; ValueError unless it is one truth value a sample."""
    mask = mask if isinstance(mask, jax.Array) else np.asarray(mask)
    if mask.dtype != bool or mask.shape != (samples,):
        raise ValueError(
            f"{name} must hold True or False for every sample, shape ({samples},), got "
            f"{mask.dtype} of shape {mask.shape}"
        )
    return on_device(mask)


def as_numbers(name: str, numbers: Any, dtype: Any) -> Array:
    """Numbers of any precision in this one; ValueError as of `require_held`."""
    require_held(name, numbers, dtype)
    return _rounded(numbers, dtype)


def one_or_each(name: str, number: Any, of: Array, what: str) -> Array:
    """One number for each `what`, in the shape (n,) and precision of an array.

    Raises ValueError unless it is one number for all, or one for each, and for a finite one that
    would be infinite in that precision.
    """
    each = as_numbers(name, number, of.dtype)
    if each.shape not in ((), of.shape):
        raise ValueError(
            f"{name} must be one number, or one for each {what}, shape {of.shape}, got shape "
            f"{each.shape}"
        )
    return jnp.broadcast_to(each, of.shape)


def as_positive(name: str, number: Any, dtype: Any) -> Float[Array, ""]:
    """One number in this precision; ValueError unless it is one, positive and finite there."""
    require_positive(**{name: number})
    require_one_number(name, number)
    return as_numbers(name, number, dtype)


def as_samples(dtype: Any = None, *, x: Any, y: Any) -> list[Array]:
    """Points (n, d) and labels (n,) by `as_arrays`.

    ValueError where it, `require_rows` or `require_labels` raises.
    """
    arrays = as_arrays(dtype, x=x, y=y)
    require_rows(x=arrays[0])
    require_labels(y, x)  # as given: constants turn into tracers under a trace
    return arrays


def require_rows(**arrays: Array) -> None:
    """Raises ValueError unless all hold one point a row, shape (n, d) with d >= 1."""
    for name, array in arrays.items():
        if array.ndim != 2:
            raise ValueError(
                f"{name} must hold one point a row, shape (n, d), got {array.shape}: a single "
                f"point is given as a row, {name}[None]"
            )
        require_dimension(array.shape[1])


def require_dimension(dim: int) -> None:
    """Raises ValueError for points, or weights, of no dimension."""
    if dim < 1:
        raise ValueError(f"points need at least one dimension, got dimension {dim}")


def require_points(**arrays: Array | np.ndarray) -> None:
    """Raises ValueError unless all hold at least one point, shape (n, d) with n >= 1."""
    for name, array in arrays.items():
        if array.shape[0] == 0:
            raise ValueError(f"{name} must hold at least one point, got shape {array.shape}")


def require_labels(y: Any, x: Any = None) -> None:
    """Raises ValueError unless the labels are -1 or 1, or 0 for padding: where the row of x is 0.

    Without x labels of 0 are not looked into. Of traced arrays only the shapes are checked.
    """
    if x is not None and np.shape(y) != np.shape(x)[:-1]:
        raise ValueError(
            f"y must have one label per sample, shape {np.shape(x)[:-1]}, got {np.shape(y)}"
        )
    if isinstance(y, jax.core.Tracer):
        return
    labels = np.asarray(y, float)
    wrong = set(np.unique(labels).tolist()) - {-1, 0, 1}
    if wrong:
        raise ValueError(f"labels must be -1 or 1, got {sorted(wrong)[:5]}")
    if x is None or isinstance(x, jax.core.Tracer):
        return
    unlabelled = np.flatnonzero(labels == 0)
    if unlabelled.size:
        bad = unlabelled[(np.asarray(x)[unlabelled] != 0).any(axis=-1)]
        if bad.size:
            raise ValueError(
                "labels must be -1 or 1, and 0 only for padding, where the row of x is zero: "
                f"{bad.size} rows have the label 0 and are not zero, first row {bad[0]}"
            )


def require_both_labels(y: Any, of: str) -> None:
    """Raises ValueError unless the labels are -1 or 1, and both occur; not of traced ones.

    `of`: what each label is of.
    """
    if isinstance(y, jax.core.Tracer):
        return
    labels = set(np.unique(np.asarray(y, float)).tolist())
    if not labels <= {-1.0, 1.0}:
        hint = ": of 0 and 1 they are 2 * y - 1" if labels <= {0.0, 1.0} else ""
        raise ValueError(f"labels must be -1 or 1, got {sorted(labels - {-1.0, 1.0})[:5]}{hint}")
    if len(labels) < 2:
        found = f"every {of} has y = {labels.pop():g}" if labels else f"there is no {of}"
        raise ValueError(
            f"both labels must occur, but {found}: the max-margin problem and its theorems ask for "
            "two classes"
        )


def _require(
    name: str, number: object, holds: Callable[[np.ndarray], np.ndarray], what: str
) -> None:
    if isinstance(number, jax.core.Tracer):
        return
    values = np.ravel(np.asarray(number, float))
    bad = values[~(holds(values) & np.isfinite(values))]
    if bad.size:
        raise ValueError(f"{name} must be {what} and finite, got {bad[0]:g}")


@np.errstate(over="ignore")  # which is told by `require_held`
def _rounded(numbers: Any, dtype: Any) -> Array:
    return jnp.asarray(numbers, dtype)


def _takes_any_precision(value: object) -> bool:
    if isinstance(value, jax.Array | np.ndarray):
        return np.issubdtype(value.dtype, np.integer)
    return isinstance(value, list | tuple)


def _require_same_precision(name: str, got: Any, expected: Any) -> None:
    if got != expected:
        raise ValueError(
            f"{name} is {got}, but what it is used with is {expected}: give both the same "
            f"precision, for example {name}.astype('{expected}')"
        )


def _kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
