"""Let fetches that ask for the same share one look at the log and one encoded answer.

Consumers of the tail of a topic send the same bytes: the same offset, limits and isolation level,
without a session. The first of them is answered as any other (`broker.handlers.fetch`). Those
that arrive in the same turn of the event loop get a copy of the head of its answer with their own
correlation id, and the same batches. Those that arrive while it waits follow it: they wait for its
answer instead of looking at the log themselves.

Invariants: a fetch follows only one whose task is running, so it always hears how that one ended.
A leader whose time is over, or whose connection closes, lets the follower lead that arrived next,
so each waits as long as it asked for. What is no plain answer of records, for example an error or a
cold read, is not shared: followers look for themselves. Each client is authorized by itself.
Limits: BODY_BYTES_MAX and SEEN_MAX_COUNT for the keys that are remembered. Answers are kept until
the turn of the event loop ends.
Must not: look at the log.
Source: docs/design/fetch.md.
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
"""A longer request is answered by itself. It names more than a hundred partitions."""

SEEN_MAX_COUNT: Final = 64
"""Requests that are remembered, in order to know that one is asked again. All are forgotten when
there are more.
"""

TRUST_COUNT: Final = 8
"""New requests that are taken for the first of several after one was asked again."""

_CORRELATION: Final = struct.Struct(">i")
_CORRELATION_AT: Final = 4

SameKey: TypeAlias = tuple[int, bytes]
"""The version and the body of a request."""


class SharedCall(Protocol):
    """A Fetch request that has looked at the log."""

    def serves(self, ctx: RequestContext) -> bool:
        """Return whether this client may have the answer, and would get the same by itself."""
        ...

    def is_current(self) -> bool:
        """Return whether looking again would give the same."""
        ...

    def is_valid(self) -> bool:
        """Return whether this broker may still give the records."""
        ...

    def count_again(self) -> None:
        """Count what one more client gets."""
        ...


def same_key(ctx: RequestContext) -> SameKey | None:
    """Return what same requests have in common; None if the answer is for one client only."""
    if ctx.quota is not None or ctx.body is not None:
        return None
    if len(ctx.frame) - ctx.body_offset > BODY_BYTES_MAX:
        return None
    return ctx.api_version, bytes(memoryview(ctx.frame)[ctx.body_offset :])


class SameAnswer(Struct, eq=False):
    """An answer without errors, and with records from the log cache or none."""

    call: SharedCall
    frame: Sequence[Buffer]

    def suits(self, ctx: RequestContext) -> bool:
        """Return whether the client would get this answer by itself."""
        return self.call.is_current() and self.call.serves(ctx)

    def to(self, ctx: RequestContext) -> list[Buffer]:
        """Return the answer to this request, and count what it gives."""
        self.call.count_again()
        head = bytearray(self.frame[0])
        _CORRELATION.pack_into(head, _CORRELATION_AT, ctx.correlation_id)
        return [head, *self.frame[1:]]


class SameWait(Struct, eq=False):
    """A fetch that waits, and those that follow it. call: the leader."""

    fetches: "SameFetches"
    key: SameKey
    call: SharedCall
    followers: deque[asyncio.Future["SameAnswer | SameWait | None"]] | None = None

    async def follow(self) -> "SameAnswer | SameWait | None":
        """Wait for the answer of the leader. Returns the wait itself if the caller leads from now
        on, and None if it has to look for itself.
        """
        followed: asyncio.Future[SameAnswer | SameWait | None] = (
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

    def settle(self, answer: SameAnswer | None) -> None:
        """Answer all followers; None: they have to look for themselves."""
        self.fetches.forget(self)
        followers, self.followers = self.followers, None
        for followed in followers or ():
            if not followed.done():
                followed.set_result(answer)

    def pass_on(self) -> None:
        """Let the follower that arrived first lead."""
        while self.followers:
            followed = self.followers.popleft()
            if not followed.done():
                followed.set_result(self)
                return
        self.fetches.forget(self)


class SameFetches:
    """The fetches of one broker that others may share."""

    __slots__ = ("_call_soon", "_seen", "_trust_count", "_turn", "_waits")

    def __init__(self) -> None:
        self._seen: set[SameKey] = set()
        self._trust_count = 0
        self._turn: dict[SameKey, SameAnswer | None] = {}
        self._waits: dict[SameKey, SameWait] = {}
        self._call_soon = asyncio.get_running_loop().call_soon

    def note(self, key: SameKey, answer: SameAnswer | None) -> None:
        """Keep an answer until the turn of the event loop is over. None: the fetch will wait."""
        if not self._turn:
            self._call_soon(self._turn.clear)
        self._turn[key] = answer

    def may_recur(self, key: SameKey) -> bool:
        """Return whether others are likely to ask for the same: they did lately, for this or for
        something else. A single consumer then does not pay for what only several use.
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

    def answer(self, key: SameKey) -> SameAnswer | None:
        return self._turn.get(key)

    def will_wait(self, key: SameKey) -> bool:
        """Return whether such a fetch waits, or has been found to have to."""
        return key in self._waits or key in self._turn

    def wait(self, key: SameKey) -> SameWait | None:
        return self._waits.get(key)

    def lead(self, key: SameKey, call: SharedCall) -> SameWait | None:
        """Begin to wait. Returns None if another one leads."""
        if key in self._waits:
            return None
        wait = self._waits[key] = SameWait(self, key, call)
        return wait

    def forget(self, wait: SameWait) -> None:
        if self._waits.get(wait.key) is wait:
            del self._waits[wait.key]
