"""Scripts about late requests of producers, fetching consumers and administrators, and about static
members.
"""

import asyncio
from contextlib import suppress
from typing import Any, Final

from penstock.broker.coordination.internal_topics import (
    OFFSETS_TOPIC,
    SHARE_STATES_TOPIC,
    TRANSACTIONS_TOPIC,
)
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import (
    add_offsets_to_txn,
    delete_groups,
    delete_topics,
    describe_groups,
    describe_transactions,
    heartbeat,
    leave_group,
)
from penstock.protocol.gen import alter_share_group_offsets as altering
from penstock.protocol.gen import delete_share_group_offsets as deleting
from tests.sim.connections import NoResponse
from tests.sim.directed import Script
from tests.sim.directed_clients import Group, Producer
from tests.sim.overtaken_logs import FetchingClient
from tests.sim.scripts.late_requests import (
    PART,
    Request,
    commit,
    connections,
    consumer_heartbeat,
    deliver_late,
    given,
    join,
    send_request,
    share_heartbeat,
    sync,
    topic_id_of,
)

_TIMEOUT_S: Final = 10.0
_INSTANCE: Final = "i"
_STATIC_LEAVE_EPOCH: Final = -2
_ALL: Final = frozenset({0})


# --- logs -----------------------------------------------------------------------------------------


async def write_late(script: Script) -> None:
    """Deliver a batch again after the next ones of its producer."""
    await script.create("t")
    for sequence in range(3):
        await script.write(PART, (b"k", b"%d" % sequence), producer_id=1, sequence=sequence)
    late = script.batch((b"k", b"0"), producer_id=1, epoch=0, sequence=0)
    await script.produce(script.broker(1), PART, late)
    found = [record.value for record in await script.read(PART)]
    assert found == [b"0", b"1", b"2"], f"the log has {found}"


async def fetch_late(script: Script) -> None:
    """Deliver a Fetch again after later ones in its session."""
    await script.create("t")
    await script.write(PART, (b"k", b"0"))
    client = FetchingClient(script, PART, 0)
    assert await client.poll() == [b"0"]
    late = client.request()
    for value in (b"1", b"2"):
        await script.write(PART, (b"k", value))
        assert await client.poll() == [value]
    assert await client.poll() == []
    await script.send_request(script.broker(1), *late)
    await client.poll()


async def delete_a_topic_late(script: Script) -> None:
    """Deliver the deletion of a topic again after another topic of its name was created."""
    await script.create("t")
    topic = delete_topics.DeleteTopicState(None, topic_id_of(script))
    request = delete_topics.DeleteTopicsRequest(topics=[topic], timeout_ms=10_000)
    await script.delete("t")
    await script.create("t")
    await script.send_request(script.broker(1), apis.DELETE_TOPICS, 6, request)
    assert script.world.metadata.image.topics.by_name("t"), "the next topic is deleted"


# --- transactions ---------------------------------------------------------------------------------


async def _add_late(script: Script, *, adds_offsets: bool) -> None:
    """Deliver a request that adds to a transaction after its end. It starts no other
    transaction.
    """
    await script.create(TRANSACTIONS_TOPIC, (1,), cleanup_policy="compact")
    await script.create(OFFSETS_TOPIC, (1,), cleanup_policy="compact")
    await script.create("t")
    producer = Producer(script)
    await producer.begin()
    old = script.world.connect(await producer.coordinator())
    await producer.write(PART, (b"k", b"v"))
    await producer.end(commit=True)
    request = producer.adding(PART)
    if adds_offsets:
        added = add_offsets_to_txn.AddOffsetsToTxnRequest(
            producer.name, producer.producer_id, producer.epoch, "g"
        )
        request = apis.ADD_OFFSETS_TO_TXN, 3, added
    with suppress(NoResponse):
        await old.send_request(*request, _TIMEOUT_S)
    await asyncio.sleep(1.0)
    described = describe_transactions.DescribeTransactionsRequest([producer.name])
    response = await script.send_request(old.broker, apis.DESCRIBE_TRANSACTIONS, 0, described)
    state = response.transaction_states[0].transaction_state
    assert state == "CompleteCommit", f"the transaction that is over is {state}"


async def add_a_partition_late(script: Script) -> None:
    await _add_late(script, adds_offsets=False)


async def add_offsets_late(script: Script) -> None:
    await _add_late(script, adds_offsets=True)


async def renew_an_epoch_late(script: Script) -> None:
    """Deliver an InitProducerId again after the producer has begun a transaction in the epoch that
    it returned.
    """
    await script.create("t")
    producer = Producer(script)
    await producer.begin()
    late = producer.renewing()
    await producer.renew()
    await producer.write(PART, (b"k", b"v"))
    await script.send_request(await producer.coordinator(), *late)
    ended = await script.send_request(await producer.coordinator(), *producer.ending(commit=True))
    code = ErrorCode(ended.error_code)
    assert code is ErrorCode.NONE, f"the producer commits and gets {code.name}"


async def renew_an_epoch_between_transactions(script: Script) -> None:
    """Deliver an InitProducerId again after the first transaction in the epoch that it returned,
    and before the EndTxn whose response was lost is repeated.
    """
    await script.create("t")
    producer = Producer(script)
    await producer.begin()
    late = producer.renewing()
    await producer.renew()
    await producer.write(PART, (b"k", b"v"))
    ending = producer.ending(commit=True)
    await producer.end(commit=True)
    await asyncio.sleep(1.0)  # until the markers are written
    await script.send_request(await producer.coordinator(), *late)
    repeated = await script.send_request(await producer.coordinator(), *ending)
    code = ErrorCode(repeated.error_code)
    assert code is ErrorCode.NONE, f"the producer has committed and gets {code.name}"


async def change_the_version(script: Script) -> None:
    """Use a transactional id with instances of versions 2, 1 and 2. A transaction of version 1
    keeps its epoch, and one of version 2 gets another one.
    """
    await script.create("t")
    expected, epochs = list[bytes](), list[int]()
    for number, version in enumerate((2, 1, 2)):
        producer = Producer(script, version=version)
        await producer.begin()
        for serial in range(2):
            epochs.append(producer.epoch)
            expected.append(b"%d/%d" % (number, serial))
            await producer.write(PART, (b"k", expected[-1]))
            await producer.end(commit=True)
    await asyncio.sleep(1.0)  # until the last marker is written
    found = [record.value for record in await script.read(PART, committed=True)]
    assert found == expected, f"readers get {found}"
    assert epochs == [0, 1, 3, 3, 4, 5], f"the transactions have the epochs {epochs}"


# --- groups ---------------------------------------------------------------------------------------


async def _join_alone(member: Any, request: Request) -> Any:
    joined = await send_request(member, request)
    assert joined.error_code == ErrorCode.NONE, ErrorCode(joined.error_code)
    await send_request(member, sync(joined, {joined.member_id: _ALL}))
    return joined


def _beat(joined: Any, instance_id: str | None = None) -> Request:
    request = heartbeat.HeartbeatRequest("g", joined.generation_id, joined.member_id, instance_id)
    return apis.HEARTBEAT, 3, request


async def beat_late(script: Script) -> None:
    """Deliver heartbeats of the last generation for a member that is silent in the current one."""
    await script.create("t")
    (member,) = await connections(script, 1)
    joined = await _join_alone(member, join(""))
    await _join_alone(member, join(joined.member_id))
    for _ in range(3):
        await asyncio.sleep(40.0)
        await script.send_request(member.broker, *_beat(joined))
    request = describe_groups.DescribeGroupsRequest(["g"])
    described = await script.send_request(member.broker, apis.DESCRIBE_GROUPS, 5, request)
    members = described.groups[0].members
    assert not members, "a member is alive by heartbeats of an earlier generation"


async def delete_a_group_late(script: Script) -> None:
    """Deliver the deletion of a group again after a member has joined and committed."""
    await script.create("t")
    (member,) = await connections(script, 1)
    request = apis.DELETE_GROUPS, 2, delete_groups.DeleteGroupsRequest(["g"])
    await script.send_request(member.broker, *request)
    joined = await _join_alone(member, join(""))
    requested = commit(script, joined.member_id, joined.generation_id, 5)
    await member.send_request(*requested, _TIMEOUT_S)
    await script.send_request(member.broker, *request)
    offset = await Group(script).committed(PART)
    assert offset == 5, f"a group with members is deleted, its offset is {offset}"


async def change_share_offsets_late(script: Script) -> None:
    """Deliver requests that alter or delete the offsets of a share group after a member
    has joined.
    """
    await script.create(SHARE_STATES_TOPIC, (2,), cleanup_policy="compact")
    await script.create("t")
    (member,) = await connections(script, 1)
    await send_request(member, share_heartbeat(0, "t"))
    part = altering.AlterShareGroupOffsetsRequestPartition(0, 0)
    altered = altering.AlterShareGroupOffsetsRequestTopic("t", [part])
    deleted = deleting.DeleteShareGroupOffsetsRequestTopic("t")
    for api, request in (
        (apis.ALTER_SHARE_GROUP_OFFSETS, altering.AlterShareGroupOffsetsRequest("g", [altered])),
        (apis.DELETE_SHARE_GROUP_OFFSETS, deleting.DeleteShareGroupOffsetsRequest("g", [deleted])),
    ):
        code = ErrorCode((await script.send_request(member.broker, api, 0, request)).error_code)
        assert code is ErrorCode.NON_EMPTY_GROUP, f"{api.name} with members gets {code.name}"


def _static_join(member_id: str = "") -> Request:
    api, _, request = join(member_id)
    request.group_instance_id = _INSTANCE
    return api, 5, request


async def leave_late(script: Script) -> None:
    """Deliver the LeaveGroup of a static member after its next start has joined."""
    await script.create("t")
    old, new = await connections(script, 2)
    first = await _join_alone(old, _static_join())
    second = await _join_alone(new, _static_join())
    identity = leave_group.MemberIdentity(first.member_id, _INSTANCE)
    request = leave_group.LeaveGroupRequest("g", [identity])
    await deliver_late(old, (apis.LEAVE_GROUP, 4, request))
    await _check_alive(new, second)


async def join_late_as_a_static_member(script: Script) -> None:
    """Deliver the JoinGroup of a static member again after its copy was served."""
    await script.create("t")
    old, new = await connections(script, 2)
    joined = await _join_alone(new, _static_join())
    await deliver_late(old, _static_join())
    await _check_alive(new, joined)


async def _check_alive(member: Any, joined: Any) -> None:
    code = ErrorCode((await member.send_request(*_beat(joined, _INSTANCE), _TIMEOUT_S)).error_code)
    assert code is ErrorCode.NONE, f"a static member gets {code.name}"


def _static_beat(member_id: str, epoch: int, topic_id: Any) -> Request:
    api, version, request = consumer_heartbeat(member_id, epoch, topic_id)
    request.instance_id = _INSTANCE
    return api, version, request


async def restart_a_static_consumer(script: Script) -> None:
    """Stop a static member of a consumer group and start it again as another member. It gets its
    partitions, and late requests of its first start change nothing.
    """
    await script.create("t", (1, 1))
    topic_id = topic_id_of(script)
    old, new = await connections(script, 2)
    first = await send_request(old, _static_beat("m1", 0, topic_id))
    owned = given(first)
    leaving = _static_beat("m1", _STATIC_LEAVE_EPOCH, topic_id)
    await send_request(old, leaving)
    second = await send_request(new, _static_beat("m2", 0, topic_id))
    assert given(second) == owned, f"the next start gets {sorted(given(second))}"
    for request in (leaving, _static_beat("m1", first.member_epoch, topic_id)):
        await deliver_late(old, request)
    await _check_started(new, _static_beat("m2", second.member_epoch, topic_id))


async def join_late_in_the_classic_protocol(script: Script) -> None:
    """Deliver the JoinGroup of a static member after its next start has joined with a heartbeat."""
    await script.create("t")
    topic_id = topic_id_of(script)
    old, new = await connections(script, 2)
    joined = await send_request(new, _static_beat("m2", 0, topic_id))
    await deliver_late(old, _static_join())
    await _check_started(new, _static_beat("m2", joined.member_epoch, topic_id))


async def join_late_in_the_consumer_protocol(script: Script) -> None:
    """Deliver the first heartbeat of a static member after its next start has joined with
    JoinGroup, as after a downgrade of the client.
    """
    await script.create("t")
    old, new = await connections(script, 2)
    joined = await _join_alone(new, _static_join())
    await deliver_late(old, _static_beat("m1", 0, topic_id_of(script)))
    await _check_alive(new, joined)


async def join_late_between_two_starts(script: Script) -> None:
    """Deliver the first heartbeat of a static member after its next start has stopped, too."""
    await script.create("t")
    topic_id = topic_id_of(script)
    old, new, newest = await connections(script, 3)
    for epoch in (0, _STATIC_LEAVE_EPOCH):
        await send_request(new, _static_beat("m2", epoch, topic_id))
    await deliver_late(old, _static_beat("m1", 0, topic_id))
    await _check_started(newest, _static_beat("m3", 0, topic_id))


async def _check_started(member: Any, request: Request) -> None:
    code = ErrorCode((await send_request(member, request)).error_code)
    assert code is ErrorCode.NONE, f"a start gets {code.name}"


async def lose_the_first_response_of_a_static_consumer(script: Script) -> None:
    """Repeat the first heartbeat of a static member, which got no response."""
    await script.create("t")
    first = _static_beat("m1", 0, topic_id_of(script))
    old, new = await connections(script, 2)
    with script.deaf_clients(old.broker):
        await deliver_late(old, first)
    await _check_started(new, first)


async def join_late_after_leaving(script: Script) -> None:
    """Deliver the JoinGroup of a classic member in a consumer group after it has left."""
    await _join_after_leaving(script, is_upgraded=True)


async def join_late_after_leaving_and_an_upgrade(script: Script) -> None:
    """Deliver the JoinGroup of a member after it has left a classic group that has been upgraded
    since.
    """
    await _join_after_leaving(script, is_upgraded=False)


async def _join_after_leaving(script: Script, *, is_upgraded: bool) -> None:
    await script.create("t", (1, 1))
    topic_id = topic_id_of(script)
    old, new, other = await connections(script, 3)
    joined = await _join_alone(old, join(""))
    identity = leave_group.MemberIdentity(joined.member_id)
    leaving = apis.LEAVE_GROUP, 4, leave_group.LeaveGroupRequest("g", [identity])
    if not is_upgraded:
        await new.send_request(*leaving, _TIMEOUT_S)
    reported = await send_request(other, consumer_heartbeat("m2", 0, topic_id))
    if is_upgraded:
        await new.send_request(*leaving, _TIMEOUT_S)
    owned = given(reported)
    await deliver_late(old, join(joined.member_id))
    for _ in range(3):
        epoch = reported.member_epoch
        reported = await send_request(other, consumer_heartbeat("m2", epoch, topic_id, owned))
        owned = owned if reported.assignment is None else given(reported)
    assert owned == {0, 1}, f"the last member gets {sorted(owned)}"
