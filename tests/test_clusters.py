"""Clustered data: what is drawn, what is measured of it, and what a measurement may know."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import SOON, problem, sweep

import jaxkkt as jk
from jaxkkt import mixtures, networks
from jaxkkt.measurements.clusters import error_interval, of_share
from jaxkkt.training import Status

sample = jax.jit(mixtures.sample, static_argnames="samples")
means_of = jax.jit(mixtures.means, static_argnums=(1, 2, 3))
measured = jk.ClusterFlips().measure
SMALL = {"data": "clusters", "d": 30, "samples": 24, "clusters": 4, "width": 20, "tests": 200}
SMALL |= {"optimizer": SOON}


class TestDraws:
    @pytest.mark.parametrize("arrangement", mixtures.ARRANGEMENTS)
    def test_means_have_norm_sqrt_d(self, arrangement):
        means = means_of(jax.random.key(0), 6, 40, arrangement, 0.3)
        np.testing.assert_allclose(np.linalg.norm(means, axis=1), 40**0.5, rtol=1e-5)

    @pytest.mark.parametrize("rho", [0.0, 0.4])
    def test_orthogonal_means_share_what_is_asked_for(self, rho):
        means = np.asarray(means_of(jax.random.key(1), 6, 40, "orthogonal", rho))
        expected = 40 * (rho + (1 - rho) * np.eye(6))
        np.testing.assert_allclose(means @ means.T, expected, atol=1e-4)

    @pytest.mark.parametrize("arrangement", mixtures.ARRANGEMENTS)
    def test_means_lie_in_any_direction(self, arrangement):
        """Orthogonal ones had most of their q-th coordinates below 0: a factorization's choice."""
        keys = jax.random.split(jax.random.key(0), 400)
        drawn = jax.vmap(lambda key: means_of(key, 3, 6, arrangement, 0.0))(keys)
        assert np.abs(drawn.mean(axis=0)).max() < 4 / np.sqrt(400)

    def test_means_on_the_sphere_are_nearly_orthogonal(self):
        means = np.asarray(means_of(jax.random.key(2), 50, 2000, "sphere", 0.0))
        products = (means @ means.T)[~np.eye(50, dtype=bool)] / 2000
        assert abs(products.mean()) < 0.005
        assert products.std() == pytest.approx(2000**-0.5, rel=0.1)

    @pytest.mark.parametrize(("balance", "positive"), [(0.5, 5), (0.2, 2), (0.0, 1), (1.0, 9)])
    def test_labels_are_balanced_as_asked_and_both_occur(self, balance, positive):
        assert int((mixtures.labels(10, balance) > 0).sum()) == positive

    @pytest.mark.parametrize("balance", [-0.1, 2.0, float("nan")])
    def test_a_balance_that_is_no_share_is_refused(self, balance):
        with pytest.raises(ValueError, match="balance is a share of the clusters, got"):
            mixtures.labels(4, balance)

    def test_points_are_means_with_noise(self):
        means, labels = 10 * np.eye(3, 400, dtype=np.float32), np.array([1, -1, -1], np.float32)
        found = sample(jax.random.key(0), means, labels, 0.5, samples=3000)
        x, y, cluster = jax.device_get(found)
        np.testing.assert_array_equal(y, labels[cluster])
        noise = x - means[cluster]
        assert noise.std() == pytest.approx(0.5, rel=0.01)
        assert abs(noise.mean()) < 0.002
        np.testing.assert_allclose(np.bincount(cluster) / 3000, 1 / 3, atol=0.04)

    @pytest.mark.parametrize("sigma", [-0.1, float("nan")])
    def test_noise_that_is_none_is_refused(self, sigma):
        with pytest.raises(ValueError, match="sigma must"):
            mixtures.sample(jax.random.key(0), np.eye(2, 4, dtype=np.float32), [1, -1], sigma, 3)

    def test_few_samples_have_both_labels(self):
        means, labels = np.eye(3, 5, dtype=np.float32), np.array([1, -1, -1], np.float32)
        keys = jax.random.split(jax.random.key(0), 200)
        draws = jax.jit(jax.vmap(lambda key: mixtures.sample(key, means, labels, 1.0, 2)))
        assert (np.sum(draws(keys)[1], axis=1) == 0).all()

    @pytest.mark.usefixtures("unchecked")
    @pytest.mark.parametrize(
        ("labels", "message"),
        [
            ([0, 1, 0, 1], r"labels must be -1 or 1, got \[0\.0\]: of 0 and 1 they are 2 \* y - 1"),
            ([1, -1, 2, 1], r"labels must be -1 or 1, got \[2\.0\]"),
            ([1, -1, float("nan"), 1], r"labels must be -1 or 1, got \[nan\]"),
            ([1, 1, 1, 1], "both labels must occur, but every mean has y = 1"),
            ([-1, -1, -1, -1], "both labels must occur, but every mean has y = -1"),
        ],
    )
    def test_labels_of_clusters_are_two_classes(self, labels, message):
        means = np.eye(4, 6, dtype=np.float32)
        for given in (labels, np.array(labels, np.float32), jnp.array(labels, jnp.float32)):
            with pytest.raises(ValueError, match=message):
                mixtures.sample(jax.random.key(0), means, given, 0.1, 6)
            with pytest.raises(ValueError, match=message):
                jax.jit(lambda key, of=given: mixtures.sample(key, means, of, 0.1, 6))(
                    jax.random.key(0)
                )

    @pytest.mark.usefixtures("unchecked")
    def test_no_clusters_have_no_labels(self):
        with pytest.raises(ValueError, match="both labels must occur, but there is no mean"):
            mixtures.sample(jax.random.key(0), jnp.zeros((0, 3)), jnp.zeros(0), 0.1, 6)

    def test_labels_may_be_traced(self):
        means, labels = np.eye(2, 3, dtype=np.float32), np.array([1, -1], np.float32)
        known = jax.jit(lambda: mixtures.sample(jax.random.key(0), means, labels, 0.1, 6))
        got = sample(jax.random.key(0), means, labels, 0.1, samples=6)
        np.testing.assert_array_equal(got[1], known()[1])

    def test_where_a_label_is_in_no_draw_the_points_have_one(self):
        means, labels = np.eye(500, 3, dtype=np.float32), np.ones(500, np.float32)
        labels[0] = -1
        x, y, _ = sample(jax.random.key(0), means, labels, 0.1, samples=2)
        assert x.shape == (2, 3)
        assert (np.asarray(y) == 1).all()
        with pytest.raises(ValueError, match="both labels must occur, but every sample has y = 1"):
            jk.train(problem(d=3, k=4)[0], x, y)

    @pytest.mark.slow
    def test_runs_whose_points_have_one_label_are_raised(self):
        rare = {**SMALL, "clusters": 500, "balance": 1.0, "samples": 2, "d": 3}
        table = sweep(jk.grid(**rare, sigma=0.1, seed=[0, 1]))
        assert table.status.values.ravel().tolist() == [Status.CONVERGED, Status.RAISED]
        error = table.error.values.ravel()[1]
        assert "both labels must occur, but every sample has y = 1" in error

    @pytest.mark.parametrize("rho", [-0.5, 1.0, 1.5, float("nan")])
    def test_a_correlation_outside_its_range_is_refused(self, rho):
        with pytest.raises(ValueError, match=r"correlation must be in \[0, 1\), got"):
            mixtures.means(jax.random.key(0), 3, 5, correlation=rho)

    @pytest.mark.usefixtures("unchecked")
    def test_means_of_whole_numbers_keep_their_noise(self):
        whole, labels = [[3, 0], [0, 3]], [1, -1]
        got = mixtures.sample(jax.random.key(0), whole, labels, 0.5, 8)
        floats = np.array(whole, np.float32), np.array(labels, np.float32)
        expected = mixtures.sample(jax.random.key(0), *floats, 0.5, 8)
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_array_equal(a, b)

    @pytest.mark.usefixtures("unchecked")
    @pytest.mark.parametrize("labels", [[1.0, -1.0, 1.0], [1.0, -1.0]])
    def test_every_mean_needs_a_label(self, labels):
        count = 5 - len(labels)
        with pytest.raises(ValueError, match=r"means must be \(k, d\) and labels \(k,\), got"):
            mixtures.sample(jax.random.key(0), jnp.ones((count, 4)), jnp.array(labels), 1.0, 8)


@pytest.mark.usefixtures("unchecked")
def test_noise_of_several_sizes_is_refused():
    """It was taken for one a coordinate."""
    with pytest.raises(ValueError, match=r"sigma must be one number, got shape \(4,\)"):
        mixtures.sample(
            jax.random.key(0), np.eye(4, dtype=np.float32)[:2], np.float32([1, -1]), np.ones(4), 6
        )


class TestSpec:
    def test_training_and_fresh_points_share_their_means(self):
        (run,) = jk.grid(**SMALL, sigma=0.1, seed=3)
        truth = run.data.draw_truth(3)
        data, fresh = jk.draw(run)[1], jk.held_out(run)
        assert fresh.y.shape == (200,)
        for x, y, cluster in ((*data, truth.cluster), (*fresh, truth.test_cluster)):
            np.testing.assert_array_equal(y, truth.labels[cluster])
            away = np.linalg.norm(x - truth.means[cluster], axis=1)
            assert away.max() < 2 * 0.1 * 30**0.5
        assert not np.array_equal(data.x[:24], fresh.x[:24])
        other = run.data.draw_truth(4)
        assert not np.allclose(other.means, truth.means)

    def test_sigma_is_a_number_of_a_lane(self):
        runs = jk.grid(**SMALL, sigma=[0.1, 0.2], seed=0)
        assert runs[0].data_key() == runs[1].data_key()
        first, second = (jk.draw(run)[1] for run in runs)
        truth = runs[0].data.draw_truth(0)
        noise = first.x - truth.means[truth.cluster]
        np.testing.assert_allclose(second.x - truth.means[truth.cluster], 2 * noise, atol=1e-4)
        assert len(jk.plan_sweep(runs).buckets) == 1

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"sigma": 0.0}, "sigma must be positive and finite, got 0"),
            ({"sigma": -1.0}, "sigma must be positive"),
            ({"clusters": 1}, "clusters must be at least 2, got 1"),
            ({"means": "cube"}, "one of .'sphere', 'orthogonal'., got 'cube'"),
            ({"means": "orthogonal", "clusters": 30}, "30 orthogonal means need d > 30, got d"),
            ({"correlation": 1.0}, r"correlation must be in \[0, 1\), got 1"),
            ({"balance": 1.5}, "balance is a share of the clusters, got 1.5"),
        ],
    )
    def test_bad_input_is_refused(self, changes, message):
        with pytest.raises(ValueError, match=message):
            jk.grid(**{**SMALL, **changes})

    @pytest.mark.usefixtures("unchecked")
    def test_means_of_ones_own_are_of_a_distribution_of_ones_own(self):
        with pytest.raises(ValueError, match=r"for means of your own derive a jk\.data\.Distr"):
            jk.grid(**{**SMALL, "means": np.eye(4, 10)})


class TestMeasurements:
    def test_fresh_points_and_the_direction_that_flips_them(self, tmp_path):
        (run,) = jk.grid(**SMALL, sigma=1.0, seed=1, measure=jk.ClusterFlips)
        table = sweep([run], store=tmp_path, keep="params").squeeze()
        trained = jk.load_network(tmp_path, run)
        fresh, truth = jk.held_out(run), run.data.draw_truth(1)
        x, y = (np.asarray(a, np.float64) for a in fresh)
        u = np.asarray(truth.labels @ truth.means, np.float64)

        def flipped(c):
            moved = x - c * y[:, None] * u / np.linalg.norm(u)
            w, b, v = (np.asarray(p, np.float64) for p in trained)
            return y * (np.maximum(moved @ w.T + b, 0) @ v) < 0

        right = ~flipped(0)
        assert float(table.test_error) == pytest.approx(1 - right.mean(), abs=0.006)
        assert float(table.test_error_low) <= float(table.test_error) < float(table.test_error_high)
        ends = error_interval(round(200 * float(table.test_error)), 200)
        assert (float(table.test_error_low), float(table.test_error_high)) == pytest.approx(ends)
        for name, share in (("half", 0.5), ("99", 0.99)):
            size = float(table[f"cluster_flip_{name}"])
            assert flipped(1.02 * size)[right].mean() >= share - 0.01
            assert flipped(0.98 * size)[right].mean() <= share + 0.01
        at = flipped((30 / 4) ** 0.5)[right].mean()
        there = table.cluster_flipped.sel(cluster_flipped_at=1.0)
        assert float(there) == pytest.approx(at, abs=0.02)
        assert float(table.direction_norm) == pytest.approx(np.linalg.norm(u), rel=1e-5)

    def test_a_broken_network_has_no_test_error(self):
        (run,) = jk.grid(**SMALL, sigma=1.0, seed=1)
        params = jk.draw(run)[0]
        broken = params._replace(w=params.w + np.float32(np.nan))
        found = measured(broken, jk.held_out(run), run.data.draw_truth(1))
        assert found.pop("direction_norm") > 0
        for name, value in found.items():
            assert np.isnan(value).all(), name

    def test_an_own_measurement_sees_the_truth_with_a_store(self, tmp_path):
        def nearest_mean(params, test, truth):
            away = jnp.sum((test.x[:, None] - truth.means[None]) ** 2, axis=2)
            return {"right": jnp.mean(jnp.argmin(away, axis=1) == truth.test_cluster)}

        runs = jk.grid(**SMALL, sigma=0.2, seed=range(2), measure=nearest_mean)
        table = sweep(runs, store=tmp_path)
        assert (table.right == 1).all()
        assert (sweep(runs, store=tmp_path).right == 1).all()

    def test_data_without_a_truth_say_so(self):
        runs = jk.grid(d=8, samples=6, width=20, seed=0, measure=jk.ClusterFlips)
        with pytest.raises(ValueError, match="'sphere' has none: jk"):
            sweep(runs)

    def test_the_theory_of_a_run(self):
        """The means and clusters of a run are what `theory.frei` takes."""
        (run,) = jk.grid(**SMALL, sigma=1.0, seed=1)
        truth = run.data.draw_truth(1)
        data, fresh = jk.draw(run)[1], jk.held_out(run)

        @jax.jit
        def told():
            found = jk.theory.frei.clusters(truth.means, truth.labels, truth.sigma)
            points = jk.theory.frei.Sample(jnp.asarray(data.x), jnp.asarray(truth.cluster))
            robust = jk.theory.frei.robust_network(found)
            return (
                found.assumptions()["k (p + Delta + 1) <= (d - Delta + 1) / 10"].holds,
                jk.theory.frei.properties(found, points)["P6: every cluster has a sample"].holds,
                networks.margins(robust, *map(jnp.asarray, fresh)),
            )

        few_enough, in_every_cluster, margins = told()
        assert not few_enough
        assert in_every_cluster
        assert np.mean(margins) > 1


class TestDirection:
    """u = sum_q y_q mu_q."""

    MEANS, LABELS = np.float32([[1, 2, 3], [4, -5, 6]]), np.float32([1, -1])

    @pytest.mark.usefixtures("unchecked")
    def test_lists_and_arrays_of_both_kinds(self):
        for kind in (np.asarray, jnp.asarray, np.ndarray.tolist):
            found = mixtures.direction(kind(self.MEANS), kind(self.LABELS))
            assert found.tolist() == [-3, 7, -3]
        assert mixtures.direction([[1, 2], [4, -5]], [1, -1]).tolist() == [-3, 7]

    @pytest.mark.usefixtures("unchecked")
    def test_what_does_not_fit_is_refused(self):
        """Lists had a TypeError, float64 was rounded, and of shapes JAX told."""
        with pytest.raises(ValueError, match="means is float64, which JAX would round to float32"):
            mixtures.direction(self.MEANS.astype(float), self.LABELS.astype(float))
        with pytest.raises(ValueError, match="labels is float64, which JAX would round"):
            mixtures.direction(self.MEANS, self.LABELS.astype(float))
        message = r"means must be \(k, d\) and labels \(k,\), got \(2, 3\) and \(3,\)"
        with pytest.raises(ValueError, match=message):
            mixtures.direction(self.MEANS, np.ones(3, np.float32))
        for means, labels in ((self.MEANS[0], self.LABELS), (self.MEANS, self.LABELS[:, None])):
            with pytest.raises(ValueError, match=r"means must be \(k, d\) and labels \(k,\), got"):
                mixtures.direction(means, labels)

    def test_under_jit_and_vmap(self):
        expected = [[-3, 7, -3], [6, -14, 6]]
        means, labels = (jnp.stack([a, b * a]) for a, b in ((self.MEANS, 2), (self.LABELS, -1)))
        assert jax.jit(jax.vmap(mixtures.direction))(means, labels).tolist() == expected
        found = jax.jit(lambda labels: mixtures.direction(self.MEANS, labels))(self.LABELS)
        assert found.tolist() == expected[0]


class TestIntervals:
    @pytest.mark.parametrize(("errors", "points"), [(0, 2000), (7, 200), (1999, 2000), (3, 4)])
    def test_the_ends_are_where_the_score_test_rejects(self, errors, points):
        """Wilson's interval is of the p with |share - p| <= 1.96 sqrt(p (1 - p) / points)."""
        p = np.linspace(0, 1, 2_000_001)
        kept = p[abs(errors / points - p) <= 1.959964 * np.sqrt(p * (1 - p) / points)]
        expected = (kept.min(), kept.max())
        assert error_interval(errors, points) == pytest.approx(expected, abs=2e-6)

    def test_it_covers_the_true_error_as_often_as_it_says(self):
        errors = np.random.default_rng(0).binomial(300, 0.08, size=2000)
        ends = {count: error_interval(int(count), 300) for count in np.unique(errors)}
        covered = [ends[count][0] <= 0.08 <= ends[count][1] for count in errors]
        assert np.mean(covered) == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize("nothing", ["no point is right", "no direction"])
def test_a_share_of_nothing_is_no_number(nothing):
    """It was 0, and lowered the means over seeds."""
    means = np.eye(2, 6, dtype=np.float32) * np.float32(6**0.5)
    means = means[[0, 0]] if nothing == "no direction" else means
    labels, sides = np.array([1, -1], np.float32), np.array([0, 1], np.int32)
    w = means if nothing == "no direction" else means[::-1]
    network = jk.Params(w, np.zeros(2, np.float32), labels)
    truth = mixtures.Truth(means, labels, np.float32(0), sides, sides, np.float32(6))
    found = measured(network, jk.Dataset(means, labels), truth)
    assert np.isnan(found["cluster_flipped"]).all()


class TestAlongTheDirection:
    """sqrt(d/k) = 1, and the direction is the first coordinate."""

    def measured(self, w, b, v, x, d=2.0):
        means, sides = np.float32([[2**0.5, 0], [-(2**0.5), 0]]), np.array([0, 1], np.int32)
        truth = mixtures.Truth(
            means, np.float32([1, -1]), np.float32(1), sides, sides, np.float32(d)
        )
        network = jk.Params(np.float32([[one, 0] for one in w]), np.float32(b), np.float32(v))
        points = jk.Dataset(np.float32(x), np.ones(len(x), np.float32))
        return measured(network, points, truth)

    def test_a_point_that_is_right_again_is_not_flipped(self):
        """It counted as flipped at every larger size."""
        found = self.measured(
            [1, -1, 0], [-0.4, 0.4, 1], [1, 1, -0.2], [[1, 0]]
        )  # |x1 - 0.4| - 0.2
        assert found["cluster_flipped"].tolist() == [0, 1, 1, 0, 0, 0, 0, 0]
        assert found["cluster_flip_half"] == pytest.approx(0.4)

    @pytest.mark.slow
    def test_sizes_are_in_units_of_the_dimension_that_is_told(self):
        """That of points in coordinates of their span, of which there are fewer."""
        found = self.measured([1, -1, 0], [-0.4, 0.4, 1], [1, 1, -0.2], [[1, 0]], d=8.0)
        assert found["cluster_flipped"].tolist() == [1, 0, 0, 0, 0, 0, 0, 0]

    @pytest.mark.slow
    def test_an_output_of_0_is_an_error(self):
        assert self.measured([1, 0], [0, 0], [1, 0], [[-1, 0], [1, 0]])["test_error"] == 0.5

    def test_points_near_0_are_looked_at_up_to_the_largest_size(self):
        """The search ended at four times the largest norm."""
        found = self.measured([1, 0], [2, 1], [1, -0.6], [[0.3, 0], [0.3, 0.1]])
        assert found["cluster_flipped"].tolist() == [0, 0, 0, 0, 0, 0, 1, 1]
        assert found["cluster_flip_half"] == pytest.approx(1.7)


@pytest.mark.parametrize(
    ("count", "share", "size"), [(3, 0.5, 2), (4, 0.5, 2), (3, 0.99, 3), (200, 0.99, 198)]
)
def test_the_size_by_which_a_share_has_flipped(count, share, size):
    """The least by which that many have; one fewer is less than the share."""
    assert of_share(np.arange(1.0, count + 1), share) == size
    assert np.isnan(of_share(np.zeros(0), share))
