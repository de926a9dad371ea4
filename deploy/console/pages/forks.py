"""Fork a topic: show the contents of the fork first, then create it."""

from collections.abc import Mapping
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from penstock.deploy.console.console import (
    console_of,
    done,
    form_of,
    page,
    paged,
    rights_of,
    utc_time,
)
from penstock.deploy.console.forks import ForkOptions, make_fork, plan_fork
from penstock.protocol.client.connection import TIMEOUT_S, wait_at_most


async def preview(request: Request) -> Response:
    """Show the contents that a fork would have."""
    console = console_of(request)
    wanted = _options(request.path_params["topic"], request.query_params)
    rights_of(request).need_topic(wanted.source)
    wait_at_most(TIMEOUT_S)  # this is slow, because brokers look up times in the store
    plan = await console.call(plan_fork, console.bootstrap, wanted)
    return page(
        request,
        "fork.html",
        name=wanted.source,
        wanted=wanted,
        since=request.query_params.get("since", ""),
        plan=plan,
        page=paged(request, plan.partitions),
    )


async def make(request: Request) -> Response:
    form = await form_of(request)
    console = console_of(request)
    wanted = _options(request.path_params["topic"], form)
    await console.call(make_fork, console.bootstrap, wanted)
    await console.live.sees_topic(wanted.name)
    return done(
        request,
        f"/topics/{quote(wanted.name, safe='')}",
        f"Forked {wanted.source} to {wanted.name}.",
    )


def _options(source: str, given: Mapping[str, str]) -> ForkOptions:
    """Read the form. Raises UsageError."""
    since = given.get("since", "").strip()
    return ForkOptions(
        source,
        given.get("name", "").strip(),
        given.get("snapshot", "").strip(),
        int(utc_time(since).timestamp() * 1_000) if since else None,
    )
