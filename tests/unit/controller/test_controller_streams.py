"""Open, trim, commit and close: one test for each row of the table of checks, and its
edge cases.
"""

import msgspec
import pytest

from penstock.base.ids import (
    Millis,
    NodeEpoch,
    NodeId,
    ObjectId,
)
from penstock.controller.api.messages import Status
from penstock.controller.managers import objects
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.objects import ObjectPhase
from penstock.controller.metadata.records import MetadataOffset, ObjectCommitted, ObjectDestroyed
from penstock.stream.format.keys import data_key
from penstock.stream.ports import BrokerIncarnation, ObjectRole
from tests.support.managers_cluster import (
    ManagersCluster,
    close,
    part,
    replaced,
    slot,
    snapshot_of,
    stale,
    uploaded,
)


@pytest.fixture
def cluster() -> ManagersCluster:
    return ManagersCluster()


@pytest.fixture
def one(cluster: ManagersCluster) -> BrokerIncarnation:
    """Return a broker that is leader of t-0: streams 0 (meta) and 1 (data), both open
    at epoch 0.
    """
    node = cluster.broker(1)
    cluster.topic("t")
    cluster.open_led(node)
    return node


class TestNodeChecks:
    def test_unknown_nodes_and_wrong_node_epochs_are_rejected(
        self, cluster: ManagersCluster, one: BrokerIncarnation
    ) -> None:
        cluster.commit(
            BrokerIncarnation(NodeId(9), NodeEpoch(1)), status=Status.NODE_EPOCH_NOT_EXIST
        )
        cluster.commit(stale(one, -1), status=Status.NODE_EPOCH_NOT_EXIST)
        cluster.broker(1)
        cluster.commit(one, status=Status.NODE_EPOCH_EXPIRED)

    def test_a_fenced_node_cannot_commit(
        self, cluster: ManagersCluster, one: BrokerIncarnation
    ) -> None:
        cluster.die(one)
        cluster.commit(one, slot(one, 0, part(1, 0, 5)), status=Status.NODE_FENCED)
        assert cluster.end(1) == 0


class TestOpen:
    def test_opening_a_stream_again_succeeds_without_a_record(
        self, cluster: ManagersCluster, one: BrokerIncarnation
    ) -> None:
        before = cluster.image.end_offset
        assert cluster.open_one(one, 1, 0).end_offset == 0
        assert cluster.image.end_offset == before

    def test_opening_a_nonexistent_stream_fails(
        self, cluster: ManagersCluster, one: BrokerIncarnation
    ) -> None:
        cluster.open_one(one, 77, 0, Status.STREAM_NOT_EXIST)

    def test_a_broker_that_does_not_lead_the_partition_is_fenced(
        self, cluster: ManagersCluster, one: BrokerIncarnation
    ) -> None:
        two = cluster.broker(2)
        cluster.open_one(two, 1, 0, Status.STREAM_FENCED)
        cluster.open_one(two, 1, 1, Status.STREAM_FENCED)

    def test_one_invalid_stream_does_not_affect_the_others(
        self, cluster: ManagersCluster, one: BrokerIncarnation
    ) -> None:
        statuses = [item.status for item in cluster.open(one, (77, 0), (1, 0), (1, 0))]
        assert statuses == [Status.STREAM_NOT_EXIST, Status.OK, Status.DUPLICATE_IN_REQUEST]

    def test_an_older_epoch_is_fenced_and_the_next_one_continues_at_the_end(
        self, cluster: ManagersCluster, one: BrokerIncarnation
    ) -> None:
        cluster.commit(one, slot(one, 0, part(1, 0, 5)))
        cluster.die(one)
        two = cluster.broker(2)
        cluster.tick()
        cluster.recover(two, one, end=1)
        opened = cluster.open_one(two, 1, 1)
        assert (opened.start_offset, opened.end_offset) == (0, 5)
        cluster.open_one(two, 1, 0, Status.STREAM_FENCED)

    def test_a_stream_open_with_an_earlier_epoch_must_be_closed_first(
        self, cluster: ManagersCluster, one: BrokerIncarnation
    ) -> None:
        cluster.die(one)
        two = cluster.broker(2)
        moved = msgspec.structs.replace(
            cluster.partitions("t")[0],
            replicas=(1, 2),
            leader=two.node_id,
            leader_node_epoch=two.node_epoch,
            leader_epoch=1,
        )
        cluster.apply([moved])
        cluster.open_one(two, 1, 1, Status.STREAM_NOT_CLOSED)


class TestTrim:
    def test_trimming_drops_entries_below_and_keeps_the_end(
        self, cluster: ManagersCluster, one: BrokerIncarnation
    ) -> None:
        cluster.commit(one, slot(one, 0, part(1, 0, 5)), slot(one, 1, part(1, 5, 9)))
        cluster.trim(one, 1, 0, 6)
        assert cluster.spans(1) == [(5, 9, 1)]
        cluster.trim(one, 1, 0, 6)
        cluster.trim(one, 1, 0, 5, Status.OFFSET_NOT_MATCHED)
        cluster.trim(one, 1, 0, 9)
        assert cluster.spans(1) == []
        assert cluster.end(1) == 9

    def test_trims_with_wrong_epochs_owners_or_streams_are_rejected(
        self, cluster: ManagersCluster, one: BrokerIncarnation
    ) -> None:
        two = cluster.broker(2)
        cluster.trim(one, 77, 0, 1, Status.STREAM_NOT_EXIST)
        cluster.trim(one, 1, 1, 1, Status.STREAM_NOT_OPENED)
        cluster.trim(one, 1, -1, 1, Status.STREAM_FENCED)
        cluster.trim(two, 1, 0, 1, Status.STREAM_FENCED)
        cluster.commit(one, closes=[close(1, 0, 0)])
        cluster.trim(one, 1, 0, 1, Status.STREAM_NOT_OPENED)

    def test_a_trim_may_be_ahead_of_the_committed_end_while_data_is_in_the_wal(
        self, cluster: ManagersCluster, one: BrokerIncarnation
    ) -> None:
        cluster.trim(one, 1, 0, 7)
        cluster.commit(
            one,
            slot(one, 0, part(1, 0, 5)),
            slot(one, 1, part(1, 5, 9)),
            slot(one, 2, part(1, 9, 12)),
        )
        assert [span[:2] for span in cluster.spans(1)] == [(5, 9), (9, 12)]

    def test_a_commit_may_omit_only_trimmed_data(
        self, cluster: ManagersCluster, one: BrokerIncarnation
    ) -> None:
        cluster.trim(one, 1, 0, 7)
        cluster.commit(one, slot(one, 0, part(1, 8, 9)), status=Status.OFFSET_NOT_MATCHED)
        cluster.commit(one, slot(one, 0, part(1, 6, 9)))
        cluster.commit(one, slot(one, 1, part(1, 10, 12)), status=Status.OFFSET_NOT_MATCHED)
        cluster.commit(one, slot(one, 1, part(1, 6, 12)), status=Status.OFFSET_NOT_MATCHED)


class TestContinuity:
    def test_gaps_and_overlaps_are_rejected(
        self, cluster: ManagersCluster, one: BrokerIncarnation
    ) -> None:
        cluster.commit(one, slot(one, 0, part(1, 0, 5)))
        cluster.commit(one, slot(one, 1, part(1, 6, 9)), status=Status.OFFSET_NOT_MATCHED)
        cluster.commit(one, slot(one, 1, part(1, 4, 9)), status=Status.OFFSET_NOT_MATCHED)
        cluster.commit(one, slot(one, 1, part(1, 5, 9)))
        assert [span[:2] for span in cluster.spans(1)] == [(0, 5), (5, 9)]

    def test_one_invalid_range_fails_the_whole_transaction(
        self, cluster: ManagersCluster, one: BrokerIncarnation
    ) -> None:
        cluster.commit(
            one, slot(one, 0, part(0, 0, 5), part(1, 1, 5)), status=Status.OFFSET_NOT_MATCHED
        )
        assert cluster.end(0) == 0

    def test_commits_to_foreign_and_closed_streams_are_rejected(
        self, cluster: ManagersCluster, one: BrokerIncarnation
    ) -> None:
        two = cluster.broker(2)
        cluster.commit(two, slot(two, 0, part(1, 0, 5)), status=Status.STREAM_FENCED)
        cluster.commit(one, closes=[close(1, 0, 0)])
        cluster.commit(one, slot(one, 0, part(1, 0, 5)), status=Status.STREAM_NOT_OPENED)

    def test_a_deleted_stream_does_not_affect_the_others(
        self, cluster: ManagersCluster, one: BrokerIncarnation
    ) -> None:
        cluster.topic("other")
        cluster.open_led(one)
        cluster.delete("t")
        item = cluster.prepare(one)[0]
        cluster.commit(one, uploaded(item, part(1, 0, 5), part(3, 0, 4)), wal=1)
        assert cluster.spans(3) == [(0, 4, item.object_id)]
        cluster.open_one(one, 1, 0, Status.STREAM_NOT_EXIST)

    def test_a_late_upload_of_a_closed_stream_counts_as_committed(
        self, cluster: ManagersCluster, one: BrokerIncarnation
    ) -> None:
        item = cluster.prepare(one)[0]
        cluster.commit(one, slot(one, 0, part(1, 0, 5)), closes=[close(1, 0, 5)])
        cluster.commit(one, uploaded(item, part(0, 0, 3), part(1, 0, 5)), wal=1)
        assert cluster.spans(0) == [(0, 3, item.object_id)]
        assert len(cluster.spans(1)) == 1
        assert cluster.spans(1)[0][2] != item.object_id


class TestCommit:
    def test_a_commit_can_be_repeated_after_a_lost_response(
        self, cluster: ManagersCluster, one: BrokerIncarnation
    ) -> None:
        item = cluster.prepare(one)[0]
        for records in (4, 0):
            cluster.commit(
                one,
                uploaded(item, part(0, 0, 3)),
                slot(one, 4, part(1, 0, 5)),
                closes=[close(1, 0, 5)],
                wal=3,
                records=records,
            )

    def test_a_close_can_be_repeated_after_another_broker_opened_the_stream(
        self, cluster: ManagersCluster, one: BrokerIncarnation
    ) -> None:
        cluster.commit(one, slot(one, 0, part(1, 0, 5)), closes=[close(1, 0, 5), close(0, 0, 0)])
        two = cluster.broker(2)
        moved = msgspec.structs.replace(
            cluster.partitions("t")[0],
            replicas=(2,),
            leader=two.node_id,
            leader_node_epoch=two.node_epoch,
            leader_epoch=1,
        )
        cluster.apply([moved])
        cluster.open_one(two, 1, 1)
        cluster.commit(one, slot(one, 0, part(1, 0, 5)), closes=[close(1, 0, 5)], records=0)
        cluster.commit(one, closes=[close(1, 0, 6)], status=Status.STREAM_FENCED)

    def test_commits_of_unprepared_expired_or_foreign_objects_are_rejected(
        self, cluster: ManagersCluster, one: BrokerIncarnation
    ) -> None:
        first, second = cluster.prepare(one, 2)
        wrong = msgspec.structs.replace(uploaded(first, part(1, 0, 5)), key=second.key)
        cluster.commit(one, wrong, status=Status.OBJECT_NOT_EXIST)
        cluster.now_ms = Millis(cluster.now_ms + objects.PREPARED_TTL_MS)
        cluster.tick()
        cluster.commit(one, uploaded(first, part(1, 0, 5)), status=Status.OBJECT_NOT_EXIST)

    def test_commits_of_slots_of_other_wals_or_below_the_committed_slot_are_rejected(
        self, cluster: ManagersCluster, one: BrokerIncarnation
    ) -> None:
        two = cluster.broker(2)
        cluster.commit(one, slot(two, 0, part(1, 0, 5)), status=Status.INVALID_REQUEST)
        cluster.commit(one, wal=3, records=1)
        cluster.commit(one, wal=2, records=0)
        cluster.commit(one, slot(one, 2, part(1, 0, 5)), status=Status.OBJECT_NOT_EXIST)

    def test_one_slot_can_close_several_streams(
        self, cluster: ManagersCluster, one: BrokerIncarnation
    ) -> None:
        cluster.commit(one, slot(one, 0, part(1, 0, 5)), closes=[close(1, 0, 5)])
        cluster.commit(one, slot(one, 0, part(0, 0, 2)), closes=[close(0, 0, 2)])
        assert cluster.spans(1)[0][2] == cluster.spans(0)[0][2]
        state = cluster.image.objects.get(ObjectId(cluster.spans(1)[0][2]))
        assert state is not None
        assert state.refs == 2

    def test_a_slot_has_at_most_one_range_per_stream(
        self, cluster: ManagersCluster, one: BrokerIncarnation
    ) -> None:
        cluster.commit(one, slot(one, 0, part(1, 0, 5)))
        cluster.commit(one, slot(one, 0, part(1, 5, 9)), status=Status.OFFSET_NOT_MATCHED)

    def test_malformed_commits_are_rejected(
        self, cluster: ManagersCluster, one: BrokerIncarnation
    ) -> None:
        item = cluster.prepare(one)[0]
        cluster.commit(one, slot(one, 0, part(1, 5, 5)), status=Status.INVALID_REQUEST)
        cluster.commit(
            one, slot(one, 0, part(1, 0, 5), part(1, 5, 6)), status=Status.INVALID_REQUEST
        )
        cluster.commit(one, slot(one, 0), slot(one, 0), status=Status.DUPLICATE_IN_REQUEST)
        fence = msgspec.structs.replace(uploaded(item), role=ObjectRole.FENCE)
        cluster.commit(one, fence, status=Status.INVALID_REQUEST)
        cluster.commit(one, *[slot(one, n) for n in range(1_001)], status=Status.INVALID_REQUEST)


class TestClose:
    def test_a_stream_must_be_closed_at_the_committed_end(
        self, cluster: ManagersCluster, one: BrokerIncarnation
    ) -> None:
        cluster.commit(
            one,
            slot(one, 0, part(1, 0, 5)),
            closes=[close(1, 0, 6)],
            status=Status.OFFSET_NOT_MATCHED,
        )
        cluster.commit(
            one,
            slot(one, 0, part(1, 0, 5)),
            closes=[close(1, 0, 4)],
            status=Status.OFFSET_NOT_MATCHED,
        )
        cluster.commit(one, slot(one, 0, part(1, 0, 5)), closes=[close(1, 0, 5)])
        cluster.commit(one, closes=[close(1, 0, 5)], records=0)
        cluster.commit(one, closes=[close(1, 0, 4)], status=Status.OFFSET_NOT_MATCHED)

    def test_closing_with_a_wrong_epoch_or_owner_is_rejected(
        self, cluster: ManagersCluster, one: BrokerIncarnation
    ) -> None:
        two = cluster.broker(2)
        cluster.commit(one, closes=[close(1, 1, 0)], status=Status.STREAM_NOT_OPENED)
        cluster.commit(two, closes=[close(1, 0, 0)], status=Status.STREAM_FENCED)

    def test_closing_a_deleted_stream_succeeds(
        self, cluster: ManagersCluster, one: BrokerIncarnation
    ) -> None:
        cluster.delete("t")
        cluster.commit(one, closes=[close(1, 0, 0)], records=0)


class TestCompaction:
    @pytest.fixture
    def log(self, cluster: ManagersCluster, one: BrokerIncarnation) -> list[int]:
        """Commit [0,5) [5,9) [9,12) of stream 1 in three slots; return the object ids."""
        cluster.commit(
            one,
            slot(one, 0, part(1, 0, 5)),
            slot(one, 1, part(1, 5, 9)),
            slot(one, 2, part(1, 9, 12)),
        )
        return [span[2] for span in cluster.spans(1)]

    def test_an_exact_cover_is_replaced_and_the_end_stays(
        self, cluster: ManagersCluster, one: BrokerIncarnation, log: list[int]
    ) -> None:
        item = cluster.prepare(one)[0]
        sources = [replaced(1, log[0], 0, 5), replaced(1, log[1], 5, 9)]
        for records in (2, 0):
            cluster.commit(one, uploaded(item, part(1, 0, 9)), replaced=sources, records=records)
            assert cluster.spans(1) == [(0, 9, item.object_id), (9, 12, log[2])]

    def test_one_stream_can_be_compacted_into_several_objects(
        self, cluster: ManagersCluster, one: BrokerIncarnation, log: list[int]
    ) -> None:
        first, second = cluster.prepare(one, 2)
        sources = [replaced(1, log[0], 0, 5), replaced(1, log[1], 5, 9), replaced(1, log[2], 9, 12)]
        cluster.commit(
            one, uploaded(second, part(1, 7, 12)), uploaded(first, part(1, 0, 7)), replaced=sources
        )
        assert cluster.spans(1) == [(0, 7, first.object_id), (7, 12, second.object_id)]

    @pytest.mark.parametrize(("start", "end"), [(0, 12), (0, 8), (1, 9), (0, 13), (5, 9)])
    def test_anything_but_an_exact_cover_is_rejected(
        self, cluster: ManagersCluster, one: BrokerIncarnation, log: list[int], start: int, end: int
    ) -> None:
        item = cluster.prepare(one)[0]
        sources = [replaced(1, log[0], 0, 5), replaced(1, log[1], 5, 9)]
        cluster.commit(
            one,
            uploaded(item, part(1, start, end)),
            replaced=sources,
            status=Status.COMPACTED_OBJECTS_NOT_FOUND,
        )

    def test_compactions_with_gaps_missing_sources_or_outputs_are_rejected(
        self, cluster: ManagersCluster, one: BrokerIncarnation, log: list[int]
    ) -> None:
        item = cluster.prepare(one)[0]
        gone = Status.COMPACTED_OBJECTS_NOT_FOUND
        cluster.commit(
            one,
            uploaded(item, part(1, 0, 12)),
            replaced=[replaced(1, log[0], 0, 5), replaced(1, log[2], 9, 12)],
            status=gone,
        )
        cluster.commit(
            one, uploaded(item, part(1, 0, 5)), replaced=[replaced(1, 99, 0, 5)], status=gone
        )
        cluster.commit(
            one, uploaded(item, part(1, 0, 4)), replaced=[replaced(1, log[0], 0, 4)], status=gone
        )
        cluster.commit(one, uploaded(item), replaced=[replaced(1, log[0], 0, 5)], status=gone)

    def test_a_compaction_tolerates_trimming_meanwhile(
        self, cluster: ManagersCluster, one: BrokerIncarnation, log: list[int]
    ) -> None:
        item = cluster.prepare(one)[0]
        sources = [replaced(1, log[0], 0, 5), replaced(1, log[1], 5, 9)]
        cluster.trim(one, 1, 0, 6)
        cluster.commit(one, uploaded(item, part(1, 0, 9)), replaced=sources)
        assert cluster.spans(1) == [(0, 9, item.object_id), (9, 12, log[2])]

    def test_a_compaction_of_trimmed_or_deleted_sources_changes_nothing(
        self, cluster: ManagersCluster, one: BrokerIncarnation, log: list[int]
    ) -> None:
        first, second = cluster.prepare(one, 2)
        cluster.trim(one, 1, 0, 5)
        cluster.commit(one, uploaded(first, part(1, 0, 5)), replaced=[replaced(1, log[0], 0, 5)])
        cluster.delete("t")
        cluster.commit(one, uploaded(second, part(1, 5, 9)), replaced=[replaced(1, log[1], 5, 9)])
        cluster.tick()
        assert all(
            state.phase == ObjectPhase.DESTROYED
            for state in cluster.image.objects
            if state.wal is None
        )

    def test_only_the_owner_can_compact_a_stream(
        self, cluster: ManagersCluster, one: BrokerIncarnation, log: list[int]
    ) -> None:
        two = cluster.broker(2)
        item = cluster.prepare(two)[0]
        cluster.commit(
            two,
            uploaded(item, part(1, 0, 5)),
            replaced=[replaced(1, log[0], 0, 5)],
            status=Status.STREAM_FENCED,
        )


class TestObjects:
    def test_a_slot_used_in_place_is_kept_until_recovery_no_longer_needs_it(
        self, cluster: ManagersCluster, one: BrokerIncarnation
    ) -> None:
        cluster.commit(one, slot(one, 5, part(1, 0, 5)))
        cluster.trim(one, 1, 0, 5)
        cluster.tick()
        assert [state.phase for state in cluster.image.objects] == [ObjectPhase.COMMITTED]
        cluster.commit(one, wal=6)
        cluster.tick()
        assert [state.phase for state in cluster.image.objects] == [ObjectPhase.DESTROYED]

    def test_uncommitted_objects_are_deleted_once_no_put_of_them_can_arrive(
        self, cluster: ManagersCluster, one: BrokerIncarnation
    ) -> None:
        item = cluster.prepare(one)[0]
        cluster.now_ms += objects.PREPARED_TTL_MS
        cluster.tick()
        late_ms = 3_600_000
        assert cluster.deletable(late_ms - 1, late_ms) == []
        due = cluster.deletable(late_ms, late_ms)
        assert [state.object_id for state in due] == [item.object_id]

    def test_destroyed_objects_are_removed_after_the_grace_period(
        self, cluster: ManagersCluster, one: BrokerIncarnation
    ) -> None:
        item = cluster.prepare(one)[0]
        cluster.commit(one, uploaded(item, part(1, 0, 5)))
        cluster.delete("t")
        cluster.tick()
        assert cluster.deletable(999, 3_600_000) == []
        due = cluster.deletable(1_000, 3_600_000)
        assert [state.object_id for state in due] == [item.object_id]
        cluster.apply(
            objects.objects_removed(cluster.image, [item.object_id, item.object_id, ObjectId(99)])
        )
        assert len(cluster.image.objects) == 0
        assert cluster.prepare(one)[0].object_id > item.object_id

    def test_only_the_oldest_destroyed_objects_are_examined(self) -> None:
        """The deletion of a topic may destroy a million objects."""
        ids = [ObjectId(number) for number in (21, 22, 23, *range(1, 21), *range(24, 41))]
        image = MetadataImage()
        image.load(
            ObjectCommitted(number, data_key(number), ObjectRole.STREAM, 1, Millis(0), ())
            for number in sorted(ids)
        )
        image.loaded(MetadataOffset(100))
        image.apply_all(
            ObjectDestroyed(number, Millis(0), MetadataOffset(offset))
            for offset, number in enumerate(ids, 100)
        )
        for found in (image, snapshot_of(image)):
            examined: list[int] = []

            def age_s(since: int, examined: list[int] = examined) -> float:
                examined.append(since)
                return 60.0

            due = objects.deletable(found, age_s, 1_000, 1_000, 3)
            assert [state.object_id for state in due] == [21, 22, 23]
            assert len(examined) <= 4
