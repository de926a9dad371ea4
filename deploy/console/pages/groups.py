"""Show groups of all types with members and lag; delete groups, and reset offsets."""

from collections.abc import Mapping
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from penstock.deploy.admin.groups.admin import delete as delete_group
from penstock.deploy.admin.groups.admin import described, found_groups, listed_groups
from penstock.deploy.admin.groups.views import GroupView, ListedGroup
from penstock.deploy.clients.brokers import Brokers
from penstock.deploy.clients.kafka import Kafka
from penstock.deploy.console.console import confirmed, console_of, done, form_of, integer, page
from penstock.deploy.console.paging import page_of
from penstock.deploy.errors import UsageError


async def groups(request: Request) -> Response:
    console = console_of(request)
    wanted = request.query_params.get("q", "").strip().lower()
    found = [
        group
        for group in await console.call(_listed, console.options.bootstrap)
        if wanted in group.group.lower()
    ]
    return page(
        request,
        "groups.html",
        page=page_of(found, integer(request.query_params.get("page", ""), 1)),
        q=wanted,
    )


async def group(request: Request) -> Response:
    console = console_of(request)
    view = await console.call(
        _described, console.options.bootstrap, request.query_params.get("id", "")
    )
    return page(
        request,
        "group.html",
        group=view,
        page=page_of(view.offsets, integer(request.query_params.get("page", ""), 1)),
        topics=sorted({item.topic for item in view.offsets}),
    )


def _listed(bootstrap: str) -> list[ListedGroup]:
    with Brokers(bootstrap) as brokers:
        return listed_groups(brokers)


def _described(bootstrap: str, name: str) -> GroupView:
    with Brokers(bootstrap) as brokers:
        (listed,) = found_groups(brokers, [name])
        return described(brokers, listed)


# --- changes --------------------------------------------------------------------------------------


async def delete(request: Request) -> Response:
    form = await form_of(request)
    group_id = form.get("id", "")
    confirmed(form, group_id)
    console = console_of(request)
    await console.call(_delete, console.options.bootstrap, group_id)
    return done(request, "/groups", f"Deleted group {group_id}.")


def _delete(bootstrap: str, group_id: str) -> None:
    with Brokers(bootstrap) as brokers:
        delete_group(brokers, group_id)


async def reset(request: Request) -> Response:
    """Set the offsets of one topic to its begin, its end, or one offset in each partition."""
    form = await form_of(request)
    group_id, topic, to = form.get("id", ""), form.get("topic", ""), form.get("to", "")
    confirmed(form, group_id)
    console = console_of(request)
    await console.call(_reset, console.options.bootstrap, group_id, topic, to)
    return done(
        request,
        f"/groups/one?id={quote(group_id, safe='')}",
        f"Offsets of {group_id} in {topic} are set.",
    )


def _reset(bootstrap: str, group_id: str, topic: str, to: str) -> None:
    kafka = Kafka(bootstrap)
    partitions = [part.partition for part in kafka.topic(topic).partitions]
    kafka.reset_group(group_id, topic, _targets(kafka.offsets(topic, partitions), to))


def _targets(bounds: Mapping[int, tuple[int, int]], to: str) -> dict[int, int]:
    if to == "earliest":
        return {index: low for index, (low, _) in bounds.items()}
    if to == "latest":
        return {index: high for index, (_, high) in bounds.items()}
    if not to.isascii() or not to.isdigit():
        raise UsageError(f"{to!r} is not an offset: use earliest, latest or a number")
    return {index: min(max(low, int(to)), high) for index, (low, high) in bounds.items()}
