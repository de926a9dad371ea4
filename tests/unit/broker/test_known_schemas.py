"""The cache of registered schemas, the registry client with a registry in this process, and the
worker process.
"""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from penstock.base.settings import SettingInvalid
from penstock.broker.config import BrokerConfig
from penstock.broker.requests.record_checks import record_checks
from penstock.broker.schemas import known_schemas, messages
from penstock.broker.schemas.known_schemas import FRESH_S, PAUSE_S, KnownSchemas
from penstock.broker.schemas.messages import CheckSchema, RegisteredSchema
from penstock.broker.schemas.process import CheckProcess
from penstock.broker.schemas.rules import FieldRule
from penstock.broker.security.tls import SecurityFileInvalid
from penstock.protocol.registry.client import SchemaRegistry
from penstock.protocol.registry.http import RESPONSE_BYTES_MAX
from penstock.protocol.registry.model import (
    NotRegistered,
    RegistryError,
    RegistryUnavailable,
    RegistryUrlInvalid,
)
from tests.support.certs import Authority
from tests.support.schema_registry import SchemaRegistryServer, serving
from tests.support.stream_server import StreamServer
from tests.support.waiting import PATIENCE_S, until

SCHEMA = {"schema": '"string"'}
USER = "broker:a secret"


@pytest.fixture
def server() -> Iterator[SchemaRegistryServer]:
    with serving(SchemaRegistryServer(user_info=USER)) as server:
        yield server


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def known(server: SchemaRegistryServer, clock: Clock) -> AsyncIterator[KnownSchemas]:
    known = KnownSchemas(SchemaRegistry(server.url, user_info=USER, timeout_s=PATIENCE_S), clock)
    yield known
    known.close()


async def test_a_schema_is_fetched_once_and_its_subjects_repeatedly(
    known: KnownSchemas, server: SchemaRegistryServer, clock: Clock
) -> None:
    number = server.register("t-value", SCHEMA)
    one, other = await asyncio.gather(known.find([number]), known.find([number]))
    assert one == other == {number: RegisteredSchema("avro", '"string"', (), ("t-value",))}
    await known.find([number])
    assert server.requests == [f"GET /schemas/ids/{number}/versions", f"GET /schemas/ids/{number}"]
    server.register("u-value", SCHEMA)
    clock.now_s += FRESH_S
    found = await known.find([number])
    assert found[number].subjects == ("t-value", "u-value")
    assert len(server.requests) == 3


async def test_an_unknown_id_is_cached_for_a_while(
    known: KnownSchemas, server: SchemaRegistryServer, clock: Clock
) -> None:
    assert await known.find([1]) == {1: RegisteredSchema("")}
    server.register("t-value", SCHEMA)
    assert await known.find([1]) == {1: RegisteredSchema("")}
    clock.now_s += FRESH_S
    assert (await known.find([1]))[1].type == "avro"


async def test_a_failing_registry_gets_fewer_requests_and_known_schemas_stay_valid(
    known: KnownSchemas, server: SchemaRegistryServer, clock: Clock
) -> None:
    number = server.register("t-value", SCHEMA)
    before = await known.find([number])
    server.fails = True
    clock.now_s += FRESH_S
    assert await known.find([number]) == before
    count = len(server.requests)
    with pytest.raises(RegistryError, match="returned 500"):
        await known.find([2])
    assert len(server.requests) == count
    clock.now_s += PAUSE_S
    server.fails = False
    assert await known.find([2]) == {2: RegisteredSchema("")}


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"schema": 5}', b'[{"subject": "t"}]', b"[" * 100_000, b"\xff"]
)
async def test_malformed_registry_responses_count_as_failures(
    known: KnownSchemas, server: SchemaRegistryServer, body: bytes
) -> None:
    """After an empty list of subjects, the client requests the schema."""
    server.register("t-value", SCHEMA)
    server.body = body
    with pytest.raises(RegistryError, match="failed: "):
        await known.find([1])


async def test_endless_registry_responses_are_cut_off(
    known: KnownSchemas, server: SchemaRegistryServer
) -> None:
    server.register("t-value", SCHEMA)
    server.body = b" " * (RESPONSE_BYTES_MAX + 1)
    with pytest.raises(RegistryError, match="longer than 1048576 bytes"):
        await known.find([1])


async def test_responses_that_end_early_are_requested_again_by_readers() -> None:
    """The connection is closed, as when the process of the registry is killed."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n{"schema": ')
        await writer.drain()
        writer.close()

    server = StreamServer(serve, limit_bytes=1 << 16)
    registry = SchemaRegistry(f"http://127.0.0.1:{server.open()}")
    try:
        with pytest.raises(RegistryUnavailable, match="ended before"):
            await asyncio.to_thread(registry.by_id, 1)
    finally:
        server.close()


async def test_a_hanging_registry_delays_a_check_by_its_timeout(
    server: SchemaRegistryServer, clock: Clock
) -> None:
    known = KnownSchemas(SchemaRegistry(server.url, user_info=USER, timeout_s=0.5), clock)
    server.hangs.clear()
    with pytest.raises(RegistryError, match="timed out"):
        await known.find([1])
    known.close()


async def test_the_cache_and_the_lookups_are_limited(
    known: KnownSchemas,
    server: SchemaRegistryServer,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(known_schemas, "KNOWN_COUNT_MAX", 2)
    for number in (1, 2, 3):
        await known.find([number])
    count = len(server.requests)
    await known.find([2, 3])
    assert len(server.requests) == count
    await known.find([1])
    assert len(server.requests) == count + 1
    monkeypatch.setattr(known_schemas, "LOOKUPS_MAX", 3)
    with pytest.raises(RegistryError, match="are waiting"):
        await known.find(range(10, 20))


def test_credentials_are_sent_only_to_the_registry(server: SchemaRegistryServer) -> None:
    with pytest.raises(RegistryError, match="returned 401") as refused:
        SchemaRegistry(server.url.replace("//", "//broker:wrong@")).subjects_of(1)
    assert "wrong" not in str(refused.value)
    with pytest.raises(NotRegistered):
        SchemaRegistry(server.url.replace("//", "//broker:a%20secret@")).subjects_of(1)
    for url in ("", "ftp://host", "host:8081", "http://"):
        with pytest.raises(RegistryUrlInvalid):
            SchemaRegistry(url)


async def test_the_certificate_of_a_registry_is_verified(tmp_path: Path) -> None:
    files = Authority(tmp_path / "ours").make("registry")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    with serving(SchemaRegistryServer(user_info=USER), context) as server:
        number = server.register("t-value", SCHEMA)
        for ca, said in (
            (files.ca, ""),
            (Authority(tmp_path / "others").file, "no trusted CA signed its certificate"),
        ):
            config = BrokerConfig(
                schema_registry_url=server.url,
                schema_registry_basic_auth_user_info=USER,
                schema_registry_ssl_truststore_location=str(ca),
            )
            checks = record_checks(config)
            known = checks._known
            assert known is not None
            if said:
                with pytest.raises(RegistryError, match=said):
                    await known.find([number])
            else:
                assert (await known.find([number]))[number].schema == SCHEMA["schema"]
            await checks.close()
    missing = BrokerConfig(
        schema_registry_url=server.url, schema_registry_ssl_truststore_location="none.pem"
    )
    with pytest.raises(SecurityFileInvalid, match=r"truststore\.location=none\.pem"):
        record_checks(missing)


@pytest.mark.parametrize("url", ["host:8081", "ftp://host", "https://u:secret@host", "http://"])
def test_the_error_of_an_invalid_url_does_not_contain_its_password(url: str) -> None:
    with pytest.raises(SettingInvalid, match="credentials belong in") as refused:
        BrokerConfig(schema_registry_url=url)
    assert "secret" not in str(refused.value)


def test_referenced_schemas_come_before_schemas_that_refer_to_them(
    server: SchemaRegistryServer,
) -> None:
    def refer(*names: str) -> list[dict[str, object]]:
        return [{"name": name, "subject": name, "version": 1} for name in names]

    server.register("a", {"schema": "A"})
    server.register("b", {"schema": "B", "references": refer("a")})
    number = server.register("c", {"schema": "C", "references": refer("b", "a")})
    registry = SchemaRegistry(server.url, user_info=USER)
    assert registry.by_id(number).references == (("a", "A"), ("b", "B"))
    names = [f"r{at}" for at in range(65)]
    for name in names:
        server.register(name, {"schema": name})
    number = server.register("many", {"schema": "D", "references": refer(*names)})
    with pytest.raises(RegistryError, match="more than 64 references"):
        registry.by_id(number)


async def test_a_killed_worker_process_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pending check fails with a retriable error, because the records may be valid. The files
    of the process are removed.
    """
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    process = CheckProcess()
    request = CheckSchema(FieldRule("json", "true"))
    try:
        assert (await process.call("t", request)).kind == messages.VALID
        worker = process._worker
        assert worker is not None
        (name,) = os.listdir(tmp_path)
        (tmp_path / name / "half.proto").touch()
        worker._process.kill()
        assert (await process.call("t", request)).kind == messages.UNAVAILABLE

        async def works() -> bool:
            return (await process.call("t", request)).kind == messages.VALID

        await until(works)
        assert name not in os.listdir(tmp_path)
    finally:
        await process.close()
    assert not os.listdir(tmp_path)


async def test_checks_of_different_topics_are_interleaved() -> None:
    process = CheckProcess()
    done: list[str] = []

    async def call(topic: str) -> None:
        await process.call(topic, CheckSchema(FieldRule("json", "true")))
        done.append(topic)

    try:
        await asyncio.gather(*map(call, ["a", "a", "a", "b", "c"]))
    finally:
        await process.close()
    assert done == ["a", "b", "c", "a", "a"]
