"""Claims of a paper beside what was measured: a table for people, JSON for machines."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from jaxkkt.training import SUCCEEDED, Status

VERDICTS = {True: "holds", False: "does not hold", None: "not decided"}


class Claim(NamedTuple):
    """A claim, what was measured, and whether that supports it; None where it decides nothing."""

    text: str
    measured: str
    holds: bool | None = None

    @property
    def verdict(self) -> str:
        return VERDICTS[self.holds]


def judged(text: str, measured: str, holds: Any, *compared: Any, unflipped: int = 0) -> Claim:
    """A claim that `holds` where it was measured: not decided where a number `compared` is NaN.

    It does not hold where runs are unflipped, which means leave out; `measured` tells how many.
    """
    if unflipped:
        return Claim(text, f"{measured}; {unflipped} not flipped", False)
    nothing = any(np.isnan(float(number)) for number in compared)
    return Claim(text, measured, None if nothing else bool(holds))


def unflipped(results: xr.Dataset, size: str) -> int:
    """How many runs ended as their protocol meant, and have no finite `size`: nothing in its
    bracket flips them."""
    return int((results.status.isin(SUCCEEDED) & np.isposinf(results[size])).sum())


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

    Raises ValueError where a folder has none, and for a file that no study wrote.
    """
    sections = []
    for folder in folders:
        files = sorted(folder.rglob("claims.json"))
        if not files:
            raise ValueError(f"no study has left its claims (claims.json) in {folder}")
        for file in files:
            try:
                sections.append(_section(_read(file), file.parent))
            except (KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"{file} holds no claims of a study: {error!r}") from error
    return "\n\n".join(sections)


def _read(file: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{file} was written by no study: it holds {found!r:.80}")
    return found


def _section(found: Mapping[str, Any], folder: Path) -> str:
    """One study's part; raises KeyError, TypeError or AttributeError where it is none."""
    judged = [Claim(**claim) for claim in found["claims"]]
    counts = {text: sum(c.verdict == text for c in judged) for text in VERDICTS.values()}
    told = ", ".join(f"{n} {text}" for text, n in counts.items() if n)
    runs = dict(found["runs"])
    planned = runs.pop("planned")
    ends = ", ".join(f"{n} {name}" for name, n in runs.items())
    made = preset = ""
    known = found if "date" in found else _known(found["study"], folder)
    if known:
        versions = ", ".join(f"{name} {known['versions'][name]}" for name in ("jaxkkt", "jax"))
        made = f" {str(known['date'])[:10]}, {versions}."
        preset = f", preset {known['preset']}" if known["preset"] else ""
    title = " ".join(filter(None, (found["study"], found["part"]))) + preset
    return f"## {title}\n\n{table(judged)}\n\n{told}; of {planned} runs {ends}.{made}"


def _known(study: str, folder: Path) -> Mapping[str, Any]:
    """Preset, date and versions where claims.json, as of version 0.7, does not tell them: those of
    the study that was last run in the folder, or that around it, if it is this one."""
    for place in (folder, folder.parent):
        file = place / "provenance.json"
        if file.is_file():
            known = _read(file)
            mine = known.get("study", study) == study
            return {**known, "preset": known.get("options", {}).get("preset")} if mine else {}
    return {}


def _cell(text: str) -> str:
    """The text as a cell of a Markdown table can hold it, "none" for a number that there is none
    of."""
    return " ".join(re.sub(r"\bnan\b%?", "none", text).split()).replace("|", "\\|")
