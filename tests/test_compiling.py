"""Options of the compiler, and whose word counts."""

import pytest

from jaxkkt import compiling
from jaxkkt.compiling import OLDER_EMITTERS, quick_options


@pytest.mark.parametrize(
    ("flags", "platform", "left"),
    [
        ("", "cpu", OLDER_EMITTERS),
        ("--xla_backend_optimization_level=3", "cpu", {"xla_cpu_use_fusion_emitters": False}),
        ("--xla_cpu_use_fusion_emitters", "cpu", {"xla_backend_optimization_level": 1}),
        ("", "gpu", {}),
    ],
)
def test_what_xla_flags_say_goes_before(flags, platform, left, monkeypatch):
    monkeypatch.setattr(compiling, "_known", compiling._known.__wrapped__)  # not what was found
    monkeypatch.setenv("XLA_FLAGS", flags)
    assert quick_options(platform) == left
