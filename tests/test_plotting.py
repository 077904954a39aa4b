"""What is drawn, read back from the axes."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

import jaxkkt as jk
from jaxkkt import plotting
from jaxkkt.engine.tables import results


@pytest.fixture
def ax():
    figure, ax = plt.subplots()
    yield ax
    plt.close(figure)


def table():
    """c = d alpha + seed; the runs with d = 9 have failed."""
    coords = {"d": [4, 8, 9], "alpha": [0.5, 1.0], "width": [3], "seed": [0, 1, 2]}
    d, alpha, _, seed = xr.broadcast(*(xr.DataArray(v, {k: v}, k) for k, v in coords.items()))
    status = xr.where(d < 9, int(jk.Status.CONVERGED), int(jk.Status.DIVERGED))
    return xr.Dataset({"c": d * alpha + seed, "status": status})


def test_mean_and_band_leave_out_failed_runs(ax):
    jk.plotting.mean_band(ax, table().sel(alpha=0.5, width=3), "c")
    (line,) = ax.lines
    np.testing.assert_allclose(line.get_xydata(), [[4, 3], [8, 5], [9, np.nan]])
    corners = ax.collections[0].get_paths()[0].vertices
    std = np.std([0, 1, 2])
    assert corners[:, 1].min() == pytest.approx(3 - std)
    assert corners[:, 1].max() == pytest.approx(5 + std)


def test_a_line_leads_from_left_to_right_whatever_the_order_of_the_table(ax):
    for some in (table(), table().isel(d=[2, 0, 1])):
        jk.plotting.mean_band(ax, some.sel(alpha=0.5, width=3), "c")
    np.testing.assert_array_equal(ax.lines[0].get_xydata(), ax.lines[1].get_xydata())


def test_no_line_leads_over_runs_that_all_failed(ax):
    some = table().sel(alpha=0.5, width=3)
    some["status"] = some.status.where(some.d == 9, 1).where(some.d != 8, int(jk.Status.STEP_CAP))
    jk.plotting.mean_band(ax, some, "c")
    assert np.isnan(ax.lines[0].get_ydata()).tolist() == [False, True, True]
    some["status"] = some.status.where(some.d != 8, results.NOT_RUN)
    jk.plotting.mean_band(ax, some, "c")
    assert ax.lines[1].get_xdata().tolist() == [4, 9]


def test_one_line_a_value_with_its_name(ax):
    jk.plotting.families(ax, table().sel(width=3), "c", by="alpha", symbol="$a$")
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["$a$ = 0.5", "$a$ = 1"]


def test_runs_that_were_not_made_get_no_line(ax):
    some = table().sel(width=3)
    some["status"] = some.status.where(some.alpha == 1.0, results.NOT_RUN)
    jk.plotting.families(ax, some, "c", by="alpha")
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["alpha = 1"]


def named(table):
    """The table with names in place of its exponents, against the alphabet."""
    return table.assign_coords(alpha=["sgd", "adam"]).rename(alpha="optimizer")


def test_one_line_a_name(ax):
    jk.plotting.families(ax, named(table()).sel(width=3), "c", by="optimizer")
    labels = [t.get_text() for t in ax.get_legend().get_texts()]
    assert labels == ["optimizer = sgd", "optimizer = adam"]


@pytest.mark.parametrize("dtype", [str, object])
def test_means_along_names(ax, dtype):
    shown = named(table()).sel(width=3)
    shown["optimizer"] = shown.optimizer.astype(dtype)
    # The first family has no run of the first name, whose place it keeps.
    shown["status"] = shown.status.where(
        (shown.d == 8) | (shown.optimizer == "adam"), int(jk.Status.DIVERGED)
    )
    jk.plotting.families(ax, shown.sel(d=[4, 8]), "c", by="d", along="optimizer")
    ax.figure.canvas.draw()
    assert [t.get_text() for t in ax.get_xticklabels()] == ["sgd", "adam"]
    few, both = ax.lines
    np.testing.assert_allclose(few.get_xydata(), [[0, np.nan], [1, 5]])
    np.testing.assert_allclose(both.get_xydata(), [[0, 5], [1, 9]])
    assert few.get_linestyle() == "None"  # names have no order that a line could follow
    first, second = ax.collections[1].get_segments()
    assert (first[0, 0], second[0, 0]) == (0, 1)
    np.testing.assert_allclose(second[:, 1], 9 + np.std([0, 1, 2]) * np.array([-1, 1]))


def test_an_axis_of_failed_runs_alone_is_empty(ax):
    failed = table().sel(width=3, d=[9])
    plotting.families(ax, failed, "c", by="alpha")
    plotting.logarithmic(ax, failed.d.values)
    ax.figure.canvas.draw()
    assert ax.get_xscale() == "log"
    plotting.families(ax, table().sel(width=3), "c", by="alpha")
    plotting.logarithmic(ax, table().d.values)
    assert ax.get_yscale() == "log"


def test_sqrt_line(ax):
    jk.plotting.sqrt_d(ax, np.array([4, 9]))
    x, y = ax.lines[0].get_data()
    np.testing.assert_allclose(y, np.sqrt(x))
    assert (x[0], x[-1]) == (4, 9)


def test_a_line_of_one_point_can_be_seen(ax):
    """The line sqrt(d) of one d had no length and no marker, and stood in the legend alone."""
    jk.plotting.sqrt_d(ax, np.array([9]))
    plotting.line(ax, [9], [3], "C2o:")
    plotting.line(ax, [4, 9], [2, 3], "k--")
    found = [(line.get_xydata().tolist(), line.get_marker()) for line in ax.lines]
    assert found == [([[9, 3]], "+"), ([[9, 3]], "o"), ([[4, 2], [9, 3]], "None")]


def test_left_over_dimensions_are_refused(ax):
    with pytest.raises(ValueError, match=r"c still has the dimensions \['alpha'\]"):
        jk.plotting.mean_band(ax, table(), "c")


def test_a_band_does_not_lead_along_the_seeds(ax):
    """It drew two lines and failed with "too many values to unpack"."""
    with pytest.raises(ValueError, match="over the seeds, and cannot lead along them"):
        jk.plotting.mean_band(ax, table().sel(d=4, alpha=0.5), "c", along="seed")
    assert not ax.lines


def test_one_line_by_a_field_of_one_value(ax):
    """A coordinate of one value has no dimension, over which Python failed to iterate."""
    jk.plotting.families(ax, table().sel(width=3, alpha=0.5), "c", by="alpha")
    jk.plotting.families(ax, table().sel(alpha=0.5), "c", by="width")
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["alpha = 0.5", "width = 3"]
    samples = table().assign_coords(samples=("d", [1, 2, 3]))
    for name in ("samples", "loss"):
        with pytest.raises(ValueError, match=f"by a dimension of the table.*got by='{name}'"):
            jk.plotting.families(ax, samples.sel(alpha=0.5), "c", by=name)


def test_lines_of_different_numbers_have_different_names(ax):
    """Six digits called 1,000,000 and 1,000,001 the same."""
    values = {"many": [1_000_000, 1_000_001], "near": [0.1234567, 0.1234568]}
    values["single"] = np.float32([0.1, 0.2])
    labels = {}
    for name, two in values.items():
        shown = table().sel(width=3).rename(alpha=name).assign_coords({name: two})
        jk.plotting.families(ax, shown, "c", by=name)
        labels[name] = [t.get_text() for t in ax.get_legend().get_texts()][-2:]
    assert labels["many"] == ["many = 1000000", "many = 1000001"]
    assert labels["near"] == ["near = 0.1234567", "near = 0.1234568"]
    assert labels["single"] == ["single = 0.1", "single = 0.2"]


def test_axes_are_called_what_the_table_calls_them_unless_they_have_names(ax):
    shown = table().isel(alpha=0)
    shown.c.attrs["long_name"] = "flip size"
    jk.plotting.mean_band(ax, shown, "c")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("d", "flip size")
    ax.set_xlabel("dimension")
    jk.plotting.mean_band(ax, shown, "c")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("dimension", "flip size")


@pytest.mark.parametrize("style", ["default", jk.plotting.STYLE])
def test_descriptions_are_not_cut_off(style):
    shown = table().squeeze("width").rename(c="flip_size_exact")
    shown.flip_size_exact.attrs.update(jk.Flips().attributes()["flip_size_exact"])
    with plt.style.context(style):
        figure, ax = plt.subplots()
        jk.plotting.families(ax, shown, "flip_size_exact", by="alpha")
        figure.canvas.draw()
    label, whole = ax.yaxis.label.get_window_extent(), figure.bbox
    assert " ".join(ax.get_ylabel().split()) == shown.flip_size_exact.attrs["long_name"]
    assert label.x0 >= 0
    assert label.y0 >= 0
    assert label.y1 <= whole.y1
    plt.close(figure)


def test_flip_curve_draws_every_sample(ax):
    jk.plotting.flip_curve(ax, np.arange(4.0), np.arange(12.0).reshape(4, 3))
    assert len(ax.lines) == 3 + 1


def test_style():
    with plt.style.context(jk.plotting.STYLE):
        figure, _ = plt.subplots()
        assert figure.get_size_inches().tolist() == [3.4, 2.6]


def test_labels_of_a_logarithmic_axis_do_not_overlap():
    ax = plotting.logarithmic(plt.figure().subplots(), np.array([25, 49, 100, 625, 784]))
    assert [t.get_text() for t in ax.get_xticklabels()] == ["25", "49", "100", "", "784"]
    assert ax.get_xticks().tolist() == [25, 49, 100, 625, 784]
    ax = plotting.logarithmic(plt.figure().subplots(), np.array([100]))
    assert [t.get_text() for t in ax.get_xticklabels()] == ["100"]


@pytest.mark.parametrize(
    ("radii", "edges"),
    [
        ([0.1, 1, 10], [10**-1.5, 10**-0.5, 10**0.5, 10**1.5]),
        ([0.3], [0.2, 0.45]),
        ([0, 3, 0.3], [0.3 / 10**0.5, 0.9**0.5, 3 * 10**0.5]),
    ],
)
def test_cells_of_a_map_contain_their_values(ax, radii, edges):
    """Edges were half way between the numbers themselves: at 0.1, 1 and 10 the first row began
    below 0, which logarithmic axes do not have, and a map of one row was empty."""
    width = [500, 1000]
    accuracy = xr.DataArray(
        np.add.outer(np.array(radii), np.array(width)),
        {"radius": radii, "width": width},
        ("radius", "width"),
    )
    plotting.accuracy_map(ax, accuracy, "width", "radius")
    (mesh,) = ax.collections
    corners = mesh.get_coordinates()
    np.testing.assert_allclose(corners[:, 0, 1], edges)
    np.testing.assert_allclose(corners[0, :, 0], np.array([500, 1000, 2000]) / 2**0.5)
    drawn = sorted(radius for radius in radii if radius > 0)
    np.testing.assert_allclose(mesh.get_array(), np.add.outer(drawn, width))
    low, high = ax.get_ylim()
    assert low < drawn[0]
    assert drawn[-1] < high


@pytest.mark.parametrize("lost", [(), (2,), (0, 1)])
def test_a_power_law_leads_through_the_values_that_are_there(ax, lost):
    d = np.array([10.0, 30, 100, 1000])
    values = xr.DataArray(3 * d[:, None] ** 0.5 * [1, 1], dims=("d", "seed"))
    values[list(lost)] = np.nan
    plotting.power_law(ax, d, values, 0.5)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), 3 * d**0.5)


@pytest.mark.parametrize("d", [np.array([1, 4, 9]), np.array([1, 4, 9, 16])])
def test_a_power_law_leads_through_values_at_d_of_their_own(ax, d):
    values = xr.DataArray([30.0, 10.0, 20.0], {"d": [9, 1, 4]}, dims="d")
    plotting.power_law(ax, d, values, 0.5)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), 10 * d**0.5)


def test_a_variable_that_is_not_there_is_told(ax):
    table = xr.Dataset({"c": ("d", [1.0]), "status": ("d", [1])}, {"d": [4]})
    with pytest.raises(ValueError, match=r"no variable 'flip': choose from \['c', 'status'\]"):
        plotting.mean_band(ax, table, "flip")
