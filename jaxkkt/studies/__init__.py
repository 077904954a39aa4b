"""The shape of a study: options, runs, claims and panels in, files out.

A study is a module with one `Study` in it. It says which options it has, with named presets of
their values, and what its parts are: the runs of each, and what is made of their results. This
package owns the rest: the command line, configuration files, resuming, logging, errors, files.
"""

from jaxkkt.studies.claims import Claim, endings, judged, unflipped
from jaxkkt.studies.command import run_module
from jaxkkt.studies.options import Options, Preset
from jaxkkt.studies.parts import Context, Derived, Panel, Part, Text
from jaxkkt.studies.study import Report, Study

__all__ = [
    "Claim",
    "Context",
    "Derived",
    "Options",
    "Panel",
    "Part",
    "Preset",
    "Report",
    "Study",
    "Text",
    "endings",
    "judged",
    "run_module",
    "unflipped",
]
