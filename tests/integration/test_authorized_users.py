"""ACLs for users who authenticate with SASL over TLS, with unmodified clients and two brokers."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from penstock.base.scram import SCRAM_BY_NAME
from penstock.protocol.sasl.mechanisms import OAUTHBEARER, PLAIN
from tests.support.clients import TIMEOUT_S
from tests.support.cluster import Cluster
from tests.support.secure_cluster import BROKER_PASSWORD, BROKER_USER, SecureFiles, secure_cluster
from tests.support.token_issuer import TokenIssuer
from tests.support.waiting import wait_until

LISTENER = "SASL_SSL"
MECHANISM = "SCRAM-SHA-512"
PASSWORD = "alice's secret"
AUTHORIZER = {
    "authorizer": "StandardAuthorizer",
    "super_users": f"User:{BROKER_USER}",
}


def config(
    cluster: Cluster, files: SecureFiles, user: str, password: str, **more: Any
) -> dict[str, Any]:
    return {
        "bootstrap.servers": f"127.0.0.1:{cluster.broker.server.ports[LISTENER]}",
        "security.protocol": LISTENER,
        "sasl.mechanism": MECHANISM,
        "sasl.username": user,
        "sasl.password": password,
        "ssl.ca.location": str(files.truststore),
        "log_level": 0,
        **more,
    }


def give_password(admin: AdminClient, user: str) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4_096)
    change = UserScramCredentialUpsertion(user, info, PASSWORD.encode())
    for future in admin.alter_user_scram_credentials([change]).values():
        future.result(TIMEOUT_S)


def written(settings: dict[str, Any], topic: str) -> KafkaError | None:
    """Return the error for a produced record, or None if it is acknowledged."""
    found: list[KafkaError | None] = []
    producer = Producer(settings | {"message.timeout.ms": TIMEOUT_S * 1_000})
    producer.produce(topic, b"x", on_delivery=lambda error, _: found.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    (error,) = found
    return error


async def test_users_can_do_only_what_acls_allow(tmp_path: Path) -> None:
    files = SecureFiles(tmp_path / "security")
    async with secure_cluster(
        tmp_path, LISTENER, brokers=2, security=AUTHORIZER, files=files
    ) as cluster:
        await asyncio.to_thread(_check, cluster, files)


def _check(cluster: Cluster, files: SecureFiles) -> None:
    admin = AdminClient(config(cluster, files, BROKER_USER, BROKER_PASSWORD))
    new = [NewTopic(name, 2, 1) for name in ("orders", "secrets")]
    for future in admin.create_topics(new).values():
        future.result(TIMEOUT_S)
    give_password(admin, "alice")
    acl = AclBinding(
        ResourceType.TOPIC,
        "orders",
        ResourcePatternType.LITERAL,
        "User:alice",
        "*",
        AclOperation.WRITE,
        AclPermissionType.ALLOW,
    )
    for future in admin.create_acls([acl]).values():
        future.result(TIMEOUT_S)

    alice = config(cluster, files, "alice", PASSWORD)
    # The other broker may learn of the ACL and of the password a moment later.
    wait_until(lambda: written(alice, "orders") is None)
    refused = written(alice, "secrets")
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    own = AdminClient(alice)
    assert set(own.list_topics(timeout=TIMEOUT_S).topics) == {"orders"}
    for name in ("alice", "mallory"):
        with pytest.raises(KafkaException) as found:
            give_password(own, name)
        assert found.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    described = admin.describe_user_scram_credentials()
    assert set(described.result(TIMEOUT_S)) == {"alice"}


# --- librdkafka admin requests with each mechanism -----------------------------------------------


async def test_librdkafka_alters_acls_and_credentials_with_each_mechanism(tmp_path: Path) -> None:
    """A super user changes ACLs and SCRAM credentials, and other clients are affected."""
    files = SecureFiles(tmp_path / "security")
    issuer = TokenIssuer()
    keys = tmp_path / "jwks.json"
    keys.write_bytes(issuer.document())
    security = {
        "authorizer": "StandardAuthorizer",
        "super_users": f"User:{BROKER_USER};User:carol",
        "sasl_enabled_mechanisms": (*SCRAM_BY_NAME, PLAIN, OAUTHBEARER),
        "sasl_jwks_endpoint_url": f"file:{keys}",
        "sasl_oauth_expected_audience": ("kafka",),
    }

    def token(_config: str) -> tuple[str, float]:
        return issuer.token(), time.time() + 60

    async with secure_cluster(tmp_path, LISTENER, security=security, files=files) as cluster:
        for mechanism in (*SCRAM_BY_NAME, PLAIN, OAUTHBEARER):
            more = {"sasl.mechanism": mechanism}
            settings = config(cluster, files, BROKER_USER, BROKER_PASSWORD, **more)
            if mechanism == OAUTHBEARER:
                settings["oauth_cb"] = token
            await asyncio.to_thread(_administer, settings, f"t-{mechanism}", f"u-{mechanism}")


def _administer(settings: dict[str, Any], topic: str, user: str) -> None:
    admin = AdminClient(settings)
    for future in admin.create_topics([NewTopic(topic, 1, 1)]).values():
        future.result(TIMEOUT_S)
    give_password(admin, user)
    described = admin.describe_user_scram_credentials([user])[user].result(TIMEOUT_S)
    (info,) = described.scram_credential_infos
    assert (info.mechanism, info.iterations) == (ScramMechanism.SCRAM_SHA_512, 4_096)
    new = {name: value for name, value in settings.items() if name != "oauth_cb"}
    new |= {"sasl.mechanism": MECHANISM, "sasl.username": user, "sasl.password": PASSWORD}
    own = AdminClient(new)
    assert not own.list_topics(timeout=TIMEOUT_S).topics
    acl = AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.PREFIXED,
        f"User:{user}",
        "*",
        AclOperation.DESCRIBE,
        AclPermissionType.ALLOW,
    )
    for future in admin.create_acls([acl]).values():
        future.result(TIMEOUT_S)
    assert set(own.list_topics(timeout=TIMEOUT_S).topics) == {topic}
    requested = AclBindingFilter(
        ResourceType.TOPIC,
        None,
        ResourcePatternType.ANY,
        f"User:{user}",
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert admin.describe_acls(requested).result(TIMEOUT_S) == [acl]
    (removed,) = admin.delete_acls([requested]).values()
    assert removed.result(TIMEOUT_S) == [acl]
    assert not own.list_topics(timeout=TIMEOUT_S).topics
    deletion = UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_512)
    for future in admin.alter_user_scram_credentials([deletion]).values():
        future.result(TIMEOUT_S)
    with pytest.raises(KafkaException) as found:
        admin.describe_user_scram_credentials([user])[user].result(TIMEOUT_S)
    assert found.value.args[0].code() == KafkaError.RESOURCE_NOT_FOUND
    codes: set[int] = set()
    late = AdminClient(new | {"error_cb": lambda error: codes.add(error.code())})

    def is_refused() -> bool:
        late.poll(0.05)
        return KafkaError._AUTHENTICATION in codes

    wait_until(is_refused)
