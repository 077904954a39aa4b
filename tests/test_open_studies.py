"""The studies of open questions and of the bounds of Theorem 4.1, at sizes that take seconds."""

import json

import jax.numpy as jnp
import matplotlib.style
import numpy as np
import pytest
import scipy.optimize
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import jaxkkt as jk
from jaxkkt import plotting
from jaxkkt.adversarial import AdversarialProtocol
from sweeps import frei_open, vardi_bounds, vardi_bounds_claims, wang_robust


def normal(x, y):
    """A direction with the labels' signs at all points, from the points alone."""
    w, b = frei_open.max_margin(np.asarray(x, float), np.asarray(y, float))
    return w / np.linalg.norm(w), b


@pytest.mark.slow
@pytest.mark.parametrize("surface", ["sphere", "gaussian"])
@pytest.mark.parametrize("edge", ["drop", "push"])
def test_points_are_on_the_two_sides_of_one_hyperplane(surface, edge):
    data = frei_open.HalfSpaces(d=6, samples=900, surface=surface, gap=1.5, edge=edge)
    x, y = data.draw_training(3)
    fresh, labels = data.draw_held_out(3)
    # With a gap of 1.5 and 900 points the widest strip between the classes is that of w*.
    w, _ = normal(x, y)
    for points, signs in ((x, y), (fresh, labels)):
        height = signs * (points @ w)
        assert height.min() > 1.3
        assert set(signs) == {-1, 1}
    if surface == "sphere":
        np.testing.assert_allclose(np.linalg.norm(fresh, axis=1), np.sqrt(6), rtol=1e-5)
    # Pushed points are at the gap, P(|t| < 1.5) of them; dropped ones leave few there.
    share = np.mean(np.abs(y * (x @ w) - 1.5) < 0.05)
    assert share > 0.6 if edge == "push" else share < 0.3
    other, signs = data.draw_held_out(4)  # of a hyperplane of its own
    assert np.mean(signs * (other @ w) > 0) < 0.99


@pytest.mark.slow
def test_without_a_gap_points_are_as_they_are_drawn():
    x, y = frei_open.HalfSpaces(d=4, samples=4000, surface="gaussian").draw_training(0)
    np.testing.assert_allclose(np.cov(x.T), np.eye(4), atol=0.1)
    assert abs(y.mean()) < 0.06
    few = [frei_open.HalfSpaces(d=4, samples=2).draw_training(seed).y for seed in range(4)]
    assert all(set(labels) == {-1, 1} for labels in few)


def test_a_half_space_that_cannot_be_is_refused():
    for wrong in ({"gap": 2.5}, {"gap": -1.0}, {"surface": "cube"}, {"edge": "cut"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            frei_open.HalfSpaces(d=4, samples=8, **wrong)


def test_the_widest_hyperplane():
    x = np.array([[3.0, 1.0], [4.0, -1.0], [1.0, 5.0], [-2.0, 0.0]])
    y = np.array([1.0, 1.0, -1.0, -1.0])
    w, b = frei_open.max_margin(x, y)
    margins = y * (x @ w + b)
    assert margins.min() == pytest.approx(1, abs=1e-6)
    # The nearest points of the two hulls: (3, 1) and its foot on the edge (1, 5) to (-2, 0).
    edge = np.array([3.0, 5.0]) / np.sqrt(34)
    away = np.array([5.0, 1.0]) - (np.array([5.0, 1.0]) @ edge) * edge
    assert 2 / np.linalg.norm(w) == pytest.approx(np.linalg.norm(away), rel=2e-3)
    crossed = np.array([[0.0, 0.0], [1.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    assert frei_open.max_margin(crossed, y) is None


def promised(x, y, d):
    chosen = jnp.asarray(y) != 0
    return vardi_bounds._promised(jnp.asarray(x), jnp.asarray(y), chosen, jnp.asarray(float(d)))


def test_nothing_is_promised_outside_the_assumptions():
    # Three points of R^100 that are orthogonal, p = 0: m = 3 <= 101 / 3, |z| by hand.
    x = np.zeros((4, 4), np.float32)
    x[[0, 1, 2], [0, 1, 2]] = 10
    y = np.array([1, 1, -1, 0], np.float32)
    found = promised(x, y, 100)
    c, c_prime = 1 / 3, 3 / 101
    eta = 1 / 100 + 2 * (c * c_prime + 1) * 101 / (3 * c * 100)
    assert found["applies"] == 1
    assert float(found["z_norm"]) == pytest.approx(eta * 10 * np.sqrt(3), rel=1e-5)
    assert float(found["bound"]) == pytest.approx(18 * np.sqrt(200) / (c * np.sqrt(3)), rel=1e-5)
    tilted = x.copy()
    tilted[1] = [8, 6, 0, 0]  # <x_0, x_1> = 80: the assumption asks for 3 <= 101 / 243
    one_label = np.abs(y)
    shorter = 0.9 * x
    for points, labels in ((tilted, y), (x, one_label), (shorter, y)):
        nothing = promised(points, labels, 100)
        assert nothing["applies"] == 0
        assert np.isnan(nothing["z_norm"])
        assert np.isnan(nothing["bound"])


@pytest.mark.slow
def test_the_robust_network_is_that_of_all_dimensions():
    x = np.zeros((4, 4), np.float32)
    x[[0, 1, 2], [0, 1, 2]] = 10
    y = jnp.array([1.0, 1.0, -1.0, 0.0])
    found = vardi_bounds._robust(
        jnp.asarray(x), y, jnp.array([True, True, False, False]), jnp.asarray(100.0), 0 * y[0]
    )
    # w = x / 50, b = -1. Along x_0 + x_1 the third sample meets both other neurons and is flipped
    # where -1 + 2 (c / (5 sqrt(2)) - 1) = 0; the outputs of the others fall to 0 at the most.
    assert found["robust_wrong"] == 0
    assert float(found["robust_first"]) == pytest.approx(7.5 * np.sqrt(2), rel=1e-5)
    assert np.isinf(found["robust_flip"])


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    folder = tmp_path_factory.mktemp("open")
    sizes = {
        "--d": ["8"],
        "--clusters": ["2", "40"],
        "--sigma": ["0.2"],
        "--samples": ["12", "20"],
        "--surface": ["sphere"],
        "--gap": ["1"],
        "--width": ["40"],
        "--seeds": ["1"],
        "--pairs": ["2"],
    }
    words = [word for name, values in sizes.items() for word in (name, *values)]
    assert frei_open.STUDY.main([*words, "--quiet", "--out", str(folder)]) == 0
    return folder


@pytest.mark.slow
def test_open_questions_leave_claims_and_panels(opened):
    for part, panel, count in (("many", "many", 4), ("separable", "separable", 2)):
        assert len(json.loads((opened / part / "claims.json").read_text())["claims"]) == count
        assert (opened / part / f"{panel}.png").stat().st_size > 5000
    table = (opened / "separable" / "differences.md").read_text()
    assert table.count("| sphere, gap 1 |") == 2


@pytest.mark.slow
def test_errors_are_those_of_the_data(opened):
    many = xr.load_dataset(opened / "many" / "results.nc")
    few, crowd = (many.sel(clusters=k, samples=8 * k) for k in (2, 40))
    assert (few.separable == 1).all()
    assert (crowd.separable == 0).all()  # 40 clusters of random labels in 8 dimensions
    assert float(few.test_error.max()) == 0
    for name in ("test_error", "neighbour_error", "linear_error"):
        assert float(crowd[name].max()) >= float(crowd.best_error.max()) - 0.01
    assert float(crowd.linear_error.max()) > 0.2
    sides = xr.load_dataset(opened / "separable" / "results.nc")
    for name in ("test_error", "polished_error", "linear_error"):
        assert 0 < float(sides[name].mean()) < 0.3


@pytest.mark.slow
def test_bounds_are_drawn_where_they_hold(tmp_path):
    sizes = ["--few", "2", "4", "--large-d", "30", "300", "--width", "60", "--seeds", "2"]
    arguments = [*sizes, "--part", "few", "--quiet", "--out", str(tmp_path)]
    assert vardi_bounds.STUDY.main(arguments) == 0
    found = xr.load_dataset(tmp_path / "few" / "results.nc")
    x, _ = jk.data.Sphere(d=300, samples=2).draw_training(1)
    p = abs(float(x[0] @ x[1]))
    here = found.sel(d=300, samples=2, seed=1)
    np.testing.assert_allclose(here.largest_product.item(), p, rtol=1e-3)
    np.testing.assert_allclose(here.radius.item(), (1 - p / 300) * np.sqrt(300) / 4, rtol=1e-4)
    assert ((found.applies == 1) == np.isfinite(found.z_norm)).all()
    assert (found.sel(d=30, samples=4).applies == 0).all()
    assert (found.sel(d=300, samples=2).applies == 1).any()
    inside = found.polished_applies == 1
    assert inside.any()
    assert ((found.polished_holds == 1) | ~inside).all()
    assert ((found.polished_flip <= found.polished_z_norm) | ~inside).all()
    assert (found.robust_first >= found.radius).all()
    assert (tmp_path / "few" / "bounds.png").stat().st_size > 5000


@pytest.mark.parametrize(("by", "values"), [("samples", [2]), ("alpha", [0.5, 1.0])])
def test_the_legend_of_bounds_is_within_the_figure(by, values):
    """Four columns above one panel were cut off at both sides."""
    coords = {"d": [100], by: values, "seed": [0]}
    one = xr.DataArray(np.ones((1, len(values), 1)), coords)
    names = [name for name, *_ in vardi_bounds_claims.LINES]
    results = xr.Dataset({"status": one.astype(int), **dict.fromkeys(names, one)})
    with matplotlib.style.context(plotting.STYLE):
        figure = Figure()
        vardi_bounds_claims.drawn(figure, results)
        FigureCanvasAgg(figure).draw()
    legend = figure.legends[0].get_window_extent()
    assert legend.x0 >= 0
    assert legend.x1 <= figure.bbox.x1
    assert {line.get_marker() for line in figure.axes[0].lines} == {*"oxsv^_+"}


def test_a_broken_network_has_no_error():
    """It had none: 0 of its points were wrong."""
    x, y = jnp.eye(3), jnp.array([1.0, -1.0, 1.0])
    network = jk.Params(jnp.eye(3), jnp.zeros(3), y)
    assert frei_open._error(network, jk.Dataset(x, -y)) == 1
    broken = network._replace(b=jnp.array([0.0, jnp.nan, 0.0]))
    assert np.isnan(frei_open._error(broken, jk.Dataset(x, y)))
    protocol = AdversarialProtocol(radius=0.1, weight_radius=1.0)
    found = wang_robust.robust(broken, jk.Dataset(x, y), protocol)
    assert np.isnan([*found.values()]).all()


def test_the_hyperplane_knows_no_unit():
    """Of longer points the solver ended early: at others, or at none."""
    rng = np.random.default_rng(0)
    for m in range(4, 24):
        x = rng.normal(size=(m, 9))
        x[1] = x[0] + 1e-3 * (x[1] - x[0])  # a narrow margin, where the two are of both classes
        y = np.where(np.arange(m) % 2, 1.0, -1.0)
        found = [frei_open.max_margin(c * x, y) for c in (1e-3, 1, 1e3)]
        assert len({one is None for one in found}) == 1
        if found[1] is None:
            continue
        w, b = found[1]
        assert np.min(y * (x @ w + b)) == pytest.approx(1, abs=1e-3)
        for c, one in ((1e-3, found[0]), (1e3, found[2])):
            np.testing.assert_allclose(c * one[0], w, rtol=1e-3, atol=1e-3 * np.abs(w).max())


def test_a_hyperplane_that_is_not_the_one_of_largest_margin_is_an_error(monkeypatch):
    """SciPy before 1.16 ends early now and then, and does not say so."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 3))
    y = np.sign(x[:, 0])
    assert frei_open.max_margin(x, y) is not None
    nnls = scipy.optimize.nnls

    def early(system, target):
        found, distance = nnls(system, target)
        return np.where(found == found.max(), 0.9 * found, found), distance

    monkeypatch.setattr(scipy.optimize, "nnls", early)
    with pytest.raises(RuntimeError, match="least squares ended before its solution: a margin is"):
        frei_open.max_margin(x, y)
