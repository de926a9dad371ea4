"""Admin APIs about things of which there are few or none. The expected answers are those of Kafka
4.2; tests/interop compares both.
"""

import pytest

from broker.errors import ErrorCode
from broker.wire import apis
from broker.wire.gen import list_config_resources
from tests.support.handlers import Fixture, broker_record


@pytest.fixture
async def fixture() -> Fixture:
    fixture = Fixture()
    fixture.topic("t")
    fixture.topic("u")
    return fixture


# --- ListConfigResources --------------------------------------------------------------------------

TOPICS, BROKERS = [("t", 2), ("u", 2)], [("1", 4), ("2", 4)]


async def resources(
    fixture: Fixture, types: list[int], version: int = 1
) -> tuple[int, list[tuple[str, int]]]:
    request = list_config_resources.ListConfigResourcesRequest(types)
    answer = await fixture.ask(apis.LIST_CONFIG_RESOURCES, version, request)
    found = [(item.resource_name, item.resource_type) for item in answer.config_resources]
    return answer.error_code, sorted(found)


async def test_topics_and_brokers_have_configs(fixture: Fixture) -> None:
    assert await resources(fixture, []) == (0, sorted(TOPICS + BROKERS))
    assert await resources(fixture, [2]) == (0, TOPICS)
    assert await resources(fixture, [4, 4]) == (0, BROKERS)
    assert await resources(fixture, [8, 16, 32]) == (0, [])
    fixture.image.apply_all([broker_record(2, fenced=True)])
    assert await resources(fixture, [4]) == (0, BROKERS[:1])


@pytest.mark.parametrize("kind", [0, 1, 77, -1])
async def test_a_type_that_does_not_exist_is_refused(fixture: Fixture, kind: int) -> None:
    assert await resources(fixture, [2, kind]) == (ErrorCode.UNSUPPORTED_VERSION, [])


async def test_version_0_lists_client_metrics_alone(fixture: Fixture) -> None:
    assert await resources(fixture, [], version=0) == (0, [])
