"""Clients stay connected while their credentials are renewed: expiring sessions (KIP-368) and a CA
rotation.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.deploy.local.certificates import Authority
from tests.support.clients import TIMEOUT_S, is_record
from tests.support.cluster import Cluster
from tests.support.secure_cluster import SecureFiles, create_user, secure_cluster
from tests.support.token_issuer import TokenIssuer
from tests.support.waiting import until

USER, PASSWORD = "carol", "secret"
"""The user of the issuer's tokens also has a password."""
SESSION_MS = 5_000
"""librdkafka reauthenticates after 90 % of the session lifetime."""
RENEWALS = 2


class Renewals:
    """Counts how often each connection has reauthenticated."""

    def __init__(self, cluster: Cluster) -> None:
        self._connections = cluster.broker.server._connections
        self._began: dict[int, set[float]] = defaultdict(set)

    def look(self) -> bool:
        """Return whether the producer and the consumer have reauthenticated `RENEWALS` times."""
        for connection in self._connections:
            sasl = connection.sasl
            if sasl is not None and sasl._reauthentication_began_at is not None:
                self._began[connection.id].add(sasl._reauthentication_began_at)
        return sum(len(began) >= RENEWALS for began in self._began.values()) >= 2


class Pipeline:
    """A producer that keeps producing, and a consumer of its records."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.errors: list[str] = []
        self.acknowledged: list[bytes] = []
        self.read: list[bytes] = []
        self._producer = Producer(settings | {"enable.idempotence": True, "linger.ms": 1})
        self._count = 0
        self._send()
        assert self._producer.flush(TIMEOUT_S) == 0
        self._consumer = Consumer(settings | {"group.id": "g", "fetch.wait.max.ms": 100})
        self._consumer.assign([TopicPartition("t", 0, 0)])

    def step(self) -> None:
        """Produce one record and read available ones."""
        self._send()
        self._poll(0.01)

    def _send(self) -> None:
        value = b"%d" % self._count
        self._count += 1
        self._producer.produce("t", value, partition=0, on_delivery=self._delivered(value))
        self._producer.poll(0)

    def finish(self) -> None:
        """Wait until all records are acknowledged and read."""
        assert self._producer.flush(TIMEOUT_S) == 0
        deadline = time.monotonic() + TIMEOUT_S
        while len(self.read) < self._count and time.monotonic() < deadline:
            self._poll(0.1)
        self._consumer.close()

    def check(self) -> None:
        sent = [b"%d" % number for number in range(self._count)]
        assert self.acknowledged == sent
        assert self.read == sent
        assert not self.errors

    def _delivered(self, value: bytes) -> Callable[[KafkaError | None, object], None]:
        def note(error: KafkaError | None, _message: object) -> None:
            if error is None:
                self.acknowledged.append(value)
            else:
                self.errors.append(error.str())

        return note

    def _poll(self, wait_s: float) -> None:
        message = self._consumer.poll(wait_s)
        if message is not None and is_record(message):
            value = message.value()
            assert isinstance(value, bytes)
            self.read.append(value)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "OAUTHBEARER"])
async def test_reauthenticating_client_loses_no_record(tmp_path: Path, mechanism: str) -> None:
    issuer = TokenIssuer()
    keys = tmp_path / "jwks.json"
    keys.write_bytes(issuer.document())
    security = {
        "ssl_keystore_location": "",
        "ssl_truststore_location": "",
        "sasl_enabled_mechanisms": ("SCRAM-SHA-512", "OAUTHBEARER"),
        "sasl_jwks_endpoint_url": f"file:{keys}",
        "sasl_oauth_expected_audience": ("kafka",),
        "connections_max_reauth_ms": SESSION_MS,
    }

    def token(_config: str) -> tuple[str, float]:
        return issuer.token(), time.time() + 60

    login: dict[str, Any] = (
        {"oauth_cb": token}
        if mechanism == "OAUTHBEARER"
        else {"sasl.username": USER, "sasl.password": PASSWORD}
    )
    async with secure_cluster(tmp_path, "SASL_PLAINTEXT", security=security) as cluster:
        await create_user(cluster, USER, PASSWORD)
        settings = {
            "bootstrap.servers": cluster.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
        }
        pipeline = await asyncio.to_thread(Pipeline, settings | login)
        renewals = Renewals(cluster)

        async def have_renewed() -> bool:
            await asyncio.to_thread(pipeline.step)
            return renewals.look()

        await until(have_renewed)
        await asyncio.to_thread(pipeline.finish)
        pipeline.check()
        assert not cluster.broker.access.failed_count


def by_certificate(cluster: Cluster, ca: Path, certificate: Path) -> AdminClient:
    return AdminClient(
        {
            "bootstrap.servers": cluster.bootstrap,
            "security.protocol": "SSL",
            "ssl.ca.location": str(ca),
            "ssl.certificate.location": str(certificate),
            "ssl.key.location": str(certificate),
            "log_level": 0,
        }
    )


async def check_is_let_in(admin: AdminClient) -> None:
    found = await asyncio.to_thread(admin.list_topics, timeout=TIMEOUT_S)
    assert found.brokers


async def check_is_refused(admin: AdminClient, cluster: Cluster) -> None:
    before = cluster.broker.access.failed_count
    await until(lambda: cluster.broker.access.failed_count > before)
    with pytest.raises(KafkaException):
        await asyncio.to_thread(admin.list_topics, timeout=1)


async def test_ca_of_clients_and_brokers_is_replaced_without_a_restart(tmp_path: Path) -> None:
    """First both CAs are trusted, then the broker gets its new certificate, then the old CA is
    removed. Existing connections stay open.
    """
    files = SecureFiles(tmp_path / "security")
    old, new = files.authority, Authority.make("the next CA")
    both = tmp_path / "both.pem"
    both.write_bytes(old.pem + new.pem)
    of_old, of_new = files.client("alice"), files.client("bob", authority=new)
    settings = {"ssl_client_auth": "required"}
    async with secure_cluster(tmp_path, "SSL", security=settings, files=files) as cluster:
        watched = cluster.broker.access.files

        async def changed(count: int) -> None:
            await until(lambda: watched.reload_count == count)

        staying = by_certificate(cluster, both, of_old)
        await check_is_let_in(staying)
        await check_is_refused(by_certificate(cluster, both, of_new), cluster)

        files.truststore.write_bytes(both.read_bytes())
        await changed(1)
        for certificate in (of_old, of_new):
            await check_is_let_in(by_certificate(cluster, both, certificate))

        files.renew_keystore(new)
        await changed(2)
        only_new = tmp_path / "new.pem"
        only_new.write_bytes(new.pem)
        await check_is_let_in(by_certificate(cluster, only_new, of_new))

        files.truststore.write_bytes(new.pem)
        await changed(3)
        await check_is_refused(by_certificate(cluster, both, of_old), cluster)
        await check_is_let_in(by_certificate(cluster, only_new, of_new))
        await check_is_let_in(staying)  # its connection is older than the removal
        assert not watched.refused_count
