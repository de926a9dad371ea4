"""A controller that dropped prepared objects, or that was down until they expired, must not make a
broker repeat a hopeless commit.
"""

from penstock.base.ids import StreamId
from penstock.objectstore.memory import MemoryStore
from penstock.stream.errors import ObjectNotPrepared
from tests.support.stream_storage import Nodes
from tests.support.waiting import until


async def test_a_block_whose_prepared_objects_expired_is_written_again(nodes: Nodes) -> None:
    node = nodes.start(block_bytes_max=1, prepared_reuse_ms=20)
    await node.open(1)
    # Rejections for about 300 ms, 15 lifetimes of a prepared object.
    node.metadata.refuse("commit", 100)
    await node.write(1, 3)
    await until(lambda: bool(nodes.controller.commits))
    (committed,) = nodes.controller.commits[0].objects
    assert committed.object_id is not None
    assert committed.object_id > 1, "the first one has expired by now"
    assert await node.read_all(1) == [0, 1, 2]


async def test_a_block_whose_prepared_objects_were_dropped_is_written_again_at_once(
    nodes: Nodes,
) -> None:
    """This applies to any lifetime of prepared objects; here it is 30 minutes."""
    node = nodes.start(block_bytes_max=1, prepared_reuse_ms=1_800_000)
    await node.open(1)
    node.metadata.refuse("commit", 2, ObjectNotPrepared("object 1 is not prepared"))
    await node.write(1, 3)
    await until(lambda: bool(nodes.controller.commits))
    (committed,) = nodes.controller.commits[0].objects
    assert committed.object_id == 3
    assert await node.read_all(1) == [0, 1, 2]


async def test_a_repeated_commit_of_a_dropped_object_adds_no_duplicates(nodes: Nodes) -> None:
    node = nodes.start(block_bytes_max=1, prepared_reuse_ms=1_800_000)
    await node.open(1)
    node.metadata.lose_reply("commit")
    node.metadata.refuse("commit", 1, ObjectNotPrepared("object 1 is not prepared"))
    await node.write(1, 3)
    await until(lambda: len(nodes.controller.commits) == 2)
    written = [item.object_id for commit in nodes.controller.commits for item in commit.objects]
    assert written == [1, 2]
    assert len(nodes.controller.streams[StreamId(1)].ranges) == 1
    assert await node.read_all(1) == [0, 1, 2]


async def test_blocks_far_ahead_of_the_commit_are_not_prepared(nodes: Nodes) -> None:
    """Otherwise their objects would expire before their commit, and each would be uploaded a second
    time.
    """
    store = MemoryStore()
    node = nodes.start(store, block_bytes_max=1, upload_blocks_in_flight_max=2)
    await node.open(1)
    node.metadata.refuse("commit", 10_000)
    for _ in range(8):
        await node.write(1, 1)
    await until(lambda: len(node.metadata.disturbances) < 10_000 - 40)
    assert len([item async for item in store.list("data/")]) == 2
    node.metadata.disturbances.clear()
    await until(lambda: len(nodes.controller.commits) == 8)
    written = [item.object_id for commit in nodes.controller.commits for item in commit.objects]
    assert written == list(range(1, 9))
    assert await node.read_all(1) == list(range(8))
