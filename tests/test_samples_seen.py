"""Measurements of no more than so many samples: what a run is given hangs on no other run."""

import jax.numpy as jnp
import pytest
from cases import sweep

import jaxkkt as jk
from jaxkkt.measurements import samples_seen

pytestmark = pytest.mark.usefixtures("unchecked")

AXES = {"d": 8, "width": 20, "max_steps": 1}


class Seen(jk.Measurement):
    """To how many samples a run's data are padded."""

    most: int = 5
    padded = True

    @property
    def most_samples(self):
        return self.most

    def measure(self, data):
        return {"seen": jnp.float32(len(data.y))}


def test_runs_are_given_no_more_than_they_take_whatever_is_beside_them():
    """Padding made 64 samples of 5, and 256 of 100; those were left out as if they were so many."""
    runs = jk.grid(samples=[5, 6], seed=range(3), measure=Seen, **AXES)
    (bucket,) = jk.plan_sweep(runs).buckets
    assert len(bucket.measured()) == 2  # both programs are compiled ahead
    table = sweep(runs)
    assert table.seen.sel(samples=5).values.ravel().tolist() == [5] * 3
    assert table.seen.sel(samples=6).values.ravel().tolist() == [64] * 3


def test_a_bound_beyond_what_a_run_is_padded_to_is_none():
    """As of certificates: 256 samples at most, of runs that are padded to 64."""
    (run,) = jk.grid(samples=6, seed=0, measure=Seen(most=256), **AXES)
    assert sweep([run]).seen.item() == 64


@pytest.mark.parametrize(
    ("samples", "bounds", "expected"),
    [
        (5, (), None),
        (5, (None, 4), None),
        (5, (4, 5, 9), 5),
        (6, (4, 5, 9), 9),
        (70, (256,), 256),
        (280, (1000,), 512),  # and not 1,000, which takes many times as long
        (900, (1000,), 1000),
    ],
)
def test_how_many(samples, bounds, expected):
    class Any(Seen):
        most: int | None = None

    assert samples_seen([Any(most=one) for one in bounds], samples) == expected


def test_programs_are_shared_up_to_a_bound():
    """Flips are measured at any padding; of certificates only as many samples as are certified."""
    runs = [*jk.grid(d=50, samples=[40, 300], width=400, seed=0, measure=jk.Flips)]
    assert {b.samples_seen for b in jk.plan_sweep(runs).buckets} == {None}
    runs = [*jk.grid(d=50, samples=[40, 300], width=400, seed=0, measure=jk.Certificates)]
    assert [b.samples_seen for b in jk.plan_sweep(runs).buckets] == [256, None]
