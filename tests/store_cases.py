"""Runs for a store, and what was computed of them."""

from cases import rows_in

import jaxkkt as jk

SIZES = {"d": 8, "samples": 6, "width": 20}


RUNS = jk.grid(**SIZES, seed=range(3))


def values(folder):
    """What was computed, of the last record of each run."""
    return {n: (r["ending"], r["measured"]) for n, r in rows_in(folder).items()}
