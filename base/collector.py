"""Tune Python's cyclic garbage collector for a process with hundreds of thousands of long-lived
objects (cached batches, metadata).

With the defaults, a collection runs every 700 allocations and traverses the live objects again and
again: measured, this was half of the CPU of small produce requests (benchmarks, `small-requests`),
and pauses of half a second in controllers with 10,000 partitions, long enough to lose an election.
Our requests form no cycles (tests/integration/test_broker_garbage.py), and reference counts free
them at once, so only objects that stay cause collections: a broker at 540 small batches per second
collects the youngest generation every 2 s.
Source: CPython `gc` documentation; Instagram's `gc.freeze`.
"""

import gc
from typing import Final

YOUNG_OBJECTS: Final = 4_000
"""Allocations minus deallocations between two collections of the youngest generation. Each pauses
the process for 0.2 to 1 us per object.
"""

YOUNG_COLLECTIONS: Final = 1
"""The middle generation is collected when the youngest has been more often than this, together with
it: 12,000 objects at once. With 60,000, decoded requests of 10,000 topics stopped a
broker for 10 ms ten times a second, and small batches for 1,000 partitions for 26 ms.
"""

MIDDLE_COLLECTIONS: Final = 4_000
"""Collections of the middle generation between two full ones. A full one takes seconds with
millions of cached objects; this makes it due after 50 million further objects, if ever.
"""


def pause_collector() -> None:
    """Collect nothing until `tune_collector` or `resume_collector`. Call at the start of a process:
    its imports leave hardly any garbage, and collections are a tenth of their CPU.
    """
    gc.disable()


def tune_collector() -> None:
    """Tune the collector. Call when all permanent objects (modules, tables, wiring) exist, and when
    they have been replaced.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    resume_collector()


def resume_collector() -> None:
    """Let the collector run, with our thresholds. For a command that takes a second: it rather
    keeps the garbage of its imports than to look for it.
    """
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_COLLECTIONS, MIDDLE_COLLECTIONS)
    gc.enable()
