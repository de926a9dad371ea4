"""Record the bucket of a cluster, and the records that clients read, as the fixture of a release.

Run `python -m tests.formats.record_release 1.0` once for each release with new formats. Never
change a released fixture: every later version must read and continue it. The cluster crashes at the
end, so its WALs contain records that were not uploaded.
"""

import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock import topics
from penstock.base.ids import NodeId
from penstock.broker.partition.partition import Partition
from penstock.controller.api.messages import AlterReassignments, PartitionTarget, PutKeyValue
from penstock.controller.metadata.configs import BROKER_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE
from penstock.deploy.clients.features import listed_features, set_levels
from penstock.deploy.clients.wire import WireClient
from penstock.lake.arrow.cluster import StoreCluster
from penstock.objectstore.url import open_store
from penstock.stream.config import StreamConfig
from penstock.stream.ports import BrokerIncarnation
from tests.formats.batches import BASE_MS
from tests.formats.clients import committed_offsets, consumed
from tests.formats.generate import HERE
from tests.support.clients import TIMEOUT_S, confluent_consumer, create_topic, read_records
from tests.support.clients import produce as produce_values
from tests.support.cluster import Cluster
from tests.support.conversation import alter_configs
from tests.support.share_client import ACCEPT, REJECT, RELEASE, ShareMember
from tests.support.waiting import until, wait_until

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
TOPICS: Final[dict[str, tuple[int, dict[str, Any]]]] = {
    "orders": (2, {"segment_bytes": "1048576"}),
    "latest": (1, {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.9"}),
    "stamped": (1, {"message_timestamp_type": "LogAppendTime"}),
    "payments": (1, {}),
    "open": (1, {}),
    "large": (1, {}),
    "trimmed": (1, {}),
    "jobs": (1, {}),
}
"""Topics with their partition counts and configs. None has a retention limit."""

KEPT: Final[dict[str, Any]] = {"retention_ms": "-1"}
SHARE_GROUP: Final = "workers"
CONFIGS: Final = (
    (BROKER_RESOURCE, "", "num.partitions", "2"),
    (BROKER_RESOURCE, "0", "fetch.max.bytes", "33554432"),
    (GROUP_RESOURCE, SHARE_GROUP, "share.auto.offset.reset", "earliest"),
    (TOPIC_RESOURCE, "jobs", "max.message.bytes", "65536"),
)
"""Resource type and name, config, value."""

GRACE_MS: Final = 3_600_000
STREAM: Final = StreamConfig(
    wal_linger_ms=0,
    block_age_max_ms=3_600_000,
    wal_delete_grace_ms=500,
    stream_object_bytes_min=16_384,
)
CONTROLLER: Final = {
    "delete_grace_ms": GRACE_MS,
    "read_grace_ms": 500,
    "late_put_grace_ms": 1_000,
    "janitor_interval_ms": 200,
    "maintenance_interval_ms": 200,
}


class Recording:
    """A cluster that performs every operation that leaves objects in the bucket."""

    def __init__(self, cluster: Cluster, url: str) -> None:
        self._cluster = cluster
        self._url = url
        self._open: Producer | None = None
        self._expected: dict[str, Any] = {}

    async def run(self) -> dict[str, Any]:
        """Run all steps and return what readers must find."""
        await self._leave()
        await self._blocking(self._create, self._produce, self._commit, self._transactions)
        await self._clean()
        await self._upload()
        await self._blocking(self._freeze, self._delete)
        await self._forgotten()
        assert self._cluster.controller is not None
        assert self._cluster.controller.snapshotter is not None
        await self._cluster.controller.snapshotter.take()
        await self._move("orders", 0)
        for node_id in (1, 0):
            await self._crash(node_id)
        # Later records are only in the WALs.
        await self._blocking(self._produce_more, self._share, self._leave_open)
        # The move commits slots in place.
        await self._move("orders-test", 0)
        await self._blocking(self._look)
        return self._expected

    async def _blocking(self, *steps: Callable[[], None]) -> None:
        for step in steps:
            await asyncio.to_thread(step)

    async def _until(self, condition: Callable[[], Any]) -> None:
        await until(condition)

    @property
    def _servers(self) -> str:
        return self._cluster.bootstrap

    @property
    def _address(self) -> str:
        return self._servers.split(",")[0]

    # --- broker steps -----------------------------------------------------------------------------

    async def _leave(self) -> None:
        """Stop a broker gracefully, and wait until the controller has removed its WAL."""
        image = self._cluster.broker.image
        node = await self._cluster.start_broker(2)
        writer = BrokerIncarnation(node.node_id, node.node_epoch)
        await self._until(lambda: image.nodes.wal(writer) is not None)
        await self._cluster.stop_broker(2)
        await self._until(lambda: image.nodes.wal(writer) is None)

    async def _upload(self) -> None:
        for broker in self._cluster.brokers.values():
            await broker.storage.upload()

    async def _clean(self) -> None:
        """Clean the log once. The dirty ratio keeps later records uncleaned."""
        await self._blocking(lambda: self._set_ratio("0.01"))
        broker = await self._cluster.until_served("latest")
        partition = broker.partitions.get("latest", 0)
        assert isinstance(partition, Partition)
        await broker.storage.upload()

        async def is_clean() -> bool:
            await broker.cleaner.check()
            return partition.log.cleaned.end == partition.high_watermark

        await self._until(is_clean)
        await self._blocking(lambda: self._set_ratio("0.9"))

    def _set_ratio(self, value: str) -> None:
        values = {"min.cleanable.dirty.ratio": value}
        assert alter_configs(self._address, (TOPIC_RESOURCE, "latest"), values) == (0, None)

    async def _forgotten(self) -> None:
        """Return when nothing is left of a deleted topic and of a retained log."""
        image = self._cluster.broker.image
        await self._until(lambda: all(state.refs for state in image.objects))
        await self._until(lambda: [bool(stream.kept) for stream in image.streams].count(True) == 1)

    async def _move(self, topic: str, partition: int) -> None:
        target = NodeId(1 - self._cluster.leader_of(topic, partition))
        requested = PartitionTarget(topic=topic, partition=partition, replicas=[target])
        client = self._cluster.broker.client
        (item,) = (
            await client.alter_reassignments(AlterReassignments(partitions=[requested]))
        ).items
        assert not item.status, item.detail
        await self._until(lambda: self._cluster.leader_of(topic, partition) == target)

    async def _crash(self, node_id: int) -> None:
        """Crash a broker whose records are only in its WAL, so that another one fences the WAL.
        Afterwards brokers have nothing cached and read from the store.
        """
        await self._blocking(lambda: produce_values(self._servers, "orders", [b"a"] * 4, (0, 1)))
        image = self._cluster.brokers[1 - node_id].image
        node = self._cluster.brokers[node_id]
        writer = BrokerIncarnation(node.node_id, node.node_epoch)
        await self._cluster.kill_broker(node_id)
        await self._until(lambda: (wal := image.nodes.wal(writer)) is None or wal.ended)
        await self._cluster.start_broker(node_id)

    # --- client steps -----------------------------------------------------------------------------

    def _create(self) -> None:
        for name, (partitions, configs) in TOPICS.items():
            create_topic(self._servers, name, partitions, **KEPT, **configs)
        for name in ("returned", "deleted", "dropped"):
            create_topic(self._servers, name, 1, **KEPT)
        create_topic(self._servers, "gone", 1, penstock_delete_grace_ms="0")
        for kind, name, config, value in CONFIGS:
            assert alter_configs(self._address, (kind, name), {config: value}) == (0, None)

    def _produce(self) -> None:
        for codec in CODECS:
            producer = Producer({"bootstrap.servers": self._servers, "compression.type": codec})
            for number in range(20):
                producer.produce(
                    "orders",
                    f"{codec} {number}",
                    None if number % 5 == 0 else f"key {number}",
                    partition=number % 2,
                    timestamp=BASE_MS + 1_000 * (number ^ 3),
                    headers=[("codec", codec.encode()), ("none", None)] if number == 7 else None,
                )
                producer.produce("latest", f"{codec} {number}", f"key {number % 4}")
                producer.produce("stamped", f"{number}")
            assert producer.flush(TIMEOUT_S) == 0
        for topic in ("large", "gone"):  # enough for a separate object
            produce_values(self._servers, topic, [Random(7).randbytes(20_000)])
        for topic in ("returned", "deleted", "dropped", "trimmed"):
            produce_values(self._servers, topic, [b"%d" % number for number in range(10)])

    def _commit(self) -> None:
        """Commit offsets of two groups: one of the classic protocol, one of the
        consumer protocol.
        """
        for group, settings in (
            ("classic", {}),
            ("modern", {"group_protocol": "consumer"}),
        ):
            consumer = _consumer(self._servers, group, **settings)
            consumer.subscribe(["orders"])
            read_records(consumer, 30)
            consumer.commit(asynchronous=False)
            consumer.close()

    def _transactions(self) -> None:
        """Run transactions of version 1, then of version 2."""
        for level, ends in ((1, ("commit", "abort")), (2, ("commit", "abort", "commit"))):
            with WireClient(self._address) as client:
                now = {item.name: item.level for item in listed_features(client)}
                set_levels(
                    client,
                    {"transaction.version": level},
                    is_downgrade=level < now["transaction.version"],
                    validate_only=False,
                )
            for number, end in enumerate(ends):
                producer = self._begun(f"id {level} {number}")
                for value in range(3):
                    producer.produce("payments", f"{level} {end} {value}", partition=0)
                # Otherwise the client drops unsent records when it aborts.
                assert producer.flush(TIMEOUT_S) == 0
                if end == "commit":
                    producer.commit_transaction(TIMEOUT_S)
                else:
                    producer.abort_transaction(TIMEOUT_S)
        with WireClient(self._address) as client:
            self._expected["features"] = {item.name: item.level for item in listed_features(client)}

    def _begun(self, name: str) -> Producer:
        settings = {"transactional.id": name, "transaction.timeout.ms": 900_000}
        producer = Producer({"bootstrap.servers": self._servers} | settings)
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        return producer

    def _freeze(self) -> None:
        """Create a fork, a snapshot that remains and a snapshot that is deleted."""
        create_topic(self._servers, "orders-test", -1, penstock_fork_source="orders")
        for name in ("orders@nightly", "orders@yesterday"):
            create_topic(self._servers, name, -1, penstock_fork_source="orders")
        self._delete_topics("orders@yesterday")
        self._expected["snapshots"] = [
            {"name": "orders", "snapshot": "nightly", "partitions": self._parts("orders", 2)}
        ]

    def _delete(self) -> None:
        """Delete topics and records: some can be restored, some have been restored, some are
        deleted permanently.
        """
        self._expected["deleted"] = {"name": "deleted", "partitions": self._parts("deleted", 1)}
        self._expected["kept"] = {"name": "trimmed", "partitions": self._parts("trimmed", 1)}
        self._delete_topics("deleted", "returned", "gone")
        create_topic(self._servers, "returned", -1, penstock_undelete="returned")
        for topic in ("trimmed", "dropped"):
            part = TopicPartition(topic, 0, 10)
            admin = AdminClient({"bootstrap.servers": self._servers})
            assert admin.delete_records([part])[part].result(TIMEOUT_S).low_watermark == 10
        off = {"penstock.delete.grace.ms": "0"}
        assert alter_configs(self._address, (TOPIC_RESOURCE, "dropped"), off) == (0, None)

    def _delete_topics(self, *names: str) -> None:
        admin = AdminClient({"bootstrap.servers": self._servers})
        for future in admin.delete_topics(list(names)).values():
            future.result(TIMEOUT_S)

    def _produce_more(self) -> None:
        produce_values(self._servers, "trimmed", [b"new"])
        for topic in ("orders", "orders-test"):
            produce_values(self._servers, topic, [b"%d" % number for number in range(6)], (0, 1))
        for key in ("key 1", "key 9"):
            producer = Producer({"bootstrap.servers": self._servers})
            producer.produce("latest", None if key == "key 1" else "new", key, partition=0)
            assert producer.flush(TIMEOUT_S) == 0

    def _share(self) -> None:
        """Let a share group member accept two records, release one and reject one."""
        produce_values(self._servers, "jobs", [b"job %d" % number for number in range(5)])
        leader = f"127.0.0.1:{self._cluster.brokers[self._cluster.leader_of('jobs')].port}"
        member_id = join_share_group(self._cluster)
        with closing(ShareMember(leader, SHARE_GROUP, member_id)) as member:
            assert member.acquired(("jobs", 0), max_wait_ms=20_000, max_records=5) == [(0, 4, 1)]
            done = [(0, 1, [ACCEPT]), (2, 2, [RELEASE]), (3, 3, [REJECT]), (4, 4, [RELEASE])]
            response = member.acknowledge({("jobs", 0): done})
            assert response["responses"][0]["partitions"][0]["error_code"] == 0
        self._expected["share"] = {"acquired": [[2, 2, 2], [4, 4, 2]]}

    def _leave_open(self) -> None:
        produce_values(self._servers, "open", [b"before"])
        self._open = self._begun("open")
        self._open.produce("open", "never ended", partition=0)
        assert self._open.flush(TIMEOUT_S) == 0
        produce_values(self._servers, "open", [b"after"])

    # --- expected results -------------------------------------------------------------------------

    def _parts(self, topic: str, count: int) -> list[dict[str, Any]]:
        return [consumed(self._servers, topic, number) for number in range(count)]

    def _look(self) -> None:
        internal = {"__consumer_offsets", "__transaction_state", "__share_group_state"}
        names = {*TOPICS, "returned", "dropped", "orders-test", *internal}
        end = self._cluster.broker.image.end_offset
        wait_until(lambda: StoreCluster(self._url, "").newest_root().metadata_offset >= end)
        found = topics(self._url)
        assert {topic.name for topic in found} == names
        given = {name: configs for name, (_, configs) in TOPICS.items()}
        self._expected["topics"] = [
            {
                "name": topic.name,
                "topic_id": str(topic.topic_id),
                "configs": {
                    name.replace("_", "."): value
                    for name, value in given.get(topic.name, {}).items()
                },
                "is_internal": topic.is_internal,
                "partitions": []
                if topic.is_internal
                else self._parts(topic.name, topic.partition_count),
            }
            for topic in found
        ]
        self._expected["groups"] = {
            group: committed_offsets(self._servers, group) for group in ("classic", "modern")
        }
        self._expected["configs"] = CONFIGS


def _consumer(servers: str, group: str, **settings: Any) -> Consumer:
    if settings:
        fixed = {"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest"}
        return Consumer(fixed | {name.replace("_", "."): value for name, value in settings.items()})
    return confluent_consumer(servers, group, session_timeout_ms=10_000)


def join_share_group(cluster: Cluster) -> str:
    """Join the share group at its coordinator. Return the member id."""
    for broker in cluster.brokers.values():
        with closing(ShareMember(f"127.0.0.1:{broker.port}", SHARE_GROUP)) as member:
            if member.coordinates_here():
                return member.join("jobs").member_id
    raise AssertionError("no broker coordinates the group")


async def record(scratch: Path) -> dict[str, Any]:
    url = f"file:{scratch}/bucket"
    store = open_store(url)
    cluster = Cluster(
        scratch,
        brokers=2,
        store=store,
        stream_config=STREAM,
        controller_settings=CONTROLLER,
        offsets_topic_num_partitions=1,
        transaction_state_log_num_partitions=1,
        share_coordinator_state_topic_num_partitions=1,
    )
    try:
        async with cluster:
            recording = Recording(cluster, url)
            await cluster.broker.client.put_key_value(PutKeyValue(key="name", value=b"1.0"))
            return await recording.run()
    finally:
        await store.close()


def main(release: str) -> None:
    folder = HERE / release
    if folder.exists():
        sys.exit(f"{folder.name} exists: fixtures of releases never change")
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        expected = asyncio.run(record(scratch))
        hidden = shutil.ignore_patterns(".penstock")
        shutil.copytree(scratch / "bucket", folder / "bucket", ignore=hidden)
        shutil.copytree(
            scratch / "controller", folder / "controller", ignore=shutil.ignore_patterns("lock")
        )
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
