"""The Newton systems of certificates and polishes solve what a dense matrix solves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxkkt.kkt import direction_blocks, kink_blocks, systems
from jaxkkt.kkt.systems import Boxes, Point

M, W = 7, 5
pytestmark = pytest.mark.usefixtures("float64")


def dense(energy, m, real):
    """Right sides -> minimizer of energy(lambda, tau) less their product, tau 0 where not real."""

    def flat(z):
        return energy(z[:m], jnp.zeros(real.shape).at[np.nonzero(real)].set(z[m:]))

    matrix = np.asarray(jax.hessian(flat)(jnp.zeros(m + int(real.sum()))))

    def solve(on_multipliers, on_products):
        z = np.linalg.solve(matrix, np.concatenate([on_multipliers, on_products[real]]))
        by_products = np.zeros(real.shape)
        by_products[real] = z[m:]
        return z[:m], by_products

    return solve


def interior(rng, boxes, spread):
    """A point inside its boxes, with prices that differ by a factor of 10^spread."""
    shape = boxes.sample.shape
    multipliers = rng.uniform(0.5, 2, M)
    share = rng.uniform(0.1, 0.9, shape)
    return Point(
        jnp.asarray(multipliers),
        jnp.asarray(np.where(boxes.real, share * multipliers[np.asarray(boxes.sample)], 1)),
        *(jnp.asarray(10 ** rng.uniform(-spread, 0, s)) for s in ((M,), shape, shape)),
    )


def bounds_energy(boxes, point):
    low, up = systems.curvatures(boxes, point)
    alone = point.positive / point.multipliers

    def energy(multipliers, products):
        space = multipliers[boxes.sample] - products
        return (jnp.sum(low * products**2 + up * space**2) + jnp.sum(alone * multipliers**2)) / 2

    return energy


def assert_same(got, expected, rtol=1e-7):
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * np.abs(b).max())


# With fewer dimensions than open kinks the floor alone would hold what no margin sees: spread 1.
@pytest.mark.parametrize(
    ("r", "spread", "group"),
    [
        pytest.param(3, 1, 1, marks=pytest.mark.slow),
        pytest.param(7, 1, 3 * 7 * 7, marks=pytest.mark.slow),
        pytest.param(7, 8, 1, marks=pytest.mark.slow),
    ],
)
def test_directions(r, group, spread, monkeypatch):
    monkeypatch.setattr(direction_blocks, "GROUP", group)
    rng = np.random.default_rng(r + spread)
    points = jnp.asarray(rng.standard_normal((M, r)))
    own = rng.random((W, M)) < 0.5
    real = ~own & (np.arange(M) != 2)[None]
    boxes = Boxes(jnp.broadcast_to(jnp.arange(M), (W, M)), jnp.asarray(real))
    on = jnp.asarray(np.where(own & (rng.random((W, M)) < 0.7), 1.0, 0.0))
    p = rng.standard_normal((W, r))
    p = jnp.asarray(p / np.linalg.norm(p, axis=1, keepdims=True))
    weight = jnp.asarray(rng.uniform(0.1, 1, W))
    slack = jnp.asarray(10 ** rng.uniform(-spread, 0, W))
    point = interior(rng, boxes, spread)
    bounds = bounds_energy(boxes, point)

    def energy(multipliers, products):
        by_p = (on * multipliers[None] - products) @ points
        bent = jnp.sum(p * by_p, axis=1) ** 2 / slack
        return jnp.sum(weight * (jnp.sum(by_p**2, axis=1) + bent)) / 2 + bounds(
            multipliers, products
        )

    sides = rng.standard_normal(M), np.where(real, rng.standard_normal((W, M)), 0)
    solve = direction_blocks.solver(points, boxes, point, on, p, weight, slack)
    # The floor of open kinks is refined once: what is left of it is its square.
    got, expected = solve(*map(jnp.asarray, sides)), dense(energy, M, real)(*sides)
    assert_same(got, expected, rtol=1e-5)
    monkeypatch.setattr(direction_blocks, "FLOOR", 1e-9)
    solve = direction_blocks.solver(points, boxes, point, on, p, weight, slack)
    assert_same(solve(*map(jnp.asarray, sides)), expected, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("spread", [1, 8])
def test_kinks(spread):
    rng = np.random.default_rng(spread)
    n = 3
    sample = np.stack([rng.permutation(M)[:n] for _ in range(W)])
    real = np.arange(n)[None] < rng.integers(0, n + 1, W)[:, None]
    boxes = Boxes(jnp.asarray(sample), jnp.asarray(real))
    point = interior(rng, boxes, spread)
    features = rng.standard_normal((W, M, 4))
    kinked = np.where(real[:, :, None], np.take_along_axis(features, sample[:, :, None], 1), 0)
    matrix = kink_blocks.Matrix(
        jnp.asarray(np.einsum("wnr,wkr->wnk", kinked, kinked)),
        jnp.asarray(np.einsum("wnr,wmr->wnm", kinked, features)),
        jnp.asarray(np.einsum("wkr,wmr->km", features, features)),
    )
    bounds = bounds_energy(boxes, point)

    def energy(multipliers, products):
        pulls = jnp.einsum("wmr,m->wr", features, multipliers)
        pulls += jnp.einsum("wnr,wn->wr", kinked, products)
        return jnp.sum(pulls**2) / 2 + bounds(multipliers, products)

    sides = rng.standard_normal(M), np.where(real, rng.standard_normal((W, n)), 0)
    got = kink_blocks.solver(boxes, point, matrix)(*map(jnp.asarray, sides))
    assert_same(got, dense(energy, M, real)(*sides))


def test_a_corner_whose_samples_repeat():
    rows = np.random.default_rng(0).standard_normal((3, M))
    matrix = jnp.asarray(rows.T @ rows * 1e6)  # of rank 3
    wanted = matrix @ jnp.ones(M)
    x = systems.corner_solver(matrix)(wanted)
    np.testing.assert_allclose(matrix @ x, wanted, rtol=1e-8, atol=1e-8 * float(wanted.max()))
