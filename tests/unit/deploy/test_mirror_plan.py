"""Mirror decisions without a cluster: topics, configs, and group offsets."""

import pytest

from penstock.controller.metadata.topic_configs import MIRROR_FINISHED, MIRROR_SOURCE
from penstock.deploy.admin.groups.committed import CommittedOffset
from penstock.deploy.errors import UsageError
from penstock.deploy.mirror.batches import OldFormat, committed_batches
from penstock.deploy.mirror.groups import to_commit
from penstock.deploy.mirror.plan import (
    MirrorContext,
    OffsetKind,
    Selection,
    SourceTopic,
    TargetTopic,
    config_changes,
    plan_topics,
)
from penstock.deploy.mirror.progress import (
    begun_record,
    finished_record,
    read_progress,
    segment_record,
)
from penstock.deploy.mirror.translation import OffsetMap, Segment
from penstock.protocol.batch.records import Record
from penstock.protocol.client.brokers import Partition

PENSTOCK = MirrorContext("cluster", has_same_offsets=True)
KAFKA = MirrorContext("cluster", has_same_offsets=False)
APPENDING = MirrorContext("cluster", has_same_offsets=True, append=True)
TOPIC = SourceTopic("t", "id", 3, {"retention.ms": "5", "message.timestamp.type": "LogAppendTime"})
MIRROR = {MIRROR_SOURCE: "cluster/id"}


@pytest.mark.parametrize(
    ("known", "context", "expected"),
    [
        (None, PENSTOCK, ("create", OffsetKind.SAME)),
        (None, KAFKA, ("create", OffsetKind.TRANSLATED)),
        (TargetTopic(3, {}, True), PENSTOCK, ("adopt", OffsetKind.SAME)),
        (TargetTopic(3, {}, True), KAFKA, ("begin", OffsetKind.TRANSLATED)),
        (TargetTopic(3, MIRROR, False), PENSTOCK, ("continue", OffsetKind.SAME)),
        (TargetTopic(3, {}, False, "id"), KAFKA, ("continue", OffsetKind.TRANSLATED)),
        (TargetTopic(3, {}, False), APPENDING, ("append", OffsetKind.TRANSLATED)),
        (TargetTopic(3, {}, False), PENSTOCK, "has records at the target"),
        (TargetTopic(4, {}, True), PENSTOCK, "the target has 4 partitions, the source 3"),
        (TargetTopic(3, {MIRROR_SOURCE: "cluster/old"}, False), PENSTOCK, "created again"),
        (TargetTopic(3, {}, False, "old"), KAFKA, "created again"),
        (TargetTopic(3, MIRROR | {MIRROR_FINISHED: "true"}, False), PENSTOCK, "finished"),
        (TargetTopic(3, {}, False, "id", is_finished=True), KAFKA, "finished"),
    ],
)
def test_each_target_topic_has_one_plan(known, context, expected):
    target = {} if known is None else {"t": known}
    plan = plan_topics({"t": TOPIC}, target, context)
    if expected == "finished":
        assert (plan.topics, plan.refused, plan.finished) == ([], {}, ["t"])
    elif isinstance(expected, str):
        assert expected in plan.refused["t"]
        assert plan.topics == []
    else:
        (topic,) = plan.topics
        assert (topic.action, topic.mode) == expected


def test_new_partitions_and_changed_configs_are_copied_from_the_source():
    known = TargetTopic(
        1, MIRROR | {"retention.bytes": "7", "penstock.delete.grace.ms": "1"}, False
    )
    (topic,) = plan_topics({"t": TOPIC}, {"t": known}, PENSTOCK).topics
    assert topic.added_partitions == 2
    assert topic.changes == {
        "retention.ms": "5",
        "message.timestamp.type": "LogAppendTime",
        "retention.bytes": None,
    }
    (created,) = plan_topics({"t": TOPIC}, {}, KAFKA).topics
    assert created.configs == {"retention.ms": "5"}, "Kafka would give records its own time"
    assert config_changes({"a": "1"}, {"a": "1", "b": "2"}, resets=False) == {}


def test_patterns_match_whole_names_and_internal_topics_are_excluded():
    selection = Selection("orders.*", "orders-test", "app.*")
    names = ["orders", "orders-eu", "orders-test", "my-orders", "__consumer_offsets"]
    assert [name for name in names if selection.has_topic(name)] == ["orders", "orders-eu"]
    assert not Selection().has_topic("penstock-mirror-x")
    assert (selection.has_group("app-1"), selection.has_group("my-app")) == (True, False)
    with pytest.raises(UsageError, match=r"--exclude '\(' is not an RE2 regular expression"):
        Selection(exclude="(").check()


def test_group_offsets_only_advance_unless_set_by_this_mirror():
    key, other = ("t", 0), ("t", 1)

    def translated(partition: Partition, offset: int) -> int | None:
        return None if partition == other else offset + 100

    source = {key: CommittedOffset(5, "m"), other: CommittedOffset(1, "")}
    assert to_commit(source, {}, {}, translated) == {key: CommittedOffset(105, "m")}
    assert to_commit(source, {key: CommittedOffset(105, "")}, {}, translated) == {}
    assert to_commit(source, {key: CommittedOffset(104, "")}, {}, translated) == {
        key: CommittedOffset(105, "m")
    }
    moved_on = {key: CommittedOffset(200, "")}
    assert to_commit(source, moved_on, {}, translated) == {}
    assert to_commit(source, moved_on, {key: 200}, translated) == {key: CommittedOffset(105, "m")}


def test_progress_records_survive_a_round_trip():
    first, second = Segment(0, 10, 5, 7), Segment(7, 16, 2, 9)
    records = [
        begun_record("t", "id", "T", 1),
        segment_record(("t", 1), "id", second, 1),
        segment_record(("t", 1), "id", first, 1),
        begun_record("u", "id2", "", 1),
        finished_record("u", "id2", 1),
    ]
    found = read_progress(records)
    assert list(found.map_of(("t", 1))) == [first, second]
    assert found.map_of(("t", 1)).next_source == 9
    assert (found.topic_ids, found.finished) == ({"t": "id", "u": "id2"}, {"u"})
    with pytest.raises(ValueError, match="offset 3 is not from a mirror"):
        read_progress([Record(3, 1, b"{}", b"x")])


@pytest.mark.parametrize("ids", [("new", "T"), ("id", "new")], ids=["source", "target"])
def test_the_progress_of_a_recreated_topic_starts_over(ids: tuple[str, str]):
    records = [
        begun_record("t", "id", "T", 1),
        segment_record(("t", 0), "id", Segment(0, 10, 5, 7), 1),
        segment_record(("t", 1), "id", Segment(0, 10, 5, 7), 1),
        finished_record("t", "id", 1),
        begun_record("t", *ids, 1),
        segment_record(("t", 0), ids[0], Segment(0, 0, 1, 1), 1),
    ]
    found = read_progress(records)
    assert list(found.map_of(("t", 0))) == [Segment(0, 0, 1, 1)]
    assert found.map_of(("t", 1)).next_source is None
    assert not found.finished
    assert found.has_begun("t", *ids)
    assert not found.has_begun("t", "id", "T")


def test_a_segment_that_does_not_follow_the_last_one_is_rejected():
    offsets = OffsetMap([Segment(5, 0, 5, 12)])
    assert [offsets.translated(source) for source in (0, 5, 9, 10, 11, 99)] == [0, 0, 4, 5, 5, 5]
    for wrong in (Segment(11, 9, 1, 12), Segment(12, 4, 1, 13)):
        with pytest.raises(ValueError, match="does not follow"):
            offsets.extend([wrong])


def test_errors_contain_old_message_formats():
    with pytest.raises(OldFormat, match="message format 1"):
        committed_batches(bytes(16) + b"\1" + bytes(60), 0, ())
