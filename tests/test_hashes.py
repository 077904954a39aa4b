"""A network's hash: the same whatever it is padded to, another for any other number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxkkt import networks
from jaxkkt.engine.hashes import as_text, hash_words
from jaxkkt.networks import Params

WIDTH, DIM = 7, 5
hashed_as = jax.jit(hash_words)


def network(seed=0):
    return networks.torch_linear(jax.random.key(seed), WIDTH, DIM)


def hashed(params, width=WIDTH, dim=DIM):
    words = hashed_as(params, jnp.int32(width), jnp.int32(dim))
    return as_text(np.asarray(words)[None])[0]


@pytest.mark.parametrize("shape", [(WIDTH, DIM), (WIDTH, 8), (16, DIM), (100, 70)])
def test_padding_is_no_part_of_it(shape):
    wide = networks.pad(network(), *shape)
    assert hashed(wide) == hashed(network())
    # Training may leave a zero of either sign there.
    assert hashed(wide._replace(w=wide.w.at[WIDTH:].set(-0.0))) == hashed(network())


def test_every_number_its_place_and_the_sizes_are_part_of_it():
    one, found = network(), []
    for name, array in one._asdict().items():
        for place in np.ndindex(array.shape):
            least = np.nextafter(np.asarray(array)[place], np.float32(np.inf))
            found.append(hashed(one._replace(**{name: array.at[place].set(least)})))
    found += [hashed(one._replace(b=one.v, v=one.b)), hashed(one._replace(v=-one.v))]
    found += [hashed(Params(*(leaf[::-1] for leaf in one))), hashed(network(1))]
    found += [hashed(one._replace(w=one.w[:, ::-1])), hashed(one, WIDTH - 1), hashed(one, dim=4)]
    assert len({hashed(one), *found}) == 1 + len(found)
    assert all(len(text) == 16 for text in found)


def test_each_half_tells_them_apart():
    """Of networks that differ in one number by one bit."""
    some = jnp.broadcast_to(network().b, (200, WIDTH))
    bits = jax.lax.bitcast_convert_type(some, jnp.uint32)
    bits = bits.at[jnp.arange(200), jnp.arange(200) % WIDTH].add(jnp.arange(200, dtype=jnp.uint32))
    stacked = jax.lax.bitcast_convert_type(bits, jnp.float32)
    texts = [hashed(network()._replace(b=b)) for b in stacked]
    assert len({text[:8] for text in texts}) == len({text[8:] for text in texts}) == 200


def test_lanes_have_the_hashes_of_each_alone():
    some = [network(seed) for seed in range(4)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *some)
    sizes = jnp.full(4, WIDTH, jnp.int32), jnp.full(4, DIM, jnp.int32)
    found = as_text(np.asarray(jax.jit(jax.vmap(hash_words))(stacked, *sizes)))
    assert found == [hashed(one) for one in some]


def test_all_digits_of_a_double_count(float64):
    one = network()
    least = np.nextafter(float(one.b[0]), np.inf)
    assert one.b.dtype == np.float64
    assert hashed(one) != hashed(one._replace(b=one.b.at[0].set(least)))
    assert hashed(one) != hashed(jax.tree.map(lambda leaf: leaf.astype(np.float32), one))
