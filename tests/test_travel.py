"""Parts of runs on their way to workers."""

import json
import sys

import numpy as np
import optax
import pytest

import jaxkkt as jk
from jaxkkt.engine.running import executors
from jaxkkt.measurements import measurement
from jaxkkt.specs.base import jsonable


class Packed(jk.data.Distribution):
    """An own distribution, in a module that can be imported."""

    sigma: jk.Number = 1.0

    def draw(self, key, samples, dim):
        return jk.datasets.gaussian(key, samples, dim)


class TestTravel:
    @pytest.mark.parametrize(
        "part",
        [
            jk.data.Sphere(d=4, samples=6),
            jk.data.Clusters(d=16, samples=6, clusters=2, sigma=0.1),
            jk.flow_protocol(expected_steps=7),
            jk.Protocol(optimizer=jk.optimizer(optax.adam, learning_rate=0.1)),
            (jk.Flips(slack=1.2), jk.Certificates()),
            jk.Curve(log_losses=(-5.0, -7.3)),
            Packed(d=3, samples=2, sigma=0.3),
            None,
        ],
    )
    def test_a_worker_gets_the_json_that_rows_have(self, part):
        packed = executors._packed(part)
        assert json.loads(packed) == jsonable(part)
        found = executors._unpacked(packed)
        assert found == part
        if isinstance(part, jk.Protocol):
            assert found.expected_steps == part.expected_steps

    def test_what_json_cannot_hold_travels_by_value(self):
        own = jk.data.Arrays(np.eye(3, dtype=np.float32), np.array([1, -1, 1], np.float32))
        found = executors._unpacked(executors._packed(own))
        np.testing.assert_array_equal(found.x, own.x)
        measure = measurement(lambda params: params.b.size)
        assert isinstance(executors._packed((measure,)), bytes)
        made = jk.Protocol(optimizer=optax.adam(0.1))
        assert isinstance(executors._packed(made), bytes)

    def test_what_is_defined_in_a_script_travels_by_value(self, monkeypatch):
        monkeypatch.setattr(Packed, "__module__", "__main__")
        monkeypatch.setattr(sys.modules["__main__"], "Packed", Packed, raising=False)
        assert isinstance(executors._packed(Packed(d=3, samples=2)), bytes)
