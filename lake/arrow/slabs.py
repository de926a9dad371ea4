"""Memory for Arrow's columns that is used again: pages fresh from the system cost more than
decoding into them.

Invariant: memory is given out again only when nothing refers to it any more. Every Arrow buffer
over a slab holds the slab, whoever holds the buffer (another thread, C++, another library by
Arrow's C interface); with the last of them the slab goes back. So what a reader got stays what it
was for as long as it is held, and a reader that keeps everything simply gets fresh memory. Keys and
values have slabs of their own: who keeps keys does not keep values. Waiting memory is limited in
number and size. Source: Arrow `ForeignBuffer`, `PyForeignBuffer`.
"""

from collections import deque
from typing import Final

from lake.arrow.pyarrow_untyped import Buffer, pa

_ALIGNMENT: Final = 64
"""What Arrow recommends for the start of a buffer."""

_WAITING_MAX: Final = 3
"""Slabs of one home that wait. The one that came back last is taken first: some of it may be in the
CPU's cache still.
"""

_HOMES_MAX: Final = 32
_POOLED_BYTES_MAX: Final = 16 << 20
"""Larger ones are for single huge records, and are not kept."""


class Home:
    """Where slabs of one column and size wait. Appending and popping are atomic, so it serves all
    threads, and `__del__`, which comes at any time.
    """

    __slots__ = ("size_bytes", "waiting")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.waiting: deque[Buffer] = deque(
            maxlen=0 if size_bytes > _POOLED_BYTES_MAX else _WAITING_MAX
        )


_homes: Final[dict[tuple[str, int], Home]] = {}
"""By column and size: a slab of a large column that became one of a small column would leave the
CPU's caches cold.
"""


class Slab:
    """Memory of one column, or of several small ones, of one Arrow batch."""

    __slots__ = ("_home", "_memory", "address")

    def __init__(self, home: Home) -> None:
        try:
            self._memory: Buffer = home.waiting.pop()
        except IndexError:
            self._memory = pa.allocate_buffer(home.size_bytes)
        self._home = home
        self.address: int = self._memory.address

    def buffer(self, at: int, size_bytes: int) -> Buffer:
        """A part of it as Arrow's buffer, which keeps the slab."""
        assert 0 <= at <= at + size_bytes <= self._home.size_bytes, "a buffer lies within its slab"
        return pa.foreign_buffer(self.address + at, size_bytes, self)

    def __del__(self) -> None:
        home = getattr(self, "_home", None)  # missing if there was no memory
        if home is not None:
            home.waiting.append(self._memory)


def home_of(column: str, size_bytes: int) -> Home:
    """The same one for the same column and size, as long as there are not too many."""
    home = _homes.get((column, size_bytes))
    if home is None:
        if len(_homes) >= _HOMES_MAX:
            _homes.clear()
        home = _homes.setdefault((column, size_bytes), Home(size_bytes))
    return home


def aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
