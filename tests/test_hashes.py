"""A network's hash: the same whatever it is padded to, another for any other number."""

import jax
import numpy as np
import pytest

from jaxkkt import networks
from jaxkkt.engine.programs.hashes import as_text, hash_words
from jaxkkt.networks import Params

WIDTH, DIM = 7, 5
hashed_as = jax.jit(hash_words)
drawn = jax.jit(lambda seed: networks.torch_linear(jax.random.key(seed), WIDTH, DIM))


def network(seed=0):
    return jax.device_get(drawn(seed))


def hashed(params, width=WIDTH, dim=DIM):
    words = hashed_as(params, np.int32(width), np.int32(dim))
    return as_text(np.asarray(words)[None])[0]


@pytest.mark.parametrize("shape", [(WIDTH, DIM), (WIDTH, 8), (16, DIM), (100, 70)])
def test_padding_is_no_part_of_it(shape):
    wide = jax.jit(lambda params: networks.pad(params, *shape))(network())
    assert hashed(wide) == hashed(network())
    # Training may leave a zero of either sign there.
    w = np.array(wide.w)
    w[WIDTH:] = -0.0
    assert hashed(wide._replace(w=w)) == hashed(network())


def test_every_number_its_place_and_the_sizes_are_part_of_it():
    one, found = network(), []
    for name, array in one._asdict().items():
        for place in np.ndindex(array.shape):
            changed = array.copy()
            changed[place] = np.nextafter(array[place], np.float32(np.inf))
            found.append(hashed(one._replace(**{name: changed})))
    found += [hashed(one._replace(b=one.v, v=one.b)), hashed(one._replace(v=-one.v))]
    found += [hashed(Params(*(leaf[::-1] for leaf in one))), hashed(network(1))]
    found += [hashed(one._replace(w=one.w[:, ::-1])), hashed(one, WIDTH - 1), hashed(one, dim=4)]
    assert len({hashed(one), *found}) == 1 + len(found)
    assert all(len(text) == 16 for text in found)


def test_each_half_tells_them_apart():
    """Of networks that differ in one number by one bit."""
    one, lanes = network(), np.arange(200, dtype=np.uint32)
    bits = np.tile(one.b.view(np.uint32), (200, 1))
    bits[lanes, lanes % WIDTH] += lanes
    texts = [hashed(one._replace(b=b)) for b in bits.view(np.float32)]
    assert len({text[:8] for text in texts}) == len({text[8:] for text in texts}) == 200


def test_lanes_have_the_hashes_of_each_alone():
    some = [network(seed) for seed in range(4)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *some)
    sizes = np.full(4, WIDTH, np.int32), np.full(4, DIM, np.int32)
    found = as_text(np.asarray(jax.jit(jax.vmap(hash_words))(stacked, *sizes)))
    assert found == [hashed(one) for one in some]


def test_all_digits_of_a_double_count(float64):
    one = network()
    changed = one.b.copy()
    changed[0] = np.nextafter(one.b[0], np.inf)
    assert one.b.dtype == np.float64
    assert hashed(one) != hashed(one._replace(b=changed))
    assert hashed(one) != hashed(jax.tree.map(lambda leaf: leaf.astype(np.float32), one))
