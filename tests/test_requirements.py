"""What public functions refuse in networks, points and labels, and what they take."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import aligned, assert_close
from requirement_cases import (
    ALL,
    CHOSEN,
    DIRECTION,
    KEY,
    LABELLED,
    NETWORK,
    OF_DATA_ALONE,
    OF_LABELS_ALONE,
    OF_NETWORKS,
    UNLABELLED,
    X,
    Y,
    named,
    transfer,
)

import jaxkkt as jk
from jaxkkt import datasets, kkt, lazy, mixtures, networks, perturbations
from jaxkkt.numerics.requirements import as_arrays
from jaxkkt.theory import constructions, frei, kkt_point, vardi


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("function", [jk.draw, jk.held_out])
def test_draws_are_of_a_run(function):
    """A list of them was an AttributeError."""
    runs = jk.grid(d=5, samples=4, width=3, seed=0)
    with pytest.raises(ValueError, match=rf"{function.__name__} takes one jk.Run, .*got \[Run"):
        function(runs)


def wide(tree):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


def of_16_bits(name, kind):
    return (
        f"{name} must hold floating-point numbers of 32 or 64 bits, got {jnp.dtype(kind)}: for "
        rf"example {name}\.astype\(('float32'|\w+\.dtype)\)"
    )


@pytest.mark.usefixtures("unchecked")
class TestPrecision:
    @named(ALL, OF_DATA_ALONE)
    @pytest.mark.parametrize("part", ["w", "b", "v"])
    def test_float64_networks_are_not_rounded(self, function, part):
        params = NETWORK._replace(**{part: wide(getattr(NETWORK, part))})
        message = (
            f"{part} is float64, which JAX would round to float32: pass float32, or call "
            r"jax\.config\.update\('jax_enable_x64', True\) first"
        )
        with pytest.raises(ValueError, match=message):
            function(params, X, Y)

    @named(LABELLED | UNLABELLED, OF_LABELS_ALONE)
    def test_float64_points_are_not_rounded(self, function):
        with pytest.raises(ValueError, match="x is float64, which JAX would round to float32"):
            function(NETWORK, wide(X), Y)

    @named(LABELLED)
    def test_float64_labels_are_refused_as_float64_points_are(self, function):
        with pytest.raises(ValueError, match="y is float64, which JAX would round to float32"):
            function(NETWORK, X, wide(Y))

    def test_float64_margins_and_directions_are_not_rounded(self):
        with pytest.raises(ValueError, match="margins is float64, which JAX would round"):
            perturbations.on_margin(wide(Y))
        for search in (perturbations.flip_sizes_exact, perturbations.flip_size_bisection):
            with pytest.raises(ValueError, match="direction is float64, which JAX would round"):
                search(NETWORK, X, Y, np.array(DIRECTION), CHOSEN)

    @named(ALL, OF_DATA_ALONE)
    @pytest.mark.parametrize("kind", [jnp.float16, jnp.bfloat16])
    def test_networks_of_16_bits_are_refused(self, function, kind):
        with pytest.raises(ValueError, match=of_16_bits("v", kind)):
            function(NETWORK._replace(v=NETWORK.v.astype(kind)), X, Y)

    @named(LABELLED | UNLABELLED, OF_LABELS_ALONE)
    @pytest.mark.parametrize("kind", [jnp.float16, jnp.bfloat16])
    def test_points_of_16_bits_are_refused(self, function, kind):
        with pytest.raises(ValueError, match=of_16_bits("x", kind)):
            function(NETWORK, X.astype(kind), Y)

    @named(LABELLED)
    def test_labels_of_16_bits_are_refused(self, function):
        with pytest.raises(ValueError, match=of_16_bits("y", jnp.float16)):
            function(NETWORK, X, Y.astype(np.float16))

    @pytest.mark.parametrize("given", ["network", "data", "all"])
    def test_training_in_16_bits_is_refused(self, given):
        def narrow(tree):
            return jax.tree.map(lambda leaf: leaf.astype(np.float16), tree)

        params = NETWORK if given == "data" else narrow(NETWORK)
        x, y = (X, Y) if given == "network" else narrow((X, Y))
        message = of_16_bits("w" if given == "network" else "x", jnp.float16)
        with pytest.raises(ValueError, match=message):
            jk.train(params, x, y)

    @named(LABELLED | UNLABELLED, OF_DATA_ALONE)
    def test_points_are_not_rounded_to_the_precision_of_the_network(self, function, float64):
        with pytest.raises(
            ValueError,
            match=r"x is float64, but what it is used with is float32: give both the same "
            r"precision, for example x\.astype\('float32'\)",
        ):
            function(NETWORK, wide(X), wide(Y))

    @named(OF_NETWORKS, {"squared norm", "pad"})
    def test_networks_of_two_precisions_are_refused(self, function, float64):
        with pytest.raises(ValueError, match=r"start is float(32|64), but what it is used with is"):
            function(wide(NETWORK), X, Y)

    @named(LABELLED | UNLABELLED, OF_DATA_ALONE)
    def test_float64_is_kept_in_float64_mode(self, function, float64):
        got = jax.eval_shape(lambda: function(wide(NETWORK), wide(X), wide(Y)))
        floats = [leaf for leaf in jax.tree.leaves(got) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        assert floats
        assert all(leaf.dtype == jnp.float64 for leaf in floats)

    @named(LABELLED | UNLABELLED, OF_LABELS_ALONE)
    def test_truth_values_are_refused(self, function):
        with pytest.raises(ValueError, match="x must hold floating-point numbers, got bool"):
            function(NETWORK, X > 0, Y)


@pytest.mark.usefixtures("unchecked")
class TestLabels:
    @named(LABELLED)
    def test_other_labels_are_refused(self, function):
        with pytest.raises(ValueError, match=r"labels must be -1 or 1, got \[-2\.0, 2\.0\]"):
            function(NETWORK, X, 2 * Y)

    @named(LABELLED, OF_LABELS_ALONE, {"adversarial training"})
    def test_classes_0_and_1_are_refused(self, function):
        message = (
            "labels must be -1 or 1, and 0 only for padding, where the row of x is zero: 3 rows "
            "have the label 0 and are not zero, first row 1"
        )
        with pytest.raises(ValueError, match=message):
            function(NETWORK, X, (Y > 0).astype(np.float32))

    @named(LABELLED, {"adversarial training"})
    def test_padding_is_accepted(self, function):
        x, y = X.copy(), Y.copy()
        x[2], y[2] = 0, 0
        function(NETWORK, x, y)

    @named(LABELLED, OF_LABELS_ALONE)
    def test_labels_of_another_shape_are_refused(self, function):
        with pytest.raises(ValueError, match=r"one label per sample, shape \(6,\), got \(6, 1\)"):
            function(NETWORK, X, Y[:, None])

    @named(LABELLED)
    def test_traced_labels_are_not_looked_at(self, function):
        jax.eval_shape(lambda x, y: function(NETWORK, x, y), X, 2 * Y)

    def test_known_labels_are_looked_at_under_a_trace(self):
        with pytest.raises(ValueError, match="labels must be -1 or 1"):
            jax.jit(lambda params: networks.margins(params, X, 2 * Y))(NETWORK)
        jax.jit(lambda params: networks.margins(params, 0 * X, 0 * Y))(NETWORK)


@pytest.mark.usefixtures("unchecked")
class TestShapes:
    @named(LABELLED | UNLABELLED, OF_DATA_ALONE)
    def test_points_of_another_dimension_are_refused(self, function):
        message = (
            r"a network on inputs of dimension 2 needs w \(k, 2\), .* got w \(5, 3\), b \(5,\)"
        )
        with pytest.raises(ValueError, match=message):
            function(NETWORK, X[:, :2], Y)

    @pytest.mark.parametrize("labels", [Y, Y[0]])
    @named(LABELLED, OF_LABELS_ALONE, {"margins", "adversarial training"})
    def test_single_points_are_refused_where_rows_are_needed(self, function, labels):
        with pytest.raises(
            ValueError, match=r"one point a row, shape \(n, d\), got \(3,\): .*x\[No"
        ):
            function(NETWORK, X[0], labels)

    @pytest.mark.parametrize("name", ["pullback", "gradient steps"])
    def test_single_points_without_labels_are_refused_where_rows_are_needed(self, name):
        with pytest.raises(ValueError, match=r"one point a row, shape \(n, d\), got \(3,\)"):
            UNLABELLED[name](NETWORK, X[0], None)

    def test_numbers_are_no_points(self):
        with pytest.raises(
            ValueError, match=r"a point or a stack of them, shape \(\.\.\., d\), got"
        ):
            networks.margins(NETWORK, X[0, 0], Y[0])

    def test_single_points_and_lanes_of_them_have_margins(self):
        expected = networks.margins(NETWORK, X, Y)
        assert_close(networks.margins(NETWORK, X[0], Y[0]), expected[0], rtol=1e-6)
        lanes = jax.jit(jax.vmap(networks.margins, in_axes=(None, 0, 0)))(NETWORK, X, Y)
        assert_close(lanes, expected, rtol=1e-6)

    def test_directions_of_another_dimension_are_refused(self):
        for search in (perturbations.flip_sizes_exact, perturbations.flip_size_bisection):
            with pytest.raises(ValueError, match=r"direction must .* shape \(3,\), got \(2,\)"):
                search(NETWORK, X, Y, DIRECTION[:2], CHOSEN)

    @pytest.mark.parametrize(
        ("function", "name"),
        [(perturbations.pgd, "radius"), (perturbations.smallest_radii, "bracket")],
    )
    def test_radii_are_one_or_one_for_each_point(self, function, name):
        message = (
            rf"{name} must be one number, or one for each point, shape \(6,\), got shape \(2,\)"
        )
        with pytest.raises(ValueError, match=message):
            function(NETWORK, X, Y, jnp.array([0.1, 0.2]))

    def test_one_network_is_no_stack_of_them(self):
        with pytest.raises(ValueError, match=r"n networks stacked, w \(n, k, d\), got w \(5, 3\)"):
            perturbations.transfer_matrix(NETWORK, X, Y)


@pytest.mark.usefixtures("unchecked")
class TestOneNetwork:
    @named(UNLABELLED | OF_NETWORKS)
    @pytest.mark.parametrize("lanes", [2, 3, 5])
    def test_stacks_are_mapped_over(self, function, lanes):
        """5 networks of 5 neurons, or 3 of points of dimension 3, would broadcast."""
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *[NETWORK] * lanes)
        message = (
            r"a network on inputs of dimension 3 needs w \(k, 3\), b \(k,\), v \(k,\) with k >= 1, "
            rf"got w \({lanes}, 5, 3\).*: of networks that are stacked, map over them by jax\.vmap"
        )
        with pytest.raises(ValueError, match=message):
            function(stacked, X, Y)
        mapped = jax.jit(jax.vmap(function, in_axes=(0, None, None)))(stacked, X, Y)
        last = jax.tree.map(lambda leaf: np.asarray(leaf)[-1], mapped)
        assert_close(last, function(NETWORK, X, Y), rtol=1e-5, atol=1e-6)

    @named(OF_NETWORKS)
    @pytest.mark.parametrize("part", ["w", "b", "v"])
    def test_parts_that_do_not_fit_are_refused(self, function, part):
        params = NETWORK._replace(**{part: getattr(NETWORK, part)[:4]})
        with pytest.raises(ValueError, match=r"3 needs w \(k, 3\), b \(k,\), v \(k,\) with k >= 1"):
            function(params, X, Y)


class TestKinds:
    @named(LABELLED | UNLABELLED)
    def test_lists_are_as_good_as_arrays(self, function):
        labels = [int(label) for label in Y]
        assert_close(function(NETWORK, X.tolist(), labels), function(NETWORK, X, Y), rtol=1e-6)

    @pytest.mark.usefixtures("unchecked")
    @named(LABELLED, {"adversarial training"})
    def test_whole_numbers_are_labels_too(self, function):
        assert_close(function(NETWORK, X, Y.astype(int)), function(NETWORK, X, Y), rtol=1e-6)

    def test_lists_of_other_arguments(self):
        u = np.array(DIRECTION, np.float32)
        for search in (perturbations.flip_sizes_exact, perturbations.flip_size_bisection):
            expected = search(NETWORK, X, Y, u, CHOSEN)
            assert_close(search(NETWORK, X, Y, DIRECTION, CHOSEN.tolist()), expected)
        q = [1.0, 1.05, 3.0]
        assert perturbations.on_margin(q, mask=[False, True, True]).tolist() == [False, True, False]

    @pytest.mark.usefixtures("unchecked")
    @named(ALL, OF_DATA_ALONE)
    def test_networks_of_another_type_are_refused(self, function):
        if function is not transfer:
            with pytest.raises(ValueError, match="b must be an array, got list"):
                function(NETWORK._replace(b=NETWORK.b.tolist()), X, Y)
            with pytest.raises(ValueError, match=r"jaxkkt\.Params\(w, b, v\), .* got tuple"):
                function(tuple(NETWORK), X, Y)

    @pytest.mark.usefixtures("unchecked")
    @named(LABELLED | UNLABELLED, OF_LABELS_ALONE)
    def test_lists_that_make_no_array_are_refused(self, function):
        with pytest.raises(ValueError, match="x must be an array, or lists of numbers"):
            function(NETWORK, [[1.0, 2.0, 3.0], [4.0]], Y)

    @pytest.mark.usefixtures("unchecked")
    @named(LABELLED | UNLABELLED, OF_LABELS_ALONE)
    def test_lists_of_numbers_that_would_be_infinite_are_refused(self, function):
        """float32 took 1e39 for inf."""
        beyond = [[1e39, 2.0, 3.0], *X[1:].tolist()]
        with pytest.raises(ValueError, match=r"x has 1e\+39, but float32 ends at 3.403e\+38"):
            function(NETWORK, beyond, Y)

    def test_numbers_that_would_be_infinite_are_refused(self, unchecked):
        with pytest.raises(ValueError, match=r"x has -1e\+40, but float32 ends at"):
            jk.data.Arrays([[0.0, -(10**40)], [0.0, 1.0]], [1, -1])
        with pytest.raises(ValueError, match=r"radius has 1e\+39, but float32 ends at"):
            perturbations.pgd(NETWORK, X, Y, 1e39, steps=1)
        with pytest.raises(ValueError, match=r"radii has 1e\+39, but float32 ends at"):
            perturbations.robust_accuracy(NETWORK, X, Y, [0.1, 1e39], steps=1)
        with pytest.raises(ValueError, match=r"margins must be an array, .* int too large"):
            jk.losses.log_loss([10**400, 1.0])
        largest = float(np.finfo(np.float32).max)
        held = as_arrays(x=[largest, -largest, np.inf])[0]
        np.testing.assert_array_equal(held, np.array([largest, -largest, np.inf], np.float32))

    @pytest.mark.usefixtures("unchecked")
    @pytest.mark.parametrize("number", [1e39, -1.0, [1.0, 2.0]])
    def test_a_number_is_one_that_is_positive_and_finite_in_its_precision(self, number):
        """Infinite in 32 bits it gave sizes of NaN, bounds of 0, flips of none."""
        calls = {
            "bracket": partial(perturbations.flip_sizes_exact, NETWORK, X, Y, DIRECTION, CHOSEN),
            "bracket of steps": partial(perturbations.gradient_steps, NETWORK, X),
            "sigma": partial(frei.clusters, X, Y),
            "d": partial(vardi.summary, X, Y),
            "d of a network": partial(vardi.robust_network, X, Y, 0.1),
            "d of a construction": partial(constructions.opposing_samples, X, Y, label=1),
        }
        for told, call in calls.items():
            name = told.split()[0]
            with pytest.raises(ValueError, match=rf"{name} (has 1e\+39|must be)"):
                call(**{name: number})

    @pytest.mark.usefixtures("unchecked")
    @pytest.mark.parametrize("chosen", [np.flatnonzero(CHOSEN), CHOSEN[:5], np.ones(6)])
    def test_choices_must_be_truth_values(self, chosen):
        message = r"chosen must hold True or False for every sample, shape \(6,\), got"
        with pytest.raises(ValueError, match=message):
            perturbations.universal_direction(X, Y, chosen)
        for search in (perturbations.flip_sizes_exact, perturbations.flip_size_bisection):
            with pytest.raises(ValueError, match=message):
                search(NETWORK, X, Y, DIRECTION, chosen)
        with pytest.raises(ValueError, match="mask must hold True or False for every sample"):
            perturbations.on_margin(Y, mask=chosen)

    def test_networks_of_two_shapes_have_no_distance(self):
        with pytest.raises(ValueError, match=r"same shape, got w \(6, 3\) and \(5, 3\)"):
            lazy.distances(networks.pad(NETWORK, 6, 3), NETWORK)


@pytest.mark.usefixtures("unchecked")
class TestOneCheckForAll:
    @pytest.mark.parametrize("function", [kkt.multipliers, partial(kkt.kinks, tolerance=1e-6)])
    def test_padding_of_a_certificate_is_a_row_of_zeros(self, function):
        with pytest.raises(ValueError, match="1 rows have the label 0 and are not zero, first r"):
            function(NETWORK, X, np.where(np.arange(6) == 2, 0, Y))

    def test_lists_are_trained_on_in_the_precision_of_the_network(self, float64):
        protocol = jk.flow_protocol(max_steps=1)
        assert jk.train(NETWORK, X.tolist(), Y.tolist(), protocol).params.w.dtype == np.float32


NONE = np.zeros((0, 3), np.float32), np.zeros(0, np.float32)
MEANS = np.eye(3, dtype=np.float32), np.array([1, -1, 1], np.float32)


@pytest.mark.usefixtures("unchecked")
class TestNoPoints:
    @pytest.mark.parametrize(
        ("function", "name"),
        [
            (lambda: perturbations.flip_sizes_exact(NETWORK, *NONE, DIRECTION, CHOSEN[:0]), "x"),
            (
                lambda: perturbations.flip_size_bisection(NETWORK, *NONE, DIRECTION, CHOSEN[:0]),
                "x",
            ),
            (lambda: perturbations.robust_accuracy(NETWORK, *NONE, 0.1), "x"),
            (lambda: constructions.attacks(NETWORK, *NONE, X, Y, DIRECTION), "points"),
            (lambda: constructions.attacks(NETWORK, X, Y, *NONE, DIRECTION), "x"),
            (lambda: constructions.neighbour_attacks(X, Y, *NONE, DIRECTION), "x"),
            (
                lambda: frei.properties(
                    frei.clusters(*MEANS, 1.0), frei.Sample(NONE[0], np.zeros(0, int))
                ),
                "x",
            ),
        ],
        ids=["exact", "bisection", "accuracy", "points", "samples", "neighbours", "properties"],
    )
    def test_are_refused(self, function, name):
        message = rf"{name} must hold at least one point, got shape \(0, 3\)"
        with pytest.raises(ValueError, match=message):
            function()

    def test_have_no_test_error(self):
        truth = mixtures.Truth(*MEANS, 1.0, np.arange(3), np.zeros(0, int), 3.0)
        with pytest.raises(ValueError, match="test_x must hold at least one point"):
            jk.ClusterFlips().measure(NETWORK, jk.Dataset(*NONE), truth)

    def test_are_not_sampled(self):
        for samples, message in ((0, "at least 1, got 0"), (2.5, "an integer, got 2.5")):
            with pytest.raises(ValueError, match=f"samples must be {message}"):
                mixtures.sample(KEY, *MEANS, 1.0, samples)
        for clusters, dim, name in ((0, 3, "clusters"), (2, 0, "dim")):
            with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
                mixtures.means(KEY, clusters, dim)

    @pytest.mark.parametrize(
        "function",
        [
            lambda x: perturbations.universal_direction(x, Y, CHOSEN),
            lambda x: perturbations.gradient_steps(NO_WEIGHTS, x),
            lambda x: perturbations.flip_sizes_exact(NO_WEIGHTS, x, Y, [], CHOSEN),
            lambda x: perturbations.pgd(NO_WEIGHTS, x, Y, 0.1, steps=1),
            lambda x: constructions.guaranteed_sizes(NO_WEIGHTS, x, Y),
            lambda x: constructions.neighbour_guarantees(x, Y, x, Y),
            lambda x: lazy.distances(NO_WEIGHTS, NO_WEIGHTS),
        ],
        ids=["direction", "steps", "exact", "pgd", "sizes", "neighbours", "distances"],
    )
    def test_points_have_a_dimension(self, function):
        """JAX's error was of a reduction that has no identity."""
        with pytest.raises(ValueError, match="points need at least one dimension, got dimension 0"):
            function(X[:, :0])


NO_WEIGHTS = NETWORK._replace(w=NETWORK.w[:, :0])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "function",
    [
        lambda params, x, y: datasets.validate(x, y),
        lambda params, x, y: lazy.project(params, NETWORK, 1.0),
        lambda params, x, y: kkt_point(params, x, y, kkt.certificate(params, x, y)),
    ],
    ids=["validate", "project", "point"],
)
def test_what_comes_back_does_not_change_with_the_callers_arrays(function):
    params, x, y = jax.tree.map(aligned, (NETWORK, X, Y))
    found = function(params, x, y)
    before = jax.tree.map(np.array, found)
    for array in (*params, x, y):
        array += 1
    assert_close(found, before, rtol=0)
    leaves = jax.tree.leaves(found)
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)
