"""The store: a folder of rows that outlives its sweep."""

from jaxkkt.store.lock import Busy
from jaxkkt.store.segments import Writer
from jaxkkt.store.store import Record, Store, differences

__all__ = ["Busy", "Record", "Store", "Writer", "differences"]
