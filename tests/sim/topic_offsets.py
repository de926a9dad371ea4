"""Offsets that a group commits for topics which are deleted, recreated and restored.

A recreated topic has none, although an earlier topic with its name had some; a restored topic has
the offsets committed for it. Must not use the in-memory state of brokers.
"""

import asyncio
import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import offset_commit, offset_fetch
from tests.sim.connections import NoResponse
from tests.sim.groups import RETRIED, Asker

if TYPE_CHECKING:
    from tests.sim.world import World

_GROUP: Final = "topic offsets"
_COMMIT_VERSION: Final = 8
_FETCH_VERSION: Final = 8
_NOT_KNOWN_YET: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class TopicOffsets(Asker):
    """One client, which repeats each request until it gets a response."""

    def __init__(self, world: "World") -> None:
        super().__init__(world, SimpleNamespace(name=_GROUP), _GROUP)
        self._last = 0

    async def check(self, name: str, expected: int) -> None:
        """Check the group's committed offset of a topic's first partition, or -1."""
        found = await self._read(name)
        if found != expected:
            self.world.fail(f"offset {found} of topic {name} is read, {expected} is right")

    async def commit(self, name: str) -> int:
        """Commit a new offset and return it."""
        self._last += 1
        part = offset_commit.OffsetCommitRequestPartition(0, self._last)
        topic = offset_commit.OffsetCommitRequestTopic(name=name, partitions=[part])
        request = offset_commit.OffsetCommitRequest(_GROUP, topics=[topic])
        while True:
            with contextlib.suppress(NoResponse):
                response = await self.send_request(
                    apis.OFFSET_COMMIT,
                    _COMMIT_VERSION,
                    request,
                    lambda response: int(response.topics[0].partitions[0].error_code),
                )
                code = ErrorCode(response.topics[0].partitions[0].error_code)
                if code is ErrorCode.NONE:
                    return self._last
                if code not in RETRIED | {_NOT_KNOWN_YET}:
                    self.world.fail(f"a commit for topic {name} is refused: {code.name}")
            await asyncio.sleep(0.05)

    async def _read(self, name: str) -> int:
        topic = offset_fetch.OffsetFetchRequestTopics(name=name, partition_indexes=[0])
        group = offset_fetch.OffsetFetchRequestGroup(_GROUP, topics=[topic])
        request = offset_fetch.OffsetFetchRequest(groups=[group])
        while True:
            with contextlib.suppress(NoResponse):
                response = await self.send_request(
                    apis.OFFSET_FETCH,
                    _FETCH_VERSION,
                    request,
                    lambda response: int(response.groups[0].error_code),
                )
                if not response.groups[0].error_code:
                    return int(response.groups[0].topics[0].partitions[0].committed_offset)
            await asyncio.sleep(0.05)
