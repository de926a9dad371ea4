"""Write the committed corpora of `make fuzz` from real encodings: `python -m tests.fuzz.seeds`.

`corpus/TARGET.txt` has one input per line: a name and hexadecimal digits. Targets of stored formats
also use the conformance vectors of `tests/formats`.
"""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import cramjam
import msgspec

from penstock.base.errors import StreamError
from penstock.broker.client_metrics.otlp import resource_of
from penstock.controller.raft.journal import encode_frame
from penstock.controller.raft.messages import (
    Append,
    Base,
    Endpoint,
    Entry,
    HardState,
    Members,
    Vote,
)
from penstock.controller.raft.transport import Hello
from penstock.protocol.apis import APIS, ApiSpec
from penstock.protocol.batch.compression import Compression, compress
from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.codecs import CODECS
from penstock.protocol.framing import SIZE_BYTES, encode_request_frame, encode_response_frame
from penstock.stream.format.manifest.codec import decode_root, parse_footer, unpack_section
from tests.formats import batches
from tests.formats.stores import stores
from tests.fuzz import arrow_batches, consoles, login_seeds, schemas
from tests.fuzz.protocol_messages import built_message
from tests.fuzz.targets import HERE, MESSAGES, TARGETS, Target
from tools.protocol.kio_schema import Kind

Seeds = Iterator[tuple[str, bytes]]
FORMATS = HERE.parent / "formats"
REFERENCES = {
    "object": ("objects/*.bin", "stores/*/bucket/wal/*/*/*", "1.0/bucket/data/*/*"),
    "manifest": ("stores/*/bucket/manifest/*/*", "1.0/bucket/manifest/*/*"),
    "lease": ("metadata/lease*.bin",),
    "snapshot": ("metadata/snapshot*.bin", "1.0/bucket/meta/*/snapshots/*"),
    "metadata-log": ("metadata/log*.bin", "1.0/bucket/meta/*/log/*"),
    "journal": ("1.0/controller/journal/*",),
}
"""The files of `tests/formats` that are seeds of each target."""

_MEMBERS = Members((0, 2), (1,), (Endpoint(0, "127.0.0.1:9093", "a" * 22),), 4)
_ENTRY = Entry(7, 3, 12, [b"record"], _MEMBERS)
_PLAIN = b"a record of a producer, " * 20


def seeds_of(target: Target) -> dict[str, bytes]:
    """Return the committed inputs of a target by name: its corpus, its vectors and its findings."""
    found: dict[str, bytes] = {}
    corpus = HERE / f"corpus/{target.name}.txt"
    for line in corpus.read_text().splitlines() if corpus.exists() else ():
        name, _, digits = line.partition(" ")
        found[name] = bytes.fromhex(digits)
    for pattern in REFERENCES.get(target.name, ()):
        for path in sorted(FORMATS.glob(pattern)):
            found[str(path.relative_to(FORMATS))] = path.read_bytes()
    if target.findings.is_dir():
        for path in sorted(target.findings.iterdir()):
            found[f"findings/{path.name}"] = path.read_bytes()
    return found


# --- contents of the corpora ----------------------------------------------------------------------


def _message(api: ApiSpec, direction: str, version: int) -> Any:
    return built_message(api, direction, version, lambda _struct, item: _SCALARS[item.kind])


_SCALARS: dict[Kind, Any] = {
    Kind.BOOL: True,
    Kind.INT8: 1,
    Kind.INT16: 1,
    Kind.UINT16: 1,
    Kind.INT32: 1,
    Kind.INT64: 1,
    Kind.FLOAT64: 1.0,
    Kind.STRING: "topic",
    Kind.BYTES: b"bytes",
    Kind.RECORDS: batches.run(0, 1).payload,
    Kind.UUID: UUID(int=7),
}


def _requests() -> Seeds:
    for api in APIS.values():
        for version in range(api.served_min, api.max + 1):
            encode = CODECS[api.key].encode_request
            message = _message(api, "request", version)
            frame = encode_request_frame(api, version, 1, encode, message, client_id="client")
            yield f"{api.name}-{version}", bytes(frame[SIZE_BYTES:])


def _responses() -> Seeds:
    for number, api in enumerate(APIS.values()):
        encode = CODECS[api.key].encode_response
        message = _message(api, "response", api.max)
        frame = encode_response_frame(api, api.max, 1, encode, message)
        choice = bytes([number, api.max - api.served_min])
        yield f"{api.name}-{api.max}", choice + frame[SIZE_BYTES:]


def _batches() -> Seeds:
    for codec in Compression:
        yield codec.name.lower(), batches.run(0, 5, compression=codec).payload
    yield "xerial", batches.xerial(0, 5).payload
    yield "two-frames", batches.two_frames(0, 5).payload
    yield "marker", batches.marker(2, 100, committed=False).payload
    yield "event", batches.event(0, 3, -1, (100, 0, 2)).payload
    yield "gap", batches.gap(6, 10).payload
    yield "two", batches.run(0, 2).payload + batches.run(2, 3).payload


def _compressed(codec: Compression) -> Seeds:
    yield "text", compress(codec, _PLAIN)
    yield "empty", compress(codec, b"")
    yield "zeros", compress(codec, bytes(100_000))
    yield "bomb", compress(codec, bytes(4 << 20))
    if codec == Compression.SNAPPY:
        yield "xerial", batches.records_of(batches.xerial(0, 5))
    if codec == Compression.ZSTD:
        yield "two-frames", batches.records_of(batches.two_frames(0, 5))
        yield "level-19", bytes(cramjam.zstd.compress(_PLAIN, level=19))


def _shards() -> Seeds:
    """Yield the manifest shards of the vectors."""
    for store in stores():
        for key, data in store.objects.items():
            if key.startswith("manifest/"):
                for number, raw in enumerate(_shards_of(data, key)):
                    yield f"{store.name}-{key[-3:]}-{number}", raw


def _shards_of(data: bytes, key: str) -> list[bytes]:
    try:
        footer = parse_footer(data, len(data), key)
        ref = footer.root
        stored = data[ref.position : ref.position + ref.stored_bytes]
        root = decode_root(unpack_section(stored, ref, key), footer, key)
    except StreamError:  # some vectors are damaged on purpose
        return []
    refs = [shard for topic in root.topics for shard in topic.shards]
    return [
        bytes(unpack_section(data[each.position : each.position + each.stored_bytes], each, key))
        for each in refs
        if each.position + each.stored_bytes <= len(data) and each.version == ref.version
    ]


def _pages() -> Seeds:
    for name, raw in _shards():
        shard = msgspec.msgpack.decode(raw)
        yield name, msgspec.msgpack.encode(shard[4])


def _journal() -> Seeds:
    first = encode_frame(HardState(3, 1), Base(6, 2, 12, _MEMBERS), (), "fuzz")
    yield "first", first
    yield "entries", first + encode_frame(None, None, [_ENTRY, Entry(8, 3, 13, [])])
    yield "torn", first + encode_frame(HardState(4), None, [_ENTRY])[:-3]


def _grpc() -> Seeds:
    for number, kind in enumerate(MESSAGES):
        schema = {each.encode_name: _plausible(each.type) for each in msgspec.structs.fields(kind)}
        yield kind.__name__, bytes([number]) + msgspec.msgpack.encode(schema)


def _plausible(kind: Any) -> Any:
    """Return a value for a field of this type, nested deeply enough for the decoder to continue."""
    text = str(kind)
    if "list" in text or "tuple" in text:
        return []
    if "dict" in text:
        return {"a": 1}
    if kind is str or text.startswith("str"):
        return "name"
    return {bool: True, UUID: UUID(int=7), float: 1.0}.get(kind, 1)


def _raft() -> Seeds:
    sender = Endpoint(0, "127.0.0.1:9093", "a" * 22)
    yield "hello", msgspec.msgpack.encode(Hello("vectors", sender, 1, "b" * 22, 4))
    messages = [Vote(0, 1, 3, 7, 3), Append(0, 1, 3, 6, 3, [_ENTRY], 6, 1, 5)]
    yield "group", msgspec.msgpack.encode(messages)


def _http() -> Seeds:
    for path in ("/livez", "/readyz?verbose=1", "/startz", "/nothing"):
        yield f"get{path.replace('/', '-')}", f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode()
    yield "head", b"HEAD /livez HTTP/1.0\r\n\r\n"
    yield "post", b"POST /livez HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"


def _otlp() -> Seeds:
    described = resource_of([("service.name", "kafka-client")])
    measured = b"\x12\x05\x12\x03\x0a\x01a"
    one = b"\x0a" + bytes([len(described) + len(measured)]) + described + measured
    yield "metrics", one + one
    yield "partial-success", b"\x0a\x07\x08\x03\x12\x03why"
    yield "negative", b"\x0a\x0b\x08" + b"\xff" * 9 + b"\x01"
    yield "later-fields", b"\x10\x05\x1a\x02\x08\x07\x25abcd\x29abcdefgh"


def _arrow_batches() -> Seeds:
    """Yield batches after the byte that selects limits, some of them with NULLs, headers and long
    values.
    """
    for number, (name, data) in enumerate(_batches()):
        yield name, bytes([number % len(arrow_batches.LIMITS)]) + data
    records = [
        Record(
            number,
            1_700_000_000_000 + number,
            (None, b"", b"key%d" % number)[number % 3],
            None if number % 5 == 4 else b"v" * (number * 40),
            (("h", b"x"), ("n", None)) if number % 4 == 1 else (),
        )
        for number in range(12)
    ]
    for number in range(len(arrow_batches.LIMITS)):
        yield f"records-{number}", bytes([number]) + encode_batch(records)


def corpora() -> Iterator[tuple[str, Seeds]]:
    """Yield the name and the inputs of each target with its own corpus."""
    yield "request", _requests()
    yield "response", _responses()
    yield "batch", _batches()
    yield "arrow-batch", _arrow_batches()
    for codec in Compression:
        if codec != Compression.NONE:
            yield codec.name.lower(), _compressed(codec)
    yield "manifest-shard", _shards()
    yield "manifest-page", _pages()
    yield "journal", _journal()
    yield "grpc", _grpc()
    yield "raft", _raft()
    yield "http", _http()
    yield "otlp", _otlp()
    yield "console", consoles.requests()
    yield from login_seeds.corpora()
    yield "record-values", schemas.values()
    yield "schemas", schemas.schemas()


def main() -> None:
    for name, seeds in corpora():
        assert name in TARGETS, f"no target {name}"
        lines = (f"{seed.replace(' ', '-')} {data.hex()}\n" for seed, data in seeds)
        (HERE / "corpus").mkdir(exist_ok=True)
        (HERE / f"corpus/{name}.txt").write_text("".join(lines))


if __name__ == "__main__":
    main()
