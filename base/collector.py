"""Tune Python's cyclic garbage collector for a process with hundreds of thousands of long-lived
objects. With the defaults, collections took half of the CPU time of small produce requests
(benchmarks, `small-requests`), and paused controllers with 10,000 partitions for half a second.
Requests form no cycles (tests/integration/test_broker_garbage.py), so reference counting frees
them.
"""

import gc
from typing import Final

YOUNG_OBJECTS: Final = 4_000
"""Allocations minus deallocations between two collections of the youngest generation. Each pauses
the process for 0.2 to 1 us per object. A broker with 540 small batches per second collects it every
2 s.
"""

YOUNG_COLLECTIONS: Final = 1
"""Number of collections of the youngest generation after which the middle one is collected as well:
12,000 objects at once. With 60,000 objects, decoded requests of 10,000 topics stopped a broker for
10 ms ten times a second, and small batches for 1,000 partitions stopped it for 26 ms.
"""

MIDDLE_COLLECTIONS: Final = 4_000
"""Number of collections of the middle generation between two full collections. A full collection
takes seconds with millions of cached objects; with this value, it is due after another 50 million
objects, if ever.
"""


def pause_collector() -> None:
    """Disable collections until `tune_collector` or `resume_collector`. Call this at the start of a
    process: imports create hardly any garbage, and collections would take a tenth of the CPU time
    of imports.
    """
    gc.disable()


def tune_collector() -> None:
    """Tune the collector. Call this when all permanent objects (modules, tables, wiring) exist, and
    again after they have been replaced.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    resume_collector()


def resume_collector() -> None:
    """Resume collections with the thresholds above. This is for short commands, where keeping the
    garbage created by imports is cheaper than collecting it.
    """
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_COLLECTIONS, MIDDLE_COLLECTIONS)
    gc.enable()
