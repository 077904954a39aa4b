"""Small problems, batches of them, and how results are compared."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxkkt as jk
from jaxkkt import datasets, networks, single
from jaxkkt.datasets import Dataset
from jaxkkt.engine.planning.plan import plan
from jaxkkt.engine.running import slots
from jaxkkt.networks import Params
from jaxkkt.store import Store

CORNERS = Dataset(jnp.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]), jnp.array([1.0, -1.0, 1.0]))


sweep = partial(jk.sweep, progress=False)

# Compiles in half the time of a flow, and reaches the default target in 30 to 60 steps.
SOON = jk.optimizer(optax.sgd, learning_rate=0.1)


def planned_for(runs, platform="cpu"):
    return plan(runs, [SimpleNamespace(platform=platform)])


def one(**axes) -> jk.Run:
    """A run of a small network, with these fields."""
    sizes = {"d": 8, "samples": 6, "width": 20, "seed": 0}
    (run,) = jk.grid(**{**sizes, "measure": squared_norm, **axes})
    return run


def mixed_grid() -> list[jk.Run]:
    measured = {"measure": squared_norm}
    return [
        *jk.grid(d=[8, 12], alpha=[0.8, 1.5], width=[20, 30], seed=[3, 5], **measured),
        *jk.grid(d=[12], alpha=[1.0], width=[20], seed=[3], loss=["logistic"], **measured),
        *jk.grid(d=[12], alpha=[1.0], width=[20], seed=[3], init_scale=[0.5], **measured),
        *jk.grid(d=[9], alpha=[1.0], width=[20], seed=[3], data=["gaussian"], **measured),
    ]


def refuse_to_draw(monkeypatch, seed):
    """Whatever is drawn with runs of this seed raises."""
    draw = slots.draw_batch

    def drawn(drawing, words, runs, *rest):
        if any(run.seed == seed for run in runs):
            raise ArithmeticError("an unlucky draw")
        return draw(drawing, words, runs, *rest)

    monkeypatch.setattr(slots, "draw_batch", drawn)


def problem(m=6, d=4, k=12, seed=0):
    """A network and data; those of all small sizes are drawn by one program."""
    size = 32 if max(m, d, k) <= 32 else 512
    (w, b, v), (x, y) = jax.device_get(_padded_problem(m, d, k, seed, size))
    return jax.device_put((Params(w[:k, :d], b[:k], v[:k]), Dataset(x[:m, :d], y[:m])))


@partial(jax.jit, static_argnames="size")
def _padded_problem(m, d, k, seed, size):
    data_key, key = jax.random.split(jax.random.key(seed))
    shape = (size, size)
    return (
        networks.torch_linear(key, k, d, shape=shape),
        datasets.sphere(data_key, m, d, shape=shape),
    )


def normal(seed, *shape):
    """Standard normal numbers; nothing is compiled for a new shape."""
    return jax.device_put(np.random.default_rng(seed).standard_normal(shape))


def lazy(seed=0, k=40, d=6, biases=False):
    """A lazy network; those of all small sizes are drawn by one program."""
    w, b, v = jax.device_get(_padded_lazy(k, d, seed, biases, 64 if max(k, d) <= 64 else 256))
    return Params(*jax.device_put((w[:k, :d], b[:k], v[:k])))


@partial(jax.jit, static_argnames=("biases", "size"))
def _padded_lazy(k, d, seed, biases, size):
    return networks.lazy(jax.random.key(seed), k, d, biases=biases, shape=(size, size))


class SquaredNorm(jk.Measurement):
    """Compiles at once, once a bucket, where a test asks for no measurement in particular."""

    padded = True

    def measure(self, params):
        return {"squared_norm": networks.squared_norm(params)}


squared_norm = SquaredNorm()


def rows_in(folder):
    """Names and contents of the rows in a store."""
    return {record.name: record.value for record in Store(folder).records()}


def flat(problem):
    params, data = problem
    return params, *data


def stacked(*problems):
    return jax.device_put(jax.tree.map(lambda *leaves: np.stack(leaves), *problems))


def train_lanes(params, data, protocol):
    return jax.vmap(lambda p, x, y: single.train(p, x, y, protocol))(params, *data)


def lane(result, i):
    return jax.tree.map(lambda leaf: leaf[i], result)


def assert_close(got, expected, **tolerances):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, **tolerances)


def assert_same_bits(got, expected):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def note_trained(monkeypatch):
    """A list, to which the runs that streams take out at their end are added."""
    trained, made = [], slots.rows_of_ended

    def rows_of_ended(begun, *rest):
        trained.extend(one.run for one in begun.ones)
        return made(begun, *rest)

    monkeypatch.setattr(slots, "rows_of_ended", rows_of_ended)
    return trained


def aligned(array):
    """A NumPy array whose memory JAX takes over on a CPU, instead of a copy: at a multiple of 64
    bytes."""
    array = np.asarray(array)
    room = np.empty(array.nbytes + 64, np.uint8)
    first = -room.ctypes.data % 64
    found = room[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found
