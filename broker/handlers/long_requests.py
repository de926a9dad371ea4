"""Requests that name thousands of things: a thread decodes them and encodes their answers.

Both take up to 100 ms of Python, in which the event loop would serve no one else. The thread and
the event loop take turns at the interpreter instead, every SWITCH_INTERVAL_S.
Invariants: a request with at most ELEMENTS_AT_ONCE_MAX elements never gets here. One thread serves
all long requests. After each step it rests for as long as it worked, so they take a third of the
interpreter at most while the event loop is busy. AT_ONCE_MAX are being answered; others wait as
bytes, which `queued.max.request.bytes` limits. A Fetch that waits for records does not count, and
requests of brokers do not wait: brokers may wait for each other.
Must not: look anything up in the thread. Handlers do that on the event loop, in slices
(`broker.handlers.yielding`).
Source: docs/design/fairness.md.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar, cast

from penstock.broker.errors import ErrorCode, kafka_error
from penstock.broker.network.request import LongAnswer, RequestContext, Response
from penstock.protocol.apis import APIS
from penstock.protocol.errors import RequestTooLong, TooManyElements
from penstock.protocol.framing import decode_body
from penstock.protocol.primitives import ELEMENTS_AT_ONCE_MAX, Reader
from penstock.protocol.request_limits import elements_max, things_max

SWITCH_INTERVAL_S: Final = 0.000_1
"""How long the thread of long requests keeps the interpreter while the event loop waits for it.
uvloop asks for it once for each socket that is ready, so with 0.5 ms a turn with five of them takes
2.5 ms longer beside this thread.
"""

AT_ONCE_MAX: Final = 8
"""Long requests that are being answered. With its answer, one takes up to 40 MB."""

_Message = TypeVar("_Message")
_Result = TypeVar("_Result")
Decode = Callable[[Reader, int], object]


class LongRequest(Exception):
    """Raised by `decoded` for a request that the event loop does not decode. The dispatcher has it
    decoded, and calls the handler again.
    """

    def __init__(self, decode: Decode) -> None:
        super().__init__()
        self.decode = decode


def decoded(ctx: RequestContext, decode: Callable[[Reader, int], _Message]) -> _Message:
    """Return the request. Call it before anything else, because it interrupts the handler of a long
    one. Raises WireError, LongRequest.
    """
    if ctx.body is not None:
        return cast("_Message", ctx.body)
    try:
        return decode_body(
            decode, ctx.frame, ctx.body_offset, ctx.api_version, ELEMENTS_AT_ONCE_MAX
        )
    except TooManyElements:
        raise LongRequest(decode) from None


class Slot:
    """The place of one request among those that are being answered. `free` may be called again."""

    __slots__ = ("_free",)

    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free: asyncio.Semaphore | None = free

    def free(self) -> None:
        free, self._free = self._free, None
        if free is not None:
            free.release()


class LongRequests:
    """The thread of one broker."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="long-requests")
        self._free = asyncio.Semaphore(AT_ONCE_MAX)
        self._rests_until_s = 0.0

    async def slot(self) -> Slot:
        """Wait until the request may begin. The caller frees the slot."""
        await self._free.acquire()
        return Slot(self._free)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def decode(self, ctx: RequestContext, decode: Decode) -> None:
        """Set `ctx.body`. Raises WireError for too many elements, and KafkaError for too many of
        what costs most.
        """
        elements = elements_max(ctx.api_key)
        name = APIS[ctx.api_key].name
        try:
            body = await self._run(
                ctx,
                lambda: decode_body(decode, ctx.frame, ctx.body_offset, ctx.api_version, elements),
            )
        except TooManyElements as error:
            count = elements - error.allowed + error.declared
            raise RequestTooLong(name, "elements of arrays", count, elements) from error
        limit = things_max(ctx.api_key)
        if limit is not None and (count := limit.count(body)) > limit.max:
            too_long = RequestTooLong(name, limit.name, count, limit.max)
            raise kafka_error(ErrorCode.POLICY_VIOLATION, str(too_long))
        ctx.body = body

    async def encoded(self, ctx: RequestContext, response: Response) -> Response:
        """Return the answer as bytes. Raises UnencodableValue."""
        if not isinstance(response, LongAnswer):
            return response
        return await self._run(ctx, response.encode)

    async def _run(self, ctx: RequestContext, work: Callable[[], _Result]) -> _Result:
        def timed() -> tuple[_Result, float]:
            time.sleep(max(0.0, self._rests_until_s - time.monotonic()))
            began_s = time.thread_time()
            try:
                result = work()
            finally:
                busy_s = time.thread_time() - began_s
                self._rests_until_s = time.monotonic() + busy_s
            return result, busy_s

        result, busy_s = await asyncio.get_running_loop().run_in_executor(self._thread, timed)
        if ctx.quota is not None:
            ctx.quota.worked(busy_s)
        return result
