"""A consumer group with plain commits, and a client that continuously fetches group offsets.

Invariants: the group delivers each record at least once and skips none. Between two assignments a
member gets every offset in order. Every acknowledged commit, coordinator response and starting
position of a member is recorded.
"""

import threading
from collections.abc import Collection
from contextlib import suppress
from random import Random
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.chaos.clients import (
    IMPATIENT,
    READING,
    STUCK_S,
    Client,
    ClientStuck,
    is_passing,
    seen,
    within,
)
from tests.chaos.record import Record
from tests.support.anomalies import Commit, Committed, Outcome
from tests.support.history import Part

GROUP: Final = "chaos"
_ASK_S: Final = 5.0
_COMMIT_EVERY_S: Final = 1.0
_TIMEOUT_MS: Final = 3_000
"""Request timeout. It is half the session timeout, so a member that retries on another connection
stays in its generation, and its late commits have the current generation.
"""


class GroupMembers(Client):
    """The members of one group, polled in turn in this thread. Sometimes a member leaves and
    another joins.
    """

    def __init__(
        self, bootstrap: str, topic: str, parts: list[Part], record: Record, rng: Random
    ) -> None:
        super().__init__("group", record)
        self._servers = bootstrap
        self._topic = topic
        self._rng = rng
        self._member_count = 0
        self.frontiers: dict[Part, int] = dict.fromkeys(parts, 0)
        """For each partition, the offset below which members have received everything."""
        self.rebalance_count = 0
        """Assignments of members."""
        self.commit_count = 0
        """Acknowledged commits, each of one partition."""

    def work(self) -> None:
        members = [self._join(), self._join()]
        turns = 0
        while not self.ending.is_set():
            turns += 1
            for at, member in enumerate(members):
                try:
                    member.poll()
                except ClientStuck:
                    self.record.tell(
                        "a member of the group gets no response to a commit: another one takes its"
                        " place"
                    )
                    members[at] = self._join()
            if turns % 100 == 0 and self._rng.random() < 0.3:
                members.pop(0).close()
                members.append(self._join())
        for member in members:
            member.close()

    def _join(self) -> "_Member":
        settings = {**IMPATIENT, **READING, "bootstrap.servers": self._servers}
        self._member_count += 1
        return _Member(self, f"member {self._member_count}", settings, self._topic)

    def given(self, part: Part, offset: int, identity: bytes) -> None:
        if offset > self.frontiers[part]:
            self.record.violate(
                f"poll-skip: the group is given {part} offset {offset}, {self.frontiers[part]} was"
                " never given to any member"
            )
        self.frontiers[part] = max(self.frontiers[part], offset + 1)
        self.record.read("group", part, offset, identity)


class _Member:
    def __init__(
        self, group: GroupMembers, name: str, settings: dict[str, Any], topic: str
    ) -> None:
        self._group = group
        self._name = name
        self._record = group.record
        self._assigned_s: dict[Part, float] = {}
        """The assignment time of each partition whose first record has not arrived."""
        self._next: dict[Part, int] = {}
        self._committed: dict[Part, int] = {}
        self._commit_at = 0.0
        self._committing: tuple[float, dict[Part, int]] | None = None
        """The pending commit: its start time and its offsets."""
        self._consumer = Consumer(
            {
                **settings,
                "socket.timeout.ms": _TIMEOUT_MS,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 1_000,
                "on_commit": self._on_commit,
            }
        )
        self._consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke)

    def close(self) -> None:
        """Commit and close. Raises nothing; a library call that does not return is abandoned."""
        self._commit()
        with suppress(ClientStuck):
            within(STUCK_S, self._consumer.close)
        self._settle()

    def poll(self) -> None:
        """Poll one message at a time, so that messages before and after a rebalance can be told
        apart. Commit when due.

        Raises ClientStuck if a commit gets no response for longer than any fault lasts.
        """
        for number in range(100):
            message = self._consumer.poll(0 if number else 0.1)
            if message is None:
                break
            self._take(message)
        if self._committing is not None and self._record.now() - self._committing[0] > STUCK_S:
            self._settle()
            threading.Thread(target=self._consumer.close, daemon=True).start()
            raise ClientStuck
        if self._record.now() >= self._commit_at:
            self._commit_at = self._record.now() + _COMMIT_EVERY_S
            self._commit()

    def _take(self, message: Any) -> None:
        if is_passing(message.error()):
            return
        if message.error() is not None:
            self._record.violate(f"a member of the group: {message.error()}")
            return
        part, offset, identity = seen(message)
        wanted = self._next.get(part, offset)
        if offset != wanted:
            name = "poll-skip" if offset > wanted else "nonmonotonic-poll"
            self._record.violate(
                f"{name}: a member of the group is given {part} offset {offset}, {wanted} was next"
            )
        self._next[part] = offset + 1
        assigned_s = self._assigned_s.pop(part, None)
        if assigned_s is not None:
            self._record.operate(Committed(GROUP, part, offset, assigned_s, self._record.now()))
        self._group.given(part, offset, identity)

    def _on_assign(self, _: Consumer, parts: list[TopicPartition]) -> None:
        self._group.rebalance_count += 1
        now = self._record.now()
        self._next, self._committed = {}, {}
        self._assigned_s = {(part.topic, part.partition): now for part in parts}
        self._record.tell(
            f"a member of the group is assigned {sorted(part.partition for part in parts)}"
        )

    def _on_revoke(self, _: Consumer, __: list[TopicPartition]) -> None:
        self._commit()
        self._next, self._committed, self._assigned_s = {}, {}, {}

    def _commit(self) -> None:
        """Send the next commit unless the previous one is pending, because the library retries
        commits in any order.

        The commit is asynchronous: a synchronous one may block forever (see `clients.within`), also
        inside a rebalance callback, where it cannot run in another thread.
        """
        if self._committing is not None:
            return
        wanted = {
            part: offset
            for part, offset in self._next.items()
            if self._committed.get(part) != offset
        }
        if not wanted:
            return
        self._committing = self._record.now(), wanted
        try:
            self._consumer.commit(
                offsets=[TopicPartition(*part, offset) for part, offset in wanted.items()],
                asynchronous=True,
            )
        except KafkaException as error:
            self._record.tell(f"a member of the group cannot commit: {error}")
            self._settle()

    def _on_commit(self, error: KafkaError | None, response: list[TopicPartition]) -> None:
        if error is not None:
            self._record.tell(f"a member of the group cannot commit: {error}")
        acknowledged = (
            {(part.topic, part.partition) for part in response if part.error is None}
            if error is None
            else set()
        )
        self._settle(acknowledged)

    def _settle(self, acknowledged: Collection[Part] = ()) -> None:
        """Record the result of the pending commit, if any. An unacknowledged commit may have taken
        effect.
        """
        if self._committing is None:
            return
        began_s, wanted = self._committing
        self._committing = None
        for part, offset in wanted.items():
            outcome = Outcome.OK if part in acknowledged else Outcome.INFO
            self._group.commit_count += outcome is Outcome.OK
            now = self._record.now()
            self._record.operate(Commit(GROUP, part, offset, outcome, began_s, now, self._name))
            if outcome is Outcome.OK and part in self._next:
                self._committed[part] = offset


class OffsetAsker(Client):
    """Fetches group offsets from coordinators without being a member. `response_count` counts the
    offsets in responses.
    """

    def __init__(
        self, bootstrap: str, parts: list[Part], record: Record, groups: tuple[str, ...]
    ) -> None:
        super().__init__("offsets of groups", record)
        self._servers = bootstrap
        self._parts = parts
        self._groups = groups
        self.response_count = 0

    def work(self) -> None:
        consumers = {
            group: Consumer({**IMPATIENT, "bootstrap.servers": self._servers, "group.id": group})
            for group in self._groups
        }
        while not self.ending.wait(0.3):
            for group, consumer in consumers.items():
                self.response_count += ask_offsets(consumer, group, self._parts, self.record)
        for consumer in consumers.values():
            consumer.close()


def ask_offsets(consumer: Consumer, group: str, parts: list[Part], record: Record) -> int:
    """Fetch and record the offsets of one group. Return their number, or 0 if the coordinator
    cannot respond now.
    """
    began_s = record.now()
    try:
        response = consumer.committed([TopicPartition(*part) for part in parts], timeout=_ASK_S)
    except KafkaException:
        return 0
    told = [part for part in response if part.error is None]
    for part in told:
        record.operate(
            Committed(
                group, (part.topic, part.partition), max(part.offset, -1), began_s, record.now()
            )
        )
    return len(told)
