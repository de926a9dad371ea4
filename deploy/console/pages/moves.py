"""Show planned moves: the partitions that are moving or have moved, and the live steps of one
move.
"""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from penstock.controller.metadata.topics import PartitionKey, is_moving
from penstock.deploy.admin.reassign.admin import reassign
from penstock.deploy.admin.reassign.plan import Key
from penstock.deploy.admin.reassign.trace import MoveView, view_move
from penstock.deploy.console import views
from penstock.deploy.console.console import (
    Console,
    console_of,
    done,
    form_of,
    integer,
    page,
    paged,
    path_of,
    rights_of,
)
from penstock.deploy.console.events import HEARTBEAT, HEARTBEAT_S, comes, event, stream
from penstock.deploy.errors import UsageError
from penstock.protocol.client.errors import Refused

TRACE_S_MAX: Final = 5.0
"""Maximum time that brokers may take after the election to report their steps."""
_TRACE_INTERVAL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class LiveMove:
    """The current state of a move. phase: "moving" until the election, "opening" until the target
    has reported, then "done". seen_ms: time since the page detected the start of the move; None if
    it started earlier.
    """

    move: MoveView
    phase: str
    bars: list[views.BarView]
    seen_ms: float | None


async def moves(request: Request) -> Response:
    rights_of(request).need_cluster()
    found = views.planned_moves(console_of(request).live.image)
    return page(
        request,
        "moves.html",
        page=paged(request, found),
        under_way=sum(item.took_ms is None for item in found),
    )


async def move(request: Request) -> Response:
    name, index = request.path_params["topic"], request.path_params["partition"]
    console = console_of(request)
    rights_of(request).need_topic(name)
    record = views.partition_record(console.live.image, name, index)
    return page(
        request,
        "move.html",
        name=name,
        index=index,
        replicas=record.replicas,
        brokers=sorted(
            node.node_id
            for node in console.live.image.nodes
            if not node.fenced and node.node_id != record.leader
        ),
        live=await _look(console, Key(name, index), None),
    )


async def live(request: Request) -> Response:
    """Send the steps whenever they change."""
    name, index = request.path_params["topic"], request.path_params["partition"]
    rights_of(request).need_topic(name)
    views.partition_record(console_of(request).live.image, name, index)
    return stream(request, _events(console_of(request), request, Key(name, index)))


async def begin(request: Request) -> Response:
    """Move the partition to another broker, which becomes the first candidate."""
    form = await form_of(request)
    name, index = request.path_params["topic"], request.path_params["partition"]
    console = console_of(request)
    rights_of(request).need_topic(name)
    record = views.partition_record(console.live.image, name, index)
    target = integer(form.get("target", ""), -1)
    if all(node.node_id != target for node in console.live.image.nodes):
        raise UsageError(
            f"broker {form.get('target', '')!r} does not exist: choose one from the list"
        )
    if target == record.leader:
        raise UsageError(f"broker {target} already leads {name}-{index}")
    others = [node_id for node_id in record.replicas if node_id not in (target, record.leader)]
    wanted = (target, *others)[: max(1, len(record.replicas))]
    key = Key(name, index)
    problems = await console.call_brokers(reassign, {key: wanted})
    for problem in problems.values():
        raise Refused(f"{key} was not moved", *problem)
    return done(request, path_of(request), f"{name}-{index} moves to broker {target}.")


async def _events(console: Console, request: Request, key: Key) -> AsyncGenerator[str, None]:
    topic = console.live.image.topics.by_name(key.topic)
    if topic is None:
        return
    loop = asyncio.get_running_loop()
    shown, began_at, trace_until = "", None, loop.time() + TRACE_S_MAX
    with console.live.changes_of(PartitionKey(topic.topic_id, key.partition)) as changed:
        while True:
            changed.clear()
            seen_ms = None if began_at is None else (loop.time() - began_at) * 1_000
            found = await _look(console, key, seen_ms)
            if found is not None and found.phase == "moving":
                began_at = began_at or loop.time()
                trace_until = loop.time() + TRACE_S_MAX
            elif found is None or found.phase == "done":
                began_at = None
            fragment = console.render("move_steps.html", request, live=found)
            if fragment != shown:
                shown = fragment
                yield event("steps", fragment)
            is_busy = found is not None and found.phase != "done" and loop.time() < trace_until
            came = await comes(changed, _TRACE_INTERVAL_S if is_busy else HEARTBEAT_S)
            if not (came or is_busy):
                yield HEARTBEAT


async def _look(console: Console, key: Key, seen_ms: float | None) -> LiveMove | None:
    """Return the last move of the partition, or None if it has never moved."""
    record = views.partition_record(console.live.image, key.topic, key.partition)
    traces = await console.live.traces(record.topic_id, key.partition)
    record = views.partition_record(console.live.image, key.topic, key.partition)
    found = view_move(key, record, traces)
    if found is None:
        return None
    phase = "moving" if is_moving(record) else "opening" if found.total_ms is None else "done"
    return LiveMove(found, phase, views.bars(found), seen_ms)
