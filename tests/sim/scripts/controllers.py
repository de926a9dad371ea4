"""Scripts about the journal of the controller, its snapshots, ACLs and delegation tokens."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

from penstock.base.acls import Operation, PatternType, Permission, ResourceType
from penstock.controller.api.client import ControllerClient
from penstock.controller.api.errors import ControllerError
from penstock.controller.api.follower import MetadataFollower
from penstock.controller.api.messages import (
    BrokerRegistered,
    CreateAcls,
    CreateTopics,
    DeleteAcls,
    NewTopic,
    RegisterBroker,
)
from penstock.controller.api.token_messages import CreateDelegationToken
from penstock.controller.metadata.acls import AclFilter
from penstock.controller.metadata.features import SUPPORTED
from penstock.controller.metadata.records import AclEntry
from tests.sim.directed import CONTROLLER, Held, Script, in_cluster

_SLOW: Final = 100_000.0


async def crash_after_a_creation(script: Script) -> None:
    await script.create("t")
    await script.restart_controller()
    script.topic("t")


async def crash_with_a_slow_disk(script: Script) -> None:
    """Crash the controller while the creation of a topic is not durable. A topic that brokers or
    clients have seen must be kept.
    """
    (disk,) = script.world.disks.values()
    disk.slow_factor = _SLOW
    admin, has_response = script.world.admin, False
    request = CreateTopics(topics=[NewTopic(name="t", partitions=1)])

    async def create() -> None:
        nonlocal has_response
        with suppress(ControllerError, TimeoutError):
            await admin.client.create_topics(request, timeout_s=5.0)
            has_response = True

    admin.start(create)
    await asyncio.sleep(2.0)
    is_known = script.broker(1).image.topics.by_name("t") is not None
    disk.slow_factor = 1.0
    await script.restart_controller()
    is_there = script.world.metadata.image.topics.by_name("t") is not None
    assert is_there or not has_response, "a topic was created, and is missing"
    assert is_there or not is_known, "a broker lists a topic that does not exist"


@in_cluster(snapshot_records=5)
async def load_a_snapshot_with_a_fork(script: Script) -> None:
    """Restart the controller after a snapshot that contains a fork."""
    await script.create("t")
    await script.write(("t", 0), (b"k", b"v"))
    await script.upload(1)
    await script.fork("f", "t")
    for number in range(10):
        await script.create(f"other{number}")
    await asyncio.sleep(1.0)
    await script.restart_controller()
    await script.restart(2)
    await script.restart(1)
    found = await script.values(("f", 0))
    assert found == {b"k": b"v"}, f"the fork has {found}"


@in_cluster(snapshot_records=5)
async def remove_an_acl(script: Script) -> None:
    """Remove one of three ACLs of a topic, and restart the controller after a snapshot."""
    acls = [_acl(f"User:{name}") for name in "abc"]
    await _with_client(script, lambda client: client.create_acls(CreateAcls(acls=acls)))
    removal = DeleteAcls(filters=[AclFilter(principal="User:a")])
    await _with_client(script, lambda client: client.delete_acls(removal))
    await script.until(lambda: set(script.broker(1).image.acls) != set(acls))
    found = sorted(acl.principal for acl in script.broker(1).image.acls)
    assert found == ["User:b", "User:c"], f"{found} have an ACL"
    for number in range(10):
        await script.create(f"t{number}")
    await asyncio.sleep(1.0)
    await script.restart_controller()
    await script.restart(1)
    found = sorted(acl.principal for acl in script.broker(1).image.acls)
    assert found == ["User:b", "User:c"], f"after a snapshot, {found} have an ACL"


async def remove_an_acl_with_a_slow_disk(script: Script) -> None:
    """Remove an ACL while the controller cannot store the removal."""
    acl = _acl("User:a")
    await _with_client(script, lambda client: client.create_acls(CreateAcls(acls=[acl])))
    (disk,) = script.world.disks.values()
    disk.slow_factor = _SLOW
    request = DeleteAcls(filters=[AclFilter(principal=acl.principal)])
    has_response = await _with_client(
        script, lambda client: client.delete_acls(request, timeout_s=2.0)
    )
    assert not has_response, "the removal is acknowledged before it is committed"


@in_cluster(snapshot_records=5)
async def load_a_snapshot_with_a_token(script: Script) -> None:
    """Restart the controller after a snapshot that contains a delegation token."""
    user, month_ms = "User:a", 30 * 86_400_000
    request = CreateDelegationToken(
        token_id="d", owner=user, requester=user, lifetime_ms=month_ms, period_ms=month_ms
    )
    await _with_client(script, lambda client: client.create_delegation_token(request))
    for number in range(10):
        await script.create(f"t{number}")
    await asyncio.sleep(1.0)
    await script.restart_controller()


@in_cluster(snapshot_records=5)
async def remove_an_acl_during_a_snapshot(script: Script) -> None:
    """Remove an ACL after the metadata was copied and before the snapshot is written; restart the
    controller from the snapshot.
    """
    acl = _acl("User:a")
    await _with_client(script, lambda client: client.create_acls(CreateAcls(acls=[acl])))
    (controller,) = script.world.controllers.values()
    held = controller.store.gates["put_if_absent"] = Held(None)
    for number in range(5):
        await script.create(f"t{number}")
    await asyncio.sleep(2.0)
    removal = DeleteAcls(filters=[AclFilter(principal=acl.principal)])
    asking = asyncio.ensure_future(_with_client(script, lambda client: client.delete_acls(removal)))
    await script.until(lambda: not list(script.world.metadata.image.acls))
    held.release()
    await asking
    await asyncio.sleep(1.0)
    await script.restart_controller()


async def deliver_the_creation_of_an_acl_late(script: Script) -> None:
    """Deliver the creation of an ACL again after the ACL was removed and the controller
    restarted.
    """
    acl = _acl("User:a")
    network, attempts = script.world.network, list[tuple[bytes, Any]]()
    (address,) = network.listeners
    listener = network.listeners[address]
    call = listener.call

    def record(method: str, request: bytes, timeout: float, metadata: Any) -> Any:
        if method == CreateAcls.__name__:
            attempts.append((request, metadata))
        return call(method, request, timeout, metadata)

    listener.call = record  # type: ignore[method-assign]
    await _with_client(script, lambda client: client.create_acls(CreateAcls(acls=[acl])))
    removal = DeleteAcls(filters=[AclFilter(principal=acl.principal)])
    await _with_client(script, lambda client: client.delete_acls(removal))
    await script.restart_controller()
    request, metadata = attempts[-1]
    await network.listeners[address].call(CreateAcls.__name__, request, 5.0, metadata)
    found = list(script.world.metadata.image.acls)
    assert not found, f"a late attempt adds {found}"


@in_cluster(snapshot_records=5)
async def follow_from_a_snapshot_with_a_slow_disk(script: Script) -> None:
    """Follow the metadata from a snapshot while the creation of a topic is not durable."""
    for number in range(10):
        await script.create(f"t{number}")
    await asyncio.sleep(2.0)
    (disk,) = script.world.disks.values()
    disk.slow_factor = _SLOW
    request = CreateTopics(topics=[NewTopic(name="late", partitions=1)])
    admin = script.world.admin

    async def create() -> None:
        with suppress(ControllerError, TimeoutError):
            await admin.client.create_topics(request, timeout_s=5.0)

    async def follow() -> None:
        follower = MetadataFollower(admin.client)
        with suppress(ControllerError, TimeoutError):
            await follower.start(2.0)
        await follower.stop()

    admin.start(create)
    await asyncio.sleep(1.0)
    await admin.run(follow)


async def silence_the_controller(script: Script) -> None:
    """Cut the connection between a broker and the controller until the first attempt to reconnect
    has failed.
    """
    follower = script.broker(1).follower
    with script.isolated(1):
        await script.until(lambda: not follower.leads_alone())
        await asyncio.sleep(2.5)
        assert follower.can_write(), "the broker has lost its session"
    await script.until(follower.leads_alone)
    assert not follower.fenced


async def catch_up_after_a_silence(script: Script) -> None:
    """Deliver the records of a silent stream when another stream starts."""
    broker = script.broker(1)
    with script.isolated(1):
        await script.until(lambda: not broker.follower.leads_alone())
        for name in ("t", "u"):
            await script.create(name)
    await script.until(broker.follower.leads_alone)
    assert broker.image.topics.by_name("u") is not None


async def replace_a_broker_while_its_stream_is_silent(script: Script) -> None:
    """Register a node again while its stream is silent. Then only messages that the controller has
    sent arrive, and no new connection succeeds.
    """
    broker = script.broker(1)
    links, link = script.world.network.links, broker.process.link
    with script.isolated(1):
        await script.until(lambda: not broker.follower.leads_alone())
        request = RegisterBroker(
            node_id=broker.node_id,
            incarnation_id=UUID(int=1),
            host="",
            port=9092,
            machine_host="b1",
            features=SUPPORTED,
        )
        admin, registered = script.world.admin, list[BrokerRegistered]()

        async def register() -> None:
            registered.append(await admin.client.register_broker(request))

        admin.start(register)
        await script.until(lambda: registered)
        links.mend(CONTROLLER, link)
        await asyncio.sleep(1.0)
        assert broker.follower.fenced, "the broker did not learn that it was replaced"
        assert broker.follower.replaced


async def register_a_start_after_its_successor(script: Script) -> None:
    """Kill a broker while its registration is delayed, and start the next one."""
    world = script.world
    late_s = world.network.requests_late_s["RegisterBroker"] = deque([5.0])
    script.kill(1)
    world.start_broker(1)
    await script.until(lambda: not late_s)
    await script.restart(1)
    broker = script.broker(1)
    await asyncio.sleep(6.0)
    assert not broker.follower.fenced, "a late registration has fenced the next start"


async def abandon_a_stream_whose_first_message_is_late(script: Script) -> None:
    """Let the first message of a stream arrive, and then its end, when the next stream already
    carries the session of the broker.
    """
    broker, network = script.broker(1), script.world.network
    link = broker.process.link
    network.first_messages_late_s.append(4.0)
    network.links.cut(CONTROLLER, link)
    begun = network.streams_begun[link]
    await script.until(lambda: network.streams_begun[link] == begun + 2)
    network.links.mend(CONTROLLER, link)
    await script.until(broker.follower.leads_alone)
    begun = network.streams_begun[link]
    await asyncio.sleep(5.0)
    assert network.streams_begun[link] == begun, "an abandoned stream has taken over the session"


async def connect_to_a_slow_controller(script: Script) -> None:
    """Restart a broker while the first message of every stream is late by more than SILENCE_S."""
    script.world.network.first_messages_late_s.extend([3.0] * 20)
    await script.restart(1)


def _acl(principal: str) -> AclEntry:
    return AclEntry(
        ResourceType.TOPIC,
        PatternType.LITERAL,
        "t",
        principal,
        "*",
        Operation.WRITE,
        Permission.ALLOW,
    )


async def _with_client(
    script: Script, send_request: Callable[[ControllerClient], Awaitable[object]]
) -> bool:
    """Send a request to the controller. Return whether it responds."""
    admin, outcome = script.world.admin, list[bool]()

    async def asking() -> None:
        has_response = False
        with suppress(ControllerError, TimeoutError):
            await send_request(admin.client)
            has_response = True
        outcome.append(has_response)

    admin.start(asking)
    await script.until(lambda: outcome)
    return outcome[0]
