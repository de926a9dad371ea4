"""Requests that brokers forward for their clients, over TLS: the controller authorizes the client
itself, so a broker cannot bypass authorization.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from structlog.testing import capture_logs

from penstock.base.acls import STANDARD_AUTHORIZER
from penstock.base.ids import NodeId
from penstock.controller.active.audit import CHANGES
from penstock.controller.active.forwarding import BROKERS_READ, NAME_CHARS_MAX, NEEDS_MAX, RIGHTS
from penstock.controller.api import messages as m
from penstock.controller.api import quota_messages as qm
from penstock.controller.api import scram_messages as sm
from penstock.controller.api import token_messages as tm
from penstock.controller.api.callers import ACTS_AS, METHODS, CallerRole
from penstock.controller.api.errors import InvalidConfig
from penstock.controller.api.tls import TlsFiles
from penstock.controller.api.transport import EPOCH_KEY, REQUEST_ID_KEY, Channel
from penstock.controller.config import ControllerConfig
from penstock.controller.metadata.acls import AclFilter
from penstock.controller.metadata.records import AclEntry, QuotaTarget
from tests.support.certs import Authority
from tests.support.controller_cluster import Cluster
from tests.support.waiting import PATIENCE_S, until

ALICE = m.Requester(principal="User:alice", host="10.0.0.1", broker_id=NodeId(3))
ADMIN = msgspec.structs.replace(ALICE, principal="User:admin")
TOPIC, GROUP, CLUSTER, USER = 2, 3, 4, 7
READ, CREATE, DELETE, ALTER, ALTER_CONFIGS, CREATE_TOKENS = 3, 5, 6, 7, 11, 13


def acl(kind: int, name: str, operation: int, *, permission: int = 3) -> AclEntry:
    return AclEntry(kind, 3, name, ALICE.principal, "*", operation, permission)


def on_cluster(operation: int) -> AclEntry:
    return acl(CLUSTER, "kafka-cluster", operation)


def configs(kind: int, name: str, **replaced: Any) -> m.AlterConfigs:
    change = m.ConfigChange(resource_type=kind, resource_name=name, name="retention.ms", value="9")
    return m.AlterConfigs(changes=[] if replaced else [change], **replaced)


def fork(source: UUID) -> m.TopicFork:
    return m.TopicFork(source_topic_id=source, partitions=[])


def new(name: str, **options: Any) -> m.CreateTopics:
    return m.CreateTopics(topics=[m.NewTopic(name=name, partitions=1, **options)])


Request = Callable[[UUID], m.ForwardedMessage]
"""Returns a request about the topic `orders` that has this id."""

CASES: Mapping[str, tuple[Request, list[AclEntry]]] = {
    "create": (lambda _: new("t1"), [acl(TOPIC, "t1", CREATE)]),
    "create anywhere": (lambda _: new("t2"), [on_cluster(CREATE)]),
    "fork by name": (
        lambda _: new("t3", configs={"penstock.fork.source": "orders"}),
        [acl(TOPIC, "t3", CREATE), acl(TOPIC, "orders", READ)],
    ),
    "fork that hides its source": (
        lambda orders: new("t4", fork=fork(orders)),
        [acl(TOPIC, "t4", CREATE), acl(TOPIC, "orders", READ)],
    ),
    "undelete": (
        lambda orders: new("t5", configs={"penstock.undelete": str(orders)}),
        [acl(TOPIC, "t5", CREATE), acl(TOPIC, "orders", DELETE), acl(TOPIC, "orders", READ)],
    ),
    "grow": (
        lambda _: m.CreatePartitions(topics=[m.NewPartitions(name="orders", total=2)]),
        [acl(TOPIC, "orders", ALTER)],
    ),
    "topic configs": (lambda _: configs(TOPIC, "orders"), [acl(TOPIC, "orders", ALTER_CONFIGS)]),
    "replaced topic configs": (
        lambda _: configs(TOPIC, "", replaced_topics=["orders"]),
        [acl(TOPIC, "orders", ALTER_CONFIGS)],
    ),
    "group configs": (lambda _: configs(32, "g"), [acl(GROUP, "g", ALTER_CONFIGS)]),
    "broker configs": (lambda _: configs(4, ""), [on_cluster(ALTER_CONFIGS)]),
    "unknown configs": (lambda _: configs(77, "x"), [on_cluster(ALTER_CONFIGS)]),
    "reassign": (lambda _: m.AlterReassignments(partitions=[]), [on_cluster(ALTER)]),
    "elect": (lambda _: m.ElectPreferred(partitions=[]), [on_cluster(ALTER)]),
    "unregister": (lambda _: m.RemoveBroker(node_id=NodeId(9)), [on_cluster(ALTER)]),
    "features": (lambda _: m.UpdateFeatures(updates=[]), [on_cluster(ALTER)]),
    "add ACLs": (lambda _: m.CreateAcls(acls=[on_cluster(ALTER)]), [on_cluster(ALTER)]),
    "remove ACLs": (
        lambda _: m.DeleteAcls(filters=[AclFilter(resource_name="nothing")]),
        [on_cluster(ALTER)],
    ),
    "users": (
        lambda _: sm.AlterScramCredentials(deletions=[sm.ScramDeletion(user="bob", mechanism=1)]),
        [on_cluster(ALTER)],
    ),
    "quotas": (
        lambda _: qm.AlterQuotas(
            alterations=[qm.QuotaAlteration(entity=(QuotaTarget("user", "bob"),), changes=[])]
        ),
        [on_cluster(ALTER_CONFIGS)],
    ),
    "token of another": (
        lambda _: tm.CreateDelegationToken(
            token_id="t", owner="User:bob", requester="User:alice", lifetime_ms=9, period_ms=9
        ),
        [acl(USER, "User:bob", CREATE_TOKENS)],
    ),
    "delete": (
        lambda orders: m.DeleteTopics(topic_ids=[orders]),
        [acl(TOPIC, "orders", DELETE)],
    ),
}
"""Requests with all ACLs that they require."""

OF_TOKENS: list[m.ForwardedMessage] = [
    tm.CreateDelegationToken(
        token_id="t", owner="User:bob", requester="User:bob", lifetime_ms=9, period_ms=9
    ),
    tm.RenewDelegationToken(token_id="t", principal="User:bob", period_ms=9),
    tm.ExpireDelegationToken(token_id="t", principal="User:bob", period_ms=9),
]
"""Requests in which alice claims to be bob."""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certs")


@pytest.fixture
async def cluster(tmp_path: Path, authority: Authority) -> AsyncIterator[Cluster]:
    cluster = Cluster(
        tmp_path / "controller",
        tls=authority.make("penstock-controller").open(),
        authorizer=STANDARD_AUTHORIZER,
        super_users="User:admin",
    )
    await cluster.start()
    yield cluster
    await cluster.stop()


class Hostile:
    """A caller with a broker's key that sends any request on behalf of any client."""

    def __init__(self, cluster: Cluster, tls: TlsFiles) -> None:
        self._channel = Channel(cluster.server.address, tls)
        self._epoch = 0

    async def refusal(self, request: m.Message, client: m.Requester | None) -> str:
        """Send the request; return why it was denied to this client. Empty if it was authorized,
        even if it failed.
        """
        sent = msgspec.msgpack.encode(msgspec.structs.replace(request, forwarded_for=client))
        while True:
            response = await self._channel.unary(type(request).__name__)(
                sent,
                timeout=PATIENCE_S,
                metadata=((REQUEST_ID_KEY, uuid4().hex), (EPOCH_KEY, str(self._epoch))),
            )
            reply: m.Reply[Any] = msgspec.msgpack.decode(response, type=m.Reply[Any])
            self._epoch = reply.controller_epoch
            assert "is not a valid" not in reply.detail
            if reply.status is not m.Status.STALE_CONTROLLER_EPOCH:
                return reply.detail if reply.status is m.Status.NOT_AUTHORIZED else ""

    async def close(self) -> None:
        await self._channel.close()


@pytest.fixture
async def hostile(cluster: Cluster, authority: Authority) -> AsyncIterator[Hostile]:
    """A caller with the certificate of broker 3."""
    hostile = Hostile(cluster, authority.make("penstock-broker-3").open())
    yield hostile
    await hostile.close()


def test_all_requests_that_brokers_may_forward_are_declared() -> None:
    forwarded = {kind.__name__ for kind in RIGHTS}
    of_brokers = {method for method, roles in METHODS.items() if CallerRole.BROKER in roles}
    assert of_brokers == forwarded | ACTS_AS.keys() - {"AddLearner"} | BROKERS_READ
    assert not forwarded & (ACTS_AS.keys() | BROKERS_READ)
    assert forwarded == {kind.__name__ for kind in m.ForwardedMessage.__subclasses__()}
    assert set(RIGHTS) <= set(CHANGES), "each is in the audit log"
    cases = {type(request(UUID(int=1))) for request, _ in CASES.values()}
    assert {type(request) for request in OF_TOKENS} | cases == set(RIGHTS)


async def test_each_request_requires_its_rights_and_a_client(
    cluster: Cluster, authority: Authority, hostile: Hostile
) -> None:
    await cluster.broker(3, tls=authority.make("penstock-broker-3").open())
    operator = cluster.client(authority.make("penstock-admin").open())
    created = (await operator.create_topics(new("orders"))).topics[0]
    assert created.topic_id is not None
    for name, (request, needed) in CASES.items():
        requested = request(created.topic_id)
        assert "names no client" in await hostile.refusal(requested, None), name
        other = msgspec.structs.replace(ADMIN, broker_id=NodeId(4))
        assert "not of broker 4" in await hostile.refusal(requested, other), name
        long = msgspec.structs.replace(ADMIN, principal="User:" + NAME_CHARS_MAX * "x")
        assert "characters" in await hostile.refusal(requested, long), name
        for missing in needed:
            others = [each for each in needed if each != missing]
            await operator.create_acls(m.CreateAcls(acls=others))
            assert "User:alice needs" in await hostile.refusal(requested, ALICE), (name, missing)
            await operator.delete_acls(m.DeleteAcls(filters=[AclFilter()]))
        await operator.create_acls(m.CreateAcls(acls=needed))
        assert await hostile.refusal(requested, ALICE) == "", name
        if not isinstance(requested, tm.CreateDelegationToken):
            assert await hostile.refusal(requested, ADMIN) == "", name
        await operator.delete_acls(m.DeleteAcls(filters=[AclFilter()]))
    for requested in OF_TOKENS:
        assert "acts as User:bob" in await hostile.refusal(requested, ALICE)
        assert "acts as User:bob" in await hostile.refusal(requested, ADMIN)
        assert "names no client" in await hostile.refusal(requested, None)
    await operator.close()


async def test_a_request_that_requires_too_many_rights_is_rejected(
    cluster: Cluster, authority: Authority, hostile: Hostile
) -> None:
    await cluster.broker(3, tls=authority.make("penstock-broker-3").open())
    many = [new(f"t{number}").topics[0] for number in range(NEEDS_MAX + 1)]
    refusal = await hostile.refusal(m.CreateTopics(topics=many), ADMIN)
    assert refusal.endswith("more than 20,000 rights: split it")


async def test_brokers_create_internal_topics_without_a_client(
    cluster: Cluster, authority: Authority, hostile: Hostile
) -> None:
    broker = await cluster.broker(3, tls=authority.make("penstock-broker-3").open())
    both = m.CreateTopics(topics=[*new("__consumer_offsets").topics, *new("orders").topics])
    assert await hostile.refusal(both, None)
    for options in ({"fork": fork(UUID(int=1))}, {"configs": {"penstock.undelete": "orders"}}):
        assert await hostile.refusal(new("__transaction_state", **options), None)
    assert await hostile.refusal(new("__consumer_offsets"), None) == ""
    drain = m.DrainBroker(
        node_id=broker.node.node_id, node_epoch=broker.node.node_epoch, partitions_max=1
    )
    assert (await broker.client.drain_broker(drain)).remaining == 0


async def test_acls_apply_from_their_commit_on_and_after_a_restart(
    cluster: Cluster, authority: Authority, hostile: Hostile
) -> None:
    broker = await cluster.broker(3, tls=authority.make("penstock-broker-3").open())
    grow = m.CreateAcls(acls=[acl(TOPIC, "x", READ)])
    assert await hostile.refusal(grow, ALICE)
    allowed = m.CreateAcls(acls=[on_cluster(ALTER)], forwarded_for=ADMIN)
    await broker.client.create_acls(allowed)
    assert await hostile.refusal(grow, ALICE) == ""
    await cluster.restart()
    assert await hostile.refusal(grow, ALICE) == ""
    denied = [acl(CLUSTER, "kafka-cluster", ALTER, permission=2)]
    await broker.client.create_acls(m.CreateAcls(acls=denied, forwarded_for=ADMIN))
    assert await hostile.refusal(grow, ALICE)


async def test_the_audit_log_contains_the_broker_and_the_client(
    cluster: Cluster, authority: Authority, hostile: Hostile
) -> None:
    await cluster.broker(3, tls=authority.make("penstock-broker-3").open())
    injecting = msgspec.structs.replace(ALICE, principal="User:a\nb")
    with capture_logs() as logs:
        await hostile.refusal(new("t"), ADMIN)
        await hostile.refusal(new("u"), injecting)
        await hostile.refusal(new("v"), None)
    (change,) = [line for line in logs if line["event"] == "admin_change"]
    about = {"broker_id": "3", "certificate": "penstock-broker-3, localhost"}
    assert (
        change.items()
        >= {
            "principal": "User:admin",
            "host": "10.0.0.1",
            "change": "topics_created",
            "resources": ["t"],
            **about,
        }.items()
    )
    first, second = [line for line in logs if line["event"] == "forwarded_request_rejected"]
    assert first.items() >= {"principal": "User:a\\nb", "api": "CreateTopics", **about}.items()
    assert "names no client" in second["reason"]


async def test_a_caller_that_does_not_wait_is_in_the_audit_log(
    cluster: Cluster, authority: Authority, hostile: Hostile
) -> None:
    await cluster.broker(3, tls=authority.make("penstock-broker-3").open())
    assert not await hostile.refusal(new("t"), ADMIN)
    gate = threading.Event()
    cluster.server._directory.thread.submit(gate.wait)  # a slow journal
    with capture_logs() as logs:
        impatient = asyncio.create_task(hostile.refusal(new("u"), ADMIN))
        await until(lambda: cluster.runtime.image.topics.by_name("u") is not None)
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        gate.set()
        await until(lambda: any(line["event"] == "admin_change" for line in logs))
    (change,) = [line for line in logs if line["event"] == "admin_change"]
    assert (change["principal"], change["resources"]) == ("User:admin", ["u"])


@pytest.mark.parametrize(
    ("name", "value"), [("authorizer", "mine"), ("super_users", "admin"), ("super_users", "User:")]
)
def test_invalid_settings_are_rejected(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(InvalidConfig, match=name):
        ControllerConfig(data_dir=tmp_path, **{name: value})
