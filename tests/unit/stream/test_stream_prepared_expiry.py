"""A controller that dropped prepared objects, or that was down until they expired, must not make a
broker repeat a hopeless commit.
"""

from dataclasses import replace

from penstock.objectstore.memory import MemoryStore
from penstock.stream.errors import ObjectNotPrepared
from tests.support.stream_metadata import MemoryController
from tests.support.stream_storage import FAST, Node
from tests.support.waiting import until


async def test_a_block_whose_prepared_objects_expired_is_written_again() -> None:
    controller = MemoryController()
    stream_id = controller.create_stream(1)
    node = Node(
        MemoryStore(), controller, config=replace(FAST, block_bytes_max=1, prepared_reuse_ms=20)
    )
    await node.open(stream_id)
    # Rejections for about 300 ms, 15 lifetimes of a prepared object.
    node.metadata.refuse("commit", 100)
    await node.write(stream_id, 3)
    await until(lambda: bool(controller.commits))
    (committed,) = controller.commits[0].objects
    assert committed.object_id is not None
    assert committed.object_id > 1, "the first one has expired by now"
    assert await node.read_all(stream_id) == [0, 1, 2]
    await node.storage.abandon()


async def test_a_block_whose_prepared_objects_were_dropped_is_written_again_at_once() -> None:
    """This applies to any lifetime of prepared objects; here it is 30 minutes."""
    controller = MemoryController()
    stream_id = controller.create_stream(1)
    node = Node(
        MemoryStore(),
        controller,
        config=replace(FAST, block_bytes_max=1, prepared_reuse_ms=1_800_000),
    )
    await node.open(stream_id)
    node.metadata.refuse("commit", 2, ObjectNotPrepared("object 1 is not prepared"))
    await node.write(stream_id, 3)
    await until(lambda: bool(controller.commits))
    (committed,) = controller.commits[0].objects
    assert committed.object_id == 3
    assert await node.read_all(stream_id) == [0, 1, 2]
    await node.storage.abandon()


async def test_a_repeated_commit_of_a_dropped_object_adds_no_duplicates() -> None:
    controller = MemoryController()
    stream_id = controller.create_stream(1)
    node = Node(
        MemoryStore(),
        controller,
        config=replace(FAST, block_bytes_max=1, prepared_reuse_ms=1_800_000),
    )
    await node.open(stream_id)
    node.metadata.lose_reply("commit")
    node.metadata.refuse("commit", 1, ObjectNotPrepared("object 1 is not prepared"))
    await node.write(stream_id, 3)
    await until(lambda: len(controller.commits) == 2)
    assert [item.object_id for commit in controller.commits for item in commit.objects] == [1, 2]
    assert len(controller.streams[stream_id].ranges) == 1
    assert await node.read_all(stream_id) == [0, 1, 2]
    await node.storage.abandon()


async def test_blocks_far_ahead_of_the_commit_are_not_prepared() -> None:
    """Otherwise their objects would expire before their commit, and each would be uploaded a second
    time.
    """
    controller, store = MemoryController(), MemoryStore()
    stream_id = controller.create_stream(1)
    node = Node(
        store, controller, config=replace(FAST, block_bytes_max=1, upload_blocks_in_flight_max=2)
    )
    await node.open(stream_id)
    node.metadata.refuse("commit", 60)
    for _ in range(8):
        await node.write(stream_id, 1)
    await until(lambda: len(node.metadata.disturbances) < 20)
    assert len([item async for item in store.list("data/")]) == 2
    await until(lambda: len(controller.commits) == 8)
    written = [item.object_id for commit in controller.commits for item in commit.objects]
    assert written == list(range(1, 9))
    assert await node.read_all(stream_id) == list(range(8))
    await node.storage.abandon()
