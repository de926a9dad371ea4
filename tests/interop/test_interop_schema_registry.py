"""A schema registry that stores its schemas in Penstock topics."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.apicurio import Apicurio
from tests.support.cluster import Cluster

SUBJECT = "/subjects/orders-value"


def _record(*fields: dict[str, Any]) -> dict[str, str]:
    """Return the request body that registers an Avro record schema."""
    schema = {"type": "record", "name": "Order", "fields": fields}
    return {"schema": json.dumps(schema), "schemaType": "AVRO"}


NUMBER = {"name": "number", "type": "long"}
FIRST = _record(NUMBER)
SECOND = _record(NUMBER, {"name": "note", "type": "string", "default": ""})
INCOMPATIBLE = _record(NUMBER, {"name": "price", "type": "double"})
THIRD = _record(NUMBER, {"name": "count", "type": "int", "default": 1})

pytestmark = pytest.mark.cluster(brokers=2)


class Registry(Apicurio):
    """A registry with one subject."""

    def register(self, schema: object) -> int:
        """Register a schema; return its id."""
        status, response = self.send_request("POST", f"{SUBJECT}/versions", schema)
        assert status == 200, response
        return response["id"]

    def versions(self) -> list[tuple[int, Any]]:
        """Return the schema id and the schema of each version."""
        _, numbers = self.send_request("GET", f"{SUBJECT}/versions")
        found = [self.send_request("GET", f"{SUBJECT}/versions/{number}")[1] for number in numbers]
        return [(version["id"], json.loads(version["schema"])) for version in found]


@pytest.mark.long
async def test_schemas_survive_a_registry_kill(
    cluster: Cluster, apicurio: Path, tmp_path: Path
) -> None:
    first, second, third = (Registry(apicurio, cluster.bootstrap, tmp_path) for _ in range(3))
    await asyncio.to_thread(_evolve, first)
    known = await asyncio.to_thread(_restart_two, second, third)
    schemas = [json.loads(body["schema"]) for body in (FIRST, SECOND, THIRD)]
    assert [schema for _, schema in known] == schemas


def _evolve(registry: Registry) -> None:
    """Register two versions; a third one is refused. Then kill the process with SIGKILL."""
    with registry.start() as process:
        registry.until(process, registry.is_ready)
        ids = [registry.register(FIRST)]
        status, response = registry.send_request(
            "PUT", "/config/orders-value", {"compatibility": "BACKWARD"}
        )
        assert status == 200, response
        ids.append(registry.register(SECOND))
        assert registry.register(FIRST) == ids[0] != ids[1]
        status, response = registry.send_request("POST", f"{SUBJECT}/versions", INCOMPATIBLE)
        assert status == 409, response
        assert [schema_id for schema_id, _ in registry.versions()] == ids


def _restart_two(one: Registry, other: Registry) -> list[tuple[int, Any]]:
    """Start two processes at once; both return the schemas that one of them registers. Return these
    schemas.
    """
    with one.start() as process, other.start() as other_process:
        one.until(process, one.is_ready)
        other.until(other_process, other.is_ready)
        one.until(process, lambda: len(one.versions()) == 2)
        known = one.versions()
        other.until(other_process, lambda: other.versions() == known)
        status, response = other.send_request("POST", f"{SUBJECT}/versions", INCOMPATIBLE)
        assert status == 409, response
        new = other.register(THIRD)
        assert new not in dict(known)
        one.until(process, lambda: new in dict(one.versions()))
        return one.versions()
