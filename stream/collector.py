"""Python's cyclic garbage collector, tuned for a process that keeps hundreds of thousands of long-lived objects (cached batches, metadata).

With the defaults a collection runs every 700 allocations and walks what is alive again and again: measured half of the CPU of small
produce requests (benchmarks, `small-requests`), and pauses of half a second in controllers with 10,000 partitions, long enough to lose an
election. Almost nothing of ours forms cycles; reference counts free it at once.
Source: CPython `gc` documentation; Instagram's `gc.freeze`.
"""

import gc
from typing import Final

YOUNG_OBJECTS: Final = 50_000
"""Allocations between two collections of the youngest generation: a few milliseconds of work, bounded memory for what cycles there are."""

YOUNG_COLLECTIONS: Final = 20
MIDDLE_COLLECTIONS: Final = 50


def tune_collector() -> None:
    """Call once, when everything that stays for ever (modules, tables, wiring) is there."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_COLLECTIONS, MIDDLE_COLLECTIONS)
