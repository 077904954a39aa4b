"""The page of all functions, docs/functions.md, from their docstrings: `python -m tests.functions`
writes it anew."""

import inspect
import re
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import jaxkkt as jk
from jaxkkt import studies  # noqa: F401  as the page says

PAGE = Path(__file__).parents[1] / "docs" / "functions.md"


class Section(NamedTuple):
    """What a reader looks for, and where that is: whole modules, as the user writes them, or some
    names of the first."""

    title: str
    modules: tuple[str, ...]
    names: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()  # public for other modules of the package, and nobody's tool


SECTIONS = (
    Section(
        "Sweeps",
        ("jk",),
        (
            "grid",
            "plan_sweep",
            "sweep",
            "Workers",
            "keep_programs",
            "summarize",
            "combinations",
            "landed",
            "read_store",
            "read_rows",
            "load_network",
            "load_networks",
            "from_json",
        ),
    ),
    Section(
        "One network",
        ("jk",),
        ("draw", "held_out", "train", "train_through", "Result", "Status"),
    ),
    Section(
        "What a run is made of",
        ("jk",),
        (
            "Run",
            "ReLU2",
            "Protocol",
            "flow_protocol",
            "paper_protocol",
            "Flow",
            "PaperSchedule",
            "Descent",
            "optimizer",
            "Optimizer",
            "Curve",
            "Training",
            "Spec",
        ),
    ),
    Section("Protocols of the lazy regime", ("jk.protocols",), ("lazy_flow", "lazy_sgd")),
    Section("Data of a run", ("jk.data",), beside=("HELD_OUT", "checked")),
    Section("Initial weights of a run", ("jk.initializations",), beside=("started",)),
    Section(
        "Measurements",
        ("jk.measurements",),
        (
            "Flips",
            "Certificates",
            "Ledger",
            "ledger_table",
            "ClusterFlips",
            "StepFlips",
            "Measurement",
            "Function",
            "measurement",
        ),
    ),
    Section(
        "Points",
        ("jk.datasets", "jk.mixtures", "jk.spans", "jk.images"),
        beside=("check", "validate_for", "first_with_both", "as_means", "Ambient"),
    ),
    Section(
        "Networks and losses",
        ("jk.networks", "jk.losses", "jk.lazy"),
        beside=(
            *("PRECISION", "Scale", "Size", "relu"),
            *("check_parameters", "check_sizes"),
            *("checked", "checked_network", "checked_samples"),
        ),
    ),
    Section("What flips points", ("jk.perturbations",)),
    Section("KKT points", ("jk.kkt",)),
    Section("Theorems: the form of a claim", ("jk.theory",)),
    Section(
        "Theorems",
        ("jk.theory.vardi", "jk.theory.frei", "jk.theory.wang", "jk.theory.constructions"),
        beside=("ROUNDING",),
    ),
    Section(
        "Optimizers, as transformations of optax",
        ("jk.optimizers",),
        ("log_loss_time", "paper_schedule", "loss_scaled", "linear"),
    ),
    Section(
        "Adversarial training",
        ("jk.adversarial",),
        ("AdversarialProtocol", "adversarial_training", "AdversariallyTrained"),
    ),
    Section(
        "Training, a step at a time",
        ("jk.training", "jk.representations"),
        beside=("NEXT_STEP", "SUCCEEDED", "Status"),
    ),
    Section("Figures", ("jk.plotting",)),
    Section("Studies of your own, after `from jaxkkt import studies`", ("jk.studies",)),
    Section(
        "The process, and what sweeps give or raise",
        ("jk.engine",),
        ("forget", "require_platform", "NoDevice", "Plan", "Stopped", "Summary"),
    ),
)


def page() -> str:
    """The page, as it should be."""
    parts = [
        "# All functions",
        "",
        "What there is, by what it is for. `help(jk.sweep)`, and so on, tells shapes, units,",
        "errors and the source in the papers. `python -m tests.functions` makes this page of the",
        "docstrings.",
    ]
    for section in SECTIONS:
        parts += ["", f"## {section.title}", "", "| | |", "| --- | --- |"]
        for module in section.modules:
            for name in section.names or public(module, section.beside):
                parts.append(f"| `{signature(module, name)}` | {told(found(module, name))} |")
    return "\n".join(parts) + "\n"


def public(module: str, beside: tuple[str, ...] = ()) -> list[str]:
    """The names of a module that are for its users, functions first, in the order of its file or
    its `__all__`."""
    there = found(*module.rsplit(".", 1))
    listed = getattr(there, "__all__", None)
    if listed is None:
        own = (name for name, value in vars(there).items() if _is_of(value, there.__name__))
        listed = [name for name in own if not name.startswith("_")]
    names = [name for name in listed if name not in beside and callable(getattr(there, name))]
    return sorted(names, key=lambda name: inspect.isclass(getattr(there, name)))


def _is_of(value: Any, module: str) -> bool:
    return getattr(value, "__module__", None) == module


def found(module: str, name: str) -> Any:
    """What a user finds by this name in a module."""
    place: Any = jk
    for part in (*module.split(".")[1:], name):
        place = getattr(place, part)
    return place


def signature(module: str, name: str) -> str:
    """A name as its user writes it, with its arguments."""
    one, full = found(module, name), f"{module}.{name}"
    if inspect.isclass(one) and issubclass(one, Enum | BaseException):
        return full
    arguments = inspect.signature(one).parameters.values()
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    if inspect.isclass(one) and not arguments:  # to derive from, or an object as it stands
        return full
    return f"{full}({', '.join(stars.get(a.kind, '') + a.name for a in arguments)})"


def told(one: Any) -> str:
    """The first sentence of its docstring, as a cell of a table."""
    first, *more = (inspect.getdoc(one) or "").split("\n\n")
    first = " ".join(first.split())
    sentence = re.match(r".+?\.(?= [A-Z`]|$)", first)
    whole = sentence.group() if sentence else f"{first.rstrip(':')} ..." if more else first
    return re.sub(r"([|*<])", r"\\\1", whole)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print("wrote", PAGE)
