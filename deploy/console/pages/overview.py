"""Show the current load of the cluster, and its cost."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.controller.metadata.internal_topics import INTERNAL_TOPICS
from penstock.deploy.console.console import Console, console_of, page, rights_of, session_of
from penstock.deploy.console.events import HEARTBEAT, HEARTBEAT_S, event, stream
from penstock.deploy.console.samples import last_known
from penstock.deploy.console.views import broker_states
from penstock.deploy.top.view import TopView

TOPICS_SHOWN_MAX = 10


async def overview(request: Request) -> Response:
    rights_of(request).need_cluster()
    console = console_of(request)
    return page(request, "overview.html", **_values(console, await console.live.top()))


async def live(request: Request) -> Response:
    """Send the samples of the last 15 minutes, then each new one, with the values as a fragment of
    the page.
    """
    rights_of(request).need_cluster()
    console = console_of(request)
    await console.live.top()
    return stream(request, _events(console, request))


async def _events(console: Console, request: Request) -> AsyncGenerator[str, None]:
    with console.live.listen() as queue:
        yield event("samples", msgspec.json.encode(list(console.live.samples)).decode())
        while True:
            console.live.want()
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    sample = await queue.get()
            except TimeoutError:
                yield HEARTBEAT
                continue
            yield event("sample", msgspec.json.encode(sample).decode())
            values = _values(console, await console.live.top())
            for part in ("tiles", "tables"):
                yield event(part, console.render(f"overview_{part}.html", request, **values))


async def health(request: Request) -> Response:
    """Return the problems of the cluster as a fragment, and keep measuring. This does not wait for
    the rights of the user; while they are unknown, the fragment contains no details.
    """
    console = console_of(request)
    console.checks.begin(session_of(request), is_use=False)
    console.live.want()
    return page(request, "health.html", keeps_notice=True)


def _values(console: Console, view: TopView) -> dict[str, Any]:
    """Return the template context."""
    topics = [topic for topic in view.topics if topic.name not in INTERNAL_TOPICS]
    return {
        "view": view,
        "topics": topics[:TOPICS_SHOWN_MAX],
        "totals": last_known(console.live.samples),
        "is_measured": console.live.is_measured,
        "states": broker_states(view, console.live.brokers(), console.live.silent_s),
    }
