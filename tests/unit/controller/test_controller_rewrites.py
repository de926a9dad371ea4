"""External jobs replace ranges: permitted changes, and conflicts if their sources
change meanwhile.
"""

from collections.abc import Sequence

import msgspec
import pytest

from penstock.base.ids import (
    Millis,
    ObjectId,
    Offset,
    StreamId,
    WalSequence,
)
from penstock.controller.api.messages import ItemResult, PreparedItem, Status
from penstock.controller.api.rewrite_messages import (
    CommitRewrite,
    PrepareRewrite,
    RewriteItem,
    RewriteSource,
)
from penstock.controller.managers import objects, rewrites
from penstock.controller.metadata.objects import ObjectPhase
from penstock.stream.format.keys import data_key, wal_key
from penstock.stream.ports import IN_STORE, BrokerIncarnation, ObjectRole
from tests.support.managers_cluster import ManagersCluster, close, part, replaced, slot, uploaded

GONE = Status.COMPACTED_OBJECTS_NOT_FOUND
DATA = StreamId(1)


@pytest.fixture
def cluster() -> ManagersCluster:
    return ManagersCluster()


@pytest.fixture
def one(cluster: ManagersCluster) -> BrokerIncarnation:
    """Return the leader of t-0, whose data stream has [0,5) and [5,9) in two slots, and [9,12) in
    an object.
    """
    node = cluster.broker(1)
    cluster.topic("t")
    cluster.open_led(node)
    cluster.commit(
        node,
        slot(node, 0, part(1, 0, 5)),
        slot(node, 1, part(1, 5, 9)),
        uploaded(cluster.prepare(node)[0], part(1, 9, 12)),
    )
    return node


def prepare(
    cluster: ManagersCluster, count: int = 1, *, ttl_ms: int = 60_000, status: Status = Status.OK
) -> list[PreparedItem]:
    value = cluster.run(
        rewrites.prepare_rewrite(
            cluster.image, PrepareRewrite(count=count, ttl_ms=ttl_ms), cluster.now_ms
        ),
        status,
    )
    return value.items if value is not None else []


def sources(cluster: ManagersCluster, start: int, end: int) -> list[RewriteSource]:
    """Return the entries as listed in the current manifest."""
    keys = {state.object_id: state.key for state in cluster.image.objects}
    return [
        RewriteSource(
            key=keys[ObjectId(object_id)], start_offset=Offset(low), end_offset=Offset(high)
        )
        for low, high, object_id in cluster.spans(1)
        if low < end and high > start
    ]


def item(target: PreparedItem, start: int, end: int, found: Sequence[RewriteSource]) -> RewriteItem:
    return RewriteItem(
        new=msgspec.structs.replace(uploaded(target, part(1, start, end)), role=ObjectRole.STREAM),
        sources=list(found),
    )


def commit(
    cluster: ManagersCluster,
    *items: RewriteItem,
    status: Status = Status.OK,
    records: int | None = None,
    is_ordered: bool = False,
) -> list[ItemResult]:
    request = CommitRewrite(stream_id=DATA, items=list(items), is_ordered=is_ordered)
    value = cluster.run(
        rewrites.commit_rewrite(cluster.image, request, cluster.now_ms), status, records=records
    )
    return value.items if value is not None else []


def statuses(
    cluster: ManagersCluster, *items: RewriteItem, records: int | None = None
) -> list[Status]:
    return [result.status for result in commit(cluster, *items, records=records)]


def test_a_replacement_changes_neither_end_nor_owner_and_can_be_repeated(
    cluster: ManagersCluster, one: BrokerIncarnation
) -> None:
    requested = item(prepare(cluster)[0], 0, 12, sources(cluster, 0, 12))
    for records in (2, 0):
        assert statuses(cluster, requested, records=records) == [Status.OK]
    stream = cluster.image.streams.get(DATA)
    assert stream is not None
    assert cluster.spans(1) == [(0, 12, requested.new.object_id)]
    assert (stream.end_offset, stream.owner, stream.epoch, stream.opened) == (12, one, 0, True)
    cluster.commit(one, slot(one, 2, part(1, 12, 13)), closes=[close(1, 0, 13)])


def test_a_replacement_does_not_rebuild_the_log_index(
    cluster: ManagersCluster, one: BrokerIncarnation
) -> None:
    """A request may replace 1,000 ranges of a log with 100,000, which is one step of the event
    loop.
    """
    entries = cluster.image.streams.known(DATA).entries
    (target,) = prepare(cluster)
    commit(cluster, item(target, 5, 12, sources(cluster, 5, 12)))
    assert cluster.spans(1)[1:] == [(5, 12, target.object_id)]
    assert cluster.image.streams.known(DATA).entries is entries


def test_ranges_can_be_replaced_without_a_leader(
    cluster: ManagersCluster, one: BrokerIncarnation
) -> None:
    found = sources(cluster, 0, 9)
    cluster.give_up(one)
    cluster.die(one)
    assert statuses(cluster, item(prepare(cluster)[0], 0, 9, found)) == [Status.OK]
    assert cluster.end(1) == 12


def test_items_of_a_request_are_independent(
    cluster: ManagersCluster, one: BrokerIncarnation
) -> None:
    early, late = prepare(cluster, 2)
    first, second = (
        item(early, 0, 9, sources(cluster, 0, 9)),
        item(late, 9, 12, sources(cluster, 9, 12)),
    )
    mine = cluster.prepare(one)[0]
    ids = [span[2] for span in cluster.spans(1)]
    cluster.commit(
        one,
        uploaded(mine, part(1, 5, 12)),
        replaced=[replaced(1, ids[1], 5, 9), replaced(1, ids[2], 9, 12)],
    )
    assert statuses(cluster, first, second, records=0) == [GONE, GONE], (
        "compacted by the broker meanwhile"
    )
    commit(
        cluster,
        first,
        item(late, 0, 12, sources(cluster, 0, 12)),
        status=Status.DUPLICATE_IN_REQUEST,
    )


def test_one_conflict_does_not_affect_other_items(
    cluster: ManagersCluster, one: BrokerIncarnation
) -> None:
    early, late = prepare(cluster, 2)
    wrong = [
        RewriteSource(key=data_key(ObjectId(7_777)), start_offset=Offset(9), end_offset=Offset(12))
    ]
    results = commit(cluster, item(early, 0, 9, sources(cluster, 0, 9)), item(late, 9, 12, wrong))
    assert [result.status for result in results] == [Status.OK, GONE]
    assert "does not hold [9, 12) any more" in results[1].detail
    assert cluster.spans(1)[0] == (0, 9, early.object_id)


def test_in_an_ordered_request_a_conflict_rejects_all_later_items(
    cluster: ManagersCluster, one: BrokerIncarnation
) -> None:
    first, second, third = prepare(cluster, 3)
    items = [
        item(first, 0, 5, sources(cluster, 0, 5)),
        item(
            second,
            5,
            9,
            [RewriteSource(key="data/none", start_offset=Offset(5), end_offset=Offset(9))],
        ),
        item(third, 9, 12, sources(cluster, 9, 12)),
    ]
    before = cluster.spans(1)
    responses = [result.status for result in commit(cluster, *items, is_ordered=True)]
    assert responses == [Status.OK, GONE, GONE]
    assert cluster.spans(1) == [(0, 5, first.object_id), *before[1:]]
    again = [result.status for result in commit(cluster, *items, is_ordered=True, records=0)]
    assert again == responses, "a repetition changes nothing"


@pytest.mark.parametrize(("start", "end"), [(0, 12), (0, 8), (1, 9), (5, 9)])
def test_offsets_other_than_those_of_the_sources_are_rejected(
    cluster: ManagersCluster, one: BrokerIncarnation, start: int, end: int
) -> None:
    requested = item(prepare(cluster)[0], start, end, sources(cluster, 0, 9))
    assert statuses(cluster, requested, records=0) == [GONE]


def test_a_gap_between_the_sources_is_rejected(
    cluster: ManagersCluster, one: BrokerIncarnation
) -> None:
    found = sources(cluster, 0, 12)
    assert statuses(cluster, item(prepare(cluster)[0], 0, 12, [found[0], found[2]]), records=0) == [
        GONE
    ]


@pytest.mark.parametrize("trimmed", [3, 5, 7])
def test_records_trimmed_meanwhile_may_be_missing(
    cluster: ManagersCluster, one: BrokerIncarnation, trimmed: int
) -> None:
    requested = item(prepare(cluster)[0], 0, 9, sources(cluster, 0, 9))
    cluster.trim(one, 1, 0, trimmed)
    assert statuses(cluster, requested) == [Status.OK]
    assert cluster.spans(1)[0] == (0, 9, requested.new.object_id)


def test_a_trimmed_and_dropped_prefix_leaves_no_objects(
    cluster: ManagersCluster, one: BrokerIncarnation
) -> None:
    requested = item(prepare(cluster)[0], 0, 9, sources(cluster, 0, 9))
    cluster.trim(one, 1, 0, 9)
    cluster.commit(one, wal=5)
    cluster.tick()
    cluster.apply(
        objects.objects_removed(
            cluster.image,
            [state.object_id for state in cluster.image.objects if state.wal is not None],
        )
    )
    assert statuses(cluster, requested) == [Status.OK]
    cluster.tick()
    assert [
        state.phase for state in cluster.image.objects if state.object_id == requested.new.object_id
    ] == [ObjectPhase.DESTROYED]


def test_all_items_of_a_deleted_topic_are_rejected(
    cluster: ManagersCluster, one: BrokerIncarnation
) -> None:
    requested = item(prepare(cluster)[0], 0, 9, sources(cluster, 0, 9))
    cluster.delete("t")
    commit(cluster, requested, status=Status.STREAM_NOT_EXIST)


def test_objects_not_committed_in_time_are_deleted(
    cluster: ManagersCluster, one: BrokerIncarnation
) -> None:
    prepare(cluster, ttl_ms=999, status=Status.INVALID_REQUEST)
    prepare(cluster, ttl_ms=3_600_001, status=Status.INVALID_REQUEST)
    prepare(cluster, 1_001, status=Status.INVALID_REQUEST)
    target = prepare(cluster, ttl_ms=1_000)[0]
    cluster.now_ms = Millis(cluster.now_ms + 1_000)
    cluster.tick()
    assert statuses(cluster, item(target, 0, 9, sources(cluster, 0, 9)), records=0) == [
        Status.OBJECT_NOT_EXIST
    ]
    due = cluster.deletable(5_000, 5_000)
    assert [state.key for state in due] == [target.key]


def test_malformed_requests_are_rejected(cluster: ManagersCluster, one: BrokerIncarnation) -> None:
    target = prepare(cluster)[0]
    found = sources(cluster, 0, 9)
    good = item(target, 0, 9, found)
    for new in (
        msgspec.structs.replace(good.new, ranges=[part(0, 0, 9)]),
        msgspec.structs.replace(good.new, ranges=[]),
        msgspec.structs.replace(good.new, role=ObjectRole.STREAM_SET),
        msgspec.structs.replace(
            good.new, object_id=None, key=wal_key(one, WalSequence(7), IN_STORE)
        ),
    ):
        commit(cluster, RewriteItem(new=new, sources=found), status=Status.INVALID_REQUEST)
    commit(cluster, RewriteItem(new=good.new, sources=[]), status=Status.INVALID_REQUEST)
    commit(cluster, good, good, status=Status.DUPLICATE_IN_REQUEST)
    meta = CommitRewrite(
        stream_id=StreamId(0),
        items=[RewriteItem(new=uploaded(target, part(0, 0, 9)), sources=found)],
    )
    assert (
        rewrites.commit_rewrite(cluster.image, meta, cluster.now_ms).status
        == Status.INVALID_REQUEST
    )
