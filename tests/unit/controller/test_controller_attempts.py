"""Repeated attempts of a request at a real controller: a repeated request is executed once, and one
from an earlier controller epoch is not executed.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from penstock.base.acls import Operation, PatternType, Permission, ResourceType
from penstock.controller.active.quorum_changes import QuorumChanges
from penstock.controller.api import messages as m
from penstock.controller.api.client import ControllerClient
from penstock.controller.api.transport import EPOCH_KEY, REQUEST_ID_KEY, Channel
from penstock.controller.metadata.acls import AclFilter
from penstock.controller.metadata.records import AclEntry
from tests.support.controller_cluster import Cluster, new_registration
from tests.support.controller_quorum import ELECTION_MS, Quorum
from tests.support.waiting import PATIENCE_S, until

_TIMEOUT_S = PATIENCE_S
_ACL = AclEntry(
    ResourceType.TOPIC,
    PatternType.LITERAL,
    "orders",
    "User:mallory",
    "*",
    Operation.READ,
    Permission.ALLOW,
)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    started = Cluster(tmp_path / "controller")
    await started.start()
    yield started
    await started.stop()


async def _attempt(
    channel: Channel,
    request: m.Message,
    value_type: Any,
    *,
    epoch: int | None,
    request_id: str = "",
) -> m.Reply[Any]:
    """Send one attempt as `ControllerClient` does. epoch: None omits it."""
    metadata = [(REQUEST_ID_KEY, request_id)]
    if epoch is not None:
        metadata.append((EPOCH_KEY, str(epoch)))
    data = await channel.unary(type(request).__name__)(
        msgspec.msgpack.encode(request), timeout=_TIMEOUT_S, metadata=metadata
    )
    reply: m.Reply[Any] = msgspec.msgpack.decode(data, type=value_type)
    return reply


async def test_a_request_repeated_after_a_lost_response_is_executed_once(cluster: Cluster) -> None:
    channel = Channel(cluster.server.address)
    request = new_registration()
    registered = m.Reply[m.BrokerRegistered]
    replies = await asyncio.gather(
        *(_attempt(channel, request, registered, epoch=1, request_id="one") for _ in range(5))
    )
    replies.append(await _attempt(channel, request, registered, epoch=1, request_id="one"))
    assert replies == [replies[0]] * 6
    create = m.CreateTopics(topics=[m.NewTopic(name="once")])
    statuses = []
    for request_id in ("two", "two", "three"):
        reply = await _attempt(
            channel, create, m.Reply[m.TopicsCreated], epoch=1, request_id=request_id
        )
        assert reply.value is not None
        statuses.append(reply.value.topics[0].status)
    assert statuses == [m.Status.OK, m.Status.OK, m.Status.TOPIC_EXISTS]
    await channel.close()


async def test_an_attempt_from_before_a_leader_change_has_no_effect(
    cluster: Cluster,
) -> None:
    """The ACL that it added, or would have added, has been removed since."""
    client = cluster.client()
    create = m.CreateAcls(acls=[_ACL])
    await client.create_acls(create)
    await cluster.restart()
    await client.delete_acls(m.DeleteAcls(filters=[AclFilter(principal=_ACL.principal)]))
    channel = Channel(cluster.server.address)
    results = m.Reply[m.ItemResults]
    for epoch in (1, None):
        late = await _attempt(channel, create, results, epoch=epoch)
        assert late.status is m.Status.STALE_CONTROLLER_EPOCH
        assert late.controller_epoch == 2
    assert not list(cluster.runtime.image.acls)
    unborn = await _attempt(channel, create, results, epoch=3)
    assert unborn.status is m.Status.NOT_LEADER, "another controller leads epoch 3"
    assert not list(cluster.runtime.image.acls)
    changed = await _attempt(channel, m.RemoveController(node_id=0), m.Reply[m.ItemResult], epoch=1)
    assert changed.status is m.Status.STALE_CONTROLLER_EPOCH, "also about the quorum"
    await channel.close()


async def test_an_attempt_from_before_an_abandoned_transfer_has_no_effect(quorum: Quorum) -> None:
    """The same controller leads again, without the replies that it remembered."""
    client = quorum.client()
    create = m.CreateAcls(acls=[_ACL])
    await client.create_acls(create)
    leader = await quorum.leader()
    server, target = quorum.servers[leader], (leader + 1) % 3
    assert server.quorum is not None
    epoch, core = server.quorum.leadership.epoch, server.quorum.core
    transfer = QuorumChanges(quorum.configs[leader], server.quorum).methods()[m.TransferLeadership]

    def is_heard() -> bool:
        progress = core.progress_of(target)
        return progress is not None and asyncio.get_running_loop().time() * 1_000 < (
            progress.heard_ms + quorum.configs[leader].raft_heartbeat_ms
        )

    await until(is_heard)
    quorum.cut_off(target)
    quorum.set_election_ms(ELECTION_MS)  # after which the transfer is abandoned
    abandoned = await transfer(m.TransferLeadership(node_id=target), None)
    assert abandoned.status is m.Status.VOTER_NOT_FOUND
    assert "has not taken over" in abandoned.detail
    quorum.heal()
    await client.delete_acls(
        m.DeleteAcls(filters=[AclFilter(principal=_ACL.principal)]), timeout_s=_TIMEOUT_S
    )
    leader = await quorum.leader()
    channel = Channel(quorum.servers[leader].address)
    late = await _attempt(channel, create, m.Reply[m.ItemResults], epoch=epoch)
    assert late.status is m.Status.STALE_CONTROLLER_EPOCH
    runtime = quorum.servers[leader].runtime
    assert runtime is not None
    assert not list(runtime.image.acls)
    await channel.close()


class _NoPause(Random):
    """A source of jitter that fails, because the client should not pause."""

    def random(self) -> float:
        raise AssertionError("the client pauses")


async def test_a_client_retries_at_once_with_the_epoch_of_the_response(cluster: Cluster) -> None:
    broker = await cluster.broker()
    await cluster.restart()
    await until(lambda: cluster.server.is_leading)
    client = ControllerClient([cluster.server.address], rng=_NoPause())
    await client.put_key_value(m.PutKeyValue(key="k", value=b"v"))
    found = await broker.client.get_key_value(m.GetKeyValue(key="k"))
    assert found.value == b"v"
    await client.close()
