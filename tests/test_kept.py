"""What stores that are kept know rows by stays as it is."""

import pytest
from cases import one

import jaxkkt as jk
from jaxkkt.specs import identity

pytestmark = pytest.mark.usefixtures("unchecked")


class TestKept:
    """Stores that are kept know rows by these names: a class that moves, or a field that is called
    otherwise, would compute them all anew."""

    def test_names_of_runs(self):
        curve = jk.Curve([-1, -10], measure=jk.Flips())
        assert one(measure=jk.Flips(), curve=curve, seed=3).name == (
            "d8-m6-k20-s3-6ddd34ae94fdaeaaf75e"
        )
        (run,) = jk.grid(
            data="clusters",
            d=8,
            alpha=0.5,
            clusters=4,
            width=20,
            seed=3,
            initialization="lazy",
            protocol="paper",
        )
        assert run.name == "d8-a0.5-m3-k20-s3-007ea4ce10dd45e47baa"
        assert one(optimizer="descent", seed=3).name == "d8-m6-k20-s3-f2abdcf3d0ff835be4cf"

    @pytest.mark.parametrize("rule", ["log_loss_time", "loss_scaled", "paper_schedule"])
    def test_places_of_rules(self, rule):
        assert identity.function_name(getattr(jk.optimizers, rule)) == f"jaxkkt.optimizers:{rule}"

    def test_hashes_of_measurements(self):
        measure = jk.Flips(), jk.Certificates(), jk.ClusterFlips(), jk.Ledger(), jk.StepFlips()
        assert one(measure=measure).measured == (
            "1c5c477a0d02bed4d859",
            "2a4bc0a7feb890a6735d",
            "c897f36e0d8812d4e70c",
            "e9cec8d4e22f7650a0ad",
            "0e4b8cb4b1cc4e2de97f",
        )
