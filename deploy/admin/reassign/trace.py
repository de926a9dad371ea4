"""Compute the six steps of a partition's last planned move, with their milliseconds."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.base.errors import ExpectedError
from penstock.controller.api.messages import MoveTrace, TraceMove
from penstock.controller.metadata.records import PartitionRecord
from penstock.deploy.admin.reassign.plan import Key
from penstock.deploy.clients.brokers import no_topic
from penstock.deploy.clients.controllers import response_of
from penstock.deploy.clients.metadata import following

_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a move. took_ms: None if unknown."""

    number: int
    by: str
    what: str
    took_ms: float | None


@dataclass(frozen=True, slots=True)
class MoveView:
    """A planned move. total_ms: time from the controller's change until the target served clients,
    or None if unknown.
    """

    topic: str
    partition: int
    source: int
    target: int
    leader_epoch: int
    started_ms: int
    total_ms: float | None
    steps: list[Step]


def parse_partition(text: str) -> Key:
    """Parse TOPIC-PARTITION."""
    topic, _, number = text.rpartition("-")
    if not topic or not number.isdigit():
        raise ExpectedError(f"{text!r} is not a partition: use TOPIC-PARTITION, as in orders-3")
    return Key(topic, int(number))


def view_move(key: Key, record: PartitionRecord, traces: Sequence[MoveTrace]) -> MoveView | None:
    """Return the last planned move, or None. Pure.

    The metadata contains the times of the controller's change and of the election; the source and
    the target measured their steps with their own clocks and reported them. The time of the step
    "saw it" is the controller's time minus the source's steps, so the clocks of two nodes are never
    compared. The active controller keeps the reports in memory: after it restarts, the brokers'
    steps are unknown.
    """
    move = record.move
    if move is None:
        return None
    gave_up = _steps_of(traces, gave_up=True, leader_epoch=move.leader_epoch - 1)
    took = _steps_of(traces, gave_up=False, leader_epoch=move.leader_epoch)
    elected_ms = float(move.elected_ms - move.started_ms) if move.elected_ms else None
    seen_ms = (
        max(0.0, elected_ms - sum(gave_up.values())) if gave_up and elected_ms is not None else None
    )
    source, target = f"broker {move.source}", f"broker {move.target}"
    steps = [
        Step(1, "controller", "took the leader away and set the deadline", 0.0),
        Step(2, source, "saw it and stopped accepting records", seen_ms),
        Step(3, source, "wrote the final checkpoint to the meta stream", gave_up.get("persist")),
        Step(4, source, "forced the upload of what was not durable", gave_up.get("flush")),
        Step(4, source, "committed it in place and closed the streams", gave_up.get("commit")),
        Step(
            5,
            "controller",
            f"elected {target}, epoch {move.leader_epoch}, with the close"
            if move.elected_ms
            else "has not elected yet",
            0.0,
        ),
        Step(6, target, "opened the streams", took.get("open")),
        Step(6, target, "restored the log's state and served", took.get("restore")),
    ]
    total_ms = elected_ms + sum(took.values()) if took and elected_ms is not None else None
    return MoveView(
        *key, move.source, move.target, move.leader_epoch, move.started_ms, total_ms, steps
    )


def _steps_of(
    traces: Iterable[MoveTrace], *, gave_up: bool, leader_epoch: int
) -> Mapping[str, float]:
    found = [
        item.timing.steps
        for item in traces
        if (item.timing.gave_up, item.timing.leader_epoch) == (gave_up, leader_epoch)
    ]
    return found[-1] if found else {}


def request_move(controller: str, key: Key) -> MoveView | None:
    """Return the partition's last planned move. Raises NoController, or ExpectedError if the
    partition does not exist.
    """
    return asyncio.run(_send_request(controller, key))


async def _send_request(controller: str, key: Key) -> MoveView | None:
    async with following(controller) as (client, follower):
        topic = follower.image.topics.by_name(key.topic)
        if topic is None:
            raise no_topic(key.topic, [known.name for known in follower.image.topics])
        if key.partition >= len(topic.partitions):
            last = len(topic.partitions) - 1
            raise ExpectedError(f"partition {key} does not exist; the last one is {last}")
        record = topic.partitions[key.partition]
        wanted = TraceMove(topic_id=topic.topic_id, partition=key.partition)
        traces = await response_of(
            client, controller, _TIMEOUT_S, client.trace_move(wanted, timeout_s=_TIMEOUT_S)
        )
        return view_move(key, record, traces.items)
