"""A short read must not look like an object of another writer: the broker would stop although it is
not fenced.
"""

from collections.abc import Sequence
from dataclasses import replace

from penstock.objectstore.errors import Unavailable
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.ports import Body, ObjectTail
from tests.support.stream_storage import Nodes


class _ShortStore(MemoryStore):
    """Lose the response of the first PUT; the first read of the slot returns only the start of its
    tail.
    """

    def __init__(self) -> None:
        super().__init__()
        self.short_reads: Sequence[int] = (0, 10, 35)
        self.looks = 0
        self.lost = False

    async def put_if_absent(self, key: str, body: Body) -> str:
        etag = await super().put_if_absent(key, body)
        if not self.lost:
            self.lost = True
            raise Unavailable("put_if_absent", key, "the response got lost")
        return etag

    async def get_tail(self, key: str, length: int) -> ObjectTail:
        tail = await super().get_tail(key, length)
        self.looks += 1
        if self.looks <= len(self.short_reads):
            return replace(tail, data=tail.data[: self.short_reads[self.looks - 1]])
        return tail


async def test_a_short_response_is_requested_again(nodes: Nodes) -> None:
    store = _ShortStore()
    node = nodes.start(store)
    await node.open(1)
    await node.write(1, 2)
    assert store.looks == 4
    assert node.acknowledged == [(1, 2)]
    assert not node.fenced_by
