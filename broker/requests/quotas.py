"""Apply client quotas to requests (KIP-124, KIP-219).

The response is sent immediately, with the throttle time, and the broker does not read from the
connection for that time. Requests from brokers are not counted. Neither is authentication, because
the user is not known yet.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from types import TracebackType
from typing import Any, Final, cast

from penstock.base.clock import MonotonicClock
from penstock.broker.network.request import LongResponse, RequestContext, Respond, Response
from penstock.broker.quotas.clients import ClientQuotas, RequestQuota
from penstock.protocol import apis
from penstock.protocol.throttle import write_throttle

_OF_BROKERS: Final = frozenset(
    {
        apis.WRITE_TXN_MARKERS.key,
        apis.INITIALIZE_SHARE_GROUP_STATE.key,
        apis.READ_SHARE_GROUP_STATE.key,
        apis.WRITE_SHARE_GROUP_STATE.key,
        apis.DELETE_SHARE_GROUP_STATE.key,
        apis.READ_SHARE_GROUP_STATE_SUMMARY.key,
    }
)
_PRODUCE: Final = apis.PRODUCE.key
_VERIFICATION_FROM: Final = 4
"""The first version of AddPartitionsToTxn that only brokers send."""


class RequestLimits:
    """Determines the quotas for each request. Use this only while `quotas.is_active`."""

    def __init__(
        self, quotas: ClientQuotas, busy_clock: MonotonicClock = time.perf_counter
    ) -> None:
        self.quotas = quotas
        self._busy_clock = busy_clock
        self._clock = asyncio.get_running_loop().time

    def begin(self, ctx: RequestContext, respond: Respond) -> Respond:
        """Start measuring a request that has a quota. Return the function to respond with."""
        key = ctx.api_key
        if key != _PRODUCE and is_of_brokers(ctx):
            return respond
        user, client_id = ctx.connection.principal.name, ctx.client_id or ""
        client = self.quotas.client(user, client_id, ctx.received_at * 1_000)
        if not client.is_limited:
            return respond
        ctx.quota = quota = RequestQuota(self.quotas, client, self._clock, self._busy_clock)
        # Produce is the most frequent request and applies its quota itself.
        return respond if key == _PRODUCE else partial(_respond, ctx, quota, respond)


def is_of_brokers(ctx: RequestContext) -> bool:
    """Return whether only brokers send requests of this API and version."""
    return ctx.api_key in _OF_BROKERS or (
        ctx.api_key == apis.ADD_PARTITIONS_TO_TXN.key and ctx.api_version >= _VERIFICATION_FROM
    )


def work_of(
    ctx: RequestContext, work: Coroutine[Any, Any, Response]
) -> Coroutine[Any, Any, Response]:
    """Wrap the processing of a request that takes more than one step. If the request has a quota,
    the steps are measured, and the quota is applied at the end.

    Only active time is measured, not time spent waiting for records, durability or other nodes.
    """
    return work if ctx.quota is None else _CountedWork(work, ctx, ctx.quota)


def _respond(
    ctx: RequestContext, quota: RequestQuota, respond: Respond, response: Response
) -> None:
    respond(_settled(ctx, quota, response))


def _settled(ctx: RequestContext, quota: RequestQuota, response: Response) -> Response:
    """Mute the connection if the client is throttled, before the response starts its next
    request.
    """
    throttle_ms = quota.settle()
    # A request with acks=0 has already muted its connection.
    if throttle_ms and response is not None:
        assert not isinstance(response, LongResponse), "the dispatcher encodes it first"
        head = response if isinstance(response, bytearray) else response[0]
        assert isinstance(head, bytearray), "frames begin with a writable buffer"
        write_throttle(apis.APIS[ctx.api_key], ctx.api_version, head, throttle_ms)
        ctx.connection.mute(throttle_ms)
    return response


class _CountedWork(Coroutine[Any, Any, Response]):
    """A coroutine whose steps are measured as work on its request."""

    def __init__(
        self, work: Coroutine[Any, Any, Response], ctx: RequestContext, quota: RequestQuota
    ) -> None:
        self._work = work
        self._ctx = ctx
        self._quota = quota

    def send(self, value: object) -> object:
        return self._step(partial(self._work.send, value))

    def throw(
        self,
        kind: BaseException | type[BaseException],
        value: object = None,
        trace: TracebackType | None = None,
    ) -> object:
        error = value if isinstance(value, BaseException) else kind
        return self._step(partial(self._work.throw, cast("BaseException", error)))

    def _step(self, run: Callable[[], object]) -> object:
        self._quota.enter()
        try:
            return run()
        except StopIteration as end:
            raise StopIteration(_settled(self._ctx, self._quota, end.value)) from None
        finally:
            self._quota.leave()

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, Response]:
        value = yield from self._work.__await__()
        return _settled(self._ctx, self._quota, value)
