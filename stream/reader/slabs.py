"""Memory for Arrow's columns that is used again: pages fresh from the system cost more than decoding into them.

Invariant: memory is given out again only when nothing refers to it any more. Every Arrow buffer over a slab holds the slab, whoever holds
the buffer (another thread, C++, another library by Arrow's C interface); with the last of them the slab goes back. So what a reader got
stays what it was for as long as it is held, and a reader that keeps everything simply gets fresh memory. A slab serves one column: who
keeps keys does not keep values. Waiting memory is limited in number and size. Source: Arrow `ForeignBuffer`, `PyForeignBuffer`.
"""

from collections import deque
from typing import Final

from stream.reader.arrow import Buffer, pa

_ALIGNMENT: Final = 64
"""What Arrow recommends for the start of a buffer."""

_WAITING_MAX: Final = 3
"""Slabs of one column and size that wait. The one that came back last is taken first: some of it may be in the CPU's cache still."""

_HOMES_MAX: Final = 32
_POOLED_BYTES_MAX: Final = 16 << 20
"""Larger ones are for single huge records, and are not kept."""

_Waiting = deque[Buffer]
_waiting: Final[dict[tuple[str, int], _Waiting]] = {}
"""By column and size: a slab of a large column that became one of a small column would leave the CPU's caches cold. Appending and popping
are atomic, so this serves all threads, and `__del__`, which comes at any time."""


class Slab:
    """Memory of one column of one Arrow batch."""

    __slots__ = ("_home", "_memory", "_size_bytes", "address")

    def __init__(self, column: str, size_bytes: int) -> None:
        home = _home_of(column, size_bytes)
        memory = _from(home)
        self._memory: Buffer = pa.allocate_buffer(size_bytes) if memory is None else memory
        self._home = home
        self._size_bytes = size_bytes
        self.address: int = self._memory.address

    def buffer(self, at: int, size_bytes: int) -> Buffer:
        """A part of it as Arrow's buffer, which keeps the slab."""
        assert 0 <= at <= at + size_bytes <= self._size_bytes, "a buffer lies within its slab"
        return pa.foreign_buffer(self.address + at, size_bytes, self)

    def __del__(self) -> None:
        home = getattr(self, "_home", None)  # missing if there was no memory
        if home is not None:
            home.append(self._memory)


def aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT


def _home_of(column: str, size_bytes: int) -> _Waiting | None:
    if size_bytes > _POOLED_BYTES_MAX:
        return None
    home = _waiting.get((column, size_bytes))
    if home is None:
        if len(_waiting) >= _HOMES_MAX:
            _waiting.clear()
        home = _waiting.setdefault((column, size_bytes), deque(maxlen=_WAITING_MAX))
    return home


def _from(home: _Waiting | None) -> Buffer | None:
    try:
        return home.pop() if home is not None else None
    except IndexError:
        return None
