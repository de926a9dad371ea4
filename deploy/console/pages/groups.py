"""Show groups of all types with members and lag; delete groups, and reset offsets."""

from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from penstock.deploy.admin.groups.admin import delete as delete_group
from penstock.deploy.admin.groups.admin import described, found_group, known_lag
from penstock.deploy.admin.groups.reset import set_offsets
from penstock.deploy.admin.groups.views import GroupView
from penstock.deploy.clients.brokers import Brokers
from penstock.deploy.clients.kafka import Kafka
from penstock.deploy.console.console import (
    confirmed,
    console_of,
    done,
    form_of,
    page,
    paged,
    session_of,
)
from penstock.deploy.console.group_list import with_known_end
from penstock.deploy.errors import UsageError

OFFSET_DIGITS_MAX: Final = 19


async def groups(request: Request) -> Response:
    """List the groups of all coordinators that respond, and the last known ones of the others."""
    console = console_of(request)
    wanted = request.query_params.get("q", "").strip().lower()
    user = session_of(request).token
    listed = await console.groups.listed(console.live, console.call, user)
    found = [group for group in listed.groups if wanted in group.group.lower()]
    shown = paged(request, found)
    return page(
        request,
        "groups.html",
        page=shown,
        lags=await console.groups.lags(console.live, console.call, user, shown.rows),
        listed=listed,
        q=wanted,
    )


async def group(request: Request) -> Response:
    console = console_of(request)
    name = request.query_params.get("id", "")
    view = await console.call(_described, console.bootstrap, console.live.silent_brokers(), name)
    ends = {topic: console.live.ends(topic) for topic in {item.topic for item in view.offsets}}
    offsets = [with_known_end(item, ends[item.topic].get(item.partition)) for item in view.offsets]
    return page(
        request,
        "group.html",
        group=view,
        lag=known_lag(offsets),
        page=paged(request, offsets),
        topics=sorted({item.topic for item in offsets}),
    )


def _described(bootstrap: str, silent: Collection[int], name: str) -> GroupView:
    with Brokers(bootstrap, silent) as brokers:
        return described(brokers, found_group(brokers, name), brokers.known_ends)


# --- changes --------------------------------------------------------------------------------------


async def delete(request: Request) -> Response:
    form = await form_of(request)
    group_id = form.get("id", "")
    confirmed(form, group_id)
    console = console_of(request)
    await console.call(_delete, console.bootstrap, group_id)
    return done(request, "/groups", f"Deleted group {group_id}.")


def _delete(bootstrap: str, group_id: str) -> None:
    with Brokers(bootstrap) as brokers:
        delete_group(brokers, group_id)


async def reset(request: Request) -> Response:
    """Set the offsets of one topic to its start, its end, or one offset in each partition."""
    form = await form_of(request)
    group_id, topic, to = form.get("id", ""), form.get("topic", ""), form.get("to", "")
    confirmed(form, group_id)
    console = console_of(request)
    await console.call(_reset, console.bootstrap, group_id, topic, to)
    return done(
        request,
        f"/groups/one?id={quote(group_id, safe='')}",
        f"Offsets of {group_id} in {topic} are set.",
    )


def _reset(bootstrap: str, group_id: str, topic: str, to: str) -> None:
    kafka = Kafka(bootstrap)
    partitions = [part.partition for part in kafka.topic(topic).partitions]
    targets = _targets(kafka.offsets(topic, partitions), to)
    with Brokers(bootstrap) as brokers:
        set_offsets(brokers, group_id, topic, targets)


def _targets(bounds: Mapping[int, tuple[int, int]], to: str) -> dict[int, int]:
    if to == "earliest":
        return {index: low for index, (low, _) in bounds.items()}
    if to == "latest":
        return {index: high for index, (_, high) in bounds.items()}
    if not to.isascii() or not to.isdigit() or len(to) > OFFSET_DIGITS_MAX:
        raise UsageError(f"{to!r} is not an offset: use earliest, latest or a number")
    return {index: min(max(low, int(to)), high) for index, (low, high) in bounds.items()}
