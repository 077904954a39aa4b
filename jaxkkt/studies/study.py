"""A study: from a command line to files, resumed where it was stopped."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.style
import xarray as xr
from matplotlib.figure import Figure

from jaxkkt import engine, plotting
from jaxkkt.engine.machine.devices import environment, written_by
from jaxkkt.engine.tables.results import save
from jaxkkt.process.caching import keep_programs
from jaxkkt.process.files import write_whole
from jaxkkt.process.garbage import uncollected
from jaxkkt.runs.run import unique
from jaxkkt.store.store import RESULTS
from jaxkkt.studies.claims import Claim, as_json, ended, endings, table
from jaxkkt.studies.logs import logged
from jaxkkt.studies.machines import executor_of, shard_of
from jaxkkt.studies.options import Options, Preset, read
from jaxkkt.studies.parts import Context, Panel, Part
from jaxkkt.training import SUCCEEDED, Status

log = logging.getLogger("jaxkkt")


class Report(NamedTuple):
    """What a part came to: its results (derived ones where there are such), claims, and files, and
    how many of its runs raised an error."""

    part: Part
    results: xr.Dataset
    claims: Sequence[Claim]
    text: str
    files: Sequence[Path]
    raised: int = 0


@dataclass(frozen=True)
class Study:
    """A study by its name, what it says of itself, its options, and its parts for some options.

    The first preset is the default one. Files go to results/FOLDER-PRESET unless `--out` names
    another folder; `folder` is the study's name by default.
    """

    name: str
    about: str
    options: type[Options]
    parts: Callable[[Any], Sequence[Part]]
    presets: Mapping[str, Preset] = field(default_factory=dict)
    folder: str = ""

    def read(self, arguments: Sequence[str] | None = None) -> Any:
        """The options of a command line, that of this process by default."""
        return read(
            self.options,
            self.presets,
            arguments,
            prog=f"jaxkkt sweep {self.name}",
            about=self.about,
            folder=self.folder or self.name,
        )

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """The study from a command line; returns the exit code.

        0 if it came to its end, 2 for a ValueError, OSError, ImportError or NoDevice, in one line,
        3 if it came to its end but some runs raised, 130 after Ctrl-C and 143 after SIGTERM.
        """
        with logged() as tell, engine.listening(command=True):
            try:
                options = self.read(arguments)
                tell(options.quiet and not options.dry_run, options.log_file)
                return self._run(options)
            except (ValueError, OSError, ImportError, engine.NoDevice) as error:
                log.error("%s", " ".join(str(error).split()))
                return 2

    def _run(self, options: Options) -> int:
        shard_of(options)
        _require_all_heard(options)
        if options.platform:
            engine.require_platform(options.platform)
        keep_programs()
        try:
            if options.dry_run:
                self.plan(options)
                return 0
            raised = 0
            for report in self.reports(options):
                raised += report.raised
                print(report.text)
                if report.files:
                    log.info("wrote %s", ", ".join(map(str, report.files)))
        except KeyboardInterrupt as stopped:
            log.warning("stopped; the same command goes on with the rows in %s", options.out)
            return getattr(stopped, "code", 130)
        return 3 if raised else 0

    def plan(self, options: Options) -> None:
        """Says what the runs of all parts would cost: buckets, operations, memory, time."""
        for part in self.checked_parts(options):
            self._plan(part, options)

    def reports(self, options: Options) -> Iterator[Report]:
        """Trains and measures part after part, and writes the files of each."""
        parts = self.checked_parts(options)
        about = self._provenance(options)
        with executor_of(options) as executor:
            for part in parts:
                yield self._report(part, options, executor, about)
                if part.forget:
                    engine.forget()
        if not options.shard:
            write_whole(options.out / "provenance.json", _json(about))

    def checked_parts(self, options: Options) -> Sequence[Part]:
        """The parts for these options; ValueError where there is none, or two would share their
        files."""
        parts = list(self.parts(options))
        if not parts:
            given = asdict(options).items()
            empty = [f"--{name.replace('_', '-')}" for name, value in given if value == ()]
            told = f": name a value for {' or '.join(empty)}" if empty else ""
            raise ValueError(f"there is nothing to run{told}")
        names = [part.name for part in parts]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"there are several parts {twice[0]!r}: ask for each once")
        return parts

    def _plan(self, part: Part, options: Options) -> None:
        planned = engine.plan_sweep(part.runs, store=options.out / part.name, mix=options.mix)
        named = f"{part.name}:\n" if part.name else ""
        log.info("%s%s", named, planned.describe())
        told = "about %.1f minutes of training here; compiling, measuring and figures come on top"
        log.info(told, planned.minutes())

    def _report(
        self, part: Part, options: Options, executor: Any, about: Mapping[str, Any]
    ) -> Report:
        folder, shard = options.out / part.name, shard_of(options)
        planned = len(unique(list(part.runs)))
        if shard is not None and shard[0] > planned:  # the first ones take a run each
            text = f"{part.name} shard {options.shard}: nothing to train, there are {planned} runs"
            return Report(part, xr.Dataset(), [], text.strip(), [])
        swept = self._swept(part, folder, options, executor)
        raised = int((swept.status == Status.RAISED).sum())
        if shard is not None:
            mine = int((swept.status != engine.NOT_RUN).sum())
            text = f"{part.name} shard {options.shard}: {mine} runs are in {folder}".strip()
            return Report(part, swept, [], text, [], raised)
        files, results = [] if options.landed else [folder / RESULTS], swept
        if part.derived is not None:
            context = Context(part.runs, folder, _progress(options))
            results = part.derived.compute(swept, context)
            files.append(folder / f"{part.derived.name}.nc")
            save(results, files[-1])
        claims = [] if part.claims is None else list(part.claims(results))
        texts = {text.name: text.write(results).strip() for text in part.texts}
        if part.claims is not None or part.notes is not None:
            judged = [table(claims)] if part.claims is not None else []
            notes = [] if part.notes is None else [part.notes(results).strip()]
            text = "\n\n".join([*judged, f"{endings(swept, planned)}.", *notes])
            texts = {"claims": text, **texts}
            made = {name: about[name] for name in ("date", "versions")}
            found = {"study": self.name, "part": part.name, "preset": options.preset, **made}
            runs = {"planned": planned, **ended(swept)}
            files.append(folder / "claims.json")
            write_whole(files[-1], _json({**found, "claims": as_json(claims), "runs": runs}))
        for name, text in texts.items():
            files.append(folder / f"{name}.md")
            write_whole(files[-1], f"{text}\n".encode())
        if part.panels and not swept.status.isin(SUCCEEDED).any():
            log.warning("no run converged: nothing to draw")
        else:
            files += [path for panel in part.panels for path in draw(panel, results, folder)]
        shown = [part.name, *texts.values()] if part.name else texts.values()
        return Report(part, results, claims, "\n\n".join(shown) + "\n", files, raised)

    def _swept(self, part: Part, folder: Path, options: Options, executor: Any) -> xr.Dataset:
        """A part's results: what has landed so far, or what is trained now."""
        if options.landed:
            return engine.landed(part.runs, store=folder, mix=options.mix)
        self._plan(part, options)
        return engine.sweep(
            part.runs,
            store=folder,
            keep="params" if part.keep or options.keep else None,
            progress=_progress(options),
            executor=executor,
            patience=options.patience,
            shard=shard_of(options),
            mix=options.mix,
        )

    def _provenance(self, options: Options) -> Mapping[str, Any]:
        told = {"study": self.name, "options": asdict(options)}
        return {**told, **environment(), **written_by()}


def _progress(options: Options) -> bool | None:
    """As in `engine.sweep`."""
    return False if options.quiet else None


def _require_all_heard(options: Options) -> None:
    """Raises ValueError for an option that --landed, which trains nothing, or --dry-run would not
    listen to."""
    if options.landed and options.dry_run:
        raise ValueError(
            "give either --dry-run, what the runs would cost, or --landed, tables and figures of "
            "those that are there"
        )
    if options.dry_run and options.shard:
        raise ValueError("--dry-run prints what all shards together would cost: leave out --shard")
    of_training = "keep", "shard", "workers", "executor"
    unheard = [f"--{name}" for name in of_training if getattr(options, name)]
    if options.landed and unheard:
        raise ValueError(f"--landed trains nothing: leave out {' and '.join(unheard)}")


def draw(panel: Panel, results: xr.Dataset, folder: Path) -> list[Path]:
    """Draws a panel and writes it as PNG and PDF; returns the files, none for an empty figure.

    The same results give the same bytes, those of `savefig`, which draws each file twice.
    """
    # Here, since they take half a second, and most commands draw nothing.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_pdf import FigureCanvasPdf

    with matplotlib.style.context(plotting.STYLE), uncollected():
        figure = Figure(dpi=matplotlib.rcParams["savefig.dpi"])
        panel.draw(figure, results)
        if not figure.axes:
            return []
        png, pdf = BytesIO(), BytesIO()
        FigureCanvasAgg(figure).print_png(png)
        figure.set_layout_engine("none")  # the second file keeps the layout of the first
        FigureCanvasPdf(figure).print_pdf(pdf, metadata={"CreationDate": None})
        paths = []
        for kind, buffer in (("png", png), ("pdf", pdf)):
            paths.append(folder / f"{panel.name}.{kind}")
            write_whole(paths[-1], buffer.getvalue())
    return paths


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, default=str) + "\n").encode()
