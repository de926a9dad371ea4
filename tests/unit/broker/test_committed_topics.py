"""Committed offsets belong to a topic id, not to a topic name. The tests use a real coordinator and
a real image, with a log in memory and a controller that may be ahead of the image.
"""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import pytest

from penstock.base.ids import Millis
from penstock.broker.groups.classic.model import GroupLimits
from penstock.broker.groups.common.records import MalformedGroupRecord
from penstock.broker.groups.coordinator.group_coordinator import GroupCoordinator
from penstock.broker.groups.coordinator.offset_sweep import SWEEP_DELAY_S
from penstock.broker.groups.offsets.offsets import GroupOffsets
from penstock.broker.groups.offsets.records import (
    CommittedOffset,
    OffsetKey,
    decode_key,
    decode_offset_value,
    encode_offset_value,
)
from penstock.broker.groups.offsets.topics import OffsetTopics
from penstock.broker.handlers.groups import classic
from penstock.controller.api.confirmed_reads import ConfirmedReads
from penstock.controller.metadata.delta import MetadataDelta
from penstock.controller.metadata.features import OFFSETS_VERSION, joined_ids
from penstock.controller.metadata.records import (
    FeatureRecord,
    FrozenTopicRemoved,
    Record,
    TopicDeleted,
    TopicRemoved,
    TopicUndeleted,
)
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import offset_commit, offset_fetch
from tests.sim.loop import VirtualLoop
from tests.support.coordinator_log import MemoryLog
from tests.support.handlers import Fixture

GONE = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class World:
    """A coordinator, its log, and a controller that is ahead of the image by these records
    (`behind`).
    """

    def __init__(self, level: int = 1) -> None:
        self.fixture = Fixture()
        self.fixture.image.apply_all([FeatureRecord(OFFSETS_VERSION, level)])
        self.log = MemoryLog(1)
        self.behind: list[Record] = []
        self.responds = True
        self.reads = 0
        self.fixture.node.confirmed_reads = ConfirmedReads(self._read)
        self.coordinator = self.start()

    def start(self) -> GroupCoordinator:
        node = self.fixture.node
        node.groups = self.coordinator = GroupCoordinator(
            self.log,
            GroupLimits(),
            now_ms=lambda: 1_000,
            new_member_id=str,
            offset_topics=OffsetTopics(lambda: self.fixture.image),
        )
        self.coordinator.partition_opened(0)
        return self.coordinator

    def restart(self) -> None:
        """Load the log into a new coordinator."""
        self.coordinator.close()
        self.start()

    async def _read(self) -> None:
        await asyncio.sleep(0)
        self.reads += 1
        if not self.responds:
            raise TimeoutError
        self.apply(*self.behind)
        self.behind = []

    def apply(self, *records: Record) -> None:
        self.fixture.image.apply_all(records)
        if records:
            self.coordinator.topics_changed(MetadataDelta.of(records))

    def create(self, name: str = "t") -> UUID:
        topic_id = self.fixture.topic(name)
        self.coordinator.topics_changed(MetadataDelta(topic_ids={topic_id}))
        return topic_id

    def deleted(self, topic_id: UUID, *, for_good: bool = False) -> Record:
        if for_good:
            return TopicRemoved(topic_id)
        return TopicDeleted(topic_id, Millis(0), -1, self.fixture.image.end_offset)

    async def swept(self) -> None:
        """Wait in virtual time until the requested sweep is done."""
        await asyncio.sleep(SWEEP_DELAY_S * 1.5)

    async def commit(
        self, offset: int, topic: str | UUID = "t", version: int = 9, **member: Any
    ) -> ErrorCode:
        part = offset_commit.OffsetCommitRequestPartition(0, offset)
        named = {"topic_id": topic} if isinstance(topic, UUID) else {"name": topic}
        request = offset_commit.OffsetCommitRequest(
            "g",
            topics=[offset_commit.OffsetCommitRequestTopic(partitions=[part], **named)],
            **member,
        )
        response = await self.fixture.send_request(apis.OFFSET_COMMIT, version, request)
        return ErrorCode(response.topics[0].partitions[0].error_code)

    async def fetch(self, topic: str | UUID | None = "t", version: int = 9) -> Any:
        """Return the offset of partition 0, or an error; for None, the names of topics with a
        committed offset.
        """
        named = {"topic_id": topic} if isinstance(topic, UUID) else {"name": topic or ""}
        topics = [offset_fetch.OffsetFetchRequestTopics(partition_indexes=[0], **named)]
        group = offset_fetch.OffsetFetchRequestGroup("g", topics=None if topic is None else topics)
        request = offset_fetch.OffsetFetchRequest(groups=[group], require_stable=True)
        (found,) = (await self.fixture.send_request(apis.OFFSET_FETCH, version, request)).groups
        if found.error_code:
            return ErrorCode(found.error_code)
        if topic is None:
            return [item.name or item.topic_id for item in found.topics]
        part = found.topics[0].partitions[0]
        return ErrorCode(part.error_code) if part.error_code else part.committed_offset

    def written(self) -> dict[tuple[str, int], bytes | None]:
        """Return the newest value of each offset record in the log."""
        found: dict[tuple[str, int], bytes | None] = {}
        for batch in self.log.durable.get(0, []):
            for key, value in batch.records:
                decoded = decode_key(key)
                if isinstance(decoded, OffsetKey):
                    found[decoded.topic, decoded.partition] = value
        return found


Scenario = Callable[..., Coroutine[Any, Any, None]]


def virtually(test: Scenario) -> Callable[..., None]:
    """Run a test in virtual time, with a world as its first argument.

    The parameter `level` is the initial level of `offsets.version`; without it, the level is 1.
    """
    first, *others = inspect.signature(test).parameters.values()
    assert first.name == "world"

    async def run(level: int, given: dict[str, Any]) -> None:
        world = World(level)
        await test(world, **given)
        world.coordinator.close()

    def wrapper(**given: Any) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(run(given.pop("level", 1), given))

    level = [inspect.Parameter("level", inspect.Parameter.KEYWORD_ONLY)]
    is_leveled = any(mark.args[0] == "level" for mark in getattr(test, "pytestmark", []))
    wrapper.__signature__ = inspect.Signature([*others, *(level if is_leveled else [])])  # type: ignore[attr-defined]
    wrapper.__name__, wrapper.__doc__ = test.__name__, test.__doc__
    wrapper.pytestmark = getattr(test, "pytestmark", [])  # type: ignore[attr-defined]
    return wrapper


at_level_0 = pytest.mark.parametrize("level", [0])

# --- records --------------------------------------------------------------------------------------

TOPIC_ID = UUID("00112233-4455-6677-8899-aabbccddeeff")
V4 = bytes.fromhex(
    "0004 000000000000002a 00000007 026d 00000000000003e8 01 00 1000112233445566778899aabbccddeeff"
)
V4_PLAIN = V4[: -len(TOPIC_ID.bytes) - 3] + b"\0"
VALUES = {
    bytes.fromhex("0000 000000000000002a 0001 6d 00000000000003e8"): (-1, None),
    bytes.fromhex("0001 000000000000002a 0001 6d 00000000000003e8 0000000000000fff"): (-1, None),
    bytes.fromhex("0002 000000000000002a 0001 6d 00000000000003e8"): (-1, None),
    bytes.fromhex("0003 000000000000002a 00000007 0001 6d 00000000000003e8"): (7, None),
    V4: (7, TOPIC_ID),
    V4_PLAIN: (7, None),
    V4_PLAIN[:-1] + bytes.fromhex("01 05 02 ffff"): (7, None),
}


@pytest.mark.parametrize("data", VALUES)
def test_every_version_of_offset_values_is_decoded(data: bytes) -> None:
    epoch, topic_id = VALUES[data]
    found = decode_offset_value(data)
    assert found == CommittedOffset(42, epoch, "m", 1_000, topic_id, topic_id is not None)


def test_offset_values_are_encoded_like_in_kafka() -> None:
    assert encode_offset_value(CommittedOffset(42, 7, "m", 1_000, TOPIC_ID, True)) == V4
    plain = encode_offset_value(CommittedOffset(42, 7, "m", 1_000, TOPIC_ID))
    assert plain[:2] == b"\0\3"


@pytest.mark.parametrize("cut", [1, 5, 17, 20])
def test_damaged_offset_values_are_rejected(cut: int) -> None:
    with pytest.raises(MalformedGroupRecord):
        decode_offset_value(V4[:-cut])
    with pytest.raises(MalformedGroupRecord, match="unknown offset value version 5"):
        decode_offset_value(b"\0\5" + V4[2:])


# --- delete and recreate --------------------------------------------------------------------------


@virtually
@pytest.mark.parametrize("for_good", [True, False])
@pytest.mark.parametrize("restart", [True, False])
@pytest.mark.parametrize("level", [0, 1])
async def test_a_recreated_topic_has_no_offsets(
    world: World, restart: bool, for_good: bool
) -> None:
    old = world.create()
    assert await world.commit(100) is ErrorCode.NONE
    world.apply(world.deleted(old, for_good=for_good))
    assert (await world.fetch(), await world.fetch(None)) == (-1, [])
    new = world.create()
    assert (await world.fetch(), await world.fetch(None)) == (-1, [])
    assert await world.fetch(new, 10) == -1
    await world.swept()
    if restart:
        world.restart()
    assert (await world.fetch(), await world.fetch(new, 10)) == (-1, -1)
    assert await world.commit(1) is ErrorCode.NONE
    world.restart()
    assert (await world.fetch(), await world.fetch(new, 10)) == (1, 1)
    assert await world.fetch(None) == ["t"]


@virtually
async def test_the_next_coordinator_ignores_offsets_without_a_tombstone(world: World) -> None:
    old = world.create()
    assert await world.commit(100) is ErrorCode.NONE
    world.apply(world.deleted(old, for_good=True))
    world.create()
    world.restart()
    assert await world.fetch() == -1


@virtually
async def test_offsets_of_a_deleted_topic_get_tombstones(world: World) -> None:
    old = world.create()
    await world.commit(100)
    world.apply(world.deleted(old))
    await world.swept()
    assert world.written()["t", 0] is not None, "it can come back"
    world.apply(FrozenTopicRemoved(old))
    await world.swept()
    assert world.written() == {("t", 0): None}


@virtually
@pytest.mark.parametrize("version", [2, 9])
async def test_a_commit_by_name_right_after_recreation_is_not_for_the_deleted_topic(
    world: World, version: int
) -> None:
    """The image is outdated, so the name still refers to the deleted topic."""
    old = world.create()
    world.behind = [world.deleted(old, for_good=True)]
    assert await world.commit(100, version=version) is GONE
    world.create()
    assert await world.fetch() == -1
    assert await world.commit(1, version=version) is ErrorCode.NONE
    assert await world.fetch() == 1


@virtually
async def test_a_fetch_by_name_right_after_recreation_returns_no_old_offset(world: World) -> None:
    old = world.create()
    await world.commit(100)
    world.behind = [world.deleted(old, for_good=True)]
    assert await world.fetch() == -1


@virtually
async def test_requests_with_topic_ids_do_not_read_from_the_controller(world: World) -> None:
    topic_id = world.create()
    assert await world.commit(5, topic_id, 10) is ErrorCode.NONE
    assert await world.fetch(topic_id, 10) == 5
    assert world.reads == 0
    world.apply(world.deleted(topic_id))
    world.create()
    assert await world.commit(6, topic_id, 10) is ErrorCode.UNKNOWN_TOPIC_ID
    assert await world.fetch(topic_id, 10) is ErrorCode.UNKNOWN_TOPIC_ID


@virtually
async def test_requests_share_controller_reads_and_fail_without_a_controller(world: World) -> None:
    world.create()
    assert await asyncio.gather(*(world.commit(5) for _ in range(20))) == [ErrorCode.NONE] * 20
    assert world.reads <= 2
    world.responds = False
    assert await world.commit(6) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert await world.fetch() is ErrorCode.COORDINATOR_NOT_AVAILABLE


@virtually
async def test_an_id_in_a_request_is_resolved_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic is recreated while the topics of the request are authorized."""
    old = world.create()
    assert await world.commit(5) is ErrorCode.NONE
    assert await world.fetch(old, version=10) == 5

    async def undescribed_topics(*_: object) -> frozenset[str]:
        world.apply(world.deleted(old))
        monkeypatch.undo()
        assert await world.commit(7, world.create(), version=10) is ErrorCode.NONE
        return frozenset()

    monkeypatch.setattr(classic, "undescribed_topics", undescribed_topics)
    assert await world.fetch(old, version=10) == -1


@virtually
async def test_one_controller_read_serves_all_groups_of_a_request(world: World) -> None:
    topics = [offset_fetch.OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    groups = [offset_fetch.OffsetFetchRequestGroup(f"g{at}", topics=topics) for at in range(50)]
    await world.fixture.send_request(apis.OFFSET_FETCH, 9, groups=groups)
    assert world.reads == 1


@virtually
@at_level_0
async def test_older_clusters_do_not_read_from_the_controller(world: World) -> None:
    """Controllers of older clusters may not support the request."""
    world.create()
    world.responds = False
    assert await world.commit(6) is ErrorCode.NONE
    assert await world.fetch() == 6
    assert world.reads == 0


# --- undelete -------------------------------------------------------------------------------------


@virtually
@pytest.mark.parametrize("restart", [True, False])
@pytest.mark.parametrize("level", [0, 1])
async def test_an_undeleted_topic_has_its_offsets_again(world: World, restart: bool) -> None:
    topic_id = world.create()
    await world.commit(100)
    world.apply(world.deleted(topic_id))
    await world.swept()
    if restart:
        world.restart()
        assert await world.fetch() == -1
        await world.swept()
    world.apply(TopicUndeleted(topic_id, "t"))
    assert await world.fetch() == 100
    world.apply(world.deleted(topic_id))
    await world.swept()
    world.apply(TopicUndeleted(topic_id, "u"))
    await world.swept()
    assert (await world.fetch("u"), await world.fetch(None)) == (100, ["u"])
    world.restart()
    assert (await world.fetch("u"), await world.fetch("t")) == (100, -1)
    assert world.written()["t", 0] is None


@virtually
async def test_offsets_of_an_undeleted_topic_return_unless_they_were_replaced(world: World) -> None:
    old = world.create()
    await world.commit(100)
    world.apply(world.deleted(old))
    new = world.create()
    await world.swept()
    world.apply(world.deleted(new, for_good=True), TopicUndeleted(old, "t"))
    assert await world.fetch() == 100
    world.apply(world.deleted(old))
    new = world.create()
    await world.commit(3)
    world.apply(TopicUndeleted(old, "u"))
    await world.swept()
    assert (await world.fetch("t"), await world.fetch("u")) == (3, -1)
    assert await world.fetch(new, 10) == 3


# --- feature level --------------------------------------------------------------------------------


def versions(world: World) -> set[int]:
    return {int.from_bytes(value[:2], "big") for value in world.written().values() if value}


@virtually
@at_level_0
async def test_the_record_format_follows_the_feature_level(world: World) -> None:
    topic_id = world.create()
    await world.commit(5)
    assert versions(world) == {3}
    world.apply(FeatureRecord(OFFSETS_VERSION, 1, joined_ids([topic_id])))
    await world.swept()
    assert versions(world) == {4}
    world.apply(FeatureRecord(OFFSETS_VERSION, 0))
    await world.swept()
    assert versions(world) == {3}
    world.restart()
    assert await world.fetch() == 5


@virtually
@at_level_0
@pytest.mark.parametrize("recreated", ["before", "after"])
async def test_offsets_without_topic_id_belong_to_the_topic_at_the_upgrade(
    world: World, recreated: str
) -> None:
    """No coordinator has loaded the partition when the level is raised and the topic replaced."""
    old = world.create()
    await world.commit(5)
    world.coordinator.close()
    image = world.fixture.image
    replace = [world.deleted(old, for_good=True)]
    if recreated == "before":
        image.apply_all(replace)
        owner = world.fixture.topic("t")
        image.apply_all([FeatureRecord(OFFSETS_VERSION, 1, joined_ids([owner]))])
    else:
        image.apply_all([FeatureRecord(OFFSETS_VERSION, 1, joined_ids([old]))])
        image.apply_all(replace)
        world.fixture.topic("t")
    world.start()
    assert await world.fetch() == (5 if recreated == "before" else -1)


@virtually
async def test_a_downgrade_waits_for_records_in_flight(world: World) -> None:
    world.create()
    await world.commit(5)
    world.log.hold = True
    slow = asyncio.ensure_future(world.commit(6))
    world.apply(FeatureRecord(OFFSETS_VERSION, 0))
    await world.swept()
    world.log.hold = False
    world.log.release()
    assert await slow is ErrorCode.NONE
    await asyncio.sleep(20)
    assert (versions(world), await world.fetch()) == ({3}, 6)


# --- transactions ---------------------------------------------------------------------------------


def test_pending_transactional_offsets_apply_only_to_their_topic_id() -> None:
    offsets, key = GroupOffsets(), ("t", 0)
    old, new = UUID(int=1), UUID(int=2)
    pending = offsets.stage(7, {key: CommittedOffset(100, -1, "", 1, old, True)})
    pending.is_durable = True
    assert offsets.is_unstable(key, old)
    assert not offsets.is_unstable(key, new)
    offsets.complete(7, committed=True)
    assert offsets.of_topic(key, new) is None
    assert offsets.of_topic(key, old) is not None


def test_offsets_of_a_renamed_topic_are_found_before_they_are_rewritten() -> None:
    offsets, topic_id = GroupOffsets(), UUID(int=1)
    first, newer = (CommittedOffset(at, -1, "", at, topic_id, True) for at in (100, 200))
    other = CommittedOffset(7, -1, "", 1, UUID(int=2), True)
    offsets.put({("t", 0): first, ("t", 1): first, ("new", 1): newer, ("new", 2): other})
    offsets.stage(7, {("t", 0): newer})
    renamed = offsets.under_names({topic_id: "new"}.get)
    assert renamed.committed == {("new", 0): first, ("new", 1): newer}
    assert renamed.is_unstable(("new", 0), topic_id)
    assert not renamed.is_unstable(("new", 1), topic_id)
