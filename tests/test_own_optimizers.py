"""Own optimizers: classes, optax, what is told of them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from spec_cases import one

import jaxkkt as jk

pytestmark = pytest.mark.usefixtures("unchecked")


class TestOptimizers:
    def test_settings_of_an_optax_optimizer_are_fields(self):
        sgd = jk.optimizer(optax.sgd, learning_rate=0.1, momentum=0.9, nesterov=True)
        assert jax.tree.leaves(sgd) == [0.1, 0.9]
        assert sgd.replace(momentum=0.5) == jk.optimizer(
            optax.sgd, learning_rate=0.1, momentum=0.5, nesterov=True
        )
        assert sgd.label == "sgd"
        with pytest.raises(ValueError, match="called 'momentun'; did you mean 'momentum'"):
            jk.optimizer(optax.sgd, learning_rate=0.1, momentun=0.9)
        with pytest.raises(ValueError, match="cannot be set on a transformation that is made"):
            jk.optimizer(optax.adam(0.1), learning_rate=0.1)

    def test_settings_that_must_be_whole_stay_so(self):
        """A key of 0.0 is none, and raised within JAX; a momentum of 0 is a number of a lane."""

        def every(learning_rate, steps: int, decay=None, offset: "int | None" = None):
            return optax.sgd(learning_rate)

        noisy = jk.optimizer(optax.noisy_sgd, learning_rate=1, key=np.int32(3))
        kept = {"learning_rate": 1.0, "key": 3}
        assert {k: (v, type(v)) for k, v in noisy.settings().items()} == {
            k: (v, type(v)) for k, v in kept.items()
        }
        assert noisy.replace(key=4).settings()["key"] == 4
        noisy.transformation().init(jk.Params(jnp.ones((3, 2)), jnp.ones(3), jnp.ones(3)))
        own = jk.optimizer(every, learning_rate=1, steps=100, decay=2, offset=5).settings()
        types = {"learning_rate": float, "steps": int, "decay": float, "offset": int}
        assert {name: type(value) for name, value in own.items()} == types
        sgd = jk.optimizer(optax.sgd, learning_rate=0.1, momentum=0)
        assert jax.tree.leaves(sgd) == [0.1, 0.0]
        assert isinstance(sgd.settings()["momentum"], float)

    @pytest.mark.parametrize("rate", [0, -0.1, float("nan"), float("inf")])
    def test_a_learning_rate_is_positive(self, rate):
        with pytest.raises(ValueError, match="learning_rate must be positive and finite, got"):
            jk.optimizer(optax.adam, learning_rate=rate)
        with pytest.raises(ValueError, match="learning_rate must be positive and finite, got"):
            one(optimizer=jk.optimizer(optax.adam, learning_rate=0.1), learning_rate=rate)
        jk.optimizer(optax.adam, learning_rate=optax.constant_schedule(rate))

    def test_a_missing_setting_is_told_when_the_run_is_made(self):
        message = "adam cannot be made: .*'learning_rate'. Give it what it needs"
        with pytest.raises(ValueError, match=message):
            one(optimizer=optax.adam)
        with pytest.raises(ValueError, match=message):
            jk.Protocol(jk.optimizer(optax.adam))
        run = one(optimizer=optax.adam, learning_rate=0.1)  # an axis gives it
        assert run.protocol.optimizer == jk.optimizer(optax.adam, learning_rate=0.1)

    def test_a_rule_that_asks_for_the_loss_elsewhere_is_refused(self):
        """It raised optax's own error from within a trace."""
        with pytest.raises(ValueError, match=r"'value_fn'\. A rule is given the gradient of"):
            jk.sweep([one(optimizer=jk.optimizer(optax.lbfgs))])

    def test_a_rule_that_jax_cannot_trace_says_what_to_do(self):
        def update(gradient, state, params=None):
            return (gradient if gradient.v[0] > 0 else -gradient), state

        rule = optax.GradientTransformation(lambda params: (), update)
        with pytest.raises(ValueError, match=r"optimizer cannot be traced by JAX: .* jnp\.where"):
            jk.sweep([one(optimizer=rule)])

    @pytest.mark.slow
    def test_a_schedule_of_a_number_that_is_traced_says_what_to_do(self):
        """It was told to be given what it had."""

        def cosine(learning_rate, decay_steps):
            return optax.sgd(optax.cosine_decay_schedule(learning_rate, decay_steps))

        def whole(learning_rate, decay_steps: int):
            return cosine(learning_rate, decay_steps)

        with pytest.raises(ValueError, match="annotate a setting that has to be known, `decay_s"):
            jk.sweep([one(optimizer=jk.optimizer(cosine, learning_rate=0.1, decay_steps=9))])
        rule = jk.optimizer(whole, learning_rate=0.1, decay_steps=9)
        assert jk.sweep([one(optimizer=rule, max_steps=2)]).steps.item() == 2

    def test_a_number_beside_a_finished_rule_is_told(self):
        with pytest.raises(ValueError, match="'learning_rate' is no field of a transformation"):
            one(optimizer=optax.adam(0.1), learning_rate=0.1)

    def test_a_rule_that_asks_for_its_value_is_given_log_l(self):
        """Polyak's rate is (value - f_min) / |gradient|^2: of log L it lowers log L by about that
        much where it is smooth."""
        rule = jk.optimizer(optax.polyak_sgd, max_learning_rate=1e9, f_min=-10.0)
        rate = rule.transformation()
        params = jk.Params(jnp.ones((3, 2)), jnp.ones(3), jnp.ones(3))
        told = {"squared_norm": 12.0, "samples": 4}
        got = jk.optimizers.update(rate, params, rate.init(params), params, log_loss=2.0, **told)
        np.testing.assert_allclose(got[0].w, -np.ones((3, 2)), rtol=1e-6)

    def test_equal_settings_make_the_same_updates(self):
        params = jk.Params(jnp.ones((3, 2)), jnp.ones(3), jnp.ones(3))
        spec, plain = jk.optimizer(optax.adam, learning_rate=0.1).transformation(), optax.adam(0.1)
        got, expected = (t.update(params, t.init(params), params)[0] for t in (spec, plain))
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_array_equal(a, b)

    def test_linear_ones_train_in_fewer_coordinates(self):
        declared = jk.optimizer(optax.sgd, linear=True, learning_rate=0.1)
        assert jk.Protocol(declared).representation_for(4, 20) == "gram"
        assert jk.Protocol(optax.sgd(0.1)).representation_for(4, 20) == "plain"
        assert jk.Protocol(jk.optimizers.linear(optax.sgd(0.1))).representation_for(4, 20) == "gram"

    @pytest.mark.parametrize(
        "factory",
        [
            optax.adam,
            optax.sign_sgd,
            lambda learning_rate: optax.polyak_sgd(learning_rate),
            lambda learning_rate: optax.chain(optax.clip(0.1), optax.sgd(learning_rate)),
            lambda learning_rate: optax.chain(
                optax.add_decayed_weights(1e-4), optax.sgd(learning_rate)
            ),
        ],
        ids=["adam", "sign", "polyak", "clipped", "decayed"],
    )
    def test_what_is_declared_linear_has_to_be(self, factory):
        with pytest.raises(ValueError, match="is declared linear, and is not"):
            jk.optimizer(factory, linear=True, learning_rate=0.1)
        with pytest.raises(ValueError, match="is declared linear, and is not"):
            jk.optimizers.linear(factory(0.1))
        incomplete = jk.optimizer(factory, linear=True)
        with pytest.raises(ValueError, match="is declared linear, and is not"):
            one(optimizer=incomplete, learning_rate=0.1)

        class Own(jk.Optimizer):
            rate: jk.Number = 0.1
            linear = True

            def transformation(self):
                return factory(self.rate)

        with pytest.raises(ValueError, match="is declared linear, and is not"):
            Own()

    def test_linear_at_some_numbers_is_not_linear_at_others(self):
        """A class was checked at the first numbers that it was given, and never again."""

        class Decayed(jk.Optimizer):
            decay: jk.Number = 0.0
            linear = True

            def transformation(self):
                return optax.chain(optax.add_decayed_weights(self.decay), optax.sgd(0.1))

        Decayed()
        with pytest.raises(ValueError, match="is declared linear, and is not"):
            Decayed(decay=0.1)

    @pytest.mark.parametrize("float64", [False, True])
    def test_descent_and_momentum_are_linear(self, float64):
        with jax.enable_x64(float64):
            for rule in (
                optax.sgd(optax.exponential_decay(0.1, 10, 0.5), momentum=0.9, nesterov=True),
                jk.optimizers.log_loss_time(),
                jk.optimizers.paper_schedule(1e-5, 1.1, 100),
                jk.optimizers.loss_scaled(0.1, "mean"),
            ):
                jk.optimizers.linear(rule)
