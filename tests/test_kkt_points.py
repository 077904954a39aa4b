"""The study of KKT points, and certificates as a measurement of sweeps."""

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from cases import problem

import jaxkkt as jk
from jaxkkt import draw, kkt
from sweeps import kkt_points


@pytest.mark.slow
def test_sweeps_record_the_certificate_of_every_run():
    measure = jk.Certificates()
    runs = jk.grid(d=[6, 9], samples=[5], width=[8], seed=range(3), measure=measure)
    table = jk.sweep(runs, progress=False)  # streams that certify at once must not lock up
    assert (table.certificate_status == kkt.CertificateStatus.CERTIFIED).all()
    assert table.residual_clarke.attrs["units"] == "1"
    for run in runs[::5]:
        start, data = draw(run)
        found = kkt.certificate(jk.train(start, *data).params, *data)
        row = table.sel(d=run.d, seed=run.seed, samples=5, width=8)
        # The two were compiled in different shapes: 500 steps in float32 apart.
        assert row.residual_one_sided == pytest.approx(float(found.one_sided.residual), rel=1e-2)
        assert row.residual_clarke <= row.residual_one_sided + 1e-6
        assert row.slackness == pytest.approx(float(found.clarke.slackness), rel=5e-2)


def test_more_samples_than_allowed_are_not_certified():
    runs = jk.grid(d=8, samples=6, width=20, seed=0, measure=jk.Certificates(largest=5))
    table = jk.sweep(runs, progress=False)
    assert (table.certificate_status == jk.measurements.NOT_CERTIFIED).all()
    assert np.isnan(table.residual_clarke).all()
    assert jk.Certificates(largest=5).most_samples == 5


def test_what_is_recorded_is_of_the_certificate_asked_for(monkeypatch):
    fields = ("multipliers", "slopes", "residual", "gap", "slackness", "epsilon", "delta")
    one_sided, clarke = (
        kkt.Stationarity(**{name: jnp.array(first + i) for i, name in enumerate(fields)})
        for first in (10.0, 2.0)
    )
    rest = [jnp.array(value) for value in (7, 0.5, 0.1, [0.2, 0.4, 0.3], 0)]
    asked = []

    def certificate(params, x, y, **settings):
        asked.append(settings)
        return kkt.Certificate(one_sided, clarke, *rest)

    monkeypatch.setattr(kkt, "certificate", certificate)
    start, data = problem(6)
    mine = jk.Certificates(kink_tolerance=0.1, budget=(3, 2), largest=6)  # no more than 6
    found = mine.measure(start, data, jk.Protocol(trained=("w", "v")))
    assert asked == [{"kink_tolerance": 0.1, "budget": (3, 2), "trained": ("w", "v")}]
    assert {name: float(value) for name, value in found.items()} == {
        "residual_one_sided": 12.0,
        "residual_clarke": 4.0,
        "residual_gap": 13.0,
        "slackness": 6.0,
        "kinks": 7.0,
        "neuron_balance": pytest.approx(0.4),
        "certificate_status": 0.0,
    }
    clarke = clarke._replace(gap=jnp.array(20.0))  # the larger of the two gaps
    assert mine.measure(start, data, jk.Protocol())["residual_gap"] == 20


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("tolerance", [-1.0, 1.0, float("nan"), "a", None])
def test_a_tolerance_that_is_none_is_refused(tolerance):
    with pytest.raises(ValueError, match=f"kink_tolerance must be .* got {tolerance!r}"):
        jk.Certificates(kink_tolerance=tolerance)


@pytest.mark.slow
def test_residuals_that_may_be_too_large_are_in_no_mean(caplog):
    """Of a budget that does not suffice; they were counted without a word."""
    mine = jk.Certificates(kink_tolerance=0.1, budget=(0, 0))
    axes = {"d": 8, "samples": 6, "width": 20, "seed": range(2), "measure": [mine, jk.Flips]}
    table = jk.sweep(jk.grid(**axes, curve=jk.Curve([-9], measure=mine)), progress=False)
    assert (table.certificate_status == kkt.CertificateStatus.STOPPED_EARLY).all()
    assert (table.status == jk.Status.CONVERGED).all()
    for name in ("residual_clarke", "residual_one_sided", "slackness", "curve_slackness"):
        found = jk.summarize(table, name)
        assert (found.used == 0).all()
        assert (found.excluded == 2).all()
        assert np.isfinite(table[name]).all()
    for name in ("residual_gap", "kinks", "flip_size"):
        assert (jk.summarize(table, name).used == 2).all()
    told = (
        "2 of 2 runs have another certificate_status than 0, and no mean counts their "
        "residual_one_sided, residual_clarke, slackness."
    )
    assert told in caplog.text
    good = table.assign(certificate_status=0 * table.certificate_status)
    assert (jk.summarize(good, "residual_clarke").used == 2).all()


@pytest.mark.slow
def test_certificates_are_of_the_parameters_that_were_trained():
    """A network without biases is certified over w and v: the gradient in b does not count."""
    axes = {"d": 6, "samples": 5, "width": 20, "seed": 0, "measure": jk.Certificates()}
    start = jk.initializations.Function(function=without_biases)
    runs = jk.grid(**axes, initialization=start, trained=[("w", "v")])
    row = jk.sweep(runs, progress=False).squeeze()
    params, data = draw(runs[0])
    trained = jk.train(params, *data, runs[0].protocol).params
    found = kkt.certificate(trained, *data, trained=("w", "v"))
    assert float(row.residual_clarke) == pytest.approx(float(found.clarke.residual), rel=2e-2)
    others = kkt.certificate(trained, *data, trained=("w", "b", "v"))
    assert float(others.clarke.residual) > 1.05 * float(found.clarke.residual)


def without_biases(key, width, dim):
    params = jk.networks.torch_linear(key, width, dim)
    return params._replace(b=0 * params.b)


def test_angle_does_not_depend_on_how_neurons_share_their_weight():
    one = jk.Params(np.array([[3.0, 0.0], [0.0, 2.0]]), np.array([0.0, 1.0]), np.array([3.0, -1.0]))
    # The first neuron in two parts, v^2 = 4 and 5, that sum to 9.
    split = jk.Params(
        np.array([[2.0, 0.0], [5**0.5, 0.0], [0.0, 2.0]]),
        np.array([0.0, 0.0, 1.0]),
        np.array([2.0, 5**0.5, -1.0]),
    )
    assert kkt_points.angle(one, split) == pytest.approx(0, abs=1e-7)
    assert kkt_points.angle(one, one._replace(v=-one.v)) == pytest.approx(np.pi)
    alone = one._replace(v=np.array([0.0, -1.0]))
    # |v u| is 9 for the first neuron and 5^0.5 for the second, orthogonal to it.
    assert kkt_points.angle(one, alone) == pytest.approx(np.arctan2(9, 5**0.5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--samples", "1"], "samples must be at least 2, got 1"),
        (["--width", "0"], "width must be at least 1, got 0"),
        (["--seeds", "0"], "no values for seed"),
    ],
)
def test_bad_input_is_told(arguments, message, tmp_path, capsys):
    assert kkt_points.STUDY.main([*arguments, "--quiet", "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_network_that_does_not_get_there_is_told_and_the_others_stand(tmp_path, capsys):
    """One neuron cannot tell 6 random points apart; 20 can."""
    arguments = ["--d", "8", "--samples", "6", "--width", "1", "20", "--seeds", "1"]
    settings = ["--init-scale", "1", "--quiet", "--out", str(tmp_path)]
    assert kkt_points.STUDY.main([*arguments, *settings]) == 0
    told = capsys.readouterr().out
    assert "- not trained to -100000, one of 2 runs:" in told
    assert "width = 1" in told
    with xr.open_dataset(tmp_path / "ways.nc") as results:
        assert np.isnan(results.residual_clarke.sel(width=1)).all()
        assert np.isfinite(results.residual_clarke.sel(width=20)).any()


@pytest.mark.slow
def test_the_study_from_its_command_line(tmp_path, capsys):
    arguments = ["--d", "12", "--samples", "6", "--width", "20", "--seeds", "1"]
    assert kkt_points.STUDY.main([*arguments, "--quiet", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "at most 1e-06: 6 of 6." in printed
    assert (tmp_path / "tables.md").read_text() in printed
    assert (tmp_path / "kkt_points.png").stat().st_size > 10_000
    with xr.open_dataset(tmp_path / "ways.nc") as results:
        residual = results.residual_clarke.sel(way="followed").dropna("log_s").isel(log_s=-1)
        first = results.residual_clarke.sel(way="trained").dropna("log_s").isel(log_s=0)
        assert (residual < first / 10).all()
        polished = results.sel(way="polished at 1e-30").normalized_margin.dropna("log_s")
        before = results.sel(way="trained", log_s=polished.log_s.values).normalized_margin
        assert (polished >= before).all()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("largest", [0, 2.5])
def test_how_many_are_certified_is_a_whole_number(largest):
    with pytest.raises(ValueError, match="largest must be"):
        jk.Certificates(largest=largest)
