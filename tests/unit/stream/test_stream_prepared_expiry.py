"""A controller that is away longer than prepared objects live must not leave a broker that repeats a hopeless commit for ever."""

from dataclasses import replace

from objectstore.memory import MemoryStore
from tests.support.stream_metadata import MemoryController
from tests.support.stream_storage import FAST, Node, until


async def test_a_block_whose_prepared_objects_grew_old_is_written_anew() -> None:
    controller = MemoryController()
    stream_id = controller.create_stream(1)
    node = Node(MemoryStore(), controller, config=replace(FAST, block_bytes_max=1, prepared_reuse_ms=20))
    await node.open(stream_id)
    node.metadata.refuse("commit", 100)  # about 300 ms of refusals, 15 lives of a prepared object
    await node.write(stream_id, 3)
    await until(lambda: bool(controller.commits))
    (committed,) = controller.commits[0].objects
    assert committed.object_id is not None
    assert committed.object_id > 1, "the first one has expired by now"
    assert await node.read_all(stream_id) == [0, 1, 2]
    await node.storage.abandon()
