"""Send single Kafka protocol requests to a broker, over real sockets with its own codecs."""

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.protocol import apis
from penstock.protocol.apis import ApiSpec
from penstock.protocol.gen import describe_configs, incremental_alter_configs
from tests.support.wire import wire_client

SET, DELETE = 0, 1


def send_request(address: str, api: ApiSpec, request: object) -> Any:
    """Return the response as dictionaries and lists."""
    with wire_client(address) as client:
        response = client.send_request(api, request, object)
    return msgspec.to_builtins(response)


def alter_configs(
    address: str, resource: tuple[int, str], values: Mapping[str, str | None]
) -> tuple[int, str | None]:
    """Set configs of one resource, or delete those whose value is None. Return the error code and
    message.
    """
    configs = [
        incremental_alter_configs.AlterableConfig(name, DELETE if value is None else SET, value)
        for name, value in values.items()
    ]
    requested = incremental_alter_configs.AlterConfigsResource(*resource, configs)
    request = incremental_alter_configs.IncrementalAlterConfigsRequest([requested], False)
    (result,) = send_request(address, apis.INCREMENTAL_ALTER_CONFIGS, request)["responses"]
    return result["error_code"], result["error_message"]


def describe_configs_of(address: str, resource: tuple[int, str], *names: str) -> dict[str, Any]:
    """Return the configs of one resource by name. Without names, return all configs."""
    requested = describe_configs.DescribeConfigsResource(*resource, list(names) or None)
    request = describe_configs.DescribeConfigsRequest([requested], True, False)
    (result,) = send_request(address, apis.DESCRIBE_CONFIGS, request)["results"]
    assert result["error_code"] == 0, result
    return {config["name"]: config for config in result["configs"]}
