"""Claims of a paper beside what was measured: a table for people, JSON for machines."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import xarray as xr

from jaxkkt.training import Status

VERDICTS = {True: "holds", False: "does not hold", None: "not decided"}


class Claim(NamedTuple):
    """A claim, what was measured, and whether that supports it; None where it decides nothing."""

    text: str
    measured: str
    holds: bool | None = None

    @property
    def verdict(self) -> str:
        return VERDICTS[self.holds]


def table(claims: Sequence[Claim]) -> str:
    """The claims as a Markdown table."""
    rows = [f"| {_cell(c.text)} | {_cell(c.measured)} | {c.verdict} |" for c in claims]
    return "\n".join(["| claim of the paper | measured | |", "| --- | --- | --- |", *rows])


def as_json(claims: Sequence[Claim]) -> list[dict[str, Any]]:
    """The claims for machines: `holds` is true, false, or null where it is not decided."""
    # A comparison of arrays gives NumPy's bool, which JSON would write as a string.
    return [
        claim._asdict() | {"holds": None if claim.holds is None else bool(claim.holds)}
        for claim in claims
    ]


def ended(results: xr.Dataset) -> Mapping[str, int]:
    """How many runs ended in which way, by the name of their status."""
    counts = {status: int((results.status == status).sum()) for status in Status}
    return {status.name.lower().replace("_", " "): n for status, n in counts.items() if n}


def endings(results: xr.Dataset, planned: int | None = None) -> str:
    """How many runs there are, of how many planned, and how they ended: "16 runs: 16 converged"."""
    counts = ended(results)
    ran = sum(counts.values())
    part = "" if planned in (None, ran) else f" of {planned}"
    return f"{ran}{part} runs: " + ", ".join(f"{n} {name}" for name, n in counts.items())


def page(folders: Sequence[Path]) -> str:
    """All claims that studies left below these folders, a table for each study and part.

    Raises ValueError where a folder has none.
    """
    sections = []
    for folder in folders:
        files = sorted(folder.rglob("claims.json"))
        if not files:
            raise ValueError(f"no study has left its claims (claims.json) in {folder}")
        sections += [_section(json.loads(file.read_text()), file.parent) for file in files]
    return "\n\n".join(sections)


def _section(found: Mapping[str, Any], folder: Path) -> str:
    judged = [Claim(**claim) for claim in found["claims"]]
    counts = {text: sum(c.verdict == text for c in judged) for text in VERDICTS.values()}
    told = ", ".join(f"{n} {text}" for text, n in counts.items() if n)
    runs = dict(found["runs"])
    planned = runs.pop("planned")
    ends = ", ".join(f"{n} {name}" for name, n in runs.items())
    # A part's folder lies in the study's, which says when and where it was run.
    about = [place for place in (folder, folder.parent) if (place / "provenance.json").is_file()]
    made = preset = ""
    if about:
        known = json.loads((about[0] / "provenance.json").read_text())
        versions = ", ".join(f"{name} {known['versions'][name]}" for name in ("jaxkkt", "jax"))
        made = f" {str(known['date'])[:10]}, {versions}."
        chosen = known.get("options", {}).get("preset")
        preset = f", preset {chosen}" if chosen else ""
    title = " ".join(filter(None, (found["study"], found["part"]))) + preset
    return f"## {title}\n\n{table(judged)}\n\n{told}; of {planned} runs {ends}.{made}"


def _cell(text: str) -> str:
    """The text as a cell of a Markdown table can hold it."""
    return " ".join(text.split()).replace("|", "\\|")
