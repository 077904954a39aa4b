"""Runs the tests of every fault and prints a table: `python -m tests.faults [NUMBER ...]`."""

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

from tests.faults.matrix import FAULTS, Fault

ROOT = Path(__file__).parent.parent.parent


def main(arguments: Sequence[str]) -> int:
    """Returns 1 where a test failed, or a fault has none."""
    wanted = {int(number) for number in arguments} or {fault.number for fault in FAULTS}
    chosen = [fault for fault in FAULTS if fault.number in wanted]
    results = outcomes({named.split("::")[0] for fault in chosen for named in fault.tests})
    print("| # | fault | what happens | outcome |\n| --- | --- | --- | --- |")
    bad = False
    for fault in chosen:
        outcome = judged(fault, results)
        bad |= outcome != "as it must"
        print(f"| {fault.number} | {fault.what} | {fault.happens} | {outcome} |")
    return int(bad)


def judged(fault: Fault, results: Mapping[tuple[str, ...], str]) -> str:
    """What the fault's tests came to together."""
    mine: dict[tuple[str, ...], str] = {}
    for named in fault.tests:
        here = {test: out for test, out in results.items() if belongs(test, named.split("::"))}
        if not here:
            return f"NO TEST {named}"
        mine.update(here)
    failed = sorted(test[-1] for test, outcome in mine.items() if outcome != "passed")
    return f"NOT MET: {', '.join(failed)}" if failed else "as it must"


def belongs(test: tuple[str, ...], named: Sequence[str]) -> bool:
    """Whether a test is in the file that is named, and its class or name begins so."""
    file, *parts = named
    return test[0] == file and all(
        any(place.startswith(part) for place in test[1:]) for part in parts
    )


def outcomes(files: Iterable[str]) -> dict[tuple[str, ...], str]:
    """File, class and name of every test in these files -> passed, failed or skipped."""
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        paths = [str(ROOT / "tests" / file) for file in sorted(files)]
        command = [sys.executable, "-m", "pytest", "-q", "-m", "", f"--junitxml={report}", *paths]
        environ = {"JAXKKT_KILLS": "50"} | os.environ
        subprocess.run(command, cwd=ROOT, check=False, stdout=sys.stderr, env=environ)
        cases = ElementTree.parse(report).iter("testcase")
    found = {}
    for case in cases:
        module, *classes = case.get("classname", "").removeprefix("tests.").split(".")
        bad = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        found[f"{module}.py", *classes, case.get("name", "")] = bad[0] if bad else "passed"
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
