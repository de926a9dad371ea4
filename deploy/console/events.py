"""Send server-sent events to browsers.

At most `STREAMS_MAX` streams are open, each for at most `STREAM_S_MAX`; browsers reconnect
automatically. A comment every `HEARTBEAT_S` prevents proxies from closing an idle stream. A stream
ends with its session, or when the rights of the session change.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from penstock.deploy.console.console import Console, console_of, session_of
from penstock.deploy.console.sessions import Session

STREAMS_MAX: Final = 32
STREAM_S_MAX: Final = 1_800.0
HEARTBEAT_S: Final = 15.0
HEARTBEAT: Final = ": here\n\n"


def event(name: str, data: str) -> str:
    """Return one event. data: any text."""
    lines = "".join(f"data: {line}\n" for line in data.splitlines() or [""])
    return f"event: {name}\n{lines}\n"


async def comes(wanted: asyncio.Event, timeout_s: float) -> bool:
    """Wait for an event, and return whether it was set in time."""
    try:
        async with asyncio.timeout(timeout_s):
            await wanted.wait()
    except TimeoutError:
        return False
    return True


def stream(request: Request, events: AsyncGenerator[str, None]) -> Response:
    """Return the response that sends these events, or 503 if there are too many streams. The events
    end soon after the browser disconnects.
    """
    console = console_of(request)
    if console.streams >= STREAMS_MAX:
        return PlainTextResponse("too many live pages are open\n", 503, {"Retry-After": "30"})
    return StreamingResponse(
        _within_limits(console, session_of(request), events),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no"},
    )


async def _within_limits(
    console: Console, session: Session, events: AsyncGenerator[str, None]
) -> AsyncGenerator[str, None]:
    loop = asyncio.get_running_loop()
    ends_at, rights = loop.time() + STREAM_S_MAX, session.rights
    console.streams += 1
    try:
        yield "retry: 2000\n\n"
        async for text in events:
            if loop.time() >= ends_at or not console.is_open(session) or session.rights != rights:
                return
            yield text if console.sessions.has_rights(session) else HEARTBEAT
    finally:
        console.streams -= 1
        await events.aclose()
