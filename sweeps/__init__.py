"""The studies: `python -m sweeps` lists them.

Their code is part of the identity of the runs that use their measurements or data: after an edit
here a store does not go on with rows of before.
"""

from pathlib import Path

from jaxkkt.specs import identity

if __name__ == "sweeps":  # as jaxkkt.sweeps it is part of the package
    identity.cover(__name__, Path(__file__).parent)
