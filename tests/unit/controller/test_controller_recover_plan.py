"""Rebuild the image from a backup and the WALs: no durable record is lost, whatever happened since
the backup.
"""

from dataclasses import replace
from random import Random

import pytest

from penstock.base.ids import (
    Millis,
    NodeEpoch,
    NodeId,
    ObjectId,
    StreamId,
    WalSequence,
)
from penstock.controller.disaster_recovery.plan import (
    EPOCHS_SKIPPED,
    IDS_SKIPPED,
    Rebuilt,
    WalkedSlot,
    WalkedWal,
    missing_objects,
    next_base,
    orphans_of,
    rebuild,
    wals_to_walk,
    without_missing,
)
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import RangeEntry
from penstock.controller.metadata.topics import leader_of
from penstock.controller.raft.messages import Base, Endpoint, Members
from penstock.stream.errors import WalSlotLost
from penstock.stream.format.keys import wal_key
from penstock.stream.ports import IN_STORE, BrokerIncarnation, StreamRange
from penstock.stream.recovery.salvage import BadSlot
from tests.support.managers_cluster import ManagersCluster, close, part, slot, snapshot_of, uploaded

NOW_MS = Millis(5_000)
Slots = dict[BrokerIncarnation, dict[int, list[RangeEntry]]]


def walked(image: MetadataImage, slots: Slots) -> list[WalkedWal]:
    """Walk every WAL that needs it, up to its first missing slot."""
    wals: list[WalkedWal] = []
    for writer, start in wals_to_walk(image, slots):
        end = int(start)
        found: list[WalkedSlot] = []
        while end in slots.get(writer, {}):
            ranges = tuple(
                StreamRange(
                    item.stream_id,
                    item.start_offset,
                    item.end_offset,
                    item.record_count,
                    item.size_bytes,
                    item.max_timestamp_ms,
                )
                for item in slots[writer][end]
            )
            found.append(
                WalkedSlot(
                    WalSequence(end), wal_key(writer, WalSequence(end), IN_STORE), 100, ranges
                )
            )
            end += 1
        wals.append(WalkedWal(writer, start, WalSequence(end), tuple(found)))
    return wals


def recovered(image: MetadataImage, slots: Slots) -> tuple[MetadataImage, Rebuilt]:
    rebuilt = rebuild(image, walked(image, slots), orphans=(), now_ms=NOW_MS)
    image.apply_all(rebuilt.records)
    if not rebuilt.gaps:
        image.check_invariants()
    return image, rebuilt


class Life:
    """A cluster, its WALs in the store, and a backup that lags."""

    def __init__(self, seed: int, *, gated: bool) -> None:
        self.rng = Random(seed)
        self.gated = gated
        self.cluster = ManagersCluster()
        self.slots: Slots = {}
        self.live: dict[int, BrokerIncarnation] = {}
        self.durable: dict[int, int] = {}
        self.next_slot: dict[BrokerIncarnation, int] = {}
        self.committed_ends: dict[BrokerIncarnation, int] = {}
        self.in_place: set[tuple[BrokerIncarnation, int]] = set()
        self.useless: list[tuple[int, BrokerIncarnation, int]] = []
        """(metadata offset from which on the slot is not needed, slot)."""
        for node_id in (1, 2, 3):
            self.start(node_id)
        self.cluster.topic("t", 4)
        self.back_up()
        for node in self.live.values():
            self.cluster.open_led(node)

    def start(self, node_id: int) -> None:
        node = self.live[node_id] = self.cluster.broker(node_id)
        self.slots[node], self.next_slot[node], self.committed_ends[node] = {}, 0, 0
        self.back_up()  # a registration completes when it is in the backup

    def back_up(self) -> None:
        self.backup = snapshot_of(self.cluster.image)

    def opened(self, node: BrokerIncarnation) -> list[int]:
        return sorted(self.cluster.image.streams.opened_by(node))

    def write(self, node: BrokerIncarnation) -> None:
        parts: list[RangeEntry] = []
        for stream_id in self.opened(node):
            if self.rng.random() < 0.7:
                start = self.durable.setdefault(stream_id, 0)
                self.durable[stream_id] = start + self.rng.randint(1, 3)
                parts.append(part(stream_id, start, self.durable[stream_id]))
        if parts:
            self.slots[node][self.next_slot[node]] = parts
            self.next_slot[node] += 1

    def uncommitted(
        self, node: BrokerIncarnation, stream_ids: list[int]
    ) -> list[tuple[int, list[RangeEntry]]]:
        """Return the uncommitted ranges by slot."""
        found: list[tuple[int, list[RangeEntry]]] = []
        for sequence in range(self.committed_ends[node], self.next_slot[node]):
            ranges = [
                item
                for item in self.slots[node][sequence]
                if item.stream_id in stream_ids
                and item.end_offset > self.cluster.end(item.stream_id)
            ]
            if ranges:
                found.append((sequence, ranges))
        return found

    def upload(self, node: BrokerIncarnation) -> None:
        """Upload the whole WAL into one object; afterwards its slots are not needed."""
        ends = {stream_id: self.cluster.end(stream_id) for stream_id in self.opened(node)}
        parts = [
            part(stream_id, end, self.durable[stream_id])
            for stream_id, end in ends.items()
            if self.durable.get(stream_id, 0) > end
        ]
        objects = [uploaded(self.cluster.prepare(node)[0], *parts)] if parts else []
        self.cluster.commit(node, *objects, wal=self.next_slot[node])
        for sequence in range(self.committed_ends[node], self.next_slot[node]):
            if (node, sequence) not in self.in_place:
                self.useless.append((self.cluster.image.end_offset, node, sequence))
        self.committed_ends[node] = self.next_slot[node]

    def move(self, index: int) -> None:
        partition = self.cluster.partitions("t")[index]
        source = leader_of(partition)
        target = self.rng.choice([node_id for node_id in self.live if node_id != source.node_id])
        self.cluster.move("t", index, target)
        ids = list(partition.stream_ids)
        named = self.uncommitted(source, list(ids))
        self.in_place |= {(source, sequence) for sequence, _ in named}
        closes = [
            close(stream_id, partition.leader_epoch, self.durable.get(stream_id, 0))
            for stream_id in ids
        ]
        self.cluster.commit(
            source, *(slot(source, sequence, *ranges) for sequence, ranges in named), closes=closes
        )
        self.cluster.open_led(self.live[target])

    def crash(self, node: BrokerIncarnation) -> None:
        self.cluster.die(node)
        self.cluster.tick()
        wal = self.cluster.image.nodes.wal(node)
        assert wal is not None
        named = self.uncommitted(node, self.opened(node))
        self.in_place |= {(node, sequence) for sequence, _ in named}
        end = self.next_slot[node]
        self.cluster.recover(
            wal.recoverer,
            node,
            *(slot(node, sequence, *ranges) for sequence, ranges in named),
            end=end,
        )
        self.useless += [
            (self.cluster.image.end_offset, node, number)
            for number in range(end)
            if (node, number) not in self.in_place
        ]
        self.start(node.node_id)
        for live in self.live.values():
            self.cluster.open_led(live)

    def trim(self, node: BrokerIncarnation) -> None:
        for stream_id in self.opened(node)[:1]:
            stream = self.cluster.image.streams.known(StreamId(stream_id))
            start = self.rng.randint(
                stream.start_offset, max(self.durable.get(stream_id, 0), stream.start_offset)
            )
            self.cluster.trim(node, stream_id, stream.epoch, start)

    def delete(self) -> None:
        """Delete only objects that the backup allows, as brokers and the janitor do."""
        for offset, node, sequence in self.useless:
            if offset <= self.backup.end_offset or not self.gated:
                self.slots[node].pop(sequence, None)

    def step(self) -> None:
        node = self.rng.choice(list(self.live.values()))
        action = self.rng.choices(
            (
                lambda: self.write(node),
                lambda: self.upload(node),
                lambda: self.move(self.rng.randrange(4)),
                lambda: self.crash(node),
                lambda: self.trim(node),
                self.back_up,
                self.delete,
            ),
            (10, 3, 3, 1, 1, 2, 4),
        )[0]
        action()


@pytest.mark.parametrize("seed", range(100))
def test_no_durable_record_is_lost_whenever_the_disks_are_lost(seed: int) -> None:
    life = Life(seed, gated=True)
    for _ in range(60):
        life.step()
    image, rebuilt = recovered(life.backup, life.slots)
    assert rebuilt.gaps == []
    for stream in image.streams:
        assert stream.next_offset == max(life.durable.get(stream.stream_id, 0), stream.start_offset)
        assert not stream.opened
    for state in image.objects:
        if state.wal is not None and state.refs:
            assert state.wal_sequence in life.slots[state.wal], (
                f"{state.key} is referred to and was deleted"
            )
    assert not list(image.nodes.running_wals())
    assert all(
        leader_of(partition).node_id == -1
        for topic in image.topics
        for partition in topic.partitions
    )


def test_deleting_before_the_backup_loses_data_and_the_plan_reports_it() -> None:
    """This is the reason for the rule: in the same histories, objects are deleted as soon as they
    are not needed.
    """
    lost = 0
    for seed in range(60):
        life = Life(seed, gated=False)
        for _ in range(60):
            life.step()
        image, rebuilt = recovered(life.backup, life.slots)
        lost += bool(rebuilt.gaps) or any(
            stream.next_offset < life.durable.get(stream.stream_id, 0) for stream in image.streams
        )
    assert lost > 5


def one() -> tuple[ManagersCluster, BrokerIncarnation, int]:
    """Return a cluster with one partition, its leader and its data stream."""
    cluster = ManagersCluster()
    node = cluster.broker(1)
    partition = cluster.topic("t")[0]
    cluster.open_led(node)
    return cluster, node, partition.data_stream_id


def test_epochs_of_a_deleted_topic_that_may_have_been_restored_are_skipped() -> None:
    cluster, node, data = one()
    cluster.delete("t", grace_ms=1_000)
    image, rebuilt = recovered(snapshot_of(cluster.image), {node: {0: [part(data, 0, 5)]}})
    (topic,) = image.frozen_topics.deleted()
    assert topic.partitions[0].leader_epoch == EPOCHS_SKIPPED
    stream = image.streams.get(StreamId(data))
    assert stream is not None
    assert (stream.opened, stream.end_offset, rebuilt.gaps) == (False, 5, [])


def test_ids_and_epochs_that_may_have_been_given_out_are_skipped() -> None:
    cluster, node, data = one()
    before = snapshot_of(cluster.image)
    image, _ = recovered(snapshot_of(cluster.image), {node: {0: [part(data, 0, 5)]}})
    assert image.next_object_id > before.next_object_id + IDS_SKIPPED
    assert image.next_stream_id == before.next_stream_id + IDS_SKIPPED
    assert image.next_producer_id == before.next_producer_id + IDS_SKIPPED
    assert image.next_node_epoch == before.next_node_epoch + EPOCHS_SKIPPED
    topic = image.topics.by_name("t")
    assert topic is not None
    assert topic.partitions[0].leader_epoch == EPOCHS_SKIPPED
    known = image.nodes.get(node.node_id)
    assert known is not None
    assert known.fenced
    old = Members((0, 1, 2), endpoints=(Endpoint(2, "a:1", "lost disk"),), version=5)
    new = Members((2, 4), endpoints=(Endpoint(2, "a:1"), Endpoint(4)), version=5 + EPOCHS_SKIPPED)
    assert next_base(Base(7, 3, 50, old), 90, (4, 2)) == Base(
        7 + IDS_SKIPPED, 3 + EPOCHS_SKIPPED, 90 + (1 << 32), new
    )


def test_a_wal_that_is_not_in_the_backup_is_read_from_its_first_slot() -> None:
    cluster, node, data = one()
    unknown = BrokerIncarnation(NodeId(9), NodeEpoch(77))
    image, rebuilt = recovered(
        cluster.image,
        {node: {0: [part(data, 0, 5)]}, unknown: {0: [part(data, 5, 8)], 2: [part(data, 8, 9)]}},
    )
    assert rebuilt.gaps == []
    assert [(start, end) for start, end, _ in cluster.spans(data)] == [(0, 5), (5, 8)]
    assert image.next_node_epoch > 77 + EPOCHS_SKIPPED
    wal = image.nodes.wal(unknown)
    assert wal is not None
    assert wal.end == 1


def test_missing_records_are_reported_by_partition_and_offsets() -> None:
    cluster, node, data = one()
    _, rebuilt = recovered(cluster.image, {node: {0: [part(data, 0, 5)], 1: [part(data, 7, 9)]}})
    assert [
        (gap.topic, gap.partition, gap.start_offset, gap.end_offset) for gap in rebuilt.gaps
    ] == [("t", 0, 5, 7)]
    assert cluster.end(data) == 5, "the partition ends at the gap"


def test_transactions_and_checkpoints_after_a_gap_are_dropped() -> None:
    """If a checkpoint of offset 9 were kept with a log that ends at 5, the partition could not be
    opened.
    """
    cluster, node, data = one()
    partition = cluster.partitions("t")[0]
    meta, txn = partition.meta_stream_id, partition.txn_stream_id
    slots = [
        [part(data, 0, 5), part(txn, 0, 2)],
        [part(data, 7, 9), part(txn, 2, 9), part(meta, 0, 3)],
    ]
    _, rebuilt = recovered(cluster.image, {node: dict(enumerate(slots))})
    assert [gap.start_offset for gap in rebuilt.gaps] == [5]
    assert {stream: cluster.end(stream) for stream in (data, txn, meta)} == {
        data: 5,
        txn: 2,
        meta: 0,
    }


def test_offsets_contained_in_two_wals_are_reported() -> None:
    cluster, node, data = one()
    other = BrokerIncarnation(NodeId(2), NodeEpoch(9))
    _, rebuilt = recovered(
        cluster.image, {node: {0: [part(data, 0, 5)]}, other: {0: [part(data, 3, 8)]}}
    )
    assert [(gap.start_offset, gap.end_offset) for gap in rebuilt.gaps] == [(3, 5)]


def test_streams_that_are_not_in_the_backup_are_reported_unless_deleted() -> None:
    cluster, node, data = one()
    cluster.topic("gone")
    gone = cluster.partitions("gone")[0].data_stream_id
    cluster.delete("gone")
    unknown = cluster.image.next_stream_id
    _, rebuilt = recovered(
        cluster.image, {node: {0: [part(data, 0, 5), part(gone, 0, 5), part(unknown, 0, 2)]}}
    )
    assert [(gap.stream_id, gap.start_offset, gap.end_offset) for gap in rebuilt.gaps] == [
        (unknown, 0, 2)
    ]
    assert cluster.end(data) == 5


def test_a_partially_committed_range_is_clipped() -> None:
    cluster, node, data = one()
    cluster.commit(node, uploaded(cluster.prepare(node)[0], part(data, 0, 3)))
    image, rebuilt = recovered(cluster.image, {node: {0: [part(data, 0, 5)]}})
    assert (rebuilt.range_count, rebuilt.record_count) == (1, 2)
    assert [(start, end) for start, end, _ in cluster.spans(data)] == [(0, 3), (3, 5)]
    assert image.streams.known(StreamId(data)).end_offset == 5


def test_a_log_with_a_missing_object_starts_above_it_and_keeps_its_offsets() -> None:
    cluster, node, data = one()
    objects = cluster.prepare(node, 4)
    for at, prepared in enumerate(objects):
        cluster.commit(node, uploaded(prepared, part(data, 5 * at, 5 * at + 5)))
    image = cluster.image
    partition = cluster.partitions("t")[0]
    kept = {prepared.object_id for at, prepared in enumerate(objects) if at not in {1, 2}}
    missing = missing_objects(image, kept, set())
    assert [(gap.start_offset, gap.end_offset) for gap in missing] == [(5, 10), (10, 15)]
    trims, given_up = without_missing(image, missing)
    assert [(gap.topic, gap.partition, gap.start_offset, gap.end_offset) for gap in given_up] == [
        ("t", 0, 0, 5)
    ]
    rebuilt = rebuild(
        image, walked(image, {node: {0: [part(data, 20, 22)]}}), orphans=(), now_ms=NOW_MS
    )
    image.apply_all(rebuilt.records)
    image.apply_all(trims)
    image.check_invariants()
    stream = image.streams.known(StreamId(data))
    assert (
        stream.start_offset,
        [(entry.start_offset, entry.end_offset) for entry in stream.entries],
    ) == (15, [(15, 20), (20, 22)])
    assert image.streams.known(partition.txn_stream_id).start_offset == 15
    assert missing_objects(image, kept, {wal_key(node, WalSequence(0), IN_STORE)}) == []


def test_a_log_starts_above_a_missing_part_of_its_transactions() -> None:
    cluster, node, data = one()
    txn = cluster.partitions("t")[0].txn_stream_id
    first, second = cluster.prepare(node, 2)
    cluster.commit(node, uploaded(first, part(data, 0, 9)))
    cluster.commit(node, uploaded(second, part(txn, 0, 4)))
    trims, given_up = without_missing(
        cluster.image, missing_objects(cluster.image, {first.object_id}, set())
    )
    assert {trim.stream_id: trim.start_offset for trim in trims} == {data: 4, txn: 4}
    assert [(gap.stream_id, gap.start_offset, gap.end_offset) for gap in given_up] == [(data, 0, 4)]


def test_missing_objects_and_orphans_are_reported() -> None:
    cluster, node, data = one()
    prepared = cluster.prepare(node)[0]
    cluster.commit(node, uploaded(prepared, part(data, 0, 3)))
    first = cluster.image.next_object_id
    assert missing_objects(cluster.image, {prepared.object_id}, set()) == []
    gap = missing_objects(cluster.image, set(), set())[0]
    assert (gap.topic, gap.start_offset, gap.end_offset) == ("t", 0, 3)
    ids = [prepared.object_id, ObjectId(first), ObjectId(first + 7), ObjectId(first + IDS_SKIPPED)]
    assert orphans_of(cluster.image, ids) == ids[1:3]
    cluster.apply(
        rebuild(cluster.image, walked(cluster.image, {}), orphans=ids[1:3], now_ms=NOW_MS).records
    )
    cluster.tick()
    cluster.now_ms = NOW_MS
    cluster.tick()
    assert {state.object_id for state in cluster.image.objects.destroyed()} == set(ids[1:3])


def test_a_lost_slot_is_a_gap_even_at_the_end() -> None:
    cluster = ManagersCluster()
    writer = cluster.broker(1)
    key = wal_key(writer, WalSequence(0), IN_STORE)
    bad = BadSlot(WalSequence(0), key, WalSlotLost(key, "slot 1"))
    rebuilt = rebuild(
        cluster.image,
        [WalkedWal(writer, WalSequence(0), WalSequence(1), (), (bad,))],
        orphans=(),
        now_ms=NOW_MS,
    )
    assert [key in gap.what for gap in rebuilt.gaps] == [True]


def test_a_checkpoint_after_a_lost_slot_is_valid_only_if_data_follows() -> None:
    """The content of a lost slot is unknown, so a checkpoint after it may describe lost data."""
    cluster, node, silent = one()
    going = cluster.topic("going")[0]
    cluster.open_led(node)
    silent_meta = cluster.partitions("t")[0].meta_stream_id
    slots = {
        0: [part(silent, 0, 5), part(going.data_stream_id, 0, 5)],
        2: [
            part(going.data_stream_id, 5, 9),
            part(silent_meta, 0, 3),
            part(going.meta_stream_id, 0, 3),
        ],
    }
    (wal,) = walked(cluster.image, {node: {0: slots[0], 1: [], 2: slots[2]}})
    key = wal_key(node, WalSequence(1), IN_STORE)
    lost = BadSlot(WalSequence(1), key, WalSlotLost(key, "slot 2"))
    found = tuple(item for item in wal.slots if item.sequence != 1)
    rebuilt = rebuild(
        cluster.image, [replace(wal, slots=found, bad=(lost,))], orphans=(), now_ms=NOW_MS
    )
    cluster.apply(rebuilt.records)
    ends = {
        stream: cluster.end(stream)
        for stream in (silent, silent_meta, going.data_stream_id, going.meta_stream_id)
    }
    assert ends == {silent: 5, silent_meta: 0, going.data_stream_id: 9, going.meta_stream_id: 3}
