"""Share one log lookup and one encoded response among identical fetches, such as those of consumers
at the tail of a topic. See docs/design/fetch.md.

Responses are shared only for requests without a session, errors or cold reads.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias

from msgspec import Struct

from penstock.base.buffers import Buffer
from penstock.broker.network.request import RequestContext

BODY_BYTES_MAX: Final = 1 << 12
"""Longer requests, which contain more than a hundred partitions, are handled separately."""

SEEN_MAX_COUNT: Final = 64
"""Maximum number of requests that are tracked to detect repetitions. If it is exceeded, all are
dropped.
"""

TRUST_COUNT: Final = 8
"""After a repetition, this many new requests are also assumed to recur."""

_CORRELATION: Final = struct.Struct(">i")
_CORRELATION_AT: Final = 4

SameKey: TypeAlias = tuple[int, bytes]
"""The version and the body of a request, which identify identical requests."""


class SharedCall(Protocol):
    """A Fetch request whose partitions have been looked up."""

    def serves(self, ctx: RequestContext) -> bool:
        """Return whether this client may receive the shared response, and would receive an
        identical one if its request were handled separately.
        """
        ...

    def is_current(self) -> bool:
        """Return whether a new lookup would return the same result."""
        ...

    def is_valid(self) -> bool:
        """Return whether this broker may still return the records."""
        ...

    def count_again(self) -> None:
        """Count the records returned to one more client."""
        ...


def same_key(ctx: RequestContext) -> SameKey | None:
    """Return the key of identical requests, or None if the response cannot be shared."""
    if ctx.quota is not None or ctx.body is not None:
        return None
    if len(ctx.frame) - ctx.body_offset > BODY_BYTES_MAX:
        return None
    return ctx.api_version, bytes(memoryview(ctx.frame)[ctx.body_offset :])


class SharedResponse(Struct, eq=False):
    """A response without errors, whose records, if any, are from the log cache."""

    call: SharedCall
    frame: Sequence[Buffer]

    def suits(self, ctx: RequestContext) -> bool:
        """Return whether the client would receive the same response to a separate request."""
        return self.call.is_current() and self.call.serves(ctx)

    def to(self, ctx: RequestContext) -> list[Buffer]:
        """Return the response with the correlation id of this request, and count its records."""
        self.call.count_again()
        head = bytearray(self.frame[0])
        _CORRELATION.pack_into(head, _CORRELATION_AT, ctx.correlation_id)
        return [head, *self.frame[1:]]


class SameWait(Struct, eq=False):
    """A waiting fetch, the leader, and its followers, which are identical fetches that wait for its
    response.

    A fetch follows only a leader whose task is running, so that it always receives an outcome. When
    the leader times out or its connection closes, the next follower becomes the leader, so each
    fetch can wait as long as it requested.
    """

    fetches: "SameFetches"
    key: SameKey
    call: SharedCall
    followers: deque[asyncio.Future["SharedResponse | SameWait | None"]] | None = None

    async def follow(self) -> "SharedResponse | SameWait | None":
        """Wait for the leader's response. Return the wait itself if the caller becomes the leader,
        or None if it must look up the log itself.
        """
        followed: asyncio.Future[SharedResponse | SameWait | None] = (
            asyncio.get_running_loop().create_future()
        )
        if self.followers is None:
            self.followers = deque()
        self.followers.append(followed)
        try:
            return await followed
        except asyncio.CancelledError:
            if followed.done() and not followed.cancelled() and followed.result() is self:
                self.pass_on()
            raise

    def settle(self, response: SharedResponse | None) -> None:
        """Pass the response to all followers. If it is None, they must look up the log
        themselves.
        """
        self.fetches.forget(self)
        followers, self.followers = self.followers, None
        for followed in followers or ():
            if not followed.done():
                followed.set_result(response)

    def pass_on(self) -> None:
        """Make the first follower the leader."""
        while self.followers:
            followed = self.followers.popleft()
            if not followed.done():
                followed.set_result(self)
                return
        self.fetches.forget(self)


class SameFetches:
    """The responses and waiting fetches of one broker that identical requests may share. Each
    client is authorized separately. Responses are kept only until the end of the event loop
    iteration.
    """

    __slots__ = ("_call_soon", "_seen", "_trust_count", "_turn", "_waits")

    def __init__(self) -> None:
        self._seen: set[SameKey] = set()
        self._trust_count = 0
        self._turn: dict[SameKey, SharedResponse | None] = {}
        self._waits: dict[SameKey, SameWait] = {}
        self._call_soon = asyncio.get_running_loop().call_soon

    def note(self, key: SameKey, response: SharedResponse | None) -> None:
        """Keep a response until the end of the event loop iteration. If it is None, the fetch will
        wait.
        """
        if not self._turn:
            self._call_soon(self._turn.clear)
        self._turn[key] = response

    def may_recur(self, key: SameKey) -> bool:
        """Return whether identical requests are likely, because there were some recently. Without
        this check, a lone consumer would pay for sharing.
        """
        if key in self._seen:
            self._trust_count = TRUST_COUNT
            return True
        if len(self._seen) >= SEEN_MAX_COUNT:
            self._seen.clear()
        self._seen.add(key)
        if self._trust_count == 0:
            return False
        self._trust_count -= 1
        return True

    def response(self, key: SameKey) -> SharedResponse | None:
        return self._turn.get(key)

    def will_wait(self, key: SameKey) -> bool:
        """Return whether an identical fetch is waiting, or is about to wait."""
        return key in self._waits or key in self._turn

    def wait(self, key: SameKey) -> SameWait | None:
        return self._waits.get(key)

    def lead(self, key: SameKey, call: SharedCall) -> SameWait | None:
        """Start waiting as the leader. Return None if another identical fetch already leads."""
        if key in self._waits:
            return None
        wait = self._waits[key] = SameWait(self, key, call)
        return wait

    def forget(self, wait: SameWait) -> None:
        if self._waits.get(wait.key) is wait:
            del self._waits[wait.key]
