"""The sans-io heart of one client connection: bytes in become frames, answers go out in the order
of the requests.

Invariants: a frame is one bytearray of its own that nobody writes to again but its handler; memory
for a frame grows with the bytes that arrived on this connection (at most four times them), whatever
its size prefix promises; an answer leaves only when every earlier one has left.
Must not: touch a socket, a clock, or know what a request means.

Small frames are cut out of a receive buffer that all connections share (so an idle connection owns
no buffer); a frame that did not arrive whole is continued straight in its own bytearray.
Source: Kafka's NetworkReceive and RequestChannel; KIP-72 for counting what is buffered.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from base.buffers import Buffer
from broker.wire.errors import FrameTooLarge

RECEIVE_BYTES: Final = 64 * 1024
"""Size of the shared receive buffer: what one wake-up of one socket may bring in."""

_PREFIX_BYTES: Final = 4
_FIRST_CAPACITY_BYTES: Final = 64 * 1024
_GROWTH: Final = 4


class FrameReader:
    """Turns received bytes into frames (without their size prefix). Use: `get_buffer`, receive into
    it, `received(count)`.

    The buffer of `get_buffer` is only good until the next `received` of *any* reader that shares
    the same receive buffer.
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
        self._prefix = b""  # the first bytes of a size prefix that is not whole yet
        self._frame: bytearray | None = None
        self._declared = 0
        self._filled = 0
        self._capacity_bytes = _FIRST_CAPACITY_BYTES
        """What a frame gets at once: growing with the frames that really came, so that batches of 1
        MB are not copied while they grow.
        """

    @property
    def buffered_bytes(self) -> int:
        """Memory held for a frame that is not whole yet."""
        return len(self._frame) if self._frame is not None else 0

    @property
    def is_mid_frame(self) -> bool:
        return self._frame is not None or bool(self._prefix)

    def get_buffer(self) -> memoryview:
        frame = self._frame
        if frame is None:
            held = len(self._prefix)
            self._shared[:held] = self._prefix
            return self._shared[held:]
        if self._filled == len(frame):
            # A new bytearray rather than a resize: transports may still hold a view of the old one.
            larger = bytearray(min(self._declared, self._filled * _GROWTH))
            larger[: self._filled] = frame
            self._frame = frame = larger
        return memoryview(frame)[self._filled :]

    def received(self, count: int) -> list[bytearray]:
        """`count` bytes were received into the last buffer. Returns the frames that are whole now.
        Raises FrameTooLarge.
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
            declared = int.from_bytes(shared[at : at + _PREFIX_BYTES], "big", signed=True)
            if not 0 <= declared <= self._bytes_max:
                raise FrameTooLarge(declared, self._bytes_max)
            at += _PREFIX_BYTES
            if end - at < declared:
                self._begin(declared, shared[at:end])
                return frames
            frames.append(bytearray(shared[at : at + declared]))
            at += declared
        self._prefix = bytes(shared[at:end])
        return frames

    def _begin(self, declared: int, head: memoryview) -> None:
        frame = bytearray(min(declared, max(self._capacity_bytes, len(head))))
        frame[: len(head)] = head
        self._frame = frame
        self._declared = declared
        self._filled = len(head)


class ResponseSlot:
    """The place of one request's answer. `request_bytes` is what the request keeps in memory until
    it is answered.
    """

    __slots__ = ("buffers", "filled", "request_bytes", "size_bytes")

    def __init__(self, request_bytes: int) -> None:
        self.request_bytes = request_bytes
        self.filled = False
        self.buffers: Sequence[Buffer] = ()
        self.size_bytes = 0


class ResponseOrder:
    """Holds back answers until all earlier requests of the connection have theirs."""

    __slots__ = ("_slots", "held_bytes", "request_bytes")

    def __init__(self) -> None:
        self._slots: deque[ResponseSlot] = deque()
        self.held_bytes = 0
        """Answers that wait for earlier ones."""
        self.request_bytes = 0
        """Requests without an answer."""

    def __len__(self) -> int:
        """Requests in flight: without an answer, or with one that waits for earlier ones."""
        return len(self._slots)

    def open(self, request_bytes: int) -> ResponseSlot:
        slot = ResponseSlot(request_bytes)
        self._slots.append(slot)
        self.request_bytes += request_bytes
        return slot

    def fill(self, slot: ResponseSlot, buffers: Sequence[Buffer]) -> list[Buffer]:
        """Answer a request (no buffers: acks=0 gets none) and return what may be sent now. A second
        answer is a bug: AssertionError.
        """
        assert not slot.filled, "a request was answered twice"
        slot.filled = True
        slot.buffers = buffers
        slot.size_bytes = sum(map(len, buffers))
        self.held_bytes += slot.size_bytes
        self.request_bytes -= slot.request_bytes
        ready: list[Buffer] = []
        slots = self._slots
        while slots and slots[0].filled:
            first = slots.popleft()
            ready += first.buffers
            self.held_bytes -= first.size_bytes
        return ready
