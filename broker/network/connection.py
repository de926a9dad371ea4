"""The sans-I/O core of one client connection: split bytes into frames, and send responses in
request order.

Small frames are copied from a receive buffer that all connections share, so that idle connections
need no buffer. The rest of a partial frame is received directly into its bytearray.
"""

import struct
from collections import deque
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from penstock.base.buffers import Buffer
from penstock.protocol.errors import FrameTooLarge

RECEIVE_BYTES: Final = 64 * 1024
"""Size of the shared receive buffer, and thus the maximum number of bytes received per socket
wake-up.
"""

_PREFIX_BYTES: Final = 4
_size_at: Final = struct.Struct(">i").unpack_from
_FIRST_CAPACITY_BYTES: Final = 64 * 1024
_GROWTH: Final = 4


class FrameReader:
    """Splits received bytes into frames, and strips the size prefix.

    Each frame is a separate bytearray. It is at most four times as large as the bytes that have
    arrived on this connection, regardless of the size prefix.

    Call `get_buffer`, receive into that buffer, then call `received(count)`. The buffer is valid
    only until the next `received` of any reader that shares the receive buffer.
    """

    __slots__ = (
        "_bytes_max",
        "_capacity_bytes",
        "_declared",
        "_filled",
        "_frame",
        "_prefix",
        "_shared",
    )

    def __init__(self, shared: memoryview, bytes_max: int) -> None:
        self._shared = shared
        self._bytes_max = bytes_max
        self._prefix = b""  # the first bytes of an incomplete size prefix
        self._frame: bytearray | None = None
        self._declared = 0
        self._filled = 0
        self._capacity_bytes = _FIRST_CAPACITY_BYTES
        """Initial capacity of a frame's buffer. It grows to the largest frame so far, so that the
        buffer of a 1 MB batch is not copied while the batch arrives.
        """

    @property
    def buffered_bytes(self) -> int:
        """Return the memory used by the incomplete frame."""
        return len(self._frame) if self._frame is not None else 0

    @property
    def missing_bytes(self) -> int:
        """Return the number of missing bytes of the incomplete frame, or 0 if there is none."""
        return self._declared - self._filled if self._frame is not None else 0

    @property
    def is_mid_frame(self) -> bool:
        return self._frame is not None or bool(self._prefix)

    def limit(self, bytes_max: int) -> None:
        """Change the maximum size of subsequent frames."""
        self._bytes_max = bytes_max

    def get_buffer(self) -> memoryview:
        frame = self._frame
        if frame is None:
            if not self._prefix:
                return self._shared
            held = len(self._prefix)
            self._shared[:held] = self._prefix
            return self._shared[held:]
        if self._filled == len(frame):
            # Allocate a new bytearray instead of resizing, because transports may still have a view
            # of the old one.
            larger = bytearray(min(self._declared, self._filled * _GROWTH))
            larger[: self._filled] = frame
            self._frame = frame = larger
        return memoryview(frame)[self._filled :]

    def received(self, count: int) -> list[bytearray]:
        """Parse `count` bytes that were received into the last buffer, and return the complete
        frames. Raises FrameTooLarge.
        """
        frame = self._frame
        if frame is None:
            end = len(self._prefix) + count
            self._prefix = b""
            return self._cut(end)
        self._filled += count
        if self._filled < self._declared:
            return []
        self._frame = None
        self._capacity_bytes = max(self._capacity_bytes, _GROWTH * self._declared)
        return [frame]

    def _cut(self, end: int) -> list[bytearray]:
        shared = self._shared
        frames: list[bytearray] = []
        at = 0
        while end - at >= _PREFIX_BYTES:
            (declared,) = _size_at(shared, at)
            if not 0 <= declared <= self._bytes_max:
                raise FrameTooLarge(declared, self._bytes_max)
            at += _PREFIX_BYTES
            if end - at < declared:
                self._begin(declared, shared[at:end])
                return frames
            frames.append(bytearray(shared[at : at + declared]))
            at += declared
        if at < end:
            self._prefix = bytes(shared[at:end])
        return frames

    def _begin(self, declared: int, head: memoryview) -> None:
        frame = bytearray(min(declared, max(self._capacity_bytes, len(head))))
        frame[: len(head)] = head
        self._frame = frame
        self._declared = declared
        self._filled = len(head)


class ResponseSlot(Struct, eq=False, gc=False):
    """The response of one request. `request_bytes` is the memory used by the request until the
    response is sent.
    """

    request_bytes: int
    filled: bool = False
    buffers: Sequence[Buffer] = ()
    size_bytes: int = 0
    """Size of the response while it waits for earlier responses."""


class ResponseOrder:
    """Holds back responses until those to all earlier requests of the connection have been sent."""

    __slots__ = ("_slots", "held_bytes", "request_bytes")

    def __init__(self) -> None:
        self._slots: deque[ResponseSlot] = deque()
        self.held_bytes = 0
        """Total size of the responses that wait for earlier responses."""
        self.request_bytes = 0
        """Total size of the requests without a response."""

    def __len__(self) -> int:
        """Return the number of requests in flight, including those whose response waits for earlier
        ones.
        """
        return len(self._slots)

    def open(self, request_bytes: int) -> ResponseSlot:
        slot = ResponseSlot(request_bytes)
        self._slots.append(slot)
        self.request_bytes += request_bytes
        return slot

    def fill(self, slot: ResponseSlot, buffers: Sequence[Buffer]) -> Sequence[Buffer]:
        """Set the response of a request, and return the buffers that can be sent now. A request
        with acks=0 passes no buffers.

        Raises AssertionError if the request already has a response, which is a bug.
        """
        assert not slot.filled, "a request got two responses"
        slot.filled = True
        self.request_bytes -= slot.request_bytes
        slots = self._slots
        if slots[0] is not slot:
            slot.buffers = buffers
            slot.size_bytes = sum(map(len, buffers))
            self.held_bytes += slot.size_bytes
            return ()
        slots.popleft()
        if not slots or not slots[0].filled:
            return buffers
        ready = list(buffers)
        while slots and slots[0].filled:
            first = slots.popleft()
            ready += first.buffers
            self.held_bytes -= first.size_bytes
        return ready
