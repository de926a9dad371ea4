"""The parsers of untrusted bytes that `make fuzz` tests.

To add a target, write a function that passes bytes to the parser, add it to TARGETS with the
documented errors, and add seeds to `tests.fuzz.seeds`. Findings are other exceptions, exceeding
`time_max_s` or `memory_bytes_max`, and crashes.
"""

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import msgspec

from penstock.broker.client_metrics.otlp import (
    MetricsInvalid,
    read_response,
    resource_of,
    with_resource,
)
from penstock.broker.security.tls import SecurityFileInvalid
from penstock.controller.api import (
    load_messages,
    quota_messages,
    rewrite_messages,
    scram_messages,
    token_messages,
)
from penstock.controller.api import messages as api_messages
from penstock.controller.api.errors import (
    BackupCorrupt,
    JournalCorrupt,
    JournalStateLost,
    SnapshotCorrupt,
)
from penstock.controller.backup.layout import unpack
from penstock.controller.backup.snapshots import SnapshotStore
from penstock.controller.metadata.codec import decode_record
from penstock.controller.metadata.errors import InvariantBroken
from penstock.controller.raft.journal import Journal
from penstock.controller.raft.transport import Hello
from penstock.controller.raft.transport import Message as RaftMessage
from penstock.deploy.node.health import REQUEST_BYTES_MAX, HttpServer, routes_of
from penstock.lake.manifest.sections import SectionReader, load_root
from penstock.objectstore.errors import ObjectNotFound
from penstock.objectstore.memory import MemoryStore
from penstock.protocol.apis import APIS, PRODUCE
from penstock.protocol.batch.compression import Compression, decompress
from penstock.protocol.batch.control import decode_marker
from penstock.protocol.batch.errors import BatchCorrupt
from penstock.protocol.batch.header import check_crc, iter_headers
from penstock.protocol.batch.records import decode_records
from penstock.protocol.batch.uncompressed_size import uncompressed_bytes
from penstock.protocol.codecs import CODECS
from penstock.protocol.errors import WireError
from penstock.protocol.framing import decode_body, parse_header, parse_response_header
from penstock.protocol.primitives import MAX_ELEMENTS_COUNT
from penstock.protocol.produce import decode_produce_request
from penstock.protocol.registry.model import SchemaInvalid
from penstock.protocol.request_limits import elements_max
from penstock.protocol.sasl.mechanisms import AuthenticationFailed
from penstock.stream.errors import FormatUnknown, ObjectCorrupt
from penstock.stream.format.checkpoint import decode_map
from penstock.stream.format.decoder import parse_header as parse_object_header
from penstock.stream.format.decoder import parse_tail, verify_object
from penstock.stream.format.keys import manifest_key, snapshot_key
from penstock.stream.format.manifest.codec import decode_entries, decode_shard
from penstock.stream.format.manifest.lease import Lease
from penstock.stream.format.manifest.model import PageRef, SectionRef
from penstock.stream.format.transaction_log import decode_events
from tests.fuzz import arrow_batches, consoles, logins, schemas, seals
from tests.fuzz.parts import JournalParts, response_of

Function = Callable[[bytes], object]
Errors = tuple[type[BaseException], ...]

HERE = Path(__file__).resolve().parent
CLUSTER = "vectors"
DECOMPRESSED_BYTES_MAX = 1 << 20
_MIB = 1 << 20


@dataclass(frozen=True)
class Target:
    """A parser. allowed: its documented errors. seal: corrects the checksums of an input; the
    parser is then run twice, with the original and the corrected input.
    """

    name: str
    read: Function
    allowed: Errors
    seal: seals.Seal | None = None
    memory_bytes_max: int = 32 * _MIB
    time_max_s: float = 1.0

    @property
    def findings(self) -> Path:
        return HERE / "findings" / self.name

    def inputs(self, data: bytes) -> list[bytes]:
        """Return the parser inputs that this fuzzer input stands for."""
        return [data] if self.seal is None else [data, self.seal(data)]


def all_of(*reads: Function, allowed: Errors) -> Function:
    """Return a function that passes an input to each of the parsers, even after one has raised."""

    def read(data: bytes) -> None:
        for each in reads:
            try:
                each(data)
            except allowed:
                continue

    return read


# --- the Kafka protocol ---------------------------------------------------------------------------


def _request(frame: bytes) -> None:
    header = parse_header(frame)
    if not header.is_supported:
        return
    at, version = header.body_offset, header.api_version
    if header.api is PRODUCE:
        decode_produce_request(memoryview(frame), at, version)
    elements = elements_max(header.api.key)
    decode_body(CODECS[header.api.key].decode_request, frame, at, version, elements)


def _response(data: bytes) -> None:
    """Decode a response after two bytes that select API and version."""
    if len(data) < 2:
        return
    api = list(APIS.values())[data[0] % len(APIS)]
    version = api.served_min + data[1] % (api.max - api.served_min + 1)
    _, at = parse_response_header(api, version, data[2:])
    decode_body(CODECS[api.key].decode_response, data[2:], at, version, MAX_ELEMENTS_COUNT)


# --- batches --------------------------------------------------------------------------------------


def _decompress(codec: Compression) -> Function:
    def read(data: bytes) -> None:
        uncompressed_bytes(codec, data)
        decompress(codec, data, DECOMPRESSED_BYTES_MAX)

    return read


def _headers(data: bytes) -> None:
    for at, header in iter_headers(data):
        check_crc(data, at)
        uncompressed_bytes(header.compression, data[at : at + header.size_bytes])


_BATCH_READERS: tuple[Function, ...] = (
    _headers,
    functools.partial(decode_records, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX),
    lambda data: decode_marker(data, 1, 0),
    decode_map,
    decode_events,
)


# --- objects and manifests ------------------------------------------------------------------------


def _manifest(data: bytes) -> None:
    asyncio.run(_read_manifest(data))


async def _read_manifest(data: bytes) -> None:
    store = MemoryStore()
    await store.put(manifest_key(CLUSTER, 1), data)
    root = await load_root(store, CLUSTER, 1)
    refs = [shard for topic in root.topics for shard in topic.shards]
    await SectionReader(store, CLUSTER).read(
        refs[:8], lambda ref, raw, key: decode_shard(raw, ref, key)
    )


_SECTION = SectionRef(1, 16, 0, 0, 0)


def _shard(data: bytes) -> None:
    decode_shard(memoryview(data), _SECTION, "manifest")


def _page(data: bytes) -> None:
    decode_entries(memoryview(data), PageRef(0, 1, 1, 1, 1, 1, _SECTION), "manifest")


def _lease(data: bytes) -> None:
    msgspec.json.decode(data, type=Lease)


# --- controllers ----------------------------------------------------------------------------------


def _snapshot(data: bytes) -> None:
    asyncio.run(_load_snapshot(data))


async def _load_snapshot(data: bytes) -> None:
    store = MemoryStore()
    await store.put(snapshot_key(CLUSTER, 1, 1), data)
    await SnapshotStore(store, CLUSTER, kept=2).load_newest()


def _log_object(data: bytes) -> None:
    for record in unpack("log", 0, CLUSTER, data).records:
        decode_record(record)


def _journal(data: bytes) -> None:
    Journal(JournalParts(data), JournalParts(data)).open()


def _messages() -> tuple[type[api_messages.Message], ...]:
    found = (
        kind
        for module in (
            api_messages,
            load_messages,
            quota_messages,
            rewrite_messages,
            scram_messages,
            token_messages,
        )
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, api_messages.Message)
    )
    return tuple(sorted(set(found) - {api_messages.Message, api_messages.Reply}, key=str))


MESSAGES = _messages()
"""The gRPC messages; the first byte selects one."""

_MESSAGE_DECODERS = [msgspec.msgpack.Decoder(kind) for kind in MESSAGES]
_raft_hello = msgspec.msgpack.Decoder(Hello)
_raft_group = msgspec.msgpack.Decoder(list[RaftMessage])


def _grpc(data: bytes) -> None:
    if data:
        _MESSAGE_DECODERS[data[0] % len(MESSAGES)].decode(data[1:])


# --- HTTP -----------------------------------------------------------------------------------------


class _Well:
    """A Health implementation that always reports a healthy process."""

    def not_started(self) -> list[str]:
        return []

    def not_alive(self) -> list[str]:
        return []

    async def not_ready(self) -> list[str]:
        return []


_ROUTES = routes_of(_Well())


def _http(data: bytes) -> None:
    response = response_of(HttpServer(_ROUTES), data, REQUEST_BYTES_MAX)
    assert not response or response.startswith(b"HTTP/1.1 "), f"the response is {response[:80]!r}"


_RESOURCE = resource_of([("client_id", "a")])
_otlp = all_of(
    lambda data: with_resource(data, _RESOURCE), read_response, allowed=(MetricsInvalid,)
)
"""Metrics pushed by a client, and responses of an OTLP receiver."""

_OBJECT_ERRORS: Errors = (ObjectCorrupt, FormatUnknown)
_MESSAGE_ERRORS: Errors = (msgspec.DecodeError, UnicodeDecodeError)

TARGETS = MappingProxyType(
    {
        target.name: target
        for target in (
            Target("request", _request, (WireError,)),
            Target("response", _response, (WireError,)),
            Target(
                "batch",
                all_of(*_BATCH_READERS, allowed=(BatchCorrupt,)),
                (BatchCorrupt,),
                seals.batch,
            ),
            *(
                Target(codec.name.lower(), _decompress(codec), (BatchCorrupt,))
                for codec in Compression
                if codec != Compression.NONE
            ),
            Target(
                "object",
                all_of(
                    parse_object_header,
                    lambda data: parse_tail(data, len(data)),
                    verify_object,
                    allowed=_OBJECT_ERRORS,
                ),
                _OBJECT_ERRORS,
                seals.object_,
            ),
            Target("manifest", _manifest, (*_OBJECT_ERRORS, ObjectNotFound), seals.manifest),
            Target("manifest-shard", _shard, _OBJECT_ERRORS),
            Target("manifest-page", _page, _OBJECT_ERRORS),
            Target("lease", _lease, (msgspec.DecodeError, UnicodeDecodeError)),
            Target(
                "snapshot",
                _snapshot,
                (SnapshotCorrupt, FormatUnknown, InvariantBroken, msgspec.DecodeError),
                seals.metadata,
            ),
            Target(
                "metadata-log",
                _log_object,
                (BackupCorrupt, FormatUnknown, msgspec.DecodeError),
                seals.metadata,
            ),
            Target("journal", _journal, (JournalCorrupt, JournalStateLost), seals.journal),
            Target("grpc", _grpc, _MESSAGE_ERRORS),
            Target(
                "raft",
                all_of(_raft_hello.decode, _raft_group.decode, allowed=_MESSAGE_ERRORS),
                _MESSAGE_ERRORS,
            ),
            Target("http", _http, ()),
            Target("otlp", _otlp, ()),
            # Arrow and the threads that read a store reserve address space that they do not use.
            # The librdkafka threads reserve 8 MiB each, and librdkafka aborts if it cannot start
            # one.
            Target("console", consoles.console, (), memory_bytes_max=4_096 * _MIB),
            Target(
                "arrow-batch",
                arrow_batches.read,
                (),
                arrow_batches.seal,
                memory_bytes_max=1_024 * _MIB,
            ),
            *(
                Target(
                    mechanism.lower(),
                    functools.partial(logins.sasl, mechanism),
                    (AuthenticationFailed,),
                )
                for mechanism in logins.MECHANISMS
            ),
            Target("jwt", logins.jwt, (AuthenticationFailed,)),
            Target("jwks", logins.jwks, (ValueError,)),
            Target("users-file", logins.users, (ValueError,)),
            Target("principal-rules", logins.principal_rules, (ValueError,)),
            Target("certificate", logins.certificate, (ValueError,)),
            Target("keystore", logins.keystore, (SecurityFileInvalid,)),
            Target("record-values", schemas.value, ()),
            Target("schemas", schemas.schema, (SchemaInvalid,)),
        )
    }
)
