"""Scripts about topics that are forked, deleted and recreated."""

import asyncio
from typing import Any, Final
from uuid import UUID

from penstock.controller.api.messages import CreateTopics, DeleteTopics, NewTopic
from penstock.controller.metadata.topic_configs import UNDELETE
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import create_partitions, fetch
from tests.sim.checkers import Part
from tests.sim.directed import JANITOR_S, Script, in_cluster
from tests.sim.directed_clients import Group, Producer
from tests.sim.topic_offsets import TopicOffsets

PART: Part = ("t", 0)
_FETCH_BY_ID_VERSION: Final = 13
_NOTHING: Final = -1
"""The offset that a group without a commit gets."""


async def compact_past_a_fork(script: Script) -> None:
    """Replace and clean a record below a fork point that the controller does not have yet, because
    the leader of another partition is paused.
    """
    await _compact_past(script, "f")


async def compact_past_a_snapshot(script: Script) -> None:
    """Replace and clean a record below the fork point of a snapshot that the controller does not
    have yet, and fork the snapshot later.
    """
    await _compact_past(script, "t@s")


async def _compact_past(script: Script, name: str) -> None:
    await script.create("t", (1, 2), cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    await script.write(("t", 0), (b"k", b"old"))
    with script.paused(2):
        forking = asyncio.ensure_future(script.fork(name, "t", by=1))
        await asyncio.sleep(0.5)  # the leader of partition 0 has reported its end
        await script.write(("t", 0), (b"k", b"new"))
        await script.upload(1)
        assert await script.clean(1) == 1
        assert not forking.done()
    await forking
    if name != "f":
        await script.fork("f", name)
    found = [(record.key, record.value) for record in await script.read(("f", 0))]
    assert found[-1:] == [(b"k", b"new")], f"the fork has {found}"


async def recreate_a_topic(script: Script) -> None:
    """Commit an offset for a topic, delete the topic and create another one of the same name."""
    offsets = await _recreate(script)
    await offsets.check("t", _NOTHING)


async def recreate_a_topic_and_load_the_group(script: Script) -> None:
    """Recreate a topic with a committed offset, and let the coordinator load the offset from its
    log.
    """
    offsets = await _recreate(script)
    await script.restart(1)
    await script.restart(2)
    await offsets.check("t", _NOTHING)


async def _recreate(script: Script) -> TopicOffsets:
    offsets = TopicOffsets(script.world)
    await script.create("t")
    await offsets.check("t", await offsets.commit("t"))
    await script.delete("t")
    await script.create("t")
    return offsets


async def fork_with_an_open_transaction(script: Script) -> None:
    """Fork a topic, and a snapshot of it, with an open transaction that is committed later."""
    await script.create("t")
    await script.write(PART, (b"a", b"plain"))
    producer = Producer(script)
    await producer.begin()
    await producer.write(PART, (b"b", b"open"))
    await script.fork("f", "t")
    await script.fork("t@s", "t")
    await producer.end(commit=True)
    await script.fork("g", "t@s")
    for name in "fg":
        await script.write((name, 0), (b"c", b"own"))
        found = await script.values((name, 0), committed=True)
        assert found == {b"a": b"plain", b"c": b"own"}, f"readers of the fork get {found}"


async def fork_inside_a_batch(script: Script) -> None:
    """Fork a topic at an offset in the middle of a batch."""
    await script.create("t")
    await script.write(PART, (b"a", b"1"))
    await script.write(PART, (b"b", b"1"), (b"c", b"1"))
    await script.upload(1)
    await script.fork("f", "t", penstock_fork_offsets="0:2")
    found = await script.values(("f", 0))
    assert found == {b"a": b"1"}, f"the fork has {found}"


async def take_a_snapshot_with_a_group(script: Script) -> None:
    """Take a snapshot of a topic for which a group has committed an offset."""
    await script.create("t")
    await Group(script).commit(PART, 1)
    await script.fork("t@s", "t")
    snapshot = script.world.metadata.image.frozen_topics.by_full_name("t@s")
    assert snapshot is not None
    found = [(item.group, list(item.offsets)) for item in snapshot.group_offsets]
    assert found == [("g", [(0, 1)])], f"the snapshot has the offsets {found}"


async def fork_what_only_the_wal_has(script: Script) -> None:
    """Take a snapshot of records that were not uploaded, and fork it."""
    await script.create("t")
    await script.write(PART, (b"k", b"v"))
    await script.fork("t@s", "t")
    await script.fork("f", "t@s")
    found = await script.values(("f", 0))
    assert found == {b"k": b"v"}, f"the fork has {found}"


async def delete_the_source_of_a_fork(script: Script) -> None:
    await _delete_a_source(script, "f")


async def delete_the_topic_of_a_snapshot(script: Script) -> None:
    await _delete_a_source(script, "t@s")


async def _delete_a_source(script: Script, name: str) -> None:
    """Delete a topic, and wait until its objects are deleted."""
    await script.create("t")
    await script.write(PART, (b"k", b"v"))
    await script.upload(1)
    await script.fork(name, "t")
    await script.delete("t")
    await asyncio.sleep(JANITOR_S)
    await script.restart(1)
    if name != "f":
        await script.fork("f", name)
    found = await script.values(("f", 0))
    assert found == {b"k": b"v"}, f"the fork has {found}"


async def delete_a_topic(script: Script) -> None:
    """Delete a topic, and wait until nothing is left of it."""
    await script.create("t", (1, 1))
    streams = [id_ for partition in script.topic("t").partitions for id_ in partition.stream_ids]
    for index in range(2):
        await script.write(("t", index), (b"k", b"v"))
    await script.upload(1)
    bucket = script.world.bucket
    objects = [key for key in bucket.keys if key.startswith("data/")]
    await script.delete("t")
    await asyncio.sleep(JANITOR_S)
    image = script.world.metadata.image
    left = [stream_id for stream_id in streams if image.streams.get(stream_id) is not None]
    assert not left, f"the deleted topic leaves the streams {left}"
    kept = [key for key in objects if bucket.peek(key) is not None]
    assert not kept, f"the deleted topic leaves the objects {kept}"


async def read_a_deleted_topic_by_its_id(script: Script) -> None:
    """Read with the id of a deleted topic whose name another topic has."""
    await script.create("t")
    topic_id = script.topic("t").topic_id
    await _fetch_by_id(script, topic_id)
    await script.delete("t")
    await script.create("t")
    await script.write(PART, (b"k", b"other"))
    found = await _fetch_by_id(script, topic_id)
    assert not found.records, "a reader of the deleted topic gets records of another one"


async def _fetch_by_id(script: Script, topic_id: UUID) -> Any:
    part = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [fetch.FetchTopic(topic_id=topic_id, partitions=[part])]
    request = fetch.FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=topics)
    response = await script.send_request(
        script.broker(1), apis.FETCH, _FETCH_BY_ID_VERSION, request
    )
    return response.responses[0].partitions[0]


async def write_to_a_deleted_topic(script: Script) -> None:
    await script.create("t")
    await script.write(PART, (b"k", b"v"))
    await script.delete("t")
    await asyncio.sleep(1.0)
    late = await script.produce(script.broker(1), PART, script.batch((b"k", b"late")))
    assert late.error_code != ErrorCode.NONE, "a record of a deleted topic is accepted"


async def grow_a_topic_twice(script: Script) -> None:
    """Request two partitions twice, and write to both."""
    await script.create("t")
    item = create_partitions.CreatePartitionsTopic("t", 2, None)
    request = create_partitions.CreatePartitionsRequest([item], 10_000, validate_only=False)
    for _ in range(2):
        await script.send_request(script.broker(1), apis.CREATE_PARTITIONS, 3, request)
        await asyncio.sleep(0.5)
    count = len(script.topic("t").partitions)
    assert count == 2, f"the topic has {count} partitions"
    for index in range(2):
        await script.write(("t", index), (b"k", b"%d" % index))
    for index in range(2):
        found = await script.values(("t", index))
        assert found == {b"k": b"%d" % index}, f"partition {index} has {found}"


@in_cluster(delete_grace_ms=3_600_000)
async def undelete_a_topic(script: Script) -> None:
    """Restore a topic that was deleted for a while."""
    await script.create("t")
    await script.write(PART, (b"k", b"v"))
    await script.upload(1)
    topic = script.topic("t")
    await script.delete("t")
    await asyncio.sleep(JANITOR_S)
    await script.undelete("t", topic.topic_id)
    before, after = (item.partitions[0].leader_epoch for item in (topic, script.topic("t")))
    assert after > before, f"the leader epoch was {before}, now it is {after}"
    found = await script.values(PART)
    assert found == {b"k": b"v"}, f"the log has {found}"


@in_cluster(delete_grace_ms=3_600_000)
async def undelete_a_topic_without_brokers(script: Script) -> None:
    """Restore a topic whose streams a dead broker has open, while no broker can close them."""
    await script.create("t")
    await script.write(PART, (b"k", b"v"))
    topic_id, world = script.topic("t").topic_id, script.world
    for node_id in (1, 2):
        script.kill(node_id)
    await script.until(lambda: all(node.fenced for node in world.metadata.image.nodes))
    restored = NewTopic(name="t", partitions=-1, configs={UNDELETE: str(topic_id)})

    async def bring_back() -> None:
        await world.admin.client.delete_topics(DeleteTopics(topic_ids=[topic_id]))
        await world.admin.client.create_topics(CreateTopics(topics=[restored]))

    await world.admin.run(bring_back)
    world.checker.check_metadata()
    for node_id in (1, 2):
        world.start_broker(node_id)
    found = await script.values(PART)
    assert found == {b"k": b"v"}, f"the log has {found}"
