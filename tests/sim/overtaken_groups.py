"""Exchanges with group coordinators, and with the leaders of share partitions."""

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final

from penstock.broker.coordination.internal_topics import SHARE_STATES_TOPIC
from penstock.broker.groups.share.state.model import ACKNOWLEDGED, AVAILABLE
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import delete_groups, heartbeat, leave_group
from penstock.protocol.gen import read_share_group_state_summary as summing
from tests.sim.checkers import Part
from tests.sim.directed import Script
from tests.sim.directed_clients import Group
from tests.sim.overtaken import LATE_S, Exchange
from tests.sim.scripts import late_requests as requests

PART: Final[Part] = requests.PART
_BOTH: Final = frozenset({0, 1})
_TIMEOUT_S: Final = 10.0
_LEAVE_EPOCH: Final = -1
_RECORDS: Final = 6
_COPIES: Final = 4
_PAUSE_S: Final = 0.02


async def create_groups(script: Script) -> None:
    await script.create(SHARE_STATES_TOPIC, (2,), cleanup_policy="compact")
    await script.create("t", (1, 1))
    await script.create("u")
    await script.until_led((SHARE_STATES_TOPIC, 0), 2)
    for number in range(_RECORDS):
        await script.write(PART, (b"k", b"%d" % number), producer_id=1, sequence=number)


async def _connect(script: Script, group: str, count: int = 1) -> list[Any]:
    return await requests.connections(script, count, group)


def _expect(response: Any, name: str) -> None:
    code = ErrorCode(response.error_code)
    assert code is ErrorCode.NONE, f"{name} in order gets {code.name}"


# --- members --------------------------------------------------------------------------------------


async def classic(script: Script, rng: Random, number: int) -> None:
    """Let two members take turns in joining, syncing, committing, sending heartbeats and leaving.
    No late copy disturbs a generation.
    """
    group, offset = f"classic{number}", 0
    members = await _connect(script, group, 2)
    ids = [""] * len(members)
    for _ in range(6):
        joining = list[asyncio.Future[Any]]()
        for member, member_id in zip(members, ids, strict=True):
            request = requests.join(member_id, group=group)
            joining.append(asyncio.ensure_future(requests.send_request(member, request)))
            await asyncio.sleep(_PAUSE_S)  # so that no member completes the rebalance alone
        joined = await asyncio.gather(*joining)
        for response in joined:
            _expect(response, "JoinGroup")
        ids = [response.member_id for response in joined]
        await _sync(group, members, joined)
        for _ in range(2):
            for member, response in zip(members, joined, strict=True):
                offset += 1
                request = requests.commit(
                    script, response.member_id, response.generation_id, offset, group=group
                )
                found = await member.send_request(*request, _TIMEOUT_S)
                _expect(found.topics[0].partitions[0], "OffsetCommit")
                await _beat(group, member, response)
            await asyncio.sleep(rng.choice((0.0, 0.2)))
        found = await Group(script, group).committed(PART)
        assert found == offset, f"the committed offset goes from {offset} back to {found}"
        await _leave(group, members[1], ids[1])
        members, ids = members[::-1], ["", ids[0]]


async def _sync(group: str, members: list[Any], joined: list[Any]) -> None:
    ids = {response.member_id: frozenset({at}) for at, response in enumerate(joined)}
    syncing = [
        requests.sync(response, ids if response.members else {}, group=group) for response in joined
    ]
    found = await asyncio.gather(
        *(
            member.send_request(*request, _TIMEOUT_S)
            for member, request in zip(members, syncing, strict=True)
        )
    )
    for response in found:
        _expect(response, "SyncGroup")


async def _beat(group: str, member: Any, joined: Any) -> None:
    request = heartbeat.HeartbeatRequest(group, joined.generation_id, joined.member_id)
    _expect(await member.send_request(apis.HEARTBEAT, 3, request, _TIMEOUT_S), "Heartbeat")


async def _leave(group: str, member: Any, member_id: str) -> None:
    identity = leave_group.MemberIdentity(member_id)
    request = leave_group.LeaveGroupRequest(group, [identity])
    _expect(await member.send_request(apis.LEAVE_GROUP, 4, request, _TIMEOUT_S), "LeaveGroup")


class _Beating:
    """A member of a group of the consumer or streams protocol."""

    def __init__(
        self, connection: Any, beat: Callable[..., Any], given: Callable[..., Any]
    ) -> None:
        self.owned: frozenset[int] = frozenset()
        self.epoch = 0
        self._connection = connection
        self._beat = beat
        self._given = given
        self._is_reported = False

    async def beat(self, is_given: Callable[[Any], bool], other: "_Beating") -> None:
        """Send a heartbeat with the owned partitions, and apply the assignment."""
        owned = None if not self.epoch or self._is_reported else self.owned
        response = await requests.send_request(self._connection, self._beat(self.epoch, owned))
        _expect(response, "a heartbeat")
        self.epoch, self._is_reported = response.member_epoch, True
        if is_given(response):
            given = self._given(response)
            both = given & other.owned
            assert not both, f"a member is given {sorted(both)}, which another one owns"
            self._is_reported, self.owned = given == self.owned, given

    async def leave(self) -> None:
        await self._connection.send_request(*self._beat(_LEAVE_EPOCH, None), _TIMEOUT_S)
        self.owned, self.epoch = frozenset(), 0


async def _share_out(
    rng: Random, first: _Beating, second: _Beating, is_given: Callable[[Any], bool]
) -> None:
    """Let the first member own everything, then let the second one join. No partition is owned by
    both.
    """
    while first.owned != _BOTH:
        await first.beat(is_given, second)
        await asyncio.sleep(rng.choice((0.0, 0.1)))
    for _ in range(60):
        for member, other in ((second, first), (first, second)):
            await member.beat(is_given, other)
            await asyncio.sleep(rng.choice((0.0, 0.02, 0.1)))
        if first.owned and second.owned:
            break
    assert first.owned | second.owned == _BOTH, "the members do not get everything"
    await second.leave()


async def consume(script: Script, rng: Random, number: int) -> None:
    """Share two partitions between two members of a consumer group, which commit."""
    group, topic_id = f"consumer{number}", requests.topic_id_of(script)

    def beat(name: str, epoch: int, owned: frozenset[int] | None) -> requests.Request:
        return requests.consumer_heartbeat(name, epoch, topic_id, owned, group=group)

    members = [
        _Beating(connection, partial(beat, name), requests.given)
        for name, connection in zip("ab", await _connect(script, group, 2), strict=True)
    ]
    await _share_out(rng, members[0], members[1], lambda response: response.assignment is not None)
    (committing,) = await _connect(script, group)
    for offset in range(8):
        request = requests.commit(script, "a", members[0].epoch, offset, group=group)
        found = await committing.send_request(*request, _TIMEOUT_S)
        _expect(found.topics[0].partitions[0], "OffsetCommit")
        await asyncio.sleep(rng.choice((0.0, 0.1)))
        at = await Group(script, group).committed(PART)
        assert at == offset, f"the committed offset goes from {offset} back to {at}"


async def stream(script: Script, rng: Random, number: int) -> None:
    """Share two tasks between two members of a streams group."""
    group = f"streams{number}"

    def beat(name: str, epoch: int, owned: frozenset[int] | None) -> requests.Request:
        return requests.streams_heartbeat(name, epoch, owned, group=group)

    members = [
        _Beating(connection, partial(beat, name), requests.tasks)
        for name, connection in zip("ab", await _connect(script, group, 2), strict=True)
    ]
    await _share_out(
        rng, members[0], members[1], lambda response: response.active_tasks is not None
    )


async def subscribe(script: Script, rng: Random, number: int) -> None:
    """Change the subscription of a share group member. The last one counts."""
    group, epoch, found = f"share{number}", 0, set[Any]()
    (member,) = await _connect(script, group)
    for topic in "tutu":
        reported = await requests.send_request(
            member, requests.share_heartbeat(epoch, topic, group=group)
        )
        for _ in range(4):
            _expect(reported, "ShareGroupHeartbeat")
            epoch = reported.member_epoch
            if reported.assignment is not None:
                found = {topic.topic_id for topic in reported.assignment.topic_partitions}
            await asyncio.sleep(rng.choice((0.0, 0.2)))
            reported = await requests.send_request(
                member, requests.share_heartbeat(epoch, group=group)
            )
    await asyncio.sleep(LATE_S)
    for _ in range(10):
        reported = await requests.send_request(member, requests.share_heartbeat(epoch, group=group))
        epoch = reported.member_epoch
        if reported.assignment is not None:
            found = {topic.topic_id for topic in reported.assignment.topic_partitions}
        await asyncio.sleep(0.1)
    expected = requests.topic_id_of(script, "u")
    assert found == {expected}, "a member is assigned what it subscribed to before"


async def administer_offsets(script: Script, rng: Random, number: int) -> None:
    """Commit without members, delete offsets and groups. Late copies are executed, as in Kafka, and
    change no group permanently.
    """
    name = f"administered{number}"
    group, sent = Group(script, name), {-1}
    for serial in range(6):
        sent.add(serial)
        await group.commit(PART, serial)
        if serial % 2:
            await group.forget(PART)
        if serial % 3 == 2:
            await script.repeat(
                group.coordinator,
                (apis.DELETE_GROUPS, 2, delete_groups.DeleteGroupsRequest([name])),
                lambda response: response.results[0],
                done=(ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND),
            )
        found = await group.committed(PART)
        assert found in sent, f"the committed offset is {found}, which was not sent"
        await asyncio.sleep(rng.choice((0.0, 0.2)))
    await asyncio.sleep(LATE_S)
    (member,) = await _connect(script, name)
    joined = await requests.send_request(member, requests.join("", group=name))
    _expect(joined, "JoinGroup")


# --- share groups ---------------------------------------------------------------------------------


async def share(script: Script, rng: Random, number: int) -> None:
    """Acquire and acknowledge records while requests of earlier sessions arrive. No other member
    gets the records.
    """
    group = f"queue{number}"
    code = await requests.state_code(script, requests.initialize(script, 1, group=group))
    assert code is ErrorCode.NONE
    leader = script.broker(1)
    old: list[Any] = [script.world.connect(leader) for _ in range(2 * _COPIES)]
    member, other = script.world.connect(leader), script.world.connect(leader)
    late = script.world.overtaken
    delays = [rng.uniform(0.0, LATE_S / 2) for _ in old]
    first = [
        late.leave(connection, requests.share_fetch(script, "m1", group=group), delay_s)
        for connection, delay_s in zip(old[:_COPIES], delays[:_COPIES], strict=True)
    ]
    found = await requests.acquire(script, member, "m1", group=group)
    for copy in first:
        copy.is_overtaken = True
    session = await member.send_request(
        *requests.share_fetch(script, "m1", group=group), _TIMEOUT_S
    )
    assert not requests.acquired(session), "a member gets its records again"
    last = [
        late.leave(connection, requests.share_acknowledge(script, -1, group=group), delay_s)
        for connection, delay_s in zip(old[_COPIES:], delays[_COPIES:], strict=True)
    ]
    offset, epoch = found[0][0], 1
    response = await member.send_request(
        *requests.share_acknowledge(script, epoch, offset, group=group), _TIMEOUT_S
    )
    _expect(response, "ShareAcknowledge")
    for copy in last:
        copy.is_overtaken = True
    for _ in range(3):
        await asyncio.sleep(LATE_S / 4)
        stolen = await requests.acquire(script, other, "m2", 0.15, group=group)
        assert not stolen, f"m2 is given {stolen}, which m1 has"
    for offset, _ in found[1:]:
        epoch += 1
        request = requests.share_acknowledge(script, epoch, offset, group=group)
        response = await member.send_request(*request, _TIMEOUT_S)
        _expect(response, "ShareAcknowledge")
        _expect(response.responses[0].partitions[0], "ShareAcknowledge")


async def keep_states(script: Script, rng: Random, number: int) -> None:
    """Initialize, write, read and delete states of share partitions. The coordinator has the last
    written state.
    """
    group = f"states{number}"
    for epoch in (1, 2, 3):
        await _state(script, requests.initialize(script, epoch, group=group))
        written = dict[int, int]()
        for offset in range(3):
            for state, count in ((AVAILABLE, 1), (ACKNOWLEDGED, 1)):
                request = requests.write(
                    script, state, count, offset=offset, epoch=epoch, group=group
                )
                await _state(script, request)
                written[offset] = state
                await asyncio.sleep(rng.choice((0.0, 0.0, 0.1)))
            batches = (await requests.read_state(script, group=group)).state_batches
            found = {
                at: batch.delivery_state
                for batch in batches
                for at in range(batch.first_offset, batch.last_offset + 1)
            }
            assert found == written, f"the states {written} are written, {found} are read"
            await _summary(script, group, epoch)
        await _state(script, requests.delete(script, epoch, group=group))


async def _state(script: Script, request: requests.Request) -> None:
    code = await requests.state_code(script, request)
    assert code is ErrorCode.NONE, f"{request[0].name} in order gets {code.name}"


async def _summary(script: Script, group: str, epoch: int) -> None:
    data = summing.ReadStateSummaryData(
        requests.topic_id_of(script), [summing.PartitionData(PART[1], 0)]
    )
    request = summing.ReadShareGroupStateSummaryRequest(group, [data])
    item = await requests.state_of(script, (apis.READ_SHARE_GROUP_STATE_SUMMARY, 1, request))
    assert item.state_epoch == epoch, f"the state has the epoch {item.state_epoch}, not {epoch}"


GROUP_EXCHANGES: Final = (
    Exchange(
        classic,
        (apis.JOIN_GROUP, apis.SYNC_GROUP, apis.HEARTBEAT, apis.LEAVE_GROUP, apis.OFFSET_COMMIT),
    ),
    Exchange(consume, (apis.CONSUMER_GROUP_HEARTBEAT,)),
    Exchange(stream, (apis.STREAMS_GROUP_HEARTBEAT,)),
    Exchange(subscribe, (apis.SHARE_GROUP_HEARTBEAT,)),
    Exchange(administer_offsets, (apis.OFFSET_DELETE, apis.DELETE_GROUPS)),
    Exchange(share, (apis.SHARE_FETCH, apis.SHARE_ACKNOWLEDGE)),
    Exchange(
        keep_states,
        (
            apis.INITIALIZE_SHARE_GROUP_STATE,
            apis.WRITE_SHARE_GROUP_STATE,
            apis.READ_SHARE_GROUP_STATE,
            apis.READ_SHARE_GROUP_STATE_SUMMARY,
            apis.DELETE_SHARE_GROUP_STATE,
        ),
    ),
)
