"""TLS between nodes over real sockets: authorization, changed certificate files, and errors."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest
from structlog.testing import capture_logs

from penstock.base.ids import NodeEpoch, NodeId
from penstock.base.settings import SettingInvalid
from penstock.controller.api import client as client_module
from penstock.controller.api import messages as m
from penstock.controller.api.callers import EXCHANGE, FOLLOW, METHODS
from penstock.controller.api.client import ControllerClient
from penstock.controller.api.errors import ControllerError
from penstock.controller.api.follower import REFUSED_TEXT, MetadataFollower
from penstock.controller.api.handshakes import PEERS_MAX, HandshakeCounts
from penstock.controller.api.messages import FollowRequest
from penstock.controller.api.tls import (
    PemFiles,
    TlsConfig,
    TlsFiles,
    TlsFilesInvalid,
    validity_problem,
)
from penstock.controller.api.tls_errors import explain
from penstock.controller.api.transport import Channel, RpcFailed, StatusCode
from penstock.controller.metadata.acls import AclFilter
from penstock.controller.metadata.records import AclEntry
from penstock.controller.raft.messages import Endpoint
from penstock.controller.raft.transport import Hello
from tests.support.certs import LOCAL, Authority, CertFiles, replace
from tests.support.controller_cluster import Cluster, new_registration
from tests.support.controller_quorum import Quorum
from tests.support.waiting import PATIENCE_S, until

FIRST_MESSAGES = {
    FOLLOW: msgspec.msgpack.encode(FollowRequest()),
    EXCHANGE: msgspec.msgpack.encode(Hello("c", Endpoint(1, "127.0.0.1:1", ""), 0, "", 0)),
}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certs")


@pytest.fixture
async def cluster(tmp_path: Path, authority: Authority) -> AsyncIterator[Cluster]:
    """A controller with TLS."""
    files = authority.make("penstock-controller")
    cluster = Cluster(tmp_path / "controller", tls=files.open())
    await cluster.start()
    yield cluster
    await cluster.stop()


async def outcome(cluster: Cluster, tls: TlsFiles | None, method: str) -> StatusCode | None:
    """Call the method with an empty or a first message; return the server's error.

    The gRPC client reports INTERNAL instead if the call ends while it writes, in about two of a
    thousand calls on a busy machine. No server in this test responds with INTERNAL, and another
    attempt returns the error.
    """
    for _ in range(10):
        code = await outcome_of_attempt(cluster, tls, method)
        if code is not StatusCode.INTERNAL:
            return code
    pytest.fail(f"{method} ended with INTERNAL ten times")


async def outcome_of_attempt(
    cluster: Cluster, tls: TlsFiles | None, method: str
) -> StatusCode | None:
    channel = Channel(cluster.server.address, tls)
    try:
        if method in FIRST_MESSAGES:
            call = channel.follow() if method == FOLLOW else channel.raft()
            with suppress(RpcFailed, asyncio.InvalidStateError):
                await call.write(FIRST_MESSAGES[method])
            await call.read()
        else:
            await channel.unary(method)(b"\xc1", timeout=PATIENCE_S)
    except RpcFailed as error:
        if REFUSED_TEXT in (error.details() or "") and error.code() is StatusCode.UNAVAILABLE:
            pytest.fail("a broker would take the controller for dead and trust its lease")
        return error.code()
    finally:
        await channel.close()
    return None


async def error_of(client: ControllerClient, call: Callable[[float], Awaitable[object]]) -> str:
    """Return the error of a call that gets no response within its timeout (in seconds), once this
    timeout is long enough for a connection attempt.
    """
    timeout_s = 0.5
    while timeout_s <= PATIENCE_S:
        with pytest.raises(TimeoutError) as failed:
            await call(timeout_s)
        if client.problem:
            return str(failed.value)
        timeout_s *= 2
    pytest.fail(f"no connection attempt has ended within {timeout_s / 2} s")


async def follow_as(client: ControllerClient, node_id: int) -> tuple[StatusCode, str]:
    """Start a session without a registration; return how the stream ends."""
    channel = Channel(client.address, client.tls)
    call = channel.follow()
    try:
        await call.write(
            msgspec.msgpack.encode(FollowRequest(node_id=NodeId(node_id), node_epoch=NodeEpoch(1)))
        )
        while await call.read():
            pass
    except (RpcFailed, asyncio.InvalidStateError):
        pass
    finally:
        ended = await call.code(), await call.details()
        await channel.close()
    return ended


@pytest.mark.parametrize("role", ["broker", "controller", "admin", "somebody"])
async def test_a_role_may_call_only_the_methods_in_the_table(
    cluster: Cluster, authority: Authority, role: str
) -> None:
    tls = authority.make(f"penstock-{role}").open()
    codes = {method: await outcome(cluster, tls, method) for method in METHODS}
    assert StatusCode.UNIMPLEMENTED not in codes.values(), "each entry is a method"
    assert StatusCode.UNAVAILABLE not in codes.values()
    refused = {method for method, code in codes.items() if code is StatusCode.UNAUTHENTICATED}
    assert refused == {method for method, roles in METHODS.items() if role not in roles}


async def test_invalid_identities_cannot_call_any_method(
    cluster: Cluster, authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other", "other")
    callers: dict[str, TlsFiles | None] = {
        "no certificate": None,
        "another CA": other.make("penstock-broker", ca=authority.file).open(),
        "expired": authority.make("penstock-broker", file="old", days=(-5, -1)).open(),
        "not yet valid": authority.make("penstock-broker", file="new", days=(1, 5)).open(),
    }
    for what, tls in callers.items():
        for method in ("RegisterBroker", "Commit", FOLLOW, EXCHANGE, "DescribeController"):
            assert await outcome(cluster, tls, method) is StatusCode.UNAVAILABLE, (what, method)


async def test_failed_handshakes_are_counted_and_logged(
    cluster: Cluster, authority: Authority, tmp_path: Path
) -> None:
    """gRPC does not report failed handshakes. They are recognized by connections that started
    without a call.
    """
    counts = cluster.server.gate.handshakes
    broker = authority.make("penstock-broker").open()
    assert await outcome(cluster, broker, "Commit") is None
    assert (counts.begun_count, counts.connected_count) == (1, 1)
    other = Authority(tmp_path / "other", "other")
    for tls in (None, other.make("penstock-broker", ca=authority.file).open()):
        begun_count = counts.begun_count
        assert await outcome(cluster, tls, "Commit") is StatusCode.UNAVAILABLE
        assert counts.begun_count > begun_count
    begun_count = counts.begun_count
    with socket.create_connection(
        ("127.0.0.1", cluster.server.port), timeout=PATIENCE_S
    ) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        await until(lambda: counts.begun_count == begun_count + 1)
    assert counts.connected_count == 1
    with capture_logs() as logs:
        watching = asyncio.create_task(counts.watch(0.01))
        await until(lambda: any(line["event"] == "handshakes_without_rpc" for line in logs))
        watching.cancel()
    (line,) = [line for line in logs if line["event"] == "handshakes_without_rpc"]
    assert line["count"] == counts.begun_count - 1
    assert not counts.look(), "each is reported once"
    assert not cluster.server.gate.refused_count
    admin = authority.make("penstock-admin").open()
    assert await outcome(cluster, admin, "Commit") is StatusCode.UNAUTHENTICATED
    assert cluster.server.gate.refused_count == 1


def test_connections_are_counted_once_while_they_are_remembered() -> None:
    counts = HandshakeCounts()
    for _ in range(2):
        for port in range(PEERS_MAX):
            counts.called(f"ipv4:127.0.0.1:{port}")
    assert counts.connected_count == PEERS_MAX
    counts.called("ipv4:127.0.0.1:70000")
    counts.called("ipv4:127.0.0.1:1")
    assert counts.connected_count == PEERS_MAX + 1, "the oldest, with port 0, was forgotten"
    counts.called("ipv4:127.0.0.1:0")
    assert counts.connected_count == PEERS_MAX + 2


async def test_the_audit_log_contains_changes_by_operators(
    cluster: Cluster, authority: Authority
) -> None:
    await cluster.broker(3, tls=authority.make("penstock-broker-3").open())
    operator = cluster.client(authority.make("penstock-admin").open())
    acl = AclEntry(2, 3, "t\nx", "User:bob", "*", 3, 3)
    with capture_logs() as logs:
        topics = [m.NewTopic(name=name, partitions=1) for name in ("t", "t/", "u")]
        await operator.create_topics(m.CreateTopics(topics=topics, validate_only=True))
        created = await operator.create_topics(m.CreateTopics(topics=topics))
        change = m.ConfigChange(
            resource_type=2, resource_name="u", name="retention.ms", value="60000"
        )
        unknown = msgspec.structs.replace(change, resource_type=77)
        altered = await operator.alter_configs(m.AlterConfigs(changes=[change, unknown]))
        assert altered.items[1].status is m.Status.INVALID_REQUEST
        wrong = msgspec.structs.replace(acl, permission=77)
        added = await operator.create_acls(m.CreateAcls(acls=[acl, wrong]))
        assert added.items[1].status is m.Status.INVALID_REQUEST
        await operator.delete_acls(m.DeleteAcls(filters=[AclFilter(), AclFilter()]))
        with pytest.raises(ControllerError):
            await operator.remove_broker(m.RemoveBroker(node_id=NodeId(9)))
        await operator.describe()
    await operator.close()
    lines = [line for line in logs if line["event"] == "admin_change"]
    assert {(line["principal"], line["host"]) for line in lines} == {
        ("penstock-admin, localhost", "127.0.0.1")
    }
    text = "ALLOW User:bob READ from * on TOPIC LITERAL t\\nx"
    assert [(line["api"], line["change"], line["resources"]) for line in lines] == [
        ("CreateTopics", "topics_created", ["t", "u"]),
        ("AlterConfigs", "configs_altered", ["topic u"]),
        ("CreateAcls", "acls_added", [text]),
        ("DeleteAcls", "acls_removed", [text]),
    ]
    assert created.topics[1].status is m.Status.INVALID_TOPIC_NAME


async def test_a_broker_over_tls_can_act_only_as_the_node_of_its_certificate(
    cluster: Cluster, authority: Authority
) -> None:
    tls = authority.make("penstock-broker-3").open()
    broker = await cluster.broker(3, tls=tls)
    created = await broker.client.create_topics(
        m.CreateTopics(topics=[m.NewTopic(name="__consumer_offsets", partitions=1)])
    )
    assert created.topics[0].status is m.Status.OK
    assert broker.follower.can_write()
    client = cluster.client(tls)
    request = new_registration(4)
    error = await error_of(
        client, lambda timeout_s: client.register_broker(request, timeout_s=timeout_s)
    )
    assert "of broker 3, not of broker 4" in error
    await client.close()
    code, detail = await follow_as(client, 4)
    assert code is StatusCode.UNAUTHENTICATED
    assert "of broker 3, not of broker 4" in detail


async def test_a_broker_with_a_rejected_certificate_retries_and_is_not_fenced(
    cluster: Cluster, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "PROBLEM_INTERVAL_S", 3_600)
    files = authority.make("penstock-broker-3", file="changing")
    reported: list[str] = []
    broker = await cluster.broker(3, tls=files.open())
    client = ControllerClient(
        [cluster.server.address],
        tls=authority.make("alice").open(),
        on_problem=reported.append,
    )

    async def follow(timeout_s: float) -> None:
        follower = MetadataFollower(client, broker.node, heartbeat_interval_s=0.05)
        try:
            await follower.start(timeout_s)
        finally:
            assert not follower.fenced, "another certificate helps, so the broker may not end"
            await follower.stop()

    assert "controller.ssl.broker.names" in await error_of(client, follow)
    assert len(reported) == 1, "once an interval"
    await client.close()
    assert broker.follower.can_write()


async def test_only_controllers_can_send_raft_messages_and_only_as_themselves(
    tmp_path: Path, authority: Authority
) -> None:
    quorum = Quorum(
        tmp_path / "quorum",
        tls=lambda number: authority.make(f"penstock-controller-{number}").open(),
    )
    with capture_logs() as logs:
        await quorum.start()
        try:
            broker_like = authority.make("penstock-broker").open()
            second = authority.make("penstock-controller-1", file="second").open()
            for tls, sender in ((broker_like, 1), (second, 2)):
                channel = Channel(quorum.addresses[0], tls)
                call = channel.raft()
                hello = Hello("quorum", Endpoint(sender, "127.0.0.1:1", ""), 0, "", 0)
                # the error of the stream may arrive first
                with suppress(RpcFailed, asyncio.InvalidStateError):
                    await call.write(msgspec.msgpack.encode(hello))
                # gRPC itself reports INTERNAL if the stream ends while it writes.
                ended = StatusCode.UNAUTHENTICATED, StatusCode.INTERNAL
                assert await call.code() in ended
                await channel.close()
            leader = await quorum.leader()
            await quorum.stop_one(leader)
            assert await quorum.leader() != leader
        finally:
            await quorum.stop()
    refused = [line for line in logs if line["event"] == "caller_rejected"]
    assert {"Exchange"} == {line["method"] for line in refused}


async def test_both_sides_use_new_certificates_without_a_restart(
    tmp_path: Path, authority: Authority
) -> None:
    """The CA is replaced: first, both CAs are trusted, then all nodes get new certificates, then
    the old CA is removed.
    """
    other = Authority(tmp_path / "other", "other")
    server = authority.make("penstock-controller")
    broker = authority.make("penstock-broker")
    cluster = Cluster(tmp_path / "controller", tls=server.open())
    await cluster.start()
    client = cluster.client(broker.open())
    old_client = cluster.client(authority.make("penstock-admin").open())
    try:
        await client.describe()
        both = tmp_path / "both.pem"
        both.write_bytes(authority.pem + other.pem)
        for files in (server, broker):
            replace(files.ca, both.read_bytes())
        await client.describe()
        for files, name in ((server, "penstock-controller"), (broker, "penstock-broker")):
            _overwrite(files, other.make(name, ca=both))
        await client.describe()
        for files in (server, broker):
            replace(files.ca, other.pem)
        await client.describe()
        await error_of(old_client, lambda timeout_s: old_client.describe(timeout_s=timeout_s))
        assert "no CA of controller.ssl.ca.location signed" in old_client.problem
    finally:
        await client.close()
        await old_client.close()
        await cluster.stop()


def _overwrite(files: CertFiles, new: CertFiles) -> None:
    replace(files.key, new.key.read_bytes())
    replace(files.certificate, new.certificate.read_bytes())


async def test_a_follower_reconnects_with_the_newest_certificate(
    tmp_path: Path, authority: Authority
) -> None:
    other = Authority(tmp_path / "other", "other")
    both = tmp_path / "both.pem"
    both.write_bytes(authority.pem + other.pem)
    server = authority.make("penstock-controller", ca=both)
    files = authority.make("penstock-broker", file="b", ca=both)
    cluster = Cluster(tmp_path / "controller", tls=server.open())
    await cluster.start()
    try:
        broker = await cluster.broker(1, tls=files.open())
        _overwrite(files, other.make("penstock-broker", ca=both))
        replace(server.ca, other.pem)
        await cluster.restart()
        await broker.client.create_topics(
            m.CreateTopics(topics=[m.NewTopic(name="__consumer_offsets", partitions=1)])
        )
        assert broker.image.topics.by_name("__consumer_offsets") is not None, "the old CA counts"
    finally:
        await cluster.stop()


def test_invalid_new_files_are_logged_once_and_the_old_ones_stay_in_use(
    authority: Authority,
) -> None:
    now = 0.0
    files = authority.make("penstock-broker")
    tls = TlsFiles(files.config, now=lambda: now)
    good = tls.current()
    replace(files.key, authority.make("x").key.read_bytes())
    with capture_logs() as logs:
        assert tls.current() is good
        assert not logs, "the certificate may follow in a moment"
        now = 5.0
        assert tls.current() is good
        assert tls.current() is good
    assert [line["event"] for line in logs] == ["tls_files_rejected"]
    assert "not the key of the certificate" in logs[0]["reason"]
    with capture_logs() as logs:
        replace(files.key, good.key)
        whole = tls.current()
    assert (whole.key, whole.certificate) == (good.key, good.certificate)
    assert [line["event"] for line in logs] == ["tls_files_loaded"]


@pytest.mark.parametrize(
    ("part", "content", "reason"),
    [
        ("certificate", b"junk", "no PEM certificate"),
        ("ca", b"junk", "no PEM certificate"),
        ("key", b"junk", "no PEM private key"),
        ("key", None, "cannot be read"),
    ],
)
def test_unusable_files_prevent_startup(
    authority: Authority, part: str, content: bytes | None, reason: str
) -> None:
    files = authority.make("penstock-broker")
    path: Path = getattr(files, part)
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TlsFilesInvalid, match=reason) as failed:
        files.open()
    assert str(path) in str(failed.value)


def test_all_three_tls_files_are_required() -> None:
    assert TlsFiles.open(TlsConfig()) is None
    with pytest.raises(SettingInvalid, match="ca"):
        TlsConfig(certificate="a", key="b")


def test_certificates_are_reported_before_and_after_they_expire() -> None:
    pem = PemFiles(b"", b"", b"", "CN=x", 0.0, 86_400.0)
    assert validity_problem(pem, 40_000) == ""
    assert "expires at 1970-01-02T00:00:00Z" in validity_problem(pem, 80_000)
    assert "expired at" in validity_problem(pem, 86_400)
    assert "valid only from" in validity_problem(pem, -1)


async def test_connection_errors_describe_the_problem(tmp_path: Path, authority: Authority) -> None:
    """gRPC itself produces the error messages in this test."""
    other = Authority(tmp_path / "other", "other")
    good = authority.make("penstock-admin")

    async def problem(server: CertFiles | None, client: CertFiles | None) -> str:
        cluster = Cluster(tmp_path / uuid4().hex, tls=None if server is None else server.open())
        await cluster.start()
        asking = cluster.client(None if client is None else client.open())
        try:
            error = await error_of(asking, lambda timeout_s: asking.describe(timeout_s=timeout_s))
            assert asking.problem in error
            return asking.problem
        finally:
            await asking.close()
            await cluster.stop()

    def server(hosts: tuple[str, ...] = LOCAL, days: tuple[float, float] = (-1, 10)) -> CertFiles:
        return authority.make("penstock-controller", hosts=hosts, days=days)

    assert "no CA of controller.ssl.ca.location signed" in await problem(
        server(), authority.make("penstock-admin", file="wrong", ca=other.file)
    )
    assert "has expired: renew it" in await problem(server(days=(-5, -1)), good)
    assert "is not valid yet" in await problem(server(days=(1, 5)), good)
    assert "does not name the host" in await problem(server(hosts=("elsewhere",)), good)
    assert "the controller does not use TLS" in await problem(None, good)
    old = authority.make("penstock-admin", file="old", days=(-5, -1))
    assert "this side's certificate (CN=penstock-admin) expired at" in await problem(server(), old)
    assert "if it uses TLS, set" in await problem(server(), None)
    assert "refuses this side's certificate" in await problem(
        server(), other.make("penstock-admin", ca=authority.file)
    )
    assert "it refuses this certificate" in await problem(server(), authority.make("alice"))


def test_failures_without_tls_are_not_reported_as_tls_errors() -> None:
    refused = "failed to connect to all addresses; last error: UNKNOWN: Connection refused"
    for has_tls in (True, False):
        assert explain(refused, has_tls=has_tls) == ""
        assert explain("Socket closed", has_tls=has_tls) == "", "a connection that broke later"
