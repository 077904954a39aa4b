"""What `python -m tests.faults.protections` takes away is there, and so are the tests of it."""

import re

import pytest

from tests.faults.protections import PROTECTIONS, ROOT


@pytest.mark.parametrize("one", PROTECTIONS, ids=lambda one: one.what)
def test_is_there_with_its_tests(one):
    assert (ROOT / "jaxkkt" / one.file).read_text().count(one.text) == 1
    for test in one.tests.split():
        file, *names = re.sub(r"\[.*", "", test).split("::")
        text = (ROOT / "tests" / file).read_text()
        assert all(re.search(rf"\b(def|class) {name}\b", text) for name in names), test
