"""Reuse memory for Arrow columns: obtaining new pages from the operating system takes longer than
decoding into them.

Source: Arrow `ForeignBuffer`, `PyForeignBuffer`.
"""

from collections import deque
from typing import Final

from penstock.lake.arrow.pyarrow_untyped import Buffer, pa

_ALIGNMENT: Final = 64
"""The alignment that Arrow recommends for the start of a buffer."""

_WAITING_MAX: Final = 3
"""Maximum number of free slabs in one home. The slab that was returned last is used first, because
part of it may still be in the CPU cache.
"""

_HOMES_MAX: Final = 32
_POOLED_BYTES_MAX: Final = 16 << 20
"""Larger slabs contain single huge records and are not reused."""


class Home:
    """The free slabs of one column and size. Appending and popping are atomic, so all threads can
    use it, as can `__del__`, which may run at any time.
    """

    __slots__ = ("size_bytes", "waiting")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.waiting: deque[Buffer] = deque(
            maxlen=0 if size_bytes > _POOLED_BYTES_MAX else _WAITING_MAX
        )


_homes: Final[dict[tuple[str, int], Home]] = {}
"""Homes by column and size. If columns shared slabs, a small column might be given the slab of a
large one, which is not in the CPU cache.
"""


class Slab:
    """The memory of one column, or of several small columns, of one Arrow batch.

    Invariant: memory is reused only when nothing references it any more. Every Arrow buffer over a
    slab holds the slab, wherever the buffer is used (another thread, C++, another library through
    Arrow's C interface). The slab is returned when the last buffer is released. The batches of a
    reader therefore stay valid as long as it keeps them, and a reader that keeps everything is
    given new memory. Keys and values have separate slabs, because a reader that keeps keys often
    drops values. The number and size of free slabs are limited.
    """

    __slots__ = ("_home", "_memory", "address")

    def __init__(self, home: Home) -> None:
        try:
            self._memory: Buffer = home.waiting.pop()
        except IndexError:
            self._memory = pa.allocate_buffer(home.size_bytes)
        self._home = home
        self.address: int = self._memory.address

    def buffer(self, at: int, size_bytes: int) -> Buffer:
        """Return a part of the slab as an Arrow buffer, which holds the slab."""
        assert 0 <= at <= at + size_bytes <= self._home.size_bytes, "a buffer lies within its slab"
        return pa.foreign_buffer(self.address + at, size_bytes, self)

    def __del__(self) -> None:
        home = getattr(self, "_home", None)  # missing if allocation failed
        if home is not None:
            home.waiting.append(self._memory)


def home_of(column: str, size_bytes: int) -> Home:
    """Return the pool of a column and size. It is the same one each time, unless there are too many
    pools.
    """
    home = _homes.get((column, size_bytes))
    if home is None:
        if len(_homes) >= _HOMES_MAX:
            _homes.clear()
        home = _homes.setdefault((column, size_bytes), Home(size_bytes))
    return home


def aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
