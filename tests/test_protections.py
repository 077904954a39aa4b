"""What `python -m tests.faults.protections` takes away is there, and so are the tests of it."""

import re

import pytest

from tests.faults.matrix import FAULTS
from tests.faults.protections import PROTECTIONS, ROOT


@pytest.mark.parametrize("one", PROTECTIONS, ids=lambda one: one.what)
def test_is_there_with_its_tests(one):
    assert (ROOT / "jaxkkt" / one.file).read_text().count(one.text) == 1
    for test in one.tests.split():
        file, *names = re.sub(r"\[.*", "", test).split("::")
        text = (ROOT / "tests" / file).read_text()
        assert all(re.search(rf"\b(def|class) {name}\b", text) for name in names), test


def test_the_page_knows_what_the_commands_know():
    page = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    rows = [line[2:-2].split(" | ") for line in page.splitlines() if re.match(r"\| \d", line)]
    told = [(int(row[0]), *row[1:-1]) for row in rows]
    assert [row for row in told if len(row) == 3] == [(f.number, f.what, f.happens) for f in FAULTS]
    assert [row for row in told if len(row) == 2] == [(p.fault, p.what) for p in PROTECTIONS]
