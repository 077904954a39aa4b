"""The command `jaxkkt`, and studies found by name."""

import ast
import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path

import jaxkkt
from jaxkkt.process.garbage import left_at_exit
from jaxkkt.studies import stores
from jaxkkt.studies.claims import page
from jaxkkt.studies.output import whether_read_or_not

USAGE = """usage: jaxkkt sweep [STUDY [OPTION ...]]
       jaxkkt claims [FOLDER ...]
       jaxkkt store [list|failed|verify|repair|merge|export] ...

sweep without a STUDY, or with --help: the studies that there are.
`jaxkkt sweep STUDY --help` says what one does and which options it has.
claims: which claim holds where, of all studies that left files in these folders (results).
store: what is in the folders where rows land, and what becomes of them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """`jaxkkt sweep` lists the studies, `jaxkkt sweep NAME ...` runs one; USAGE says the rest."""
    left_at_exit()
    with whether_read_or_not():
        return _main(*(list(sys.argv[1:] if arguments is None else arguments) or ["--help"]))


def _main(command: str, *rest: str) -> int:
    if command in ("-h", "--help"):
        print(USAGE)
        return 0
    if command == "--version":
        print(jaxkkt.__version__)
        return 0
    if command == "sweep":
        return sweep(rest)
    if command == "claims":
        if {"-h", "--help"} & set(rest):
            print(USAGE)
            return 0
        return claims([Path(folder) for folder in rest or ("results",)])
    if command == "store":
        return stores.main(rest or ["--help"])
    print(
        f"error: unknown command {command!r}: there are `jaxkkt sweep`, `jaxkkt claims` and "
        "`jaxkkt store`",
        file=sys.stderr,
    )
    return 2


def claims(folders: Sequence[Path]) -> int:
    """Prints which claim holds where, of the studies that left files in these folders."""
    try:
        print(page(folders))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def sweep(arguments: Sequence[str], package: str | None = None) -> int:
    """Lists the studies of a package, or runs one of them."""
    try:
        known = studies(package or _package())
    except ImportError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE + "\n")
        longest = max(map(len, known), default=0)
        for name, (_, line) in known.items():
            print(f"  {name:{longest}}  {line}")
        return 0
    name = arguments[0].replace("_", "-")
    if name not in known:
        near = ", ".join(known)
        print(f"error: there is no study {arguments[0]!r}: choose from {near}", file=sys.stderr)
        return 2
    return run(known[name][0], arguments[1:])


def run(module: str, arguments: Sequence[str] | None = None) -> int:
    """Runs the study of a module, by the module's full name."""
    return importlib.import_module(module).STUDY.main(arguments)


def run_module(spec: ModuleSpec | None) -> int:
    """Runs the study of the module that Python was started with: `run_module(__spec__)`.

    That module's own name is `__main__` now, under which a store would not know the measurements
    in it. So it is imported again, by the name that it has for everyone else.
    """
    if spec is None:
        print("error: start a study as a module: python -m sweeps.NAME", file=sys.stderr)
        return 2
    left_at_exit()
    with whether_read_or_not():
        return run(spec.name)


def studies(package: str) -> Mapping[str, tuple[str, str]]:
    """The studies in a package: name -> full name of the module, first line of its docstring.

    Reads the modules' text: nothing is imported.
    """
    spec = importlib.util.find_spec(package)
    found = {}
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(place).glob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            if "STUDY" in _assigned(tree):
                line = (ast.get_docstring(tree) or "").partition("\n")[0]
                found[path.stem.replace("_", "-")] = (f"{package}.{path.stem}", line)
    return found


def _assigned(tree: ast.Module) -> set[str]:
    targets = [
        target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets
    ]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _package() -> str:
    """The package of this installation's studies: inside of jaxkkt, or beside it in a clone."""
    if importlib.util.find_spec("jaxkkt.sweeps") is not None:
        return "jaxkkt.sweeps"
    beside = Path(jaxkkt.__file__).parent.parent / "sweeps"
    spec = importlib.util.find_spec("sweeps")
    if spec is None or spec.origin is None or Path(spec.origin).parent != beside:
        raise ImportError(f"there are no studies here: neither jaxkkt.sweeps nor {beside}")
    return "sweeps"
