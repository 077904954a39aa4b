"""Lazy networks, the ball around their start, and training up to its edge."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import assert_close, assert_same_bits, lane, normal, stacked
from scipy.optimize import brentq

import jaxkkt as jk
from jaxkkt import lazy, networks, protocols, training
from jaxkkt.training import Status

SGD = protocols.lazy_sgd(ball=2.0, learning_rate=0.5)
drawn = jax.jit(networks.lazy, static_argnums=(1, 2), static_argnames=("shape", "biases"))
project, distances = jax.jit(lazy.project), jax.jit(lazy.distances)
project_lanes = jax.jit(jax.vmap(lazy.project, in_axes=(None, None, 0)))


def case(seed=0, biases=False, m=12, d=6, k=40):
    _, (x, y) = cases.problem(m, d, k, seed)
    return cases.lazy(seed, k, d, biases), x / d**0.5, y


def weights(params, start):
    return {"w": params.w, "start": start.w}


class TestInitialization:
    def test_is_that_of_the_definition(self):
        params = jax.device_get(drawn(jax.random.key(0), 4000, 30))
        np.testing.assert_allclose(np.abs(params.v), 4000**-0.5, rtol=1e-6)
        assert abs(np.mean(params.v > 0) - 0.5) < 0.03
        assert abs(np.mean(params.w)) < 0.01
        assert abs(np.std(params.w) - 1) < 0.01
        assert (params.b == 0).all()
        with_biases = jax.device_get(drawn(jax.random.key(0), 4000, 30, biases=True))
        assert abs(np.std(with_biases.b) - 1) < 0.05
        assert_same_bits(with_biases._replace(b=params.b), params)

    def test_scales_and_pads(self):
        params = drawn(jax.random.key(0), 5, 3, 0.1, shape=(7, 4))
        alone = jax.device_get(drawn(jax.random.key(0), 5, 3))
        assert_close(networks.pad(alone._replace(w=0.1 * alone.w), 7, 4), params, rtol=1e-6)


class TestBall:
    def test_projection(self):
        start, _x, _y = case()
        moved = start._replace(w=start.w + normal(9, *start.w.shape))
        inside = project(moved, start, 2.0)
        again = project(inside, start, 2.0)
        away, kept = distances(moved, start), distances(inside, start)
        start, moved, inside, away, kept = jax.device_get((start, moved, inside, away, kept))
        assert (away > 2).any()
        assert (away < 2).any()
        assert_close(kept, np.minimum(away, 2), rtol=1e-5)
        assert_same_bits(inside.w[away <= 2], moved.w[away <= 2])
        # The nearest point of a ball is on the segment to its centre.
        cosine = np.sum((inside.w - start.w) * (moved.w - start.w), axis=1) / (kept * away)
        assert_close(cosine, np.ones(40), rtol=1e-5)
        assert_close(again, inside, rtol=1e-6, atol=1e-6)  # rounding of 2

    @pytest.mark.parametrize(("k", "d"), [(4, 4), (5, 1), (5, 3), (1, 3)])
    @pytest.mark.parametrize("kind", [jnp.asarray, np.asarray])
    def test_each_neuron_may_have_a_radius_of_its_own(self, k, d, kind):
        start = cases.lazy(0, k, d)
        moved = start._replace(w=start.w + 2 * normal(9, k, d))
        radii = kind(np.linspace(0, 3, k, dtype=np.float32))
        inside = lazy.project(moved, start, radii)
        alone = [lazy.project(moved, start, float(radius)).w for radius in np.asarray(radii)]
        for j, one in enumerate(alone):
            assert_same_bits(np.asarray(inside.w)[j], np.asarray(one)[j])
        assert_close(project(moved, start, radii), inside, rtol=1e-5, atol=1e-6)
        lanes = project_lanes(moved, start, jnp.asarray(radii))
        assert_close(lanes.w, np.stack(alone), rtol=1e-5, atol=1e-6)

    @pytest.mark.usefixtures("unchecked")
    @pytest.mark.parametrize("shape", [(3,), (5, 1), (1,), (5, 3)])
    def test_radii_are_one_or_one_for_each_neuron(self, shape):
        start = cases.lazy(0, 5, 3)
        message = (
            r"weight_radius must be one number, or one for each neuron, shape \(5,\), got shape \("
        )
        with pytest.raises(ValueError, match=message):
            lazy.project(start, start, jnp.ones(shape))

    @pytest.mark.parametrize("radius", [-1.0, float("nan"), float("inf")])
    def test_a_radius_that_is_none_is_refused(self, radius):
        start, _, _ = case()
        with pytest.raises(ValueError, match="weight_radius must be at least 0 and finite, got"):
            lazy.project(start, start, radius)

    def test_distances_have_the_derivative_0_at_the_start(self):
        start, _, _ = case()
        moved = start.w.at[0, :2].add(jnp.array([3.0, 4.0]))
        slope = jax.jit(jax.grad(lambda w: lazy.distances(start._replace(w=w), start).sum()))
        expected = np.zeros(start.w.shape)
        assert_close(slope(start.w), expected)
        expected[0, :2] = 0.6, 0.8
        assert_close(slope(moved), expected, rtol=1e-5, atol=1e-6)

    def test_a_projection_moves_no_two_networks_apart(self):
        start, _, _ = case()
        a, b = (start._replace(w=start.w + 2 * normal(i, *start.w.shape)) for i in (1, 2))
        before = distances(a, b)
        after = distances(project(a, start, 1.0), project(b, start, 1.0))
        assert (after <= before + 1e-6).all()


class TestTraining:
    @pytest.mark.parametrize("biases", [False, True])
    def test_of_the_step_that_leaves_the_part_inside_is_taken(self, biases):
        start, x, y = case(biases=biases)
        protocol = protocols.lazy_sgd(ball=2.0, biases=biases, learning_rate=0.5)
        found = jk.train(start, x, y, protocol, jax.random.key(0))
        w0, b, v, x, y = (np.asarray(a, np.float64) for a in (*start, x, y))
        w, steps = w0.copy(), 0

        def furthest(w):
            return np.linalg.norm(w - w0, axis=1).max()

        while True:
            pre = x @ w.T + b
            pull = y / (1 + np.exp(y * (np.maximum(pre, 0) @ v))) / len(y)
            on_pre = pull[:, None] * v * (pre > 0)
            on_w, on_b = 0.5 * on_pre.T @ x, 0.5 * on_pre.sum(axis=0) * biases
            if furthest(w + on_w) > 2 / 40**0.5:
                break
            w, b, steps = w + on_w, b + on_b, steps + 1
        inside = brentq(lambda t: furthest(w + t * on_w) - 2 / 40**0.5, 0, 1)
        assert 0.05 < inside < 0.95
        w, b = w + inside * on_w, b + inside * on_b
        assert found.status == Status.LEFT_BALL
        assert found.steps == steps > 5
        np.testing.assert_allclose(found.params.w, w, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.params.b, b, rtol=1e-4, atol=1e-5)
        assert_same_bits(found.params.v, start.v)
        assert (distances(found.params, start) <= 2 / 40**0.5 * (1 + 1e-6)).all()

    def test_a_flow_comes_to_the_edge_of_any_ball(self):
        start, x, y = case()
        for ball in (1.0, 10.0, 40.0):
            found = jk.train(start, x, y, protocols.lazy_flow(ball))
            assert found.status == Status.LEFT_BALL
            furthest = np.max(distances(found.params, start)) * 40**0.5
            np.testing.assert_allclose(furthest, ball, rtol=1e-5)
            losses = np.logaddexp(0, -np.asarray(networks.margins(found.params, x, y)))
            np.testing.assert_allclose(found.log_loss, np.log(losses.sum()), rtol=1e-5)

    def test_no_loss_ends_a_flow_inside_its_ball(self):
        start, x, y = case()
        found = jk.train(start, x, y, protocols.lazy_flow(400.0))
        assert found.status == Status.LEFT_BALL
        assert found.log_loss < -20

    @pytest.mark.slow
    @pytest.mark.usefixtures("unchecked")  # optax's Adam promotes
    @pytest.mark.parametrize(
        "protocol",
        [
            protocols.lazy_flow(2.0),
            protocols.lazy_sgd(2.0, learning_rate=0.5, batch_size=8, biases=True),
            protocols.Protocol(
                optax.sgd(0.05, momentum=0.9), "logistic", 8, -30.0, trained=("w",), ball=2.0
            ),
            protocols.Protocol(optax.adam(0.005), "logistic", trained=("w", "b"), ball=2.0),
        ],
        ids=["flow", "descent", "momentum", "adam"],
    )
    def test_runs_of_a_sweep_end_on_their_next_step(self, protocol):
        axes = {"d": 6, "samples": 12, "width": 40, "initialization": "lazy", "measure": weights}
        runs = jk.grid(**axes, protocol=protocol, ball=(1.5, 2.0), seed=range(6))
        ended = jk.sweep(runs, progress=False).squeeze(drop=True).stack(run=("ball", "seed"))
        assert (ended.status == Status.LEFT_BALL).all()
        assert len(set(ended.steps.values.tolist())) > 2
        if not protocol.full_batch(12):  # some leave with the first batch of an epoch, and not all
            assert 0 < (ended.steps % 2 == 0).sum() < ended.steps.size
        free, steps = protocol.replace(ball=None), ended.steps.values.astype(int).tolist()
        ends = zip(steps, ended.seed.values.tolist(), strict=True)
        around = sorted({(n, seed) for last, seed in ends for n in (last, last + 1)})
        runs = [jk.grid(**axes, protocol=free, max_steps=n, seed=seed)[0] for n, seed in around]
        alone = jk.sweep(runs, progress=False).w
        for i, (ball, seed) in enumerate(ended.run.values):
            around = (alone.sel(max_steps=n, seed=seed) for n in (steps[i], steps[i] + 1))
            here, there = (w.squeeze().values for w in around)
            start, end = ended.start.values[..., i], ended.w.values[..., i]

            def beyond(t, a=here, b=there, start=start, ball=ball):
                return np.linalg.norm(a + t * (b - a) - start, axis=1).max() - ball / 40**0.5

            inside = brentq(beyond, 0, 1)
            np.testing.assert_allclose(end, here + inside * (there - here), atol=2e-5)

    def test_a_step_that_overflows_ends_on_the_edge_or_where_it_was(self):
        def leaps(size):
            return optax.sgd(lambda step: jnp.where(step < 3, 0.1, size))

        for size in (1e18, 1e25, 1e38, jnp.inf):
            start, x, y = case()
            rule = jk.optimizer(leaps, size=size)
            protocol = protocols.Protocol(rule, "logistic", trained=("w",), ball=2.0)
            found = jk.train(start, x, y, protocol)
            assert (found.status, found.steps) == (Status.LEFT_BALL, 3)
            if size < 1e30:
                furthest = np.max(distances(found.params, start)) * 40**0.5
                np.testing.assert_allclose(furthest, 2, rtol=1e-5)
            assert jnp.isfinite(found.log_loss)
            assert jnp.isfinite(found.params.w).all()
        before = jk.train(start, x, y, protocol.replace(ball=None, max_steps=3))
        assert_same_bits(found.params, before.params)  # of an infinite step

    def test_a_step_across_the_ball_ends_on_its_far_edge(self):
        """From so near the edge behind it that one form of the root would be rounding alone."""
        start, one = networks.Params(*map(jnp.array, ([[5.0]], [0.0], [1.0]))), jnp.ones(1)
        protocol = protocols.Protocol(optax.sgd(1e3), "logistic", trained=("w",), ball=0.7)
        data = jk.Dataset(one[None], one)
        state = training.init(start, data, protocol, jax.random.key(0))
        here = start._replace(w=start.w - 0.7 + 1e-6)
        left = state._replace(position=here, status=jnp.int32(Status.LEFT_BALL))
        found = jax.jit(lambda state: training.finish(state, data, protocol))(left)
        np.testing.assert_allclose(found.position.w, 5.7, rtol=1e-6)
        np.testing.assert_allclose(found.log_loss, np.log(np.logaddexp(0, -5.7)), rtol=1e-5)

    @pytest.mark.slow
    def test_log_loss_of_a_run_that_stays_inside_is_what_was_compared(self):
        flow = protocols.lazy_flow(1e4, max_steps=12)
        sphere = jax.jit(jk.datasets.sphere, static_argnums=(1, 2))
        for seed in range(3):
            start = drawn(jax.random.key(seed), 1000, 20)
            x, y = sphere(jax.random.key(100 + seed), 2200, 20)  # gradients in blocks
            inside = jk.train(start, x, y, flow)
            free = jk.train(start, x, y, flow.replace(ball=None))
            assert inside.steps == free.steps == 12
            assert_same_bits(inside.log_loss, free.log_loss)

    def test_leaving_at_once_has_its_own_status(self):
        start, x, y = case()
        found = jk.train(start, x, y, protocols.lazy_sgd(ball=1e-4), jax.random.key(0))
        assert found.status == Status.LEFT_AT_ONCE
        assert found.steps == 0
        assert_same_bits(found.params, start)

    def test_a_network_that_stays_inside_is_capped(self):
        start, x, y = case()
        found = jk.train(start, x, y, protocols.lazy_sgd(1e3, max_steps=300), jax.random.key(0))
        assert found.status in (Status.STEP_CAP, Status.NOT_SEPARABLE)
        assert found.steps == 300

    def test_vmapped_equals_looped_and_padded_equals_alone(self):
        cases = [case(seed) for seed in range(3)]
        params, x, y = stacked(*cases)
        keys = jnp.stack([jax.random.key(0)] * 3)
        together = jax.vmap(lambda p, x, y, key: jk.train(p, x, y, SGD, key))(params, x, y, keys)
        assert len(set(together.steps.tolist())) > 1
        for i, one in enumerate(cases):
            alone = jk.train(*one, SGD, jax.random.key(0))
            assert together.steps[i] == alone.steps
            assert_close(lane(together, i).params, alone.params, rtol=1e-3, atol=1e-5)
        start, x, y = cases[1]
        wide = jk.train(networks.pad(start, 50, 9), jnp.pad(x, ((0, 0), (0, 3))), y, SGD)
        assert wide.steps == together.steps[1]
        assert_close(
            wide.params, networks.pad(lane(together, 1).params, 50, 9), rtol=1e-3, atol=1e-5
        )

    def test_seen_at_levels_it_ends_where_it_leaves(self):
        start, x, y = case()
        protocol = protocols.lazy_flow(3.0)
        seen = jk.train_through(start, x, y, [2.3, 2.1, -50.0, -60.0], protocol)
        end = jk.train(start, x, y, protocol)
        assert seen.status.tolist() == [*[Status.CONVERGED] * 2, *[Status.LEFT_BALL] * 2]
        assert_close(lane(seen, 2).params, end.params, rtol=1e-3, atol=1e-5)
        assert seen.steps[3] == seen.steps[2] == end.steps

    def test_the_span_moves_as_the_plain_weights(self):
        start, x, y = case(m=4)
        assert SGD.representation_for(4, 6) == "span"
        from dataclasses import replace

        plain = jk.train(start, x, y, replace(SGD, representation="plain"))
        assert_close(jk.train(start, x, y, SGD).params, plain.params, rtol=1e-3, atol=1e-5)

    def test_the_step_of_a_flow_may_be_an_array(self):
        start, x, y = case()
        found = jk.train(start, x, y, protocols.lazy_flow(2.0, delta=jnp.float32(0.02)))
        assert_close(found, jk.train(start, x, y, protocols.lazy_flow(2.0)), rtol=1e-3, atol=1e-5)
        assert protocols.lazy_flow(delta=0.1).guessed_steps == 30
        assert protocols.lazy_flow(delta=1e-320).guessed_steps == 20_000
        assert protocols.lazy_flow(delta=jnp.float32(0.1)).guessed_steps == 110
        assert protocols.lazy_flow(max_steps=20).guessed_steps == 20
        steps = jax.jit(
            lambda n: jk.train(start, x, y, protocols.lazy_flow(10.0, max_steps=n)).steps
        )
        assert steps(3) == 3
        guesses = [protocols.lazy_sgd(max_steps=n).guessed_steps for n in (1, 300, 20_000)]
        assert guesses == [1, 150, 3_000]

    def test_what_is_not_trained_does_not_decay(self):
        start, x, y = case()
        decay = optax.chain(optax.add_decayed_weights(0.5), optax.sgd(0.01))
        found = jk.train(start, x, y, protocols.Protocol(decay, trained=("w",), max_steps=5))
        assert_same_bits((found.params.b, found.params.v), (start.b, start.v))
        assert (found.params.w != start.w).any()

    def test_a_network_that_cannot_move_is_stalled(self):
        start, x, y = case()
        found = jk.train(start._replace(v=0 * start.v), x, y, protocols.lazy_flow(1.0))
        assert found.status == Status.STALLED


@pytest.mark.usefixtures("unchecked")
class TestRefusals:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"ball": 0.0}, r"ball \(C0\) must be positive and finite, got 0"),
            ({"ball": -1.0}, r"ball \(C0\) must be positive and finite, got -1"),
            ({"ball": float("nan")}, r"ball \(C0\) must be positive and finite, got nan"),
        ],
    )
    def test_balls(self, settings, message):
        with pytest.raises(ValueError, match=message):
            protocols.lazy_flow(**settings)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"ball": 1.0}, "leave v out of `trained`"),
            ({"trained": ()}, r"trained must name some of \('w', 'b', 'v'\)"),
            ({"trained": ("u",)}, r"trained must name some of \('w', 'b', 'v'\)"),
            ({"trained": ("w",), "representation": "gram"}, "use 'plain' or 'span'"),
        ],
    )
    def test_protocols(self, settings, message):
        with pytest.raises(ValueError, match=message):
            protocols.Protocol(jk.optimizers.loss_scaled(0.1), **settings)

    def test_unknown_reductions(self):
        with pytest.raises(ValueError, match="reduction must be 'sum' or 'mean', got 'max'"):
            jk.optimizers.loss_scaled(0.1, reduction="max")


@pytest.mark.parametrize("size", [1e38, 3e38])
def test_neurons_near_the_largest_number_have_a_distance(size):
    """XLA takes the reciprocal of such a length for 0: they were at none, and stayed outside."""
    w = np.zeros((2, 3), np.float32)
    start = networks.Params(*jax.device_put((w, w[:, 0], w[:, 0] + 1)))
    far = start._replace(w=start.w.at[0, 1].set(size))
    np.testing.assert_allclose(distances(far, start), [size, 0], rtol=1e-6)
    assert (distances(project(far, start, 1.0), start) <= 1).all()
