"""Measure how fast members of a share group process one partition (KIP-932)."""

import threading
import time
from typing import Final
from uuid import UUID, uuid4

from benchmarks import clients, harness
from benchmarks.harness import Measure
from benchmarks.sessions import topic_id_of
from penstock.deploy.clients.wire import WireClient
from penstock.protocol import apis
from penstock.protocol.gen import (
    find_coordinator,
    incremental_alter_configs,
    share_acknowledge,
    share_fetch,
    share_group_heartbeat,
)

MEMBERS: Final = 10
RECORDS: Final = 200_000
_FETCH_RECORDS: Final = 500
"""The default of `max.poll.records` of the Java consumer."""
_BATCH_BYTES: Final = 16_384
_FLUSHED_RECORDS: Final = 50_000
_GROUP: Final = "workers"
_GROUP_RESOURCE: Final = 32
_SET: Final = 0
_ACCEPT: Final = 1


def shares() -> list[Measure]:
    """Let members fetch 1 KiB records and acknowledge each fetch in a separate request."""
    with harness.server(store="memory:") as system:
        clients.create_topic(system.bootstrap)
        producer = clients.producer(
            system.bootstrap, **{"batch.size": _BATCH_BYTES, "linger.ms": 5}
        )
        value = bytes(clients.RECORD_BYTES)
        for number in range(RECORDS):
            producer.produce(clients.TOPIC, value, partition=0)
            if number % _FLUSHED_RECORDS == 0:
                producer.flush(60)
        assert producer.flush(60) == 0
        with WireClient(system.bootstrap) as client:
            topic_id = topic_id_of(client)
            _begin_at_the_start(client)
        members = [_Member(system.bootstrap, topic_id) for _ in range(MEMBERS)]
        cpu_before_s, began = system.send_request()["cpu_s"], time.perf_counter()
        for member in members:
            member.start()
        while sum(member.count for member in members) < RECORDS:
            time.sleep(0.01)
        seconds = time.perf_counter() - began
        cpu_s = system.send_request()["cpu_s"] - cpu_before_s
        for member in members:
            member.stop()
    return [
        Measure(
            f"{MEMBERS} members of a share group, one partition, explicit acknowledgements",
            RECORDS / seconds,
            "records/s",
            20_000,
            "higher",
            note=f"{100 * cpu_s / seconds:.0f} % of a core in the broker",
        )
    ]


def _begin_at_the_start(client: WireClient) -> None:
    config = incremental_alter_configs.AlterableConfig("share.auto.offset.reset", _SET, "earliest")
    resource = incremental_alter_configs.AlterConfigsResource(_GROUP_RESOURCE, _GROUP, [config])
    response = client.send_request(
        apis.INCREMENTAL_ALTER_CONFIGS,
        incremental_alter_configs.IncrementalAlterConfigsRequest([resource]),
        incremental_alter_configs.IncrementalAlterConfigsResponse,
    )
    assert not response.responses[0].error_code, response.responses[0].error_message


class _Member:
    """Fetches and acknowledges in a separate thread."""

    def __init__(self, bootstrap: str, topic_id: UUID) -> None:
        self.count = 0
        """Records whose acknowledgement was confirmed."""
        self._topic_id = topic_id
        self._member_id = str(uuid4())
        self._client = WireClient(bootstrap)
        self._epoch = 0
        self._is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._join()

    def _join(self) -> None:
        """Join the group, which initializes its share partitions."""
        epoch, partitions = 0, 0
        while not partitions:
            find = find_coordinator.FindCoordinatorRequest(coordinator_keys=[_GROUP])
            self._client.send_request(
                apis.FIND_COORDINATOR, find, find_coordinator.FindCoordinatorResponse
            )
            response = self._client.send_request(
                apis.SHARE_GROUP_HEARTBEAT,
                share_group_heartbeat.ShareGroupHeartbeatRequest(
                    group_id=_GROUP,
                    member_id=self._member_id,
                    member_epoch=epoch,
                    subscribed_topic_names=None if epoch else [clients.TOPIC],
                ),
                share_group_heartbeat.ShareGroupHeartbeatResponse,
            )
            epoch = epoch if response.error_code else response.member_epoch
            if response.assignment is not None:
                partitions = len(response.assignment.topic_partitions)
            time.sleep(0.02)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over = True
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        requested = [share_fetch.FetchTopic(self._topic_id, [share_fetch.FetchPartition(0, [])])]
        while not self._is_over:
            response = self._client.send_request(
                apis.SHARE_FETCH,
                share_fetch.ShareFetchRequest(
                    group_id=_GROUP,
                    member_id=self._member_id,
                    share_session_epoch=self._epoch,
                    max_wait_ms=500,
                    min_bytes=1,
                    max_bytes=50 << 20,
                    max_records=_FETCH_RECORDS,
                    batch_size=_FETCH_RECORDS,
                    topics=[] if self._epoch else requested,
                ),
                share_fetch.ShareFetchResponse,
            )
            assert not response.error_code, response.error_code
            self._epoch += 1
            for topic in response.responses:
                for partition in topic.partitions:
                    assert not partition.error_code, partition.error_code
                    if partition.acquired_records:
                        self._accept(partition.acquired_records)

    def _accept(self, acquired: "list[share_fetch.AcquiredRecords]") -> None:
        batches = [
            share_acknowledge.AcknowledgementBatch(item.first_offset, item.last_offset, [_ACCEPT])
            for item in acquired
        ]
        partition = share_acknowledge.AcknowledgePartition(0, batches)
        response = self._client.send_request(
            apis.SHARE_ACKNOWLEDGE,
            share_acknowledge.ShareAcknowledgeRequest(
                group_id=_GROUP,
                member_id=self._member_id,
                share_session_epoch=self._epoch,
                topics=[share_acknowledge.AcknowledgeTopic(self._topic_id, [partition])],
            ),
            share_acknowledge.ShareAcknowledgeResponse,
        )
        assert not response.error_code, response.error_code
        self._epoch += 1
        code = response.responses[0].partitions[0].error_code
        assert not code, code
        self.count += sum(item.last_offset - item.first_offset + 1 for item in acquired)
