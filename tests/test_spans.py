"""Vectors of any dimension in coordinates of their span, against vectors drawn in full."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxkkt as jk
from jaxkkt import spans


@pytest.mark.slow
def test_inner_products_are_those_of_gaussian_vectors():
    """Mean and variance of <g_i, g_l> and |g_i|^2 over 1,000 draws: 0 and d, d and 2 d."""
    n, d = 4, 30
    keys = jax.random.split(jax.random.key(0), 1000)
    rows = jax.vmap(lambda key: spans.gaussian_rows(key, n, n, float(d)))(keys)
    products = np.asarray(rows @ rows.transpose(0, 2, 1))
    for i in range(n):
        assert products[:, i, i].mean() == pytest.approx(d, rel=0.03)
        assert products[:, i, i].var() == pytest.approx(2 * d, rel=0.2)
        for j in range(i):
            assert products[:, i, j].mean() == pytest.approx(0, abs=0.9)
            assert products[:, i, j].var() == pytest.approx(d, rel=0.2)


@pytest.mark.slow
def test_the_largest_product_is_distributed_as_on_the_sphere():
    """Medians of p over 200 draws, in the span and in full."""
    m, d = 12, 200
    keys = jax.random.split(jax.random.key(1), 200)

    def largest(x):
        return jnp.max(jnp.abs(x @ x.T - d * jnp.eye(m)))

    spanned = jax.vmap(lambda key: largest(spans.sphere(key, m, float(d))[0]))(keys)
    full = jax.vmap(lambda key: largest(jk.datasets.sphere(key, m, d).x))(keys)
    assert float(jnp.median(spanned)) == pytest.approx(float(jnp.median(full)), rel=0.06)


@pytest.mark.slow
def test_rows_that_come_later_share_the_coordinates():
    """Rows 0 to 2 and 3 to 5, drawn apart, are in general position in 6 coordinates."""
    first = spans.gaussian_rows(jax.random.key(2), 3, 6, 1e6)
    later = spans.gaussian_rows(jax.random.key(3), 3, 6, 1e6, first=3)
    both = np.concatenate([first, later])
    np.testing.assert_array_equal(both, np.tril(both))
    np.testing.assert_allclose(np.linalg.norm(both, axis=1), 1e3, rtol=0.01)


def test_data_of_ten_million_dimensions():
    data = jk.data.Span(samples=9, ambient=1e7)
    x, y = data.draw_training(0)
    assert data.d == 9
    assert set(y.tolist()) == {-1.0, 1.0}
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1e7**0.5, rtol=1e-6)
    assert data.draw_held_out(0) is None
    assert float(data.draw_truth(0).d) == 1e7


@pytest.mark.slow
@pytest.mark.parametrize("means", ["sphere", "orthogonal"])
def test_clusters_of_ten_million_dimensions(means):
    data = jk.data.Clusters(samples=12, clusters=3, tests=5, ambient=1e7, means=means, sigma=0.5)
    assert data.d == 3 + 1 + 12 + 5
    (x, _), (fresh, _) = data.draw_training(0), data.draw_held_out(0)
    truth = data.draw_truth(0)
    np.testing.assert_allclose(np.linalg.norm(truth.means, axis=1), 1e7**0.5, rtol=1e-5)
    if means == "orthogonal":
        np.testing.assert_allclose(truth.means @ truth.means.T, 1e7 * np.eye(3), atol=100)
    # The noise of all points is nearly orthogonal, of length sigma sqrt(d).
    noise = np.concatenate(
        [x - truth.means[truth.cluster], fresh - truth.means[truth.test_cluster]]
    )
    np.testing.assert_allclose(noise @ noise.T / 2.5e6, np.eye(17), atol=0.01)


def test_initial_weights_have_the_variance_of_the_whole_space():
    start = jk.initializations.Spanned(ambient=400.0).draw_start(0, 500, 20)
    assert start.w.std() == pytest.approx(1 / 20, rel=0.06)
    assert start.b.std() == pytest.approx(1 / 20, rel=0.2)
    assert start.v.std() == pytest.approx(500**-0.5, rel=0.2)


def test_what_does_not_fit_is_told():
    axes = {"width": 5, "seed": 0, "initialization": "spanned", "init_ambient": 1e6}
    with pytest.raises(ValueError, match=r"of R\^100000.0 and the weights of R\^1000000.0: give"):
        jk.grid(data="span", samples=4, data_ambient=1e5, **axes)
    with pytest.raises(ValueError, match="7 vectors span 7 columns, got 6"):
        spans.gaussian_rows(jax.random.key(0), 4, 6, 100.0, first=3)
    with pytest.raises(ValueError, match="general position from d on, got d = 3"):
        spans.gaussian_rows(jax.random.key(0), 4, 4, 3)
    with pytest.raises(ValueError, match="5 points span d = 5, got d = 6"):
        jk.data.Span(samples=5, d=6)
    with pytest.raises(ValueError, match="ambient must be at least 5"):
        jk.data.Span(samples=5, ambient=4.0)
    with pytest.raises(ValueError, match="counted from 0 on, got first = -1"):
        spans.gaussian_rows(jax.random.key(0), 3, 3, 100.0, first=-1)
    with pytest.raises(ValueError, match="10 samples have d = 18, got 10"):
        jk.data.Clusters(d=10, samples=10, clusters=3, tests=4, ambient=1e4)
    with pytest.raises(ValueError, match="ambient must be at least 18, got 17"):
        jk.data.Clusters(samples=10, clusters=3, tests=4, ambient=17)
    with pytest.raises(ValueError, match="at least 2 samples"):
        spans.sphere(jax.random.key(0), 1, 10.0)
    for wrong in (1e39, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="d must be a finite number in float32, got"):
            spans.sphere(jax.random.key(0), 3, wrong)


@pytest.mark.usefixtures("unchecked")
def test_an_exponent_is_no_size_of_a_span():
    """Held-out points had the noise of the samples, or none."""
    with pytest.raises(ValueError, match=r"10 samples have d = 215, got 100: .* leave d and alpha"):
        jk.data.Clusters(d=100, alpha=0.5, clusters=4, ambient=1e6, tests=200)
    clusters = jk.data.Clusters(samples=10, clusters=4, ambient=1e6, tests=200)
    with pytest.raises(ValueError, match=r"have d = .* leave d and alpha out"):
        clusters.replace(alpha=0.5)
    assert clusters.replace(d=215) == clusters


def test_another_number_of_samples_is_another_span():
    assert jk.data.Span(samples=5).replace(samples=7).d == 7
    clusters = jk.data.Clusters(samples=10, clusters=3, tests=4, ambient=1e4)
    assert clusters.replace(samples=12).d == 3 + 1 + 12 + 4
    runs = jk.grid(data=clusters, samples=[6, 8], width=3, seed=0)
    assert [run.d for run in runs] == [14, 16]
