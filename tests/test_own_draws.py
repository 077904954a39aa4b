"""Own data and initial weights, as functions and as classes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import SOON
from spec_cases import Blobs, Small, one, stripes

import jaxkkt as jk

pytestmark = pytest.mark.usefixtures("unchecked")


class TestOwnDraws:
    def test_a_distribution_with_parameters(self):
        narrow, wide = (one(data=Blobs, sigma=s) for s in (0.1, 1.0))
        x, y = narrow.data.draw_training(0)
        noise = wide.data.draw_training(0).x - y[:, None]
        np.testing.assert_allclose((x - y[:, None]) * 10, noise, rtol=1e-4, atol=1e-5)
        assert narrow.data.draw_held_out(0).x.shape == (256, 5)

    def test_a_function(self):
        run = one(data=stripes)
        assert run.data.label == "stripes"
        np.testing.assert_array_equal(run.data.draw_training(0).x[:, 0], [1, -1, 1, -1])

    def test_a_distribution_of_the_wrong_shape_or_labels_is_told(self):
        with pytest.raises(ValueError, match=r"asked for x \(4, 5\) and y \(4,\), and drew"):
            one(data=lambda key, m, d: (jnp.ones((d, m)), jnp.ones(m))).data.draw_training(0)
        with pytest.raises(ValueError, match="labels must be -1 or 1"):
            one(data=lambda key, m, d: (jnp.ones((m, d)), jnp.arange(m))).data.draw_training(0)

    def test_a_distribution_without_a_draw_is_told(self):
        class Empty(jk.data.Distribution):
            sigma: jk.Number = 1.0

        with pytest.raises(ValueError, match=r"Empty has no `draw`: give it draw\(self, key, sam"):
            one(data=Empty)

    def test_a_draw_of_points_without_labels_is_told(self):
        class Bare(jk.data.Distribution):
            def draw(self, key, samples, dim):
                return jnp.ones((samples, dim))

        data = one(data=Bare).data
        message = r"draw of 'bare' must return two arrays, .* got an array of shape \({}, 5\)"
        with pytest.raises(ValueError, match=message.format(4)):
            data.draw_training(0)
        with pytest.raises(ValueError, match=message.format(256)):
            data.draw_held_out(0)
        with pytest.raises(ValueError, match=message.format(8)):
            data.draw_at(0, 4, 5, (8, 5))

    def test_a_draw_that_jax_cannot_trace_says_what_to_do(self):
        """It was JAX's own error, and nothing of what is not compiled."""

        def points(key, samples, dim):
            x = np.asarray(jax.random.normal(key, (samples, dim)))
            return x, np.sign(x[:, 0])

        def weights(key, width, dim):
            if jax.random.normal(key) > 0:
                return jk.networks.torch_linear(key, width, dim)
            return jk.networks.gaussian(key, width, dim)

        message = "draw of 'points' cannot be traced by JAX: .* in a jk.data.Distribution with a"
        with pytest.raises(ValueError, match=message):
            one(data=points).data.draw_training(0)
        with pytest.raises(ValueError, match=message):
            jk.sweep([one(data=points, optimizer=SOON, measure=())])
        message = "draw of 'weights' cannot be traced by JAX: .* with a `draw_start`, which is not"
        with pytest.raises(ValueError, match=message):
            one(initialization=weights).initialization.draw_start(0, 3, 5)
        with pytest.raises(ValueError, match=message):
            jk.sweep([one(initialization=weights, optimizer=SOON, measure=())])

    def test_points_that_jax_does_not_draw_have_no_others_unless_it_is_said(self):
        """What asked for them ended in an error without a word."""

        class Numpys(jk.data.Distribution):
            def draw_training(self, seed):
                x = np.random.default_rng(seed).normal(size=(self.samples, self.d))
                return jk.Dataset(x, np.where(np.arange(self.samples) % 2 == 0, 1.0, -1.0))

        class WithOthers(Numpys):
            def draw_held_out(self, seed):
                return self.replace(samples=7).draw_training(100 + seed)

        assert one(data=Numpys).data.draw_held_out(0) is None
        with pytest.raises(ValueError, match="held-out points, and 'numpys' has none"):
            jk.sweep([one(data=Numpys, measure=lambda test: test.x.sum())])
        assert jk.held_out(one(data=WithOthers)).x.shape == (7, 5)

    def test_what_the_host_draws_is_what_the_run_says(self, tmp_path):
        """Points were padded with zeros, or cut, to the run's sizes; labels of 0 count as no
        samples. Rows told nothing of it."""

        class Few(jk.data.Distribution):
            def draw_training(self, seed):
                x = np.random.default_rng(seed).normal(size=(self.samples, self.d))
                y = np.resize([1.0, -1.0 * (seed != 3)], self.samples)
                m, d = self.samples - (seed == 1), self.d - (seed == 2)
                return jk.Dataset(x[:m, :d], y[:m])

            def draw_held_out(self, seed):
                return self.replace(d=self.d + 1).draw_training(0)

        class Thin(jk.initializations.Initialization):
            def draw_start(self, seed, width, dim):
                return jk.networks.torch_linear(jax.random.key(seed), width - seed, dim)

        runs = [one(data=Few, seed=seed, optimizer=SOON, measure=()) for seed in range(4)]
        errors = jk.sweep(runs, store=tmp_path, progress=False).error.values.ravel()
        assert errors[0] == ""
        assert "asked for x (4, 5) and y (4,), and drew x (3, 5) and y (3,)" in errors[1]
        assert "asked for x (4, 5) and y (4,), and drew x (4, 4) and y (4,)" in errors[2]
        assert "labels" in errors[3]
        with pytest.raises(ValueError, match=r"and drew x \(4, 6\) and y \(4,\)"):
            jk.held_out(runs[0])
        with pytest.raises(ValueError, match=r"and drew x \(3, 5\)"):
            jk.draw(runs[1])
        starts = [one(initialization=Thin, seed=i, optimizer=SOON, measure=()) for i in (0, 1)]
        errors = jk.sweep(starts, progress=False).error.values.ravel()
        assert errors[0] == ""
        assert "thin was asked for w (3, 5), b (3,), v (3,), and drew" in errors[1]

    def test_arrays_of_other_shapes_are_told(self):
        """It said to give them as they were given."""
        y = np.array([1.0, -1.0], np.float32)
        with pytest.raises(ValueError, match=r"arrays of shapes \(2, 4, 4\), \(2,\): x is \(samp"):
            jk.grid(data=(np.ones((2, 4, 4)), y), width=5)
        with pytest.raises(ValueError, match=r"held-out points are given by jk\.data\.Arrays"):
            jk.grid(data=(np.ones((2, 4)), y, np.ones((2, 4)), y), width=5)

    def test_an_initialization(self):
        run = one(initialization=Small, init_size=2.0)
        start = run.initialization.draw_start(0, 3, 5)
        assert start.w.shape == (3, 5)
        half = one(initialization=Small(size=1.0)).initialization.draw_start(0, 3, 5)
        np.testing.assert_allclose(start.w, 2 * half.w, rtol=1e-6)
        with pytest.raises(ValueError, match=r"asked for w \(3, 5\), b \(3,\), v \(3,\), and drew"):
            one(initialization=lambda key, k, d: jnp.ones(k)).initialization.draw_start(0, 3, 5)

    def test_shared_draws_are_those_of_the_functions(self):
        run = one(init_scale=0.5, data="gaussian")
        alone = jax.jit(jk.datasets.gaussian, static_argnums=(1, 2))(run.data_key(), 4, 5)
        np.testing.assert_allclose(run.data.draw_training(0).x, alone.x, rtol=1e-6)

    def test_arrays_are_checked_copied_and_told_apart(self):
        x, y = np.eye(4, 3, dtype=np.float32), np.array([1, -1, 1, -1], np.float32)
        mine = jk.data.Arrays(x, y)
        x[0, 0] = 5
        assert mine.x[0, 0] == 1
        assert mine != jk.data.Arrays(x, y)
        assert mine.draw_held_out(0) is None
        assert jk.data.Arrays(x, y, x, y).draw_held_out(0).x.shape == (4, 3)
        with pytest.raises(ValueError, match="float64, which JAX would round"):
            jk.data.Arrays(x.astype(float), y)
        with pytest.raises(ValueError, match="held-out points need both"):
            jk.data.Arrays(x, y, x)
        with pytest.raises(ValueError, match="held-out points have dimension 2, the others 3"):
            jk.data.Arrays(x, y, x[:, :2], y)
        with pytest.raises(ValueError, match="held-out points x_test and y_test: both labels must"):
            jk.data.Arrays(x, y, x[y > 0], y[y > 0])

    def test_arrays_are_the_same_in_either_precision(self):
        """In 64 bits their runs had other names, and networks that were kept could not be read."""
        x, y = np.eye(4, 3, dtype=np.float32), np.array([1, -1, 1, -1], np.float32)
        mine = jk.grid(data=(x, y), width=3, seed=0)[0]
        with jax.enable_x64(True):
            same = jk.grid(data=(x, y), width=3, seed=0)[0]
            longer = jk.grid(data=(x.astype(float) * 0.1, y.astype(float)), width=3, seed=0)[0]
            shorter = jk.grid(data=((x * 0.1).astype(float), y.astype(float)), width=3, seed=0)[0]
        assert same.data.x.dtype == np.float64
        assert mine.name == same.name
        assert longer.name != shorter.name

    def test_a_function_that_has_fewer_points_than_are_held_out_is_told(self):
        """It was measured at as many as it had, those of the training among them."""

        def of_few(key, samples, dim):
            x, y = stripes(key, 6, dim)
            return x[:samples], y[:samples]

        run = one(data=of_few)
        assert run.data.draw_training(0).x.shape == (4, 5)
        with pytest.raises(ValueError, match=r"was asked for x \(256, 5\) .*, and drew x \(6, 5\)"):
            run.data.draw_held_out(0)

    def test_a_list_in_a_field_is_told_of_its_own_part(self):
        """Own arrays were blamed."""

        class Levels(jk.Measurement):
            levels: tuple = (1.0,)

            def measure(self, params):
                return {"levels": params.v[0]}

        x, y = np.eye(4, 3, dtype=np.float32), np.array([1, -1, 1, -1], np.float32)
        with pytest.raises(ValueError, match=r"levels of 'levels' is \[1.0\], but a run has one"):
            hash(jk.grid(data=(x, y), width=3, seed=0, measure=Levels(levels=[1.0]))[0])


class Corners(jk.data.Data):
    """Data with sizes of its own, which are no fields."""

    @property
    def d(self):
        return 4

    @property
    def samples(self):
        return 6

    def draw_training(self, seed):
        x = np.random.default_rng(seed).normal(size=(6, 4)).astype(np.float32)
        return jk.Dataset(x, np.resize(np.array([1, -1], np.float32), 6))

    def draw_held_out(self, seed):
        return None


def test_data_of_another_kind_have_a_table(tmp_path):
    """Its runs were trained, and no table could be made of them."""
    (run,) = jk.grid(data=Corners, width=10, seed=0, optimizer=SOON, measure=())
    table = jk.sweep([run], progress=False)
    assert dict(table.sizes) == {"d": 1, "samples": 1, "width": 1, "seed": 1}
    assert table.d.item() == 4
    assert table.samples.item() == 6
