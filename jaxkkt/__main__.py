"""`python -m jaxkkt`: the command `jaxkkt`."""

import sys

from jaxkkt.studies.command import main

sys.exit(main())
