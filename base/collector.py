"""Python's cyclic garbage collector, tuned for a process that keeps hundreds of thousands of
long-lived objects (cached batches, metadata).

With the defaults a collection runs every 700 allocations and walks what is alive again and again:
measured half of the CPU of small produce requests (benchmarks, `small-requests`), and pauses of
half a second in controllers with 10,000 partitions, long enough to lose an election. Requests of
ours form no cycles (tests/integration/test_broker_garbage.py); reference counts free them at once,
so that what makes a collection due is what is kept: a broker at 540 small batches a second runs the
youngest every 4 s.
Source: CPython `gc` documentation; Instagram's `gc.freeze`.
"""

import gc
from typing import Final

YOUNG_OBJECTS: Final = 10_000
"""Allocations, less what was freed, between two collections of the youngest generation: everybody
waits for one, 1 to 2 us per object.
"""

YOUNG_COLLECTIONS: Final = 5
"""... and for one of the middle generation, which walks over this many times as much."""

MIDDLE_COLLECTIONS: Final = 1_000
"""A collection of everything, seconds where millions of objects are cached, is due when 50 million
were added, if ever.
"""


def tune_collector() -> None:
    """Call once, when everything that stays for ever (modules, tables, wiring) is there."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_COLLECTIONS, MIDDLE_COLLECTIONS)
