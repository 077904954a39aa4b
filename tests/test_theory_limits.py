"""The study of where the theorems begin to speak: its draws and closed forms, and one small run."""

import json

import jax.numpy as jnp
import matplotlib.style
import numpy as np
import pytest
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy.integrate import quad

from jaxkkt import plotting
from jaxkkt.theory import frei, vardi
from sweeps import limits_probabilities, limits_smallest, theory_limits


def unit(rng, *shape):
    drawn = rng.normal(size=shape)
    return drawn / np.linalg.norm(drawn, axis=-1, keepdims=True)


def test_products_are_drawn_without_their_vectors():
    """Mean and variance of every entry of the Gram matrix of normal vectors."""
    draws, n, d = 20_000, 3, 7
    rows = limits_probabilities.bartlett(np.random.default_rng(0), draws, n, d)
    products = rows @ rows.transpose(0, 2, 1)
    mean, spread = d * np.eye(n), d * (1 + np.eye(n))
    error = np.sqrt(spread / draws)
    assert (abs(products.mean(axis=0) - mean) < 5 * error).all()
    np.testing.assert_allclose(products.var(axis=0), spread, rtol=0.08)
    with pytest.raises(ValueError, match="n must be at most d"):
        limits_probabilities.bartlett(np.random.default_rng(0), 1, 8, 7)


def test_lemma_3_1_and_2_1_against_vectors_drawn_in_full():
    rng, draws = np.random.default_rng(1), 4000
    d, m = 20, limits_probabilities.SAMPLES
    x = unit(rng, draws, m, d)
    largest = abs(np.where(np.eye(m, dtype=bool), 0, x @ x.transpose(0, 2, 1))).max(axis=(1, 2))
    assert 0.1 < np.mean(largest <= 0.5) < 0.9
    hits = limits_probabilities.EVENTS["half"].hits(np.random.default_rng(2), d, draws)
    assert hits / draws == pytest.approx(np.mean(largest <= 0.5), abs=0.05)
    means = d**0.5 * unit(rng, draws, 10, d)
    y = np.array([1.0, -1.0] * 5)
    cluster = rng.integers(0, 10, draws)
    points = means[np.arange(draws), cluster] + 2 * rng.normal(size=(draws, d))
    right = np.mean(y[cluster] * np.einsum("nd,q,nqd->n", points, y, means) > 0)
    hits = limits_probabilities.separated(10, lambda d: 2.0)(np.random.default_rng(3), d, draws)
    assert hits / draws == pytest.approx(right, abs=0.04)


def test_intervals_are_exact():
    low, high = limits_probabilities.interval(20, 20)
    assert (low, high) == (pytest.approx(0.025 ** (1 / 20)), 1.0)
    low, high = limits_probabilities.interval(3, 10)
    assert 0.06 < low < 0.07  # Clopper and Pearson (1934): 0.067 to 0.652
    assert 0.65 < high < 0.66
    with pytest.raises(ValueError, match="got 11 of 10"):
        limits_probabilities.interval(11, 10)


def test_the_density_is_told_from_that_of_another_dimension(monkeypatch):
    def p_value():
        return limits_probabilities.density_p_value(np.random.default_rng(0), 30)

    assert p_value() > 0.01
    density = vardi.correlation_density
    monkeypatch.setattr(vardi, "correlation_density", lambda t, d: density(t, d + 3))
    assert p_value() < 1e-4


def odds(**changes):
    """Results in which nothing failed at d = 10 and 100, and the papers promise at 100 alone."""
    values = {"failing": [0.0, 0.0], "failing_low": [0.0, 0.0], "failing_high": [0.01, 0.01]}
    values |= {"promised": [3.0, 1e-4]}
    table = {
        f"{name}_{key}": ("d", np.array((changes if name == "half" else {}).get(key, value)))
        for name in limits_probabilities.EVENTS
        for key, value in values.items()
    }
    return xr.Dataset({**table, "density_p": ("d", [0.5, 0.02])}, coords={"d": [10, 100]})


@pytest.mark.parametrize(
    ("changes", "holds"),
    [
        ({}, True),
        ({"failing_low": [0.5, 0.0]}, True),  # where nothing is promised
        ({"failing_low": [0.0, 2e-4]}, False),
        ({"promised": [3.0, 1.0]}, None),
    ],
)
def test_a_promise_is_held_against_the_interval(changes, holds):
    first, *others, density = limits_probabilities.claims(odds(**changes))
    assert first.holds is holds
    assert all(claim.holds for claim in others)
    assert density.holds  # 0.02 of two tests
    assert "says nothing at d = 10" in others[0].measured


def test_panels_of_one_d_share_an_axis_of_some_length():
    """It went from 10 to 10.00000000000001, and panels came to lie over each other."""
    with matplotlib.style.context(plotting.STYLE):
        figure = Figure()
        limits_probabilities.drawn(figure, odds().isel(d=[0]))
        FigureCanvasAgg(figure).draw()
    for ax in figure.axes:
        assert ax.get_xlim() == pytest.approx((10 / 1.5, 15))


def test_the_typical_product():
    for d in (5, 40):
        t = limits_smallest.typical_product(2, d)
        assert quad(vardi.correlation_density, 0, t, args=(d,))[0] == pytest.approx(0.5, rel=1e-6)
    rng = np.random.default_rng(0)
    x = unit(rng, 4000, 10, 50)
    products = abs(np.where(np.eye(10, dtype=bool), 0, x @ x.transpose(0, 2, 1)))
    median = np.median(products.max(axis=(1, 2)))
    assert limits_smallest.typical_product(10, 50) == pytest.approx(median, rel=0.02)
    with pytest.raises(ValueError, match="got m = 1, d = 5"):
        limits_smallest.typical_product(1, 5)


def test_the_least_d_is_that_of_a_scan():
    assert limits_smallest.smallest(lambda d: d >= 1_000_003) == 1_000_003
    assert limits_smallest.smallest(lambda d: True) == 2
    assert limits_smallest.smallest(lambda d: False) is None
    scanned = 0
    for limit in limits_smallest.limits():
        least = limits_smallest.smallest(limit.met)
        if least is not None and least < 1000:
            met = np.array([limit.met(d) for d in range(2, 1500, 1 if least < 200 else 7)])
            dims = np.arange(2, 1500, 1 if least < 200 else 7)
            assert (met == (dims >= least)).all(), limit.text
            scanned += 1
    assert scanned >= 6


@pytest.mark.slow
def test_assumptions_at_the_least_d_are_those_of_the_theory():
    """Theorem 4.1 and Assumption 2.2 by the package's own functions, at both sides of the least."""
    least = limits_smallest.smallest(lambda d: limits_smallest.clustered(2, d, tight=True))
    for d, holds in ((least - 1, False), (least, True)):
        c = frei.clusters(d**0.5 * jnp.eye(2, d), jnp.array([1.0, -1.0]), d**-0.5)
        assert bool(c.assumptions()["k (p + Delta + 1) <= (d - Delta + 1) / 10"].holds) is holds
    for m, d in ((8, 30), (20, 70)):
        s = vardi.summary(d**0.5 * jnp.eye(m, d), jnp.array([1.0, -1.0] * (m // 2)))
        size = float(sum(s.etas)) * (m * d) ** 0.5
        assert limits_smallest.perturbation_size(m, d, orthogonal=True) == pytest.approx(size)
        asked = bool(s.assumptions()["m <= (d+1) / (3 (p+1))"].holds)
        assert limits_smallest.few_enough(m, d, orthogonal=True) is asked
    least, m = limits_smallest.least_that_says_something(orthogonal=True)
    assert limits_smallest.perturbation_size(m, least, orthogonal=True) < least**0.5


def test_conditions_are_cells_of_their_table():
    """The bars of |z| made cells of their own."""
    results = xr.Dataset(
        {"least_d": ("limit", [30]), "source": ("limit", ["V"])}, {"limit": ["|z| < sqrt(d)"]}
    )
    line = limits_smallest.table(results).splitlines()[-1]
    assert line == "| Vardi, Yehudai, Shamir (2022): \\|z\\| < sqrt(d) | 30 |"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--draws", "0"], "draws must be at least 1, got 0"),
        (["--drawn-d", "30", "1"], "--drawn-d must be at least 10, for so many vectors are drawn"),
    ],
)
def test_draws_that_cannot_be_are_told_by_a_plan(arguments, message, tmp_path, capsys):
    """A plan was made of no draws, and d = 1 ended with NumPy's "df <= 0" and no name."""
    code = theory_limits.STUDY.main([*arguments, "--dry-run", "--out", str(tmp_path)])
    assert code == 2
    assert f"error: {message}" in capsys.readouterr().err


@pytest.mark.slow
def test_all_parts_leave_their_files(tmp_path):
    arguments = ["--d", "24", "30", "--seeds", "1", "--width", "20", "--drawn-d", "30", "100"]
    arguments += ["--draws", "40", "--quiet", "--out", str(tmp_path)]
    assert theory_limits.STUDY.main(arguments) == 0
    found = json.loads((tmp_path / "constructions" / "claims.json").read_text())["claims"]
    assert found[0]["measured"].startswith("0 violations at ")
    assert [claim["holds"] for claim in found] == [True] * 7
    odds = json.loads((tmp_path / "probabilities" / "claims.json").read_text())["claims"]
    assert len(odds) == len(limits_probabilities.EVENTS) + 1
    for part, panel in (
        ("constructions", "constructions"),
        ("probabilities", "probabilities"),
        ("smallest-d", "smallest_d"),
    ):
        assert (tmp_path / part / f"{panel}.png").stat().st_size > 5000
        assert (tmp_path / part / f"{panel}.pdf").exists()
    table = xr.load_dataset(tmp_path / "constructions" / "results.nc").squeeze()
    # An attack counts the points that are classified correctly, a guarantee every violation.
    robust = table.sel(data="axes")
    np.testing.assert_allclose(robust.robust_guarantee, robust.d**0.5 / 2, rtol=1e-4)
    np.testing.assert_allclose(robust.robust_attack, (robust.d / 2) ** 0.5, rtol=1e-4)
