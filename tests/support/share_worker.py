"""A share group consumer that follows leaders and coordinators, and a ledger with the outcome of
each record.

A worker accepts every record that it acquires. The ledger detects records that are delivered after
their acceptance was acknowledged, and records that are accepted twice.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import uuid4

from penstock.protocol import apis
from penstock.protocol.client.errors import KafkaFailed
from penstock.protocol.gen import find_coordinator, metadata
from tests.support.share_client import ACCEPT, Acks, ShareMember

BEAT_S = 0.3
PAUSE_S = 0.05


def coordinator_of(bootstrap: str, group: str, member_id: str = "") -> ShareMember:
    """Return a member connected to the coordinator of its group. Raises KafkaFailed."""
    guide = ShareMember(bootstrap, group, member_id)
    try:
        request = find_coordinator.FindCoordinatorRequest(coordinator_keys=[group])
        found = guide.send_request(apis.FIND_COORDINATOR, request)["coordinators"][0]
    finally:
        guide.close()
    if found["error_code"]:
        raise KafkaFailed(f"no coordinator: {found['error_code']}")
    return ShareMember(f"{found['host']}:{found['port']}", group, member_id)


class ShareLedger:
    """The deliveries and acceptances of all workers of a group."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.delivered: dict[tuple[int, int], int] = {}
        """Deliveries by (partition, offset)."""
        self._accepted: dict[tuple[int, int], float] = {}
        self._requested: set[tuple[int, int]] = set()
        self._lock = threading.Lock()

    @property
    def accepted(self) -> set[tuple[int, int]]:
        with self._lock:
            return set(self._accepted)

    @property
    def settled(self) -> set[tuple[int, int]]:
        """Return the accepted records, and those with an acceptance in flight: a killed broker may
        have stored an acceptance without responding.
        """
        with self._lock:
            return self._accepted.keys() | self._requested

    def send_request(self, partition: int, offset: int) -> None:
        with self._lock:
            self._requested.add((partition, offset))

    def deliver(self, partition: int, offset: int, count: int, requested_at: float) -> None:
        with self._lock:
            at = self._accepted.get((partition, offset))
            if at is not None and at < requested_at:
                self.problems.append(
                    f"{partition}-{offset}, accepted, is delivered again ({count})"
                )
            self.delivered[partition, offset] = self.delivered.get((partition, offset), 0) + 1

    def accept(self, partition: int, offset: int) -> None:
        with self._lock:
            if (partition, offset) in self._accepted:
                self.problems.append(f"{partition}-{offset} is accepted twice")
            self._accepted[partition, offset] = time.monotonic()


class ShareWorker:
    """Runs in a thread between `start` and `stop`."""

    def __init__(
        self, bootstrap: Callable[[], str], group: str, topic: str, ledger: ShareLedger
    ) -> None:
        self.member_id = str(uuid4())
        self._bootstrap = bootstrap
        self._group = group
        self._topic = topic
        self._ledger = ledger
        self._sessions: dict[str, tuple[ShareMember, set[int]]] = {}
        self._coordinator: ShareMember | None = None
        self._leaders: dict[int, str] = {}
        self._beat_at = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> "ShareWorker":
        self._thread.start()
        return self

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                if time.monotonic() >= self._beat_at:
                    self._beat()
                self._work()
            except (KafkaFailed, OSError):
                self._forget()
                self._is_over.wait(PAUSE_S)
        self._forget()
        self._lose_coordinator()

    def _forget(self) -> None:
        for member, _ in self._sessions.values():
            member.close()
        self._sessions = {}
        self._leaders = {}
        self._beat_at = 0.0

    # --- the group --------------------------------------------------------------------------------

    def _beat(self) -> None:
        try:
            if self._coordinator is None:
                self._coordinator = self._find_coordinator()
            response = self._coordinator.beat(*self._names())
        except (KafkaFailed, OSError):
            self._lose_coordinator()
            raise
        if response["error_code"]:
            self._lose_coordinator()
            raise KafkaFailed(f"heartbeat: {response['error_code']}")
        self._beat_at = time.monotonic() + BEAT_S

    def _names(self) -> list[str]:
        assert self._coordinator is not None
        return [] if self._coordinator.is_member else [self._topic]

    def _lose_coordinator(self) -> None:
        if self._coordinator is not None:
            with suppress(OSError):
                self._coordinator.close()
        self._coordinator = None

    def _find_coordinator(self) -> ShareMember:
        member = coordinator_of(self._bootstrap(), self._group, self.member_id)
        member.topic_id(self._topic)
        return member

    @property
    def _assigned(self) -> list[int]:
        return [] if self._coordinator is None else self._coordinator.assigned.get(self._topic, [])

    # --- records ----------------------------------------------------------------------------------

    def _work(self) -> None:
        if not self._leaders:
            self._leaders = self._find_leaders()
        requested: dict[str, set[int]] = {}
        for partition in self._assigned:
            if partition in self._leaders:
                requested.setdefault(self._leaders[partition], set()).add(partition)
        if not requested:
            self._leaders = {}
            self._is_over.wait(PAUSE_S)
        for address, partitions in requested.items():
            self._fetch(address, partitions)

    def _find_leaders(self) -> dict[int, str]:
        guide = ShareMember(self._bootstrap(), self._group)
        try:
            response = guide.send_request(apis.METADATA, metadata.MetadataRequest(topics=None))
        finally:
            guide.close()
        brokers = {
            item["node_id"]: f"{item['host']}:{item['port']}" for item in response["brokers"]
        }
        return {
            partition["partition_index"]: brokers[partition["leader_id"]]
            for topic in response["topics"]
            if topic["name"] == self._topic
            for partition in topic["partitions"]
            if partition["leader_id"] in brokers
        }

    def _fetch(self, address: str, partitions: set[int]) -> None:
        if address not in self._sessions:
            self._sessions[address] = ShareMember(address, self._group, self.member_id), set()
        member, known = self._sessions[address]
        requested_at = time.monotonic()
        response = member.fetch(
            *((self._topic, partition) for partition in partitions - known),
            forget=[(self._topic, partition) for partition in known - partitions],
            max_wait_ms=100,
            max_records=20,
        )
        if response["error_code"]:
            raise KafkaFailed(f"fetch: {response['error_code']}")
        self._sessions[address] = member, set(partitions)
        got = self._take(response, requested_at)
        if got:
            self._accept(member, got)

    def _take(self, response: Any, requested_at: float) -> dict[tuple[str, int], list[Any]]:
        got: dict[tuple[str, int], list[Any]] = {}
        for topic in response["responses"]:
            for partition in topic["partitions"]:
                index = partition["partition_index"]
                if partition["error_code"]:
                    raise KafkaFailed(f"fetch of {index}: {partition['error_code']}")
                for item in partition["acquired_records"]:
                    first, last = item["first_offset"], item["last_offset"]
                    for offset in range(first, last + 1):
                        self._ledger.deliver(index, offset, item["delivery_count"], requested_at)
                    got.setdefault((self._topic, index), []).append((first, last, [ACCEPT]))
        return got

    def _accept(self, member: ShareMember, got: Acks) -> None:
        for (_, index), batches in got.items():
            for first, last, _ in batches:
                for offset in range(first, last + 1):
                    self._ledger.send_request(index, offset)
        response = member.acknowledge(got)
        if response["error_code"]:
            raise KafkaFailed(f"acknowledge: {response['error_code']}")
        for topic in response["responses"]:
            for partition in topic["partitions"]:
                index = partition["partition_index"]
                if partition["error_code"]:
                    self._leaders = {}
                    continue
                for first, last, _ in got[self._topic, index]:
                    for offset in range(first, last + 1):
                        self._ledger.accept(index, offset)
