"""Schemas and records that attack schema validation: each is rejected, resource use stays within
the limit, and the next batch is checked as usual. The worker process has 2 s of CPU and 512 MiB per
batch.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.broker.errors import ErrorCode
from penstock.broker.requests import record_checks
from penstock.broker.schemas import process
from penstock.controller.api.messages import CreateTopics, NewTopic
from penstock.controller.metadata.topic_configs import SCHEMA_CHARS_MAX
from penstock.protocol.batch.compression import Compression, compress
from penstock.protocol.batch.header import HEADER_BYTES
from penstock.protocol.batch.records import Record, encode_batch
from tests.attacks.test_decompression_bombs import sealed
from tests.support.attacker import Attacker
from tests.support.cluster import Cluster
from tests.support.conversation import alter_configs
from tests.support.waiting import PATIENCE_S

NOW_MS = 1_700_000_000_000
TOPIC = 2
"""The resource type of topics in config requests."""
NODE = "Node"
TREE_AVRO = json.dumps(
    {"type": "record", "name": NODE, "fields": [{"name": "next", "type": ["null", NODE]}]}
)
TREE_PROTO = 'syntax = "proto3"; message Node { Node next = 1; }'


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    """Return a broker that waits for verdicts on a slow machine: they need up to 2 CPU seconds."""
    for module, name in ((record_checks, "CHECK_S"), (process, "RESPONSE_S")):
        monkeypatch.setattr(module, name, PATIENCE_S)
    async with Cluster(tmp_path) as cluster:
        yield cluster


async def create(cluster: Cluster, name: str, kind: str = "", schema: str = "") -> None:
    await cluster.broker.client.create_topics(CreateTopics(topics=[NewTopic(name=name)]))
    await cluster.until_served(name)
    if kind:
        assert await set_schema(cluster, name, kind, schema) == (0, None)


async def set_schema(
    cluster: Cluster, topic: str, kind: str, schema: str
) -> tuple[int, str | None]:
    values = {"penstock.value.schema": schema, "penstock.value.schema.type": kind}
    return await asyncio.to_thread(alter_configs, cluster.bootstrap, (TOPIC, topic), values)


async def refused(cluster: Cluster, topic: str, value: bytes) -> str:
    """Produce the value, expect INVALID_RECORD, and return the error message."""
    async with Attacker.connected(cluster.broker.port) as client:
        response = await client.produce(topic, encode_batch([Record(0, NOW_MS, None, value)]))
        assert response.error_code == ErrorCode.INVALID_RECORD
        assert response.base_offset == -1
        return response.error_message


async def accepted(cluster: Cluster, topic: str, value: bytes) -> None:
    async with Attacker.connected(cluster.broker.port) as client:
        response = await client.produce(topic, encode_batch([Record(0, NOW_MS, None, value)]))
        assert (response.error_code, response.base_offset) == (0, 0), response


def doubling(levels: int) -> str:
    """Return a schema that checks a value 2 ** levels times ("billion laughs")."""
    defs: dict[str, object] = {"level0": {"type": "integer"}}
    for level in range(1, levels + 1):
        below = {"$ref": f"#/$defs/level{level - 1}"}
        defs[f"level{level}"] = {"allOf": [below, below]}
    return json.dumps({"$defs": defs, "$ref": f"#/$defs/level{levels}"})


async def test_a_schema_with_exponential_cost_does_not_block_other_clients(
    cluster: Cluster,
) -> None:
    await create(cluster, "slow", "json", doubling(60))
    await create(cluster, "t", "json", '{"type": "integer"}')
    await create(cluster, "plain")
    slow = asyncio.create_task(refused(cluster, "slow", b"1"))
    async with Attacker.connected(cluster.broker.port) as client:
        plain = encode_batch([Record(0, NOW_MS, None, b"x")])
        assert (await client.produce("plain", plain)).error_code == 0
        assert not slow.done(), "the broker was free while the worker computed"
    assert "too much CPU" in await slow
    await accepted(cluster, "t", b"1")


async def test_regular_expressions_of_schemas_take_linear_time(cluster: Cluster) -> None:
    await create(cluster, "t", "json", json.dumps({"pattern": "^(a+)+$"}))
    assert "value: " in await refused(cluster, "t", json.dumps("a" * 50_000 + "b").encode())
    await accepted(cluster, "t", b'"aaa"')
    code, said = await set_schema(cluster, "t", "json", json.dumps({"pattern": "(a)\\1"}))
    assert code == ErrorCode.INVALID_CONFIG
    assert "back-references" in str(said)


async def test_schema_references_are_never_fetched(cluster: Cluster) -> None:
    """A broker is inside a private network, and clients must not read its files."""
    with socket.create_server(("127.0.0.1", 0)) as inside:
        inside.settimeout(0)
        address = f"http://127.0.0.1:{inside.getsockname()[1]}/latest/meta-data"
        await create(cluster, "t")
        for kind, schema in (
            ("json", json.dumps({"$ref": address})),
            ("json", json.dumps({"$ref": "file:///etc/passwd"})),
            ("json", json.dumps({"$schema": address})),
            ("json", json.dumps({"$id": address, "$ref": "other"})),
            ("protobuf", f'syntax = "proto3"; import "{address}"; message A {{}}'),
            ("protobuf", 'syntax = "proto3"; import "/etc/passwd"; message A {}'),
            ("protobuf", 'syntax = "proto3"; import "../../../etc/passwd"; message A {}'),
        ):
            code, said = await set_schema(cluster, "t", kind, schema)
            assert code == ErrorCode.INVALID_CONFIG, schema
            assert "root:" not in str(said)
        with pytest.raises(BlockingIOError):
            inside.accept()


async def test_deeply_nested_values_do_not_overflow_the_stack(cluster: Cluster) -> None:
    await create(cluster, "json", "json", json.dumps({"items": {"$ref": "#"}}))
    await create(cluster, "avro", "avro", TREE_AVRO)
    await create(cluster, "protobuf", "protobuf", TREE_PROTO)
    depth = 100_000
    nested = b""
    for _ in range(3_000):
        nested = b"\x0a" + varint(len(nested)) + nested
    await refused(cluster, "json", b"[" * depth + b"]" * depth)
    await refused(cluster, "avro", b"\x02" * depth)
    await refused(cluster, "protobuf", nested)
    await accepted(cluster, "json", b"[[]]")
    await accepted(cluster, "avro", b"\x02\x00")
    await accepted(cluster, "protobuf", b"\x0a\x00")


async def test_deeply_nested_schemas_are_rejected(cluster: Cluster) -> None:
    """The schemas are as large as a config value may be."""
    await create(cluster, "t")
    count = SCHEMA_CHARS_MAX // 16
    for kind, schema in (
        ("json", '{"not":' * count + "{}" + "}" * count),
        ("json", "[" * SCHEMA_CHARS_MAX),
        ("avro", '{"type":' * count + '"null"' + "}" * count),
        ("protobuf", 'syntax = "proto3"; ' + "message A{" * count + "}" * count),
    ):
        code, _ = await set_schema(cluster, "t", kind, schema)
        assert code == ErrorCode.INVALID_CONFIG, kind
    assert (await set_schema(cluster, "t", "json", "true")) == (0, None)


async def test_declared_counts_without_data_use_resources_up_to_the_limit(cluster: Cluster) -> None:
    """An array of nulls has no bytes for its items, and a string may declare any length."""
    await create(cluster, "nulls", "avro", json.dumps({"type": "array", "items": "null"}))
    await create(cluster, "text", "avro", json.dumps("string"))
    message = await refused(cluster, "nulls", b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\x00")
    assert "too much CPU or memory" in message
    await refused(cluster, "text", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01")
    await accepted(cluster, "nulls", b"\x04\x00")


async def test_checking_a_decompression_bomb_uses_resources_up_to_the_limit(
    cluster: Cluster,
) -> None:
    """The error is the same as for compacted topics, so the Java producer splits the batch."""
    await create(cluster, "t", "json", "{}")
    records = encode_batch([Record(0, NOW_MS, None, bytes(100 << 20))])
    payload = compress(Compression.ZSTD, memoryview(records)[HEADER_BYTES:])
    async with Attacker.connected(cluster.broker.port) as client:
        response = await client.produce("t", sealed(Compression.ZSTD, payload, 1))
        assert response.error_code == ErrorCode.MESSAGE_TOO_LARGE
        damaged = bytearray(encode_batch([Record(0, NOW_MS, None, b"{}")]))
        damaged[-1] ^= 1
        assert (await client.produce("t", bytes(damaged))).error_code == ErrorCode.CORRUPT_MESSAGE
    await accepted(cluster, "t", b"{}")


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])
