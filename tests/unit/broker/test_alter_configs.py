"""AlterConfigs, which replaces all configs of a resource. The expected responses are those of Kafka
4.2; tests/interop compares them with a real one.
"""

from typing import Any

import pytest

from penstock.broker.errors import ErrorCode
from penstock.controller.metadata.records import ConfigRecord
from penstock.protocol import apis
from penstock.protocol.gen import alter_configs as wire
from tests.support.handlers import Fixture

TOPIC, BROKER, GROUP = 2, 4, 32
Wanted = tuple[int, str, dict[str, str | None]]


@pytest.fixture
async def fixture() -> Fixture:
    fixture = Fixture()
    fixture.topic("t")
    fixture.image.apply_all(
        [ConfigRecord(TOPIC, "t", "retention.ms", "5"), ConfigRecord(TOPIC, "t", "segment.ms", "6")]
    )
    return fixture


async def send_request(
    fixture: Fixture, *requested: Wanted, validate: bool = False, version: int = 2
) -> Any:
    resources = [
        wire.AlterConfigsResource(
            kind, name, [wire.AlterableConfig(*config) for config in values.items()]
        )
        for kind, name, values in requested
    ]
    response = await fixture.send_request(
        apis.ALTER_CONFIGS, version, resources=resources, validate_only=validate
    )
    assert [(item.resource_type, item.resource_name) for item in response.responses] == [
        (kind, name) for kind, name, _ in requested
    ]
    assert all(bool(item.error_code) == bool(item.error_message) for item in response.responses)
    return [item.error_code for item in response.responses]


@pytest.mark.parametrize("version", range(3))
async def test_omitted_configs_are_reset_to_their_defaults(fixture: Fixture, version: int) -> None:
    configs = fixture.image.configs
    requested: Wanted = (TOPIC, "t", {"retention.ms": "7", "cleanup.policy": "compact"})
    assert await send_request(fixture, requested, validate=True, version=version) == [0]
    assert configs.topic("t") == {"retention.ms": "5", "segment.ms": "6"}
    assert await send_request(fixture, requested, version=version) == [0]
    assert configs.topic("t") == {"retention.ms": "7", "cleanup.policy": "compact"}
    assert await send_request(fixture, (TOPIC, "t", {}), version=version) == [0]
    assert configs.topic("t") == {}


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"retention.ms": "1", "retention.mss": "9"}, ErrorCode.INVALID_CONFIG),
        ({"retention.ms": "soon"}, ErrorCode.INVALID_CONFIG),
        ({"retention.ms": ""}, ErrorCode.INVALID_CONFIG),
        ({"retention.ms": None}, ErrorCode.INVALID_REQUEST),
    ],
    ids=str,
)
async def test_an_invalid_config_changes_nothing(
    fixture: Fixture, values: dict[str, str | None], code: ErrorCode
) -> None:
    assert await send_request(fixture, (TOPIC, "t", values)) == [code]
    assert fixture.image.configs.topic("t") == {"retention.ms": "5", "segment.ms": "6"}


async def test_a_config_may_occur_once(fixture: Fixture) -> None:
    twice = [wire.AlterableConfig("retention.ms", value) for value in ("7", "8")]
    request = wire.AlterConfigsRequest([wire.AlterConfigsResource(TOPIC, "t", twice)], False)
    (found,) = (await fixture.send_request(apis.ALTER_CONFIGS, 2, request)).responses
    assert found.error_code == ErrorCode.INVALID_REQUEST


async def test_each_resource_has_its_own_error(fixture: Fixture) -> None:
    """The controller receives a request only for resources that can be changed there."""
    fixture.topic("twice")
    requested: list[Wanted] = [
        (TOPIC, "t", {"retention.ms": "7"}),
        (TOPIC, "none", {"segment.ms": "8"}),
        (TOPIC, "a b", {}),
        (TOPIC, "", {}),
        (TOPIC, "twice", {}),
        (TOPIC, "twice", {"retention.ms": "7"}),
        (BROKER, "2", {}),
        (BROKER, "1", {"node.id": "2"}),
        (8, "1", {}),
        (77, "x", {}),
    ]
    invalid = ErrorCode.INVALID_REQUEST
    assert await send_request(fixture, *requested) == [
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        invalid,
        invalid,
        invalid,
        invalid,
        invalid,
        invalid,
        invalid,
    ]
    assert fixture.image.configs.topic("t") == {"retention.ms": "7"}
    (request,) = fixture.client.requested
    assert request.replaced_topics == ["t", "none", "a b"]


async def test_topics_brokers_and_groups_are_replaced_in_one_request(fixture: Fixture) -> None:
    requested: list[Wanted] = [
        (GROUP, "g", {"consumer.session.timeout.ms": "50000"}),
        (TOPIC, "t", {"retention.ms": "7"}),
        (BROKER, "1", {"log.cleaner.backoff.ms": "5s", "log.cleaner.threads": "2"}),
        (GROUP, "bad", {"consumer.session.timeout.ms": "1"}),
        (BROKER, "", {"max.connections": "20"}),
    ]
    assert await send_request(fixture, *requested) == [0, 0, 0, ErrorCode.INVALID_CONFIG, 0]
    configs = fixture.image.configs
    assert configs.topic("t") == {"retention.ms": "7"}
    assert configs.group("g") == {"consumer.session.timeout.ms": "50000"}
    assert configs.broker("1") == {"log.cleaner.backoff.ms": "5000", "log.cleaner.threads": "2"}
    assert configs.broker("") == {"max.connections": "20"}
    assert (
        await send_request(fixture, *((kind, name, {}) for kind, name, _ in requested)) == [0] * 5
    )
    assert list(configs.items()) == []


async def test_a_controller_that_does_not_respond_fails_every_topic(fixture: Fixture) -> None:
    fixture.client.fail_with = TimeoutError("no controller")
    requested: list[Wanted] = [(TOPIC, "t", {}), (BROKER, "2", {})]
    assert await send_request(fixture, *requested) == [
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.INVALID_REQUEST,
    ]
