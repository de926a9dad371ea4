"""Admin APIs about rarely used resources. The expected responses are those of Kafka 4.2;
tests/interop compares both.
"""

import pytest

from penstock.broker.errors import ErrorCode
from penstock.controller.metadata.records import ConfigRecord
from penstock.protocol import apis
from penstock.protocol.gen import (
    alter_replica_log_dirs,
    describe_client_quotas,
    describe_user_scram_credentials,
    list_config_resources,
    update_features,
)
from tests.support.handlers import Fixture, broker_record


@pytest.fixture
async def fixture() -> Fixture:
    fixture = Fixture()
    fixture.topic("t")
    fixture.topic("u")
    return fixture


# --- ListConfigResources --------------------------------------------------------------------------

TOPICS, BROKERS = [("t", 2), ("u", 2)], [("1", 4), ("2", 4)]
LOGGERS = [("1", 8), ("2", 8)]


async def resources(
    fixture: Fixture, types: list[int], version: int = 1
) -> tuple[int, list[tuple[str, int]]]:
    request = list_config_resources.ListConfigResourcesRequest(types)
    response = await fixture.send_request(apis.LIST_CONFIG_RESOURCES, version, request)
    found = [(item.resource_name, item.resource_type) for item in response.config_resources]
    return response.error_code, sorted(found)


async def test_topics_and_brokers_are_listed_as_config_resources(fixture: Fixture) -> None:
    assert await resources(fixture, []) == (0, sorted(TOPICS + BROKERS + LOGGERS))
    assert await resources(fixture, [2]) == (0, TOPICS)
    assert await resources(fixture, [4, 4]) == (0, BROKERS)
    assert await resources(fixture, [8, 16, 32]) == (0, LOGGERS)
    fixture.image.apply_all([broker_record(2, fenced=True)])
    assert await resources(fixture, [4]) == (0, BROKERS[:1])


@pytest.mark.parametrize("kind", [0, 1, 77, -1])
async def test_an_unknown_resource_type_is_rejected(fixture: Fixture, kind: int) -> None:
    assert await resources(fixture, [2, kind]) == (ErrorCode.UNSUPPORTED_VERSION, [])


async def test_version_0_lists_only_client_metrics(fixture: Fixture) -> None:
    assert await resources(fixture, [], version=0) == (0, [])
    fixture.image.apply_all([ConfigRecord(16, "s", "metrics", "")])
    assert await resources(fixture, [], version=0) == (0, [("s", 16)])
    assert await resources(fixture, [16, 32]) == (0, [("s", 16)])


# --- AlterReplicaLogDirs --------------------------------------------------------------------------


async def moved(
    fixture: Fixture, *dirs: tuple[str, dict[str, list[int]]], version: int = 2
) -> dict[tuple[str, int], int]:
    request = alter_replica_log_dirs.AlterReplicaLogDirsRequest(
        [
            alter_replica_log_dirs.AlterReplicaLogDir(
                path,
                [
                    alter_replica_log_dirs.AlterReplicaLogDirTopic(*topic)
                    for topic in topics.items()
                ],
            )
            for path, topics in dirs
        ]
    )
    response = await fixture.send_request(apis.ALTER_REPLICA_LOG_DIRS, version, request)
    return {
        (topic.topic_name, part.partition_index): part.error_code
        for topic in response.results
        for part in topic.partitions
    }


@pytest.mark.parametrize("version", [1, 2])
async def test_the_store_is_the_only_log_dir(fixture: Fixture, version: int) -> None:
    missing, unknown = ErrorCode.LOG_DIR_NOT_FOUND, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elsewhere = ("/elsewhere", {"t": [0, 9], "none": [0]})
    assert await moved(fixture, elsewhere, version=version) == {
        ("t", 0): missing,
        ("t", 9): missing,
        ("none", 0): missing,
    }
    here = (fixture.node.log_dir, {"t": [0, 9, -1], "none": [0]})
    assert await moved(fixture, here, version=version) == {
        ("t", 0): 0,
        ("t", 9): unknown,
        ("t", -1): unknown,
        ("none", 0): unknown,
    }
    assert (await moved(fixture, elsewhere, here))["t", 0] == 0, "the last one counts"
    assert (await moved(fixture, here, elsewhere))["t", 0] == missing
    assert await moved(fixture) == {}


# --- DescribeClientQuotas -------------------------------------------------------------------------

FILTERS: list[tuple[list[tuple[str, int, str | None]], int]] = [
    ([], 0),
    ([("user", 0, "x"), ("client-id", 2, None)], 0),
    ([("user", 1, None)], 0),
    ([("ip", 0, "127.0.0.1")], 0),
    ([("nope", 9, None)], ErrorCode.UNSUPPORTED_VERSION),
    ([("ip", 2, None), ("nope", 2, None)], ErrorCode.UNSUPPORTED_VERSION),
    ([("user", 9, None)], ErrorCode.INVALID_REQUEST),
    ([("user", -1, None)], ErrorCode.INVALID_REQUEST),
    ([("user", 2, None), ("user", 2, None)], ErrorCode.INVALID_REQUEST),
    ([("ip", 2, None), ("user", 2, None)], ErrorCode.INVALID_REQUEST),
    ([("user", 0, None)], ErrorCode.INVALID_REQUEST),
    ([("user", 1, "x")], ErrorCode.INVALID_REQUEST),
    ([("user", 2, "x")], ErrorCode.INVALID_REQUEST),
    ([("", 2, None)], ErrorCode.INVALID_REQUEST),
]


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(("components", "code"), FILTERS, ids=str)
async def test_quota_filters_are_validated(
    fixture: Fixture, components: list[tuple[str, int, str | None]], code: int, version: int
) -> None:
    request = describe_client_quotas.DescribeClientQuotasRequest(
        [describe_client_quotas.ComponentData(*component) for component in components]
    )
    response = await fixture.send_request(apis.DESCRIBE_CLIENT_QUOTAS, version, request)
    assert (response.error_code, response.entries) == (code, None if code else [])
    assert bool(response.error_message) == bool(code)


# --- DescribeUserScramCredentials -----------------------------------------------------------------


async def credentials(fixture: Fixture, users: list[str] | None) -> list[tuple[str, int]]:
    wire = describe_user_scram_credentials
    request = wire.DescribeUserScramCredentialsRequest(
        None if users is None else [wire.UserName(user) for user in users]
    )
    response = await fixture.send_request(apis.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, request)
    assert (response.error_code, response.error_message) == (0, "")
    return [(found.user, found.error_code) for found in response.results]


async def test_describe_user_scram_credentials_without_users(fixture: Fixture) -> None:
    assert await credentials(fixture, None) == []
    assert await credentials(fixture, []) == []
    assert await credentials(fixture, ["x", "y", "x"]) == [
        ("x", ErrorCode.DUPLICATE_RESOURCE),
        ("y", ErrorCode.RESOURCE_NOT_FOUND),
    ]


# --- UpdateFeatures -------------------------------------------------------------------------------


async def updated(
    fixture: Fixture, *updates: tuple[str, int, int], version: int = 2
) -> tuple[int, str | None]:
    request = update_features.UpdateFeaturesRequest(
        feature_updates=[update_features.FeatureUpdateKey(*update) for update in updates]
    )
    response = await fixture.send_request(apis.UPDATE_FEATURES, version, request)
    if response.error_code or version > 1:
        assert response.results == []
    return response.error_code, response.error_message


async def test_feature_levels_change_for_all_brokers(fixture: Fixture) -> None:
    features = fixture.node.image.features
    assert await updated(fixture, ("transaction.version", 2, 1)) == (0, None)
    assert features.level("transaction.version") == 2
    assert await updated(fixture, ("transaction.version", 0, 2), version=1) == (0, None)
    assert features.level("transaction.version") == 0
    code, _ = await updated(fixture, ("transaction.version", 1, 1), ("group.version", 2, 1))
    assert (code, features.level("transaction.version")) == (ErrorCode.INVALID_UPDATE_VERSION, 0)


@pytest.mark.parametrize("version", range(3))
async def test_unknown_features_are_rejected(fixture: Fixture, version: int) -> None:
    assert await updated(fixture, version=version) == (0, None)
    for name in ("kraft.version", "nope"):
        code, message = await updated(fixture, (name, 9, 1), ("other", 0, 2), version=version)
        assert code == ErrorCode.INVALID_UPDATE_VERSION
        assert f"update version 9 for feature {name}" in (message or "")


@pytest.mark.parametrize("kind", [1, 2, 3])
async def test_the_metadata_version_accepts_only_its_current_value(
    fixture: Fixture, kind: int
) -> None:
    """Operators may set it to its current value, which stores nothing."""
    stored = dict(fixture.node.image.features.items())
    assert await updated(fixture, ("metadata.version", 29, kind)) == (0, None)
    for level in (0, 7, 28, 30):
        code, message = await updated(fixture, ("metadata.version", level, kind))
        assert code == ErrorCode.INVALID_UPDATE_VERSION
        assert "only supports versions 29" in (message or "")
    assert dict(fixture.node.image.features.items()) == stored


@pytest.mark.parametrize(
    ("level", "kind", "reason"),
    [
        (1, 1, "does not support"),
        (0, 2, "not found"),
        (-1, 1, "less than 0"),
        (1, 9, "upgrade type"),
    ],
)
async def test_the_error_depends_on_the_type_of_the_update(
    fixture: Fixture, level: int, kind: int, reason: str
) -> None:
    code, message = await updated(fixture, ("nope", level, kind))
    assert code == ErrorCode.INVALID_UPDATE_VERSION
    assert reason in (message or "")
