"""Measure the cost of quotas per Produce request: the quota steps in dispatcher and handler,
compared with the broker's CPU time for a whole request of 100 bytes.

The steps are measured without a socket, because 1 us is lost in the noise of a request. The
shortest of many rounds counts, because other load on the machine can only make them longer.
"""

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final, cast

from benchmarks import clients, harness
from benchmarks.harness import Measure
from penstock.base.principal import ANONYMOUS
from penstock.broker.network.request import RequestContext
from penstock.broker.quotas.clients import ClientQuotas
from penstock.broker.quotas.rates import Window
from penstock.broker.requests.quotas import RequestLimits
from penstock.controller.metadata.quotas import QuotasImage
from penstock.controller.metadata.records import QuotaRecord, QuotaTarget
from penstock.protocol import apis

ROUNDS: Final = 50
REQUESTS: Final = 2_000
CONNECTIONS: Final = 8
_UNREACHED: Final = 1e12


def cost(seconds: float, repeats: int) -> list[Measure]:
    request_us = min(_request_us(seconds) for _ in range(repeats))
    bytes_alone, both = ("producer_byte_rate",), ("producer_byte_rate", "request_percentage")
    title = "quotas of a Produce request / its CPU"
    return [
        _measure(f"{title}: none", (), request_us, 0.002),
        _measure(f"{title}: of bytes", bytes_alone, request_us, 0.03),
        _measure(f"{title}: of bytes and time", both, request_us, 0.03),
    ]


def _measure(name: str, keys: tuple[str, ...], request_us: float, bar: float) -> Measure:
    return Measure(name, asyncio.run(_steps_us(keys)), "us", bar, "lower", request_us)


def _request_us(seconds: float) -> float:
    """Return the CPU time of a broker without quotas for one small request."""
    with harness.server(store="memory:") as system:
        clients.create_topic(system.bootstrap)
        clients.produce_for(system.bootstrap, 0.2)
        before = system.send_request()["cpu_s"]
        rate = clients.small_requests_per_s(system.bootstrap, CONNECTIONS, seconds)
        return float((system.send_request()["cpu_s"] - before) * 1e6 / (rate * seconds))


async def _steps_us(keys: tuple[str, ...]) -> float:
    """Return the time of one request's quota steps."""
    image = QuotasImage()
    for key in keys:
        image.set(QuotaRecord((QuotaTarget("user", "ANONYMOUS"),), key, _UNREACHED))
    quotas = ClientQuotas(Window())
    quotas.reset(image)
    limits = RequestLimits(quotas)
    connection = cast("Any", SimpleNamespace(principal=ANONYMOUS))
    frame = memoryview(bytearray(200))
    now = asyncio.get_running_loop().time()
    contexts = [
        RequestContext(apis.PRODUCE.key, 9, 7, "bench", connection, frame, 30, now)
        for _ in range(REQUESTS)
    ]

    def steps(ctx: RequestContext) -> None:
        """Run the dispatcher's quota steps before and after the handler, and the handler's at its
        end.
        """
        if quotas.is_active:
            limits.begin(ctx, _respond)
        if ctx.quota is not None:
            ctx.quota.leave()
        if ctx.quota is not None:
            ctx.quota.produced(len(ctx.frame))

    def nothing(ctx: RequestContext) -> None:
        pass

    pairs = [(_round_us(contexts, steps), _round_us(contexts, nothing)) for _ in range(ROUNDS)]
    return min(spent for spent, _ in pairs) - min(spent for _, spent in pairs)


def _round_us(contexts: list[RequestContext], run: Callable[[RequestContext], None]) -> float:
    for ctx in contexts:
        ctx.quota = None
    began = time.perf_counter()
    for ctx in contexts:
        run(ctx)
    return (time.perf_counter() - began) / len(contexts) * 1e6


def _respond(_response: object) -> None:
    pass
