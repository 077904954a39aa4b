"""Directions and flips: closed forms, degenerate runs, refusals, transfer."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import normal
from rays import EPS, classified, line, on_line

from jaxkkt import networks, perturbations
from jaxkkt.networks import Params
from jaxkkt.perturbations import FlipStatus, flip_size_bisection, flip_sizes_exact

# --- who is on the margin, and where to ---


def test_on_margin_takes_the_slack_and_leaves_padding_out():
    q = jnp.array([2.0, 2.19, 2.21, 0.0, 5.0])
    mask = jnp.array([True, True, True, False, True])
    np.testing.assert_array_equal(perturbations.on_margin(q, mask=mask), [1, 1, 0, 0, 0])
    np.testing.assert_array_equal(perturbations.on_margin(q, 3.0, mask), [1, 1, 1, 0, 1])
    np.testing.assert_array_equal(perturbations.on_margin(q, 1.0, mask), [1, 0, 0, 0, 0])


@pytest.mark.parametrize("q", [[1.0, -1.0], [0.0, 1.0], [jnp.nan, 1.0]])
def test_nobody_is_on_the_margin_of_a_network_that_errs(q):
    assert not perturbations.on_margin(jnp.array(q)).any()


@pytest.mark.parametrize("slack", [0.9, float("nan")])
def test_slack_below_one_is_refused(slack):
    with pytest.raises(ValueError, match=f"slack must be at least 1, got {slack}"):
        perturbations.on_margin(jnp.ones(3), slack)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("slack", [[1.1, 1.2], np.array([1.1]), jnp.ones(3), jnp.ones((0,))])
def test_slack_is_one_number(slack):
    message = f"slack must be one number, got shape {re.escape(str(np.shape(slack)))}: of several"
    with pytest.raises(ValueError, match=message):
        perturbations.on_margin(jnp.ones(3), slack)
    with pytest.raises(ValueError, match=message):
        jax.jit(perturbations.on_margin)(jnp.ones(3), jnp.array(slack))


def test_slacks_are_mapped_over():
    mapped = jax.vmap(perturbations.on_margin, in_axes=(None, 0))
    found = mapped(jnp.array([1.0, 1.15]), jnp.array([1.1, 1.2]))
    np.testing.assert_array_equal(found, [[1, 0], [1, 1]])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("shape", [(0,), (2, 3), (3, 1), ()])
def test_margins_are_those_of_one_network(shape):
    message = rf"of one network, shape \(m,\) with m >= 1, got {re.escape(str(shape))}.*jax\.vmap"
    with pytest.raises(ValueError, match=message):
        perturbations.on_margin(jnp.ones(shape))


def test_networks_are_mapped_over():
    q = jnp.array([[1.0, 1.05], [10.0, 1.0]])
    np.testing.assert_array_equal(jax.vmap(perturbations.on_margin)(q), [[1, 1], [0, 1]])


def test_universal_direction_is_the_unit_sum_over_the_chosen():
    x = np.array([[1.0, 2.0], [3.0, -1.0], [9.0, 9.0]], np.float32)
    y = np.array([1.0, -1.0, 1.0], np.float32)
    u = perturbations.universal_direction(x, y, np.array([True, True, False]))
    np.testing.assert_allclose(u, np.array([-2, 3]) / np.sqrt(13), rtol=1e-6)
    nobody = perturbations.universal_direction(x, y, np.zeros(3, bool))
    np.testing.assert_array_equal(nobody, [0, 0])
    cancels = perturbations.universal_direction(x[[0, 0, 2]], y, np.array([True, True, False]))
    np.testing.assert_array_equal(cancels, [0, 0])


# --- closed forms ---


@pytest.mark.parametrize("search", [flip_sizes_exact, flip_size_bisection])
@pytest.mark.parametrize("label", [1.0, -1.0])
def test_two_neurons_that_make_the_identity(search, label):
    identity = line((1, 0, 1), (-1, 0, -1))  # y N(x - y c) = y x - c
    flip = on_line(identity, [3.0 * label], [label], search=search)
    assert flip.size == pytest.approx(3, rel=4 * EPS)
    assert flip.status == FlipStatus.FLIPPED


@pytest.mark.parametrize("search", [flip_sizes_exact, flip_size_bisection])
def test_breakpoint_before_the_flip(search):
    # N(t) = 0.7 t - 1.9 relu(0.3 - t) for t > 0: at t = 0.57 / 2.6 the output is 0.
    params = line((1, 0, 0.7), (-1, 0.3, -1.9))
    assert on_line(params, [5.0], search=search).size == pytest.approx(5 - 0.57 / 2.6, rel=4 * EPS)


@pytest.mark.parametrize("search", [flip_sizes_exact, flip_size_bisection])
def test_one_neuron_has_one_sign_and_never_flips(search):
    # At c = 3 the output reaches 0 and stays: exactly 0 is not flipped.
    flip = on_line(line((2.3, -0.1, 0.7)), [3.0], search=search)
    assert flip.size == jnp.inf
    assert flip.status == FlipStatus.NO_FLIP


@pytest.mark.parametrize("search", [flip_sizes_exact, flip_size_bisection])
@pytest.mark.parametrize("scale", [1.0, 0.37, 1e4])
def test_exactly_zero_is_not_flipped_so_the_size_ends_the_plateau(search, scale):
    # N = 0.3 relu(t/0.7 - 1) - 0.9 relu(-1.1 t - 1) vanishes for -1/1.1 <= t <= 0.7.
    params = line((scale / 0.7, -scale, 0.3), (-1.1 * scale, -scale, -0.9))
    assert on_line(params, [3.1], search=search).size == pytest.approx(3.1 + 1 / 1.1, rel=8 * EPS)


def test_zero_at_the_start_flips_at_once_or_only_later():
    identity = line((1, 0, 1), (-1, 0, -1))
    assert on_line(identity, [0.0]).size == 0
    # N = relu(t) - relu(-t - 1): 0 at the start, and until t = -1.
    assert on_line(line((1, 0, 1), (-1, -1, -1)), [0.0]).size == pytest.approx(1, rel=4 * EPS)


@pytest.mark.parametrize("search", [flip_sizes_exact, flip_size_bisection])
def test_misclassified_has_size_zero(search):
    identity = line((1, 0, 1), (-1, 0, -1))
    assert on_line(identity, [-3.0], search=search).size == 0
    both = on_line(identity, [-3.0, 2.0], search=search)
    assert both.size == pytest.approx(2, rel=4 * EPS)
    assert both.status == FlipStatus.FLIPPED
    if search is flip_sizes_exact:
        np.testing.assert_allclose(both.sizes, [0, 2], rtol=4 * EPS)


@pytest.mark.parametrize("search", [flip_sizes_exact, flip_size_bisection])
def test_no_flip_within_the_bracket(search):
    identity = line((1, 0, 1), (-1, 0, -1))
    beyond = on_line(identity, [1.0, 3.0], bracket=2.9, search=search)
    assert beyond.size == jnp.inf
    assert beyond.status == FlipStatus.NO_FLIP
    # Weights that do not see the direction have slope 0 along it.
    params = Params(jnp.array([[0.0, 1.0]]), jnp.zeros(1), jnp.ones(1))
    x, y = jnp.ones((1, 2)), jnp.ones(1)
    blind = search(params, x, y, jnp.array([1.0, 0.0]), jnp.ones(1, bool))
    assert blind.size == jnp.inf
    assert blind.status == FlipStatus.NO_FLIP


@pytest.mark.parametrize("search", [flip_sizes_exact, flip_size_bisection])
def test_default_bracket_is_four_times_the_longest_input(search):
    identity = line((1, 0, 1), (-1, 0, -1), constant=8.9)  # flips at c = x + 8.9
    assert on_line(identity, [3.0, 1.0], bracket=None, search=search).size == pytest.approx(11.9)
    assert on_line(identity, [2.9, 1.0], bracket=None, search=search).size == jnp.inf


def test_many_neurons_that_die_out_leave_exactly_zero():
    """No flip, though prefix sums of 300 terms end at some rounding below 0."""
    keys = jax.random.split(jax.random.key(3), 3)
    w, b, v = (jax.random.uniform(key, (300,), minval=0.1) for key in keys)
    flips = on_line(Params(w[:, None], b, v), [3.0, 4.0, 5.0, 6.0, 7.0])
    np.testing.assert_array_equal(flips.sizes, np.inf)
    np.testing.assert_array_equal(flips.unflips, np.inf)
    assert flips.status == FlipStatus.NO_FLIP


def test_zero_far_below_the_first_output_is_exact():
    # N = 1e4 (...) + t - 1, where (...) is of order 1 at the start and 0 at the flip, t = 1.
    high = [(0.7, -1.47, 1e4), (1.3, -2.99, 0.7e4), (1.1, -2.13, 0.3e4)]
    params = line((1, 0, 1), *high, constant=-1.0)
    assert on_line(params, [3.1]).size == pytest.approx(2.1, rel=4 * EPS)


# --- degenerate runs, alone and among others ---


def replaced(array, index, value):
    array = array.copy()
    array[index] = value
    return array


def degenerate():
    """Cases of one shape by the status each must have."""
    params, x, y, u, chosen = jax.device_get(classified(0))
    one, nobody = np.arange(9) == 0, np.zeros(9, bool)
    cases = [(FlipStatus.FLIPPED, (params, x, y, u, one))]
    cases += [(FlipStatus.NO_FLIP, (params._replace(v=np.abs(params.v) * y[0]), x, y, u, one))]
    cases += [(FlipStatus.NOTHING_TO_FLIP, (params, x, y, u, nobody))]
    cases += [(FlipStatus.NOTHING_TO_FLIP, (params, x, y, 0 * u, chosen))]
    for bad in (np.nan, np.inf, -np.inf):
        for name, at in (("w", (3, 1)), ("b", 3), ("v", 3)):
            broken = params._replace(**{name: replaced(getattr(params, name), at, bad)})
            cases.append((FlipStatus.NON_FINITE, (broken, x, y, u, one)))
    cases.append((FlipStatus.NON_FINITE, (broken, x, y, u, nobody)))
    cases.append((FlipStatus.NON_FINITE, (params, replaced(x, (0, 0), np.nan), y, u, one)))
    cases.append((FlipStatus.NON_FINITE, (params, x, y, replaced(u, 0, np.nan), one)))
    huge = Params(*(p * np.float32(1e25) for p in params))  # finite weights, infinite outputs
    cases.append((FlipStatus.NON_FINITE, (huge, x, y, u, one)))
    return [status for status, _ in cases], [case for _, case in cases]


def test_degenerate_runs_have_a_status_and_no_made_up_size():
    statuses, cases = degenerate()
    size = {FlipStatus.NO_FLIP: np.inf, FlipStatus.FLIPPED: None}
    for status, case in zip(statuses, cases, strict=True):
        for search in (flip_sizes_exact, flip_size_bisection):
            flip = search(*case)
            assert flip.status == status
            if status != FlipStatus.FLIPPED:
                np.testing.assert_equal(float(flip.size), size.get(status, np.nan))
        exact = flip_sizes_exact(*case)
        if status == FlipStatus.NON_FINITE:
            assert np.isnan(exact.sizes).all()
        if status != FlipStatus.FLIPPED:
            assert not exact.monotone
    nobody = flip_sizes_exact(*cases[2])  # still has sizes, sample by sample
    np.testing.assert_array_equal(nobody.sizes, flip_sizes_exact(*cases[0]).sizes)


@pytest.mark.parametrize("search", [flip_sizes_exact, flip_size_bisection])
def test_outputs_that_overflow_before_the_bracket_are_told(search):
    # N(t) = 1 - 1e30 relu(-1e10 t) is 1 at 0 and -inf at -1.
    flip = on_line(line((-1e10, 0, -1e30), constant=1.0), [0.0], bracket=1.0, search=search)
    assert flip.status == FlipStatus.NON_FINITE
    assert np.isnan(flip.size)


def test_samples_that_are_not_chosen_may_turn_back():
    # N(t) = t + 2 relu(-t - 1) is negative between -2 and 0 alone.
    params = line((1, 0, 1), (-1, 0, -1), (-1, -1, 2))
    x, y, u = np.array([[1.0], [0.1]], np.float32), np.ones(2, np.float32), np.ones(1, np.float32)
    one, both = (flip_sizes_exact(params, x, y, u, np.array([True, c]), 2.5) for c in (False, True))
    for found in (one, both):
        np.testing.assert_allclose(found.sizes, [1, 0.1], rtol=1e-6)
        np.testing.assert_allclose(found.unflips, [np.inf, 2.1], rtol=1e-6)
        np.testing.assert_allclose(found.size, 1, rtol=1e-6)
    assert one.monotone
    assert not both.monotone


def test_beside_a_broken_point_no_size_is_known():
    """Though it is not chosen, and the bracket is given."""
    x, u = np.array([[1.0], [np.nan]], np.float32), np.ones(1, np.float32)
    identity, y, one = line((1, 0, 1), (-1, 0, -1)), np.ones(2, np.float32), np.array([True, False])
    assert flip_size_bisection(identity, x, y, u, one, 2.5).status == FlipStatus.NON_FINITE
    exact = flip_sizes_exact(identity, x, y, u, one, 2.5)
    assert exact.status == FlipStatus.NON_FINITE
    assert np.isnan([*exact.sizes, *exact.unflips]).all()


@pytest.mark.parametrize("search", [flip_sizes_exact, flip_size_bisection])
def test_vmapped_equals_looped(search):
    statuses, cases = degenerate()
    # A lane that needs several trips among lanes that need one.
    cases += [jax.device_get(classified(seed)) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *cases)
    together = jax.device_get(jax.jit(jax.vmap(search))(*stacked))
    np.testing.assert_array_equal(together.status[: len(statuses)], statuses)
    for i, case in enumerate(cases):
        for lane, alone in zip(together, search(*case), strict=True):
            # Rounding moves a crossing by a length that does not shrink with the size, and a
            # shallow one further: by 1.1e-5 of it on a CPU with AVX-512.
            np.testing.assert_allclose(lane[i], alone, rtol=1e-4, atol=1e-6)


def test_every_status_has_a_sentence():
    assert all(status.describe() for status in FlipStatus)
    assert "raise the bracket" in FlipStatus.NO_FLIP.describe()
    assert "no sample is chosen or the direction is zero" in FlipStatus.NOTHING_TO_FLIP.describe()
    assert "NaN or infinite" in FlipStatus.NON_FINITE.describe()


@pytest.mark.parametrize("search", [flip_sizes_exact, flip_size_bisection])
@pytest.mark.parametrize("bracket", [0.0, -1.0, float("inf"), float("nan")])
def test_bad_bracket_is_refused(search, bracket):
    with pytest.raises(ValueError, match="bracket must be positive and finite, got"):
        search(*classified(), bracket=bracket)


def test_bad_trips_are_refused():
    with pytest.raises(ValueError, match="trips must be at least 1, got 0"):
        flip_size_bisection(*classified(), trips=0)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("trips", [2.5, 2.0, True, "3"])
def test_trips_are_whole(trips):
    with pytest.raises(ValueError, match=f"trips must be an integer, got {trips!r}"):
        flip_size_bisection(*flips_at_3(), trips=trips)
    assert flip_size_bisection(*flips_at_3(), trips=np.int64(2)).size > 0


def test_trips_bound_the_error():
    assert flip_size_bisection(*flips_at_3(), trips=3).size == 4  # 8, 4 flip, 2 does not
    assert flip_size_bisection(*flips_at_3(), trips=5).size == 3.5


def flips_at_3():
    """One sample, and a bracket of 16."""
    one = np.ones(1, np.float32)
    return line((1, 0, 1), (-1, 0, -1)), 3 * one[None], one, one, one > 0, 16.0


def test_second_call_does_not_compile():
    flip_sizes_exact(*classified(0))
    before = perturbations.universal._exact._cache_size()
    flip_sizes_exact(*classified(1), bracket=3.0)
    assert perturbations.universal._exact._cache_size() == before


# --- transfer ---


@pytest.mark.slow
def test_transfer_takes_its_slack_and_leaves_padding_out():
    params, x, y, _, _ = classified(5, k=60)
    one, other = (jax.tree.map(lambda p, i=i: p + _noise(i, p), params) for i in range(2))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), one, other)
    padded = np.pad(x, ((0, 3), (0, 0))), np.pad(y, (0, 3))
    flips = perturbations.transfer_matrix(stacked, *padded, slack=2.0)
    mine, theirs = (perturbations.on_margin(networks.margins(p, x, y), 2.0) for p in (one, other))
    alone = flip_sizes_exact(other, x, y, perturbations.universal_direction(x, y, mine), theirs)
    assert flips.status[0, 1] == alone.status == FlipStatus.FLIPPED
    np.testing.assert_allclose(flips.size[0, 1], alone.size, rtol=1e-5)


@pytest.mark.slow
def test_transfer_tries_the_direction_of_a_on_the_margin_of_b():
    params, x, y, _, _ = classified(5, k=60)
    nearby = [jax.tree.map(lambda p, seed=seed: p + _noise(seed, p), params) for seed in range(3)]
    nearby[2] = nearby[2]._replace(v=-params.v)  # misclassifies: nobody on its margin
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *nearby)
    flips = perturbations.transfer_matrix(stacked, x, y, slack=2.0)
    given = perturbations.transfer_matrix(stacked, x, y, slack=jnp.asarray(2.0))
    np.testing.assert_array_equal(given.size, flips.size)
    chosen = [perturbations.on_margin(networks.margins(p, x, y), 2.0) for p in nearby]
    assert (chosen[0] != chosen[1]).any()
    for a in range(3):
        u = perturbations.universal_direction(x, y, chosen[a])
        for b in range(3):
            alone = flip_sizes_exact(nearby[b], x, y, u, chosen[b])
            assert flips.status[a, b] == alone.status
            np.testing.assert_allclose(flips.size[a, b], alone.size, rtol=1e-5)
    assert flips.size[0, 1] != flips.size[1, 0]
    assert jnp.isfinite(flips.size[:2, :2]).all()
    np.testing.assert_array_equal(flips.status[2, :], FlipStatus.NOTHING_TO_FLIP)
    np.testing.assert_array_equal(flips.status[:, 2], FlipStatus.NOTHING_TO_FLIP)


def _noise(seed, p):
    return 0.05 * normal(seed, *p.shape) * jnp.std(p)
