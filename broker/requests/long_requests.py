"""Decode requests with thousands of elements, and encode their responses, in a thread. See
docs/design/fairness.md.

Decoding and encoding take up to 100 ms each in Python, and would block the event loop. Lookups
still run on the event loop, in slices (`broker.requests.yielding`).
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar, cast

from penstock.broker.errors import ErrorCode, kafka_error
from penstock.broker.network.request import LongResponse, RequestContext, Response
from penstock.protocol.apis import APIS
from penstock.protocol.errors import RequestTooLong, TooManyElements
from penstock.protocol.framing import decode_body
from penstock.protocol.primitives import ELEMENTS_AT_ONCE_MAX, Reader
from penstock.protocol.request_limits import elements_max, things_max

SWITCH_INTERVAL_S: Final = 0.000_1
"""How long the thread for long requests keeps the GIL while the event loop is waiting for it.
uvloop acquires the GIL once per ready socket, so with 0.5 ms, this thread would delay an iteration
with five sockets by 2.5 ms.
"""

AT_ONCE_MAX: Final = 8
"""Maximum number of long requests in progress. Each uses up to 40 MB, including its response.
Additional ones wait in encoded form, limited by `queued.max.request.bytes`. Fetches that wait for
records are not counted, and requests from brokers do not wait, because brokers may wait for each
other.
"""

_Message = TypeVar("_Message")
_Result = TypeVar("_Result")
Decode = Callable[[Reader, int], object]


class LongRequest(Exception):
    """Raised by `decoded` for a request that would take too long on the event loop. The dispatcher
    decodes the request in a thread, and then calls the handler again.
    """

    def __init__(self, decode: Decode) -> None:
        super().__init__()
        self.decode = decode


def decoded(ctx: RequestContext, decode: Callable[[Reader, int], _Message]) -> _Message:
    """Return the decoded request. A handler must call this first, because it is called again if the
    request is long. Raises WireError, LongRequest.
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
    """A slot for one request in progress. `free` may be called more than once."""

    __slots__ = ("_free",)

    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free: asyncio.Semaphore | None = free

    def free(self) -> None:
        free, self._free = self._free, None
        if free is not None:
            free.release()


class LongRequests:
    """The thread for long requests of one broker. After each step, it pauses for as long as the
    step took, so that it uses at most a third of the interpreter while the event loop is busy.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="long-requests")
        self._free = asyncio.Semaphore(AT_ONCE_MAX)
        self._rests_until_s = 0.0

    async def slot(self) -> Slot:
        """Wait until the request may start. The caller must free the slot."""
        await self._free.acquire()
        return Slot(self._free)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def decode(self, ctx: RequestContext, decode: Decode) -> None:
        """Decode the request and set `ctx.body`. Raises WireError for too many elements, and
        KafkaError for too many of the most expensive elements.
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
        """Return the encoded response. Raises UnencodableValue."""
        if not isinstance(response, LongResponse):
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
