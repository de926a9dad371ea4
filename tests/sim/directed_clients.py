"""Clients of scripts: a transactional producer, and a consumer group without members.

Each request is repeated until it succeeds, unless its method says that it is sent once.
"""

from collections.abc import Awaitable
from typing import Any, Final

from penstock.protocol import apis
from penstock.protocol.batch.header import TRANSACTIONAL_MASK
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    end_txn,
    init_producer_id,
    offset_commit,
    offset_delete,
    offset_fetch,
)
from penstock.protocol.gen import txn_offset_commit as txn_commit
from tests.sim.checkers import Part
from tests.sim.connections import Connection
from tests.sim.directed import TRANSACTIONAL_ID, Script, produce_request_of
from tests.sim.nodes import SimBroker

_PRODUCE_VERSION: Final = {1: 11, 2: 12}
_COMMIT_VERSION: Final = {1: 3, 2: 5}
_END_VERSION: Final = {1: 3, 2: 5}
_INIT_VERSION: Final = 4
_ADD_VERSION: Final = 3
_GROUP_COMMIT_VERSION: Final = 10
_GROUP_FETCH_VERSION: Final = 10


class Producer:
    """A transactional producer. version: 2 gets a new epoch at the end of each transaction, and
    adds partitions by writing to them.
    """

    def __init__(self, script: Script, name: str = "p", version: int = 1) -> None:
        self.name = name
        self.producer_id, self.epoch = -1, -1
        self._script = script
        self._version = version
        self._sequences: dict[Part, int] = {}

    def coordinator(self) -> Awaitable[SimBroker]:
        return self._script.coordinator(self.name, TRANSACTIONAL_ID)

    async def begin(self, timeout_ms: int = 60_000) -> None:
        """Acquire an epoch, which fences producers with the same id."""
        request = init_producer_id.InitProducerIdRequest(self.name, timeout_ms)
        given = await self._repeat(apis.INIT_PRODUCER_ID, _INIT_VERSION, request)
        self._take(given)

    async def renew(self) -> None:
        """Acquire the next epoch of the same producer (KIP-360)."""
        self._take(await self._repeat(*self.renewing()))

    def renewing(self) -> tuple[Any, int, Any]:
        request = init_producer_id.InitProducerIdRequest(
            self.name, 60_000, self.producer_id, self.epoch
        )
        return apis.INIT_PRODUCER_ID, _INIT_VERSION, request

    def _take(self, given: Any) -> None:
        self.producer_id, self.epoch = given.producer_id, given.producer_epoch
        self._sequences.clear()

    async def add(self, *parts: Part) -> None:
        """Add partitions of one topic, as in version 1."""

        def worst(response: Any) -> Any:
            found = response.results_by_topic_v3_and_below[0].results_by_partition
            return max(found, key=lambda item: item.partition_error_code)

        await self._script.repeat(
            self.coordinator, self.adding(*parts), worst, field="partition_error_code"
        )

    def adding(self, *parts: Part) -> tuple[Any, int, Any]:
        topic = add_partitions_to_txn.AddPartitionsToTxnTopic(
            parts[0][0], [index for _, index in parts]
        )
        request = add_partitions_to_txn.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[topic],
        )
        return apis.ADD_PARTITIONS_TO_TXN, _ADD_VERSION, request

    async def write(self, part: Part, *pairs: tuple[bytes, bytes | None]) -> int:
        """Append a batch in the transaction. Return its base offset."""
        if self._version == 1:
            await self.add(part)
        request = self.request(part, *pairs)
        written = await self._script.repeat(
            lambda: self._script.leader(part),
            (apis.PRODUCE, _PRODUCE_VERSION[self._version], request),
            lambda response: response.responses[0].partition_responses[0],
        )
        return int(written.base_offset)

    def request(self, part: Part, *pairs: tuple[bytes, bytes | None]) -> Any:
        """Return the Produce request for the next batch."""
        sequence = self._sequences.get(part, 0)
        self._sequences[part] = sequence + len(pairs)
        batch = self._script.batch(
            *pairs,
            producer_id=self.producer_id,
            epoch=self.epoch,
            sequence=sequence,
            attributes=TRANSACTIONAL_MASK,
        )
        return produce_request_of(part, batch, self.name)

    async def stage(self, group: "Group", part: Part, offset: int) -> None:
        """Commit an offset of the group in the transaction."""
        if self._version == 1:
            request = add_offsets_to_txn.AddOffsetsToTxnRequest(
                self.name, self.producer_id, self.epoch, group.name
            )
            await self._repeat(apis.ADD_OFFSETS_TO_TXN, _ADD_VERSION, request)
        await self._script.repeat(group.coordinator, self.staging(group, part, offset), _first)

    def staging(self, group: "Group", part: Part, offset: int) -> tuple[Any, int, Any]:
        """Return the request that commits an offset in the transaction."""
        item = txn_commit.TxnOffsetCommitRequestPartition(part[1], offset, committed_metadata=None)
        topics = [txn_commit.TxnOffsetCommitRequestTopic(part[0], [item])]
        request = txn_commit.TxnOffsetCommitRequest(
            self.name, group.name, self.producer_id, self.epoch, topics=topics
        )
        return apis.TXN_OFFSET_COMMIT, _COMMIT_VERSION[self._version], request

    async def end(self, *, commit: bool) -> None:
        given = await self._repeat(*self.ending(commit=commit))
        if self._version == 2:
            self._take(given)

    def ending(self, *, commit: bool, version: int | None = None) -> tuple[Any, int, Any]:
        """Return the request that ends the transaction."""
        request = end_txn.EndTxnRequest(self.name, self.producer_id, self.epoch, commit)
        return apis.END_TXN, _END_VERSION[version or self._version], request

    async def _repeat(self, api: Any, version: int, request: Any) -> Any:
        return await self._script.repeat(
            self.coordinator, (api, version, request), lambda response: response
        )


class Group:
    """A consumer group whose offsets are committed without membership. Requests contain topic ids,
    so that brokers do not have to read the newest metadata first.
    """

    def __init__(self, script: Script, name: str = "g") -> None:
        self.name = name
        self._script = script

    def coordinator(self) -> Awaitable[SimBroker]:
        return self._script.coordinator(self.name)

    async def connect(self) -> Connection:
        return self._script.world.connect(await self.coordinator())

    async def commit(self, part: Part, offset: int) -> None:
        item = offset_commit.OffsetCommitRequestPartition(part[1], offset)
        topic = offset_commit.OffsetCommitRequestTopic(
            topic_id=self._topic_id(part), partitions=[item]
        )
        request = offset_commit.OffsetCommitRequest(self.name, topics=[topic])
        requested = apis.OFFSET_COMMIT, _GROUP_COMMIT_VERSION, request
        await self._script.repeat(self.coordinator, requested, _first)

    async def forget(self, part: Part) -> None:
        """Delete the committed offset, if any."""
        topic = offset_delete.OffsetDeleteRequestTopic(
            part[0], [offset_delete.OffsetDeleteRequestPartition(part[1])]
        )
        requested = apis.OFFSET_DELETE, 0, offset_delete.OffsetDeleteRequest(self.name, [topic])
        done = (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND)
        await self._script.repeat(self.coordinator, requested, lambda response: response, done)

    async def committed(self, part: Part, at: SimBroker | None = None) -> int | ErrorCode:
        """Return the committed offset, or -1. at: query this broker once, also for an offset that a
        transaction may change, and return its error.
        """
        topic = offset_fetch.OffsetFetchRequestTopics(
            topic_id=self._topic_id(part), partition_indexes=[part[1]]
        )
        group = offset_fetch.OffsetFetchRequestGroup(self.name, topics=[topic])
        requested = (
            apis.OFFSET_FETCH,
            _GROUP_FETCH_VERSION,
            offset_fetch.OffsetFetchRequest(groups=[group], require_stable=at is None),
        )
        if at is None:

            def worst(response: Any) -> Any:
                found = response.groups[0]
                return found if found.error_code else found.topics[0].partitions[0]

            return int(
                (await self._script.repeat(self.coordinator, requested, worst)).committed_offset
            )
        found = (await self._script.send_request(at, *requested)).groups[0]
        if found.error_code:
            return ErrorCode(found.error_code)
        return int(found.topics[0].partitions[0].committed_offset)

    def _topic_id(self, part: Part) -> Any:
        topic = self._script.world.metadata.image.topics.by_name(part[0])
        assert topic is not None
        return topic.topic_id


def _first(response: Any) -> Any:
    return response.topics[0].partitions[0]
