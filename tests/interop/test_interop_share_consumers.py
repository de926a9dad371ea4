"""Members of share groups (KIP-932) get the same results from Apache Kafka 4.2 and Penstock, as
Java consumers and with single requests.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.support.clients import create_topic, produce
from tests.support.cluster import Cluster
from tests.support.java import JavaHome
from tests.support.share_client import (
    ACCEPT,
    GAP,
    JOIN_S,
    REJECT,
    RELEASE,
    RENEW,
    ShareMember,
    acquired,
    batches,
)
from tests.support.waiting import wait_until

NUMBERS = 200
KAFKAS_JOIN_S = 40.0
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
Step = tuple[str, Any]


class Conversation:
    """A group with two members on a topic of its own."""

    def __init__(self, address: str, join_s: float = JOIN_S) -> None:
        self.address = address
        self.topic = f"jobs-{uuid4().hex[:8]}"
        self.group = f"workers-{uuid4().hex[:8]}"
        create_topic(address, self.topic, 2)
        self.here: tuple[str, int] = (self.topic, 0)
        self.there: tuple[str, int] = (self.topic, 1)
        self.first = ShareMember(address, self.group).join(self.topic, timeout_s=join_s)
        self.second = ShareMember(address, self.group).join(self.topic, timeout_s=join_s)
        self._others: list[ShareMember] = []

    def close(self) -> None:
        for member in (self.first, self.second, *self._others):
            member.close()

    def member(self, member_id: str | None = None, group: str | None = None) -> ShareMember:
        self._others.append(ShareMember(self.address, group or self.group, member_id))
        return self._others[-1]

    def leave(self) -> None:
        """Leave all partitions to other members. The session of the first member remains."""
        self.first.leave()
        self.second.leave()

    def produce(self, count: int, partition: int = 0, **settings: Any) -> None:
        """Produce batches of ten records."""
        values = [b"%d" % number for number in range(count)]
        # With a short linger, a busy machine would create smaller batches. flush() sends the last
        # one.
        settings = {"linger_ms": 5_000, "batch_num_messages": 10} | settings
        produce(self.address, self.topic, values, [partition], **settings)


def _told(response: Any) -> Any:
    """Return the fields that must be equal: without ids and message texts."""
    return {
        "error": response["error_code"],
        "lock_ms": response["acquisition_lock_timeout_ms"],
        "partitions": [
            {
                "partition": partition["partition_index"],
                "error": partition["error_code"],
                "acknowledge_error": partition.get("acknowledge_error_code"),
            }
            for topic in response["responses"]
            for partition in topic["partitions"]
        ],
    } | (
        {"acquired": acquired(response), "batches": batches(response)}
        if any("records" in item for topic in response["responses"] for item in topic["partitions"])
        else {}
    )


def deliveries(talk: Conversation) -> Iterator[Step]:
    first, second, here = talk.first, talk.second, talk.here
    yield "nothing yet", first.fetch(here)
    yield "nothing new", first.fetch()
    talk.produce(30)
    yield "whole batches", first.fetch(max_records=5)
    yield "the others, in ranges", second.fetch(here, max_records=25, batch_size=5)
    yield "nothing left", first.fetch(max_wait_ms=100)
    yield "a part", first.acknowledge({here: [(0, 3, [ACCEPT])]})
    yield "each its type", first.acknowledge({here: [(4, 6, [ACCEPT, RELEASE, REJECT])]})
    yield "released", first.acknowledge({here: [(7, 8, [RELEASE])]})
    yield "again", first.fetch()
    yield "with a fetch", first.fetch(acks={here: [(5, 5, [GAP])]}, max_wait_ms=100)
    yield "session ends", second.fetch(epoch=-1, acks={here: [(10, 14, [ACCEPT])]})
    yield "what it had", first.fetch(max_records=100)


def wrong_acknowledgements(talk: Conversation) -> Iterator[Step]:
    first, second, here = talk.first, talk.second, talk.here
    first.fetch(here, max_wait_ms=0)
    second.fetch(here, max_wait_ms=0)
    talk.produce(30)
    yield "ten", first.fetch(max_records=10)
    yield "twenty", second.fetch(max_records=20)
    yield "of another member", first.acknowledge({here: [(10, 12, [ACCEPT])]})
    yield "past the end", first.acknowledge({here: [(100, 102, [ACCEPT])]})
    yield "over the end", first.acknowledge({here: [(4, 102, [ACCEPT])]})
    yield "unknown type", first.acknowledge({here: [(7, 7, [9])]})
    yield "negative type", first.acknowledge({here: [(7, 7, [-1])]})
    yield "renewal without notice", first.acknowledge({here: [(7, 7, [RENEW])]})
    yield "renewal", first.acknowledge({here: [(7, 7, [RENEW])]}, is_renew_ack=True)
    yield "too few types", first.acknowledge({here: [(7, 9, [ACCEPT, ACCEPT])]})
    yield "no type", first.acknowledge({here: [(7, 9, [])]})
    yield "backwards", first.acknowledge({here: [(9, 7, [ACCEPT])]})
    yield "out of order", first.acknowledge({here: [(8, 9, [ACCEPT]), (2, 3, [ACCEPT])]})
    yield "overlapping", first.acknowledge({here: [(7, 8, [ACCEPT]), (8, 9, [ACCEPT])]})
    yield "one is wrong", first.acknowledge({here: [(7, 8, [ACCEPT]), (10, 10, [ACCEPT])]})
    yield "nothing was applied", first.acknowledge({here: [(0, 9, [ACCEPT])]})
    yield "done already", first.acknowledge({here: [(0, 9, [ACCEPT])]})
    yield "of no topic", first.acknowledge({("none", 0): [(7, 7, [ACCEPT])]})
    yield "never fetched", first.acknowledge({talk.there: [(7, 7, [ACCEPT])]})
    yield "in the middle", second.acknowledge({here: [(12, 15, [ACCEPT])]})
    yield "in the middle again", second.acknowledge({here: [(12, 12, [ACCEPT])]})
    yield "wrong with a fetch", second.fetch(acks={here: [(12, 12, [ACCEPT])]}, max_wait_ms=0)


def sessions(talk: Conversation) -> Iterator[Step]:
    first, here, there = talk.first, talk.here, talk.there
    yield "no session", first.fetch(epoch=3)
    yield "no session to acknowledge in", first.acknowledge({here: [(0, 0, [ACCEPT])]}, epoch=3)
    yield "no session to end", first.fetch(epoch=-1)
    yield "begins with acknowledgements", first.fetch(here, acks={here: [(0, 0, [ACCEPT])]})
    yield "begins", first.fetch(here, max_wait_ms=100)
    yield "wrong epoch", first.fetch(epoch=77)
    yield "wrong epoch", first.acknowledge({here: [(0, 0, [ACCEPT])]}, epoch=77)
    yield "epoch 0", first.acknowledge({here: [(0, 0, [ACCEPT])]}, epoch=0)
    yield "one more", first.fetch(there, max_wait_ms=100)
    yield "known", first.fetch(max_wait_ms=100)
    talk.produce(10)
    talk.produce(10, partition=1)
    yield "one less", first.fetch(forget=[here])
    yield "back", first.fetch(here)
    yield "ends", first.acknowledge({here: [(0, 4, [ACCEPT])]}, epoch=-1)
    yield "ended", first.fetch(epoch=9)
    yield "begins again", first.fetch(here)
    yield "begins in place of itself", first.fetch(there, epoch=0)
    yield "member of any name", talk.member("anyone").fetch(here, max_wait_ms=100)
    yield "group without state", talk.member(group="strangers").fetch(here, max_wait_ms=100)


def renewals(talk: Conversation) -> Iterator[Step]:
    first, here = talk.first, talk.here
    first.fetch(here, max_wait_ms=0)
    talk.produce(10)
    yield "ten", first.fetch()
    nothing: dict[str, Any] = {"max_wait_ms": 0, "max_records": 0, "max_bytes": 0, "min_bytes": 0}
    renew = {here: [(0, 9, [RENEW])]}
    yield "and a fetch", first.fetch(acks=renew, is_renew_ack=True)
    yield "alone", first.fetch(acks=renew, is_renew_ack=True, **nothing)
    yield "mixed", first.acknowledge({here: [(0, 1, [RENEW, ACCEPT])]}, is_renew_ack=True)
    yield "without records", first.acknowledge({here: [(1, 1, [RENEW])]}, is_renew_ack=True)


def record_limits(talk: Conversation) -> Iterator[Step]:
    first, second, here = talk.first, talk.second, talk.here
    limit: dict[str, Any] = {"share_acquire_mode": 1}
    first.fetch(here, max_wait_ms=0)
    second.fetch(here, max_wait_ms=0)
    talk.produce(30)
    yield "three", first.fetch(max_records=3, **limit)
    yield "twelve", second.fetch(max_records=12, **limit)
    yield "back", first.acknowledge({here: [(0, 2, [RELEASE])]})
    yield "two of three", second.fetch(max_records=2, **limit)
    yield "the third and more", first.fetch(max_records=2, **limit)
    yield "the rest", first.fetch(max_records=100)


def last_deliveries(talk: Conversation) -> Iterator[Step]:
    """A repeatedly failing batch is delivered in smaller and smaller parts."""
    first, here = talk.first, talk.here
    first.fetch(here, max_wait_ms=0)
    talk.produce(8)
    for round_ in range(24):
        response = first.fetch(max_wait_ms=100)
        yield f"round {round_}", response
        items = acquired(response)
        if items:
            acks = [(start, last, [RELEASE]) for start, last, _ in items]
            yield f"released {round_}", first.acknowledge({here: acks})


SCENARIOS = [
    deliveries,
    wrong_acknowledgements,
    sessions,
    renewals,
    record_limits,
    last_deliveries,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_request_sequences_get_the_responses_of_kafka(
    peer: str, cluster: Cluster, scenario: Callable[[Conversation], Iterator[Step]]
) -> None:
    expected, found = [
        await asyncio.to_thread(_hold, begin, scenario)
        for begin in (partial(_with_kafka, peer), partial(Conversation, cluster.bootstrap))
    ]
    for response, wanted in zip(found, expected, strict=True):
        assert response == wanted


def _with_kafka(address: str) -> Conversation:
    """Start over with another group if the first gets no partitions: Kafka 4.2 once left a new
    group without partitions for two minutes.
    """
    try:
        return Conversation(address, KAFKAS_JOIN_S)
    except TimeoutError:
        return Conversation(address, KAFKAS_JOIN_S)


def _hold(
    begin: Callable[[], Conversation], scenario: Callable[[Conversation], Iterator[Step]]
) -> list[Step]:
    with closing(begin()) as talk:
        return [(label, _told(response)) for label, response in scenario(talk)]


@pytest.fixture(scope="session")
def share_work(java: JavaHome) -> JavaHome:
    java.compile(Path(__file__).parent / "share" / "ShareWork.java")
    return java


@pytest.mark.long
@pytest.mark.parametrize("mode", ["batch_optimized", "record_limit"])
async def test_java_share_consumers_share_the_records(
    peer: str, cluster: Cluster, share_work: JavaHome, mode: str
) -> None:
    """Multiples of ten succeed after a failure; multiples of seven are rejected immediately."""
    expected, found = [
        await asyncio.to_thread(_work, address, share_work, mode)
        for address in (peer, cluster.bootstrap)
    ]
    assert found == expected
    assert {number for number, kind in found if kind != RELEASE} == set(range(NUMBERS))


def _work(address: str, java: JavaHome, mode: str) -> set[tuple[int, int]]:
    """Return each number with its acknowledgment types. On a busy machine, Kafka may deliver a
    record once more because its member was too slow.
    """
    with closing(Conversation(address)) as talk:
        # Without `share.auto.offset.reset`, a group starts at the end of the log.
        talk.first.fetch(talk.here, talk.there, max_wait_ms=0)
        wait_until(lambda: not talk.first.fetch(max_wait_ms=0)["error_code"])
        talk.produce(NUMBERS, linger_ms=5, batch_num_messages=30)
        talk.produce(NUMBERS, 1, linger_ms=5, batch_num_messages=7)
        talk.leave()
        settings = (f"share.acquire.mode={mode}", "max.poll.records=40")
        done = java.tool(
            "ShareWork", address, talk.group, talk.topic, "3", str(2 * NUMBERS), *settings
        )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert not [line for line in lines if line[0] != "got"], done.stdout
    return {(int(line[3]), int(line[5])) for line in lines}


@pytest.mark.long
async def test_kafka_console_share_consumer_works(
    peer: str, cluster: Cluster, java: JavaHome
) -> None:
    expected, found = [
        await asyncio.to_thread(_console, address, java) for address in (peer, cluster.bootstrap)
    ]
    assert found == expected
    assert len(found) == 30


def _console(address: str, java: JavaHome) -> list[str]:
    with closing(Conversation(address)) as talk:
        talk.first.fetch(talk.here, max_wait_ms=0)
        wait_until(lambda: not talk.first.fetch(max_wait_ms=0)["error_code"])
        talk.produce(30)
        talk.leave()
        done = java.tool(
            CONSOLE,
            *("--bootstrap-server", address, "--topic", talk.topic, "--group", talk.group),
            *("--max-messages", "30", "--timeout-ms", "180000"),
            *("--formatter-property", "print.delivery=true"),
            *("--formatter-property", "print.offset=true"),
        )
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())
