"""`python -m sweeps` lists the studies, `python -m sweeps NAME ...` runs one."""

import sys

from jaxkkt.studies.command import sweep

sys.exit(sweep(sys.argv[1:], __package__))
