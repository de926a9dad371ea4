"""Whether this broker can be reached as it is advertised: it connects to its own addresses as a
client would, and says when it cannot.

Invariant: bounded: each listener is tried for at most CHECK_S, then given up. What answers must
speak Kafka (ApiVersions v0); that it is this very broker is not shown, for no answer of the
protocol names the broker that gave it.
Must not end the process: the caller decides (`advertised.check`).
"""

import asyncio
import struct
from collections.abc import Sequence
from typing import Final

import structlog

from base.listeners import Listener

log = structlog.get_logger()

CHECK_S: Final = 10.0
"""A name or a load balancer may take a moment to know of a broker that has just started."""
_ATTEMPT_S: Final = 2.0
_PAUSE_S: Final = 0.25
_API_VERSIONS: Final = 18
_CLIENT_ID: Final = b"penstock-self-check"
_REQUEST: Final = struct.pack(
    f">ihhih{len(_CLIENT_ID)}s",
    10 + len(_CLIENT_ID),
    _API_VERSIONS,
    0,
    1,
    len(_CLIENT_ID),
    _CLIENT_ID,
)
_ANSWER: Final = struct.Struct(">iih")


class UnreachableAsAdvertised(Exception):
    """Clients cannot reach this broker at the address that they are told."""

    def __init__(self, listener: Listener, problem: str) -> None:
        super().__init__(
            f"clients of listener {listener.name} are told {listener.address}, where this broker"
            f" cannot reach itself: {problem}. Set advertised.listeners to"
            f" {listener.name}://host:port as clients see it (or mend name service, port mapping or"
            " firewall); if only this machine cannot get there, set advertised.check=off"
        )
        self.listener = listener


async def check(advertised: Sequence[Listener]) -> None:
    """advertised: where clients are told to go. Raises UnreachableAsAdvertised for the first that does
    not answer in time.
    """
    for listener in advertised:
        problem = await _problem(listener)
        if problem:
            raise UnreachableAsAdvertised(listener, problem)
        log.debug("reached_as_advertised", listener=listener.name, address=listener.address)


async def warn(advertised: Sequence[Listener]) -> None:
    """As `check`, each listener for itself, and only said."""
    for listener in advertised:
        try:
            await check([listener])
        except UnreachableAsAdvertised as error:
            log.warning(
                "unreachable_as_advertised",
                listener=listener.name,
                address=listener.address,
                reason=str(error),
            )


async def _problem(listener: Listener) -> str:
    """Of the last try; empty if one succeeded."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + CHECK_S
    while True:
        problem = await _try(listener)
        if not problem or loop.time() + _PAUSE_S > deadline:
            return problem
        await asyncio.sleep(_PAUSE_S)


async def _try(listener: Listener) -> str:
    try:
        async with asyncio.timeout(_ATTEMPT_S):
            reader, writer = await asyncio.open_connection(listener.host, listener.port)
            try:
                writer.write(_REQUEST)
                _, correlation_id, error_code = _ANSWER.unpack(
                    await reader.readexactly(_ANSWER.size)
                )
            finally:
                writer.close()
    except TimeoutError:
        return f"no answer within {_ATTEMPT_S:g} s"
    except asyncio.IncompleteReadError:
        return "what listens there closed the connection without an answer"
    except OSError as error:
        return error.strerror or str(error)
    return (
        ""
        if (correlation_id, error_code) == (1, 0)
        else "what listens there does not speak Kafka's protocol"
    )
