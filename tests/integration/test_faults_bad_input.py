"""A broker responds to malformed and hostile requests with Kafka's error code or closes the
connection, and writes one log line. Other clients are not affected.
"""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Iterator, MutableMapping
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from penstock.controller.api.messages import CreateTopics, NewTopic
from penstock.protocol import apis, framing
from penstock.protocol.batch.header import HEADER_BYTES
from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.codecs import CODECS
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import create_topics as ct
from penstock.protocol.gen import fetch, list_offsets, metadata
from penstock.protocol.primitives import MAX_ELEMENTS_COUNT
from tests.property.test_wire_strategies import messages
from tests.support.attacker import Attacker
from tests.support.cluster import Cluster
from tests.support.waiting import PATIENCE_S

Logs = list[MutableMapping[str, Any]]


@contextlib.asynccontextmanager
async def with_topics(directory: Path) -> AsyncIterator[Cluster]:
    async with Cluster(directory) as cluster:
        topics = [
            NewTopic(name="sound"),
            NewTopic(name="unchecked", configs={"record.validation": "header"}),
            NewTopic(name="small", configs={"max.message.bytes": "1000"}),
            NewTopic(name="compacted", configs={"cleanup.policy": "compact"}),
        ]
        await cluster.broker.client.create_topics(CreateTopics(topics=topics))
        for topic in topics:
            await cluster.until_served(topic.name)
        yield cluster


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with with_topics(tmp_path) as cluster:
        yield cluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with with_topics(tmp_path_factory.mktemp("shared")) as cluster:
        yield cluster


@pytest.fixture
def logs(caplog: pytest.LogCaptureFixture) -> Iterator[Logs]:
    """Collect the log. At the end, fail if it contains tracebacks, errors or asyncio warnings."""
    with capture_logs() as logs:
        yield logs
    assert not [
        line for line in logs if "exc_info" in line or line["log_level"] in {"error", "critical"}
    ]
    assert not [record for record in caplog.records if record.name == "asyncio"]


def reported(logs: Logs) -> list[str]:
    """Return the events without those of level debug, which background tasks also write."""
    return [line["event"] for line in logs if line["log_level"] != "debug"]


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def header(api_key: int, version: int, *, flexible: bool = False) -> bytes:
    return struct.pack(">hhih", api_key, version, 1, -1) + (b"\0" if flexible else b"")


def hostile_frames() -> dict[str, bytes]:
    """Return the hand-written malformed frames, and each API at its lowest and highest version with
    counts and lengths of gigabytes.
    """
    frames = {
        "http before ApiVersions": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
        "negative size": struct.pack(">i", -1),
        "over the limit": struct.pack(">i", 2**31 - 1) + b"x" * 100,
        "empty frame": framed(b""),
        "half a header": framed(b"\0\3\0"),
        "unknown api": framed(header(999, 0)),
        "unknown version": framed(header(3, 77)),
        "announced for old clients, not served": framed(header(0, 2)),
        "long client id": framed(struct.pack(">hhih", 3, 1, 1, 32_767) + b"x"),
        "kio's bytes": framed(
            header(0, 9, flexible=True) + bytes.fromhex("00ffff00007530ffffffff0f")
        ),
        "more elements than one request may have": framed(
            header(3, 1) + struct.pack(">i", MAX_ELEMENTS_COUNT + 1) + bytes(1_200_000)
        ),
    }
    for api in apis.APIS.values():
        if api in {apis.API_VERSIONS, apis.DESCRIBE_CLUSTER, apis.LIST_GROUPS}:
            continue  # at their lowest versions, these requests contain no length field
        for version in {api.served_min, api.max}:
            flexible = api.is_flexible(version)
            lie = b"\xff\xff\xff\xff\x07" if flexible else b"\x7f\xff\xff\xff"
            frames[f"{api.name} {version}"] = framed(
                header(api.key, version, flexible=flexible) + lie * 12
            )
    return frames


async def test_malformed_frame_closes_its_connection_and_writes_one_log_line(
    cluster: Cluster, logs: Logs
) -> None:
    cluster.broker.server._log_limit = Unlimited()  # another test covers the limit on log lines
    async with Attacker.connected(cluster.broker.port) as bystander:
        for name, data in hostile_frames().items():
            logs.clear()
            async with Attacker.connected(cluster.broker.port) as client:
                client.send(data)
                assert await client.frame() is None, f"{name} got a response"
            assert reported(logs) == ["connection_refused"], f"{name}: {logs}"
            known = await bystander.send_request(
                apis.METADATA,
                12,
                metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name="sound")]),
            )
            assert known.topics[0].error_code == 0


class Unlimited:
    def take(self, now: float) -> int | None:
        return 0


async def test_flood_of_bad_connections_writes_few_log_lines(cluster: Cluster, logs: Logs) -> None:
    began_s = asyncio.get_running_loop().time()
    for _ in range(100):
        async with Attacker.connected(cluster.broker.port) as client:
            client.send(framed(header(999, 0)))
            assert await client.frame() is None
    elapsed_s = asyncio.get_running_loop().time() - began_s
    assert 1 <= len(reported(logs)) <= 11 + elapsed_s  # a burst of 10 lines, then one per second
    async with Attacker.connected(cluster.broker.port) as client:
        assert (await client.produce("sound", sound())).base_offset == 0


def sound(value: bytes = b"v", **settings: Any) -> bytearray:
    return encode_batch([Record(0, 1_000, b"k", value), Record(1, 1_000, b"k", value)], **settings)


def sealed(batch: bytearray) -> bytearray:
    """Return the batch with the CRC of its content."""
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


def patched(at: int, layout: str, value: int) -> bytearray:
    batch = sound()
    struct.pack_into(layout, batch, at, value)
    return sealed(batch)


def with_garbage(compression: int) -> bytearray:
    batch = sound()
    batch[HEADER_BYTES:] = bytes(Random(compression).randbytes(len(batch) - HEADER_BYTES))
    batch[22] = compression
    return sealed(batch)


BAD_BATCHES = [
    # the length is shorter than the header
    ("sound", patched(8, ">i", 20), ErrorCode.CORRUPT_MESSAGE),
    ("sound", patched(8, ">i", 2**31 - 1), ErrorCode.INVALID_RECORD),
    ("sound", patched(8, ">i", -1), ErrorCode.CORRUPT_MESSAGE),
    ("sound", patched(23, ">i", 5), ErrorCode.INVALID_RECORD),  # last offset delta
    ("sound", patched(57, ">i", 2**31 - 1), ErrorCode.INVALID_RECORD),  # record count
    ("sound", patched(57, ">i", -1), ErrorCode.INVALID_RECORD),
    ("sound", patched(21, ">h", 7), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    ("sound", patched(21, ">h", 0x20), ErrorCode.INVALID_RECORD),  # a control batch
    ("small", sound(b"x" * 600), ErrorCode.MESSAGE_TOO_LARGE),
    ("compacted", encode_batch([Record(0, 1_000, None, b"v")]), ErrorCode.INVALID_RECORD),
    *(
        (topic, with_garbage(compression), ErrorCode.INVALID_RECORD)
        for topic in ("sound", "compacted")
        for compression in range(5)
    ),
]


async def test_invalid_batches_get_their_error_code_and_are_not_stored(
    cluster: Cluster, logs: Logs
) -> None:
    async with Attacker.connected(cluster.broker.port) as client:
        for topic, batch, code in BAD_BATCHES:
            response = await client.produce(topic, batch)
            assert (ErrorCode(response.error_code), response.base_offset) == (code, -1), bytes(
                batch
            ).hex()
        for topic in ("sound", "small", "compacted"):
            assert (await client.produce(topic, sound())).base_offset == 0, (
                "nothing of it came into the log"
            )
    assert reported(logs) == []


@pytest.mark.parametrize("compression", range(5))
async def test_garbage_with_a_valid_checksum_fails_only_lookups_that_read_it(
    cluster: Cluster, logs: Logs, compression: int
) -> None:
    """A topic may accept batches without parsing their records. A lookup by time must parse them:
    it returns an error, and the log remains usable.
    """
    async with Attacker.connected(cluster.broker.port) as client:
        assert (await client.produce("unchecked", with_garbage(compression))).error_code == 0
        assert (await client.produce("unchecked", sound())).base_offset == 2
        requested = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=1_000)
        request = list_offsets.ListOffsetsRequest(
            topics=[list_offsets.ListOffsetsTopic(name="unchecked", partitions=[requested])]
        )
        found = (await client.send_request(apis.LIST_OFFSETS, 7, request)).topics[0].partitions[0]
        assert ErrorCode(found.error_code) in {
            ErrorCode.CORRUPT_MESSAGE,
            ErrorCode.KAFKA_STORAGE_ERROR,
            ErrorCode.NONE,
        }
        part = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        fetched = await client.send_request(
            apis.FETCH,
            12,
            fetch.FetchRequest(
                max_bytes=1 << 20, topics=[fetch.FetchTopic(topic="unchecked", partitions=[part])]
            ),
        )
        assert fetched.responses[0].partitions[0].high_watermark == 4
    assert len(reported(logs)) <= 1


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ü", "x" * 250, "a\0b", "a\nb"])
async def test_invalid_topic_names_are_rejected(shared: Cluster, logs: Logs, name: str) -> None:
    async with Attacker.connected(shared.broker.port) as client:
        topic = ct.CreatableTopic(name, num_partitions=1, replication_factor=1)
        created = (
            await client.send_request(apis.CREATE_TOPICS, 7, ct.CreateTopicsRequest([topic], 5_000))
        ).topics[0]
        assert created.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert created.error_message
        requested = metadata.MetadataRequest(
            topics=[metadata.MetadataRequestTopic(name=name)], allow_auto_topic_creation=True
        )
        known = (await client.send_request(apis.METADATA, 12, requested)).topics[0]
        assert known.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert reported(logs) == []


async def test_fetch_and_produce_to_missing_offsets_partitions_and_topics(
    cluster: Cluster, logs: Logs
) -> None:
    async with Attacker.connected(cluster.broker.port) as client:
        for topic, partition, offset, code in [
            ("sound", 0, 1, ErrorCode.OFFSET_OUT_OF_RANGE),
            ("sound", 0, 2**63 - 1, ErrorCode.OFFSET_OUT_OF_RANGE),
            ("sound", 0, -1, ErrorCode.OFFSET_OUT_OF_RANGE),
            ("sound", 1, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("sound", -1, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("nowhere", 0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("", 0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]:
            part = fetch.FetchPartition(
                partition=partition, fetch_offset=offset, partition_max_bytes=100
            )
            request = fetch.FetchRequest(
                max_wait_ms=PATIENCE_S * 1_000,
                topics=[fetch.FetchTopic(topic=topic, partitions=[part])],
            )
            found = (await client.send_request(apis.FETCH, 12, request)).responses[0].partitions[0]
            assert ErrorCode(found.error_code) is code, (topic, partition, offset)
    assert reported(logs) == []


# --- valid frames with random content
# ---------------------------------------------------------------


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("api", [pytest.param(api, id=api.name) for api in apis.APIS.values()])
async def test_requests_with_random_fields_never_crash_the_broker(
    shared: Cluster, logs: Logs, api: apis.ApiSpec
) -> None:
    """Fields contain any value of their type, often names and numbers that exist."""
    requests = await asyncio.to_thread(examples, api)
    rng = Random(api.key)
    in_turn = asyncio.Semaphore(16)

    async def send_request(version: int, request: Any) -> None:
        async with in_turn, Attacker.connected(shared.broker.port) as client:
            client.send(
                framing.encode_request_frame(
                    api, version, 7, CODECS[api.key].encode_request, request
                )
            )
            # some requests rightly wait for other group members
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.3):
                    await client.frame()

    await asyncio.gather(
        *(send_request(version, likely(request, rng)) for version, request in requests)
    )
    async with Attacker.connected(shared.broker.port) as client:
        assert (await client.produce("sound", sound())).error_code == 0
    assert not shared.broker.ended.done()


def examples(api: apis.ApiSpec) -> list[tuple[int, Any]]:
    """Return pairs (version, request), the same in every run. Most have the oldest or the newest
    version, because all versions share a handler.
    """
    found: list[tuple[int, Any]] = []
    for version in range(api.served_min, api.max + 1):

        @settings(
            max_examples=20 if version in (api.served_min, api.max) else 5,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(version=st.just(version), request=messages(api, "request", version))
        def collect(version: int, request: Any) -> None:
            found.append((version, request))

        collect()
    return found


NUMBERS = {
    "partition_index": 0,
    "partition": 0,
    "index": 0,
    "num_partitions": 2,
    "replication_factor": 1,
    "acks": -1,
}
TIMES = {"timeout_ms", "max_wait_ms", "session_timeout_ms", "rebalance_timeout_ms"}


def likely(value: Any, rng: Random, name: str = "") -> Any:
    """Return the value with many of its fields replaced by plausible values."""
    if isinstance(value, msgspec.Struct):
        return type(value)(
            *(likely(getattr(value, field), rng, field) for field in value.__struct_fields__)
        )
    if isinstance(value, list | tuple):
        return [likely(item, rng, name) for item in value]
    if isinstance(value, str) and rng.random() < 0.6:
        return rng.choice(["t", "u", "small", "compacted", "consumer", "range"])
    if name in TIMES and isinstance(value, int):
        return rng.choice([0, 10, 6_000, value])
    if name in NUMBERS and rng.random() < 0.6:
        return NUMBERS[name]
    if isinstance(value, bytes) and name == "records" and rng.random() < 0.6:
        return bytes(sound())
    return value
