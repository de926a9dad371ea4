"""Encode and decode the manifest. **Stored: changes need a new VERSION.**

header | sections (pages, shards), compressed, each with a CRC-32C | root | footer

See docs/reference/formats.md, section 7.
"""

import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from struct import Struct
from typing import NamedTuple, NoReturn
from uuid import UUID

import cramjam
import msgspec
from crc32c import crc32c

from penstock.base.ids import Millis, NodeEpoch, NodeId, WalSequence
from penstock.protocol.batch.compression import Compression, decompress
from penstock.protocol.batch.errors import BatchCorrupt
from penstock.stream.errors import FormatUnknown, ObjectCorrupt
from penstock.stream.format.manifest.model import (
    Entries,
    LiveWal,
    ManifestRoot,
    PageRef,
    PartitionEntry,
    SectionRef,
    Shard,
    StreamEntry,
    TopicEntry,
)
from penstock.stream.ports import OWN_STREAM

MAGIC = b"PNSTMNFT"
END_MAGIC = b"TFMNTSNP"
VERSION = 3
WAL_STORES = 1
"""Required feature: WALs, and objects that ranges refer to, are in the WAL stores listed in the
root.
"""
FEATURES_KNOWN = WAL_STORES
"""Required feature bits supported by this reader, as in `stream.format.layout`."""

HEADER = Struct(">8sH6x")
# root: position, stored bytes, raw bytes, CRC of the stored bytes; controller epoch, manifest
# version, required and optional features, format version, CRC of all that
FOOTER = Struct(">QIIIqqIIH2xI8s")
FOOTER_CRC_AT = 48
SECTION_BYTES_MAX = 64 << 20
"""Maximum size of a section, both stored and raw: about 400,000 topics, or 800,000 entries in one
shard.
"""

_SLACK_BYTES = 1_024
"""Maximum growth of incompressible input with zstd."""

_LEVEL = 3
"""Level 1 is not faster for a few KiB; level 9 saves 8 % and takes three times as long."""

ENTRY_COLUMNS = 6
PARTITION_COLUMNS = 14
PAGE_COLUMNS = 11
_ROLES = frozenset((1, 2, 3))


class _EntriesWire(msgspec.Struct, frozen=True, array_like=True):
    start_offset: int
    columns: bytes
    roles: bytes
    keys: str


class _ShardWire(msgspec.Struct, frozen=True, array_like=True):
    topic_id: UUID
    first_partition: int
    partitions: bytes
    pages: bytes
    entries: _EntriesWire


class _WalWire(msgspec.Struct, frozen=True, array_like=True):
    """A WAL in a manifest without WAL stores."""

    node_id: NodeId
    node_epoch: NodeEpoch
    first_slot: WalSequence


class _RootWire(msgspec.Struct, frozen=True, array_like=True):
    """The root of a manifest without WAL stores, as in formats 1.0."""

    cluster_id: str
    controller_epoch: int
    version: int
    metadata_offset: int
    published_ms: Millis
    wals: tuple[_WalWire, ...]
    topics: tuple[TopicEntry, ...]
    wal_grace_ms: int = 60_000
    config_defaults: dict[str, str] = {}


class Footer(NamedTuple):
    root: SectionRef
    controller_epoch: int
    required_features: int


_encode = msgspec.msgpack.Encoder().encode
_root_decoder = msgspec.msgpack.Decoder(ManifestRoot)
_plain_root_decoder = msgspec.msgpack.Decoder(_RootWire)
_page_decoder = msgspec.msgpack.Decoder(_EntriesWire)
_shard_decoder = msgspec.msgpack.Decoder(_ShardWire)


class Draft:
    """One manifest object under construction."""

    def __init__(self, version: int) -> None:
        self.version = version
        self._chunks: list[bytes] = [HEADER.pack(MAGIC, VERSION)]
        self.size_bytes = HEADER.size

    def add(self, raw: bytes) -> SectionRef:
        """Compress a section and append it. This takes about 5 ms per MiB."""
        if len(raw) > SECTION_BYTES_MAX - _SLACK_BYTES:
            raise ValueError(
                f"a manifest section of {len(raw)} bytes exceeds the limit of {SECTION_BYTES_MAX}"
            )
        stored = bytes(cramjam.zstd.compress(raw, level=_LEVEL))
        ref = SectionRef(self.version, self.size_bytes, len(stored), len(raw), crc32c(stored))
        self._chunks.append(stored)
        self.size_bytes += len(stored)
        return ref

    def finish(self, root: ManifestRoot) -> list[bytes]:
        """Return the complete object. The root is the last section, so it is part of the first read
        of the tail.
        """
        assert root.version == self.version, f"root {root.version} in draft {self.version}"
        at = self.add(encode_root(root))
        epoch = root.controller_epoch
        required = WAL_STORES if root.wal_stores else 0
        footer = FOOTER.pack(
            at.position,
            at.stored_bytes,
            at.raw_bytes,
            at.crc,
            epoch,
            self.version,
            required,
            0,
            VERSION,
            0,
            END_MAGIC,
        )
        crc = crc32c(footer[:FOOTER_CRC_AT])
        self._chunks.append(
            FOOTER.pack(
                at.position,
                at.stored_bytes,
                at.raw_bytes,
                at.crc,
                epoch,
                self.version,
                required,
                0,
                VERSION,
                crc,
                END_MAGIC,
            )
        )
        return self._chunks


def parse_footer(tail: bytes, object_size_bytes: int, key: str) -> Footer:
    """Parse the footer from the last bytes of the object. Raises ObjectCorrupt or FormatUnknown."""
    at = object_size_bytes - FOOTER.size
    if len(tail) < FOOTER.size or at < HEADER.size:
        raise ObjectCorrupt(key, 0, f"{object_size_bytes} bytes are too few for a manifest")
    position, stored, raw, crc, epoch, version, required, _, file_version, footer_crc, magic = (
        FOOTER.unpack(tail[-FOOTER.size :])
    )
    if magic != END_MAGIC:
        raise ObjectCorrupt(
            key, at, f"ends with {magic!r}, not {END_MAGIC!r}: truncated or not a Penstock manifest"
        )
    if crc32c(tail[-FOOTER.size :][:FOOTER_CRC_AT]) != footer_crc:
        raise ObjectCorrupt(key, at, "the footer does not match its checksum")
    if file_version != VERSION:
        raise FormatUnknown(key, f"format version {file_version}")
    unknown = required & ~FEATURES_KNOWN
    if unknown:
        raise FormatUnknown(key, f"required features {unknown:#010x}")
    if position < HEADER.size or position + stored != at or version < 1 or epoch < 0:
        raise ObjectCorrupt(
            key, at, f"a root of {stored} bytes at {position} does not end at the footer"
        )
    return Footer(SectionRef(version, position, stored, raw, crc), epoch, required)


def unpack_section(stored: bytes | memoryview, ref: SectionRef, key: str) -> memoryview:
    """Return the raw bytes of a section. Raises ObjectCorrupt if the stored bytes do not match the
    reference.
    """
    if len(stored) != ref.stored_bytes or crc32c(stored) != ref.crc:
        raise ObjectCorrupt(
            key,
            ref.position,
            f"a section of {len(stored)} bytes does not match its size or checksum",
        )
    if ref.raw_bytes > SECTION_BYTES_MAX:
        raise ObjectCorrupt(
            key,
            ref.position,
            f"a section of {ref.raw_bytes} bytes exceeds the limit of {SECTION_BYTES_MAX}",
        )
    try:
        raw = decompress(Compression.ZSTD, stored, ref.raw_bytes)
    except BatchCorrupt as error:
        raise ObjectCorrupt(key, ref.position, str(error)) from None
    if len(raw) != ref.raw_bytes:
        raise ObjectCorrupt(
            key, ref.position, f"a section has {len(raw)} bytes instead of {ref.raw_bytes}"
        )
    return raw


def encode_root(root: ManifestRoot) -> bytes:
    """Return the bytes of a root. Without WAL stores, they are the same as in formats 1.0."""
    if root.wal_stores:
        return _encode(root)
    wals = tuple(_WalWire(wal.node_id, wal.node_epoch, wal.first_slot) for wal in root.wals)
    return _encode(
        _RootWire(
            root.cluster_id,
            root.controller_epoch,
            root.version,
            root.metadata_offset,
            root.published_ms,
            wals,
            root.topics,
            root.wal_grace_ms,
            root.config_defaults,
        )
    )


def decode_root(raw: memoryview, footer: Footer, key: str) -> ManifestRoot:
    try:
        root = _decoded_root(raw, footer.required_features)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ObjectCorrupt(
            key, footer.root.position, f"the root cannot be decoded: {error}"
        ) from None
    if root.moment != (footer.controller_epoch, footer.root.version):
        raise ObjectCorrupt(
            key, footer.root.position, f"the root contains {root.moment}, the footer {footer}"
        )
    return root


def _decoded_root(raw: memoryview, required_features: int) -> ManifestRoot:
    """Decode the WAL store elements only if the root requires their feature. Otherwise, these
    positions contain elements of an unknown optional feature, which readers ignore.
    """
    if required_features & WAL_STORES:
        return _root_decoder.decode(raw)
    wire = _plain_root_decoder.decode(raw)
    wals = tuple(LiveWal(wal.node_id, wal.node_epoch, wal.first_slot) for wal in wire.wals)
    return ManifestRoot(
        wire.cluster_id,
        wire.controller_epoch,
        wire.version,
        wire.metadata_offset,
        wire.published_ms,
        wals,
        wire.topics,
        wire.wal_grace_ms,
        wire.config_defaults,
    )


def encode_entries(entries: Entries) -> bytes:
    """Return the bytes of a page."""
    return _encode(_entries_wire(entries))


def decode_entries(raw: memoryview, page: PageRef, key: str) -> Entries:
    """Decode a page and verify it against its reference. Raises ObjectCorrupt."""
    at = page.section.position
    try:
        entries = _entries(_page_decoder.decode(raw), key, at)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ObjectCorrupt(key, at, f"the page cannot be decoded: {error}") from None
    if (entries.start_offset, entries.end_offset, len(entries)) != (
        page.start_offset,
        page.end_offset,
        page.entry_count,
    ):
        raise ObjectCorrupt(
            key,
            at,
            f"a page with offsets [{entries.start_offset}, {entries.end_offset}), which differs"
            f" from {page}",
        )
    return entries


def encode_shard(shard: Shard) -> bytes:
    partitions = [
        (p.leader, p.leader_epoch, *_stream_row(p.data), *_stream_row(p.txn))
        for p in shard.partitions
    ]
    streams = [stream for p in shard.partitions for stream in (p.data, p.txn)]
    pages = [
        (
            page.start_offset,
            page.end_offset,
            page.entry_count,
            page.record_count,
            page.size_bytes,
            page.max_timestamp_ms,
            *page.section,
        )
        for stream in streams
        for page in stream.pages
    ]
    inline = join_entries([stream.inline for stream in streams if len(stream.inline)])
    return _encode(
        _ShardWire(
            shard.topic_id,
            shard.first_partition,
            _pack_rows(partitions),
            _pack_rows(pages),
            _entries_wire(inline),
        )
    )


def decode_shard(raw: memoryview, ref: SectionRef, key: str) -> Shard:
    """Decode a shard. Raises ObjectCorrupt unless the pages and entries of each stream are
    contiguous up to its committed end.
    """
    at = ref.position
    try:
        wire = _shard_decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ObjectCorrupt(key, at, f"the shard cannot be decoded: {error}") from None
    rows = list(zip(*_unpack_columns(wire.partitions, PARTITION_COLUMNS, key, at), strict=True))
    page_rows = list(zip(*_unpack_columns(wire.pages, PAGE_COLUMNS, key, at), strict=True))
    pages = [
        PageRef(row[0], row[1], row[2], row[3], row[4], row[5], SectionRef._make(row[6:]))
        for row in page_rows
    ]
    columns = _entry_columns(wire.entries, key, at)
    taker = _StreamTaker(pages, columns)
    partitions = tuple(
        PartitionEntry(number, row[0], row[1], taker.take(row[2:8]), taker.take(row[8:14]))
        for number, row in enumerate(rows, wire.first_partition)
    )
    taker.check_end()
    return Shard(wire.topic_id, wire.first_partition, partitions)


def join_entries(parts: Sequence[Entries]) -> Entries:
    """Concatenate entries. Part boundaries are not retained; the caller stores them."""
    spans = (high - low for part in parts for low, high in pairwise(part.bounds))
    joined = replace(Entries.empty(0), bounds=array("q", accumulate(spans, initial=0)))
    keys: list[str] = []
    for part in parts:
        joined.record_counts.extend(part.record_counts)
        joined.sizes_bytes.extend(part.sizes_bytes)
        joined.max_timestamps_ms.extend(part.max_timestamps_ms)
        joined.object_sizes_bytes.extend(part.object_sizes_bytes)
        joined.stored_stream_ids.extend(part.stored_stream_ids)
        keys += part.keys
    return replace(joined, roles=b"".join(part.roles for part in parts), keys=keys)


class _EntryColumns(NamedTuple):
    spans: "array[int]"
    record_counts: "array[int]"
    sizes_bytes: "array[int]"
    max_timestamps_ms: "array[int]"
    object_sizes_bytes: "array[int]"
    stored_stream_ids: "array[int]"
    roles: bytes
    keys: list[str]
    at: tuple[str, int]
    """Key and position of the section, for error messages."""

    def cut(self, start_offset: int, first: int, last: int) -> Entries:
        try:
            bounds = array("q", accumulate(self.spans[first:last], initial=start_offset))
        except OverflowError:
            raise ObjectCorrupt(*self.at, "offsets exceed 64 bits") from None
        return Entries(
            bounds,
            self.record_counts[first:last],
            self.sizes_bytes[first:last],
            self.max_timestamps_ms[first:last],
            self.object_sizes_bytes[first:last],
            self.stored_stream_ids[first:last],
            self.roles[first:last],
            self.keys[first:last],
        )


def _entries_wire(entries: Entries) -> _EntriesWire:
    spans = array("q", [high - low for low, high in pairwise(entries.bounds)])
    columns = (
        spans,
        entries.record_counts,
        entries.sizes_bytes,
        entries.max_timestamps_ms,
        entries.object_sizes_bytes,
        entries.stored_stream_ids,
    )
    return _EntriesWire(
        entries.start_offset, _pack(columns), entries.roles, "\n".join(entries.keys)
    )


def _entries(wire: _EntriesWire, key: str, at: int) -> Entries:
    columns = _entry_columns(wire, key, at)
    return columns.cut(wire.start_offset, 0, len(columns.keys))


def _entry_columns(wire: _EntriesWire, key: str, at: int) -> _EntryColumns:
    spans, counts, sizes, timestamps, object_sizes, stored_ids = _unpack_columns(
        wire.columns, ENTRY_COLUMNS, key, at
    )
    keys = wire.keys.split("\n") if wire.keys else []
    if not len(spans) == len(keys) == len(wire.roles) or not _ROLES.issuperset(wire.roles):
        raise ObjectCorrupt(
            key, at, f"{len(spans)} entries, {len(keys)} keys, {len(wire.roles)} roles"
        )
    if keys and (
        min(spans) < 1
        or min(counts) < 0
        or min(sizes) < 0
        or min(object_sizes) < 1
        or min(stored_ids) < OWN_STREAM
    ):
        raise ObjectCorrupt(key, at, "an entry has a negative number or an empty offset range")
    return _EntryColumns(
        spans, counts, sizes, timestamps, object_sizes, stored_ids, wire.roles, keys, (key, at)
    )


def _stream_row(stream: StreamEntry) -> tuple[int, ...]:
    first_offset = stream.inline.start_offset
    return (
        stream.stream_id,
        stream.log_start,
        stream.committed_end,
        len(stream.pages),
        len(stream.inline),
        first_offset,
    )


class _StreamTaker:
    """Splits the pages and entries of a shard by stream, in order."""

    def __init__(self, pages: list[PageRef], columns: _EntryColumns) -> None:
        self._pages = pages
        self._columns = columns
        self._first_page = 0
        self._first_entry = 0

    def take(self, row: tuple[int, ...]) -> StreamEntry:
        stream_id, log_start, committed_end, page_count, entry_count, first_offset = row
        if page_count < 0 or entry_count < 0:
            self._refuse()
        page, entry = self._first_page, self._first_entry
        self._first_page += page_count
        self._first_entry += entry_count
        inline = self._columns.cut(first_offset, entry, self._first_entry)
        stream = StreamEntry(
            stream_id, log_start, committed_end, tuple(self._pages[page : self._first_page]), inline
        )
        _check_stream(stream, *self._columns.at)
        return stream

    def check_end(self) -> None:
        if (self._first_page, self._first_entry) != (len(self._pages), len(self._columns.keys)):
            self._refuse()

    def _refuse(self) -> NoReturn:
        raise ObjectCorrupt(*self._columns.at, "the streams of the shard do not match its columns")


def _check_stream(stream: StreamEntry, key: str, at: int) -> None:
    """Verify that the pages and then the inline entries cover the stream without gaps from the log
    start (or below) to the committed end.
    """
    spans = [(page.start_offset, page.end_offset) for page in stream.pages]
    if len(stream.inline):
        spans.append((stream.inline.start_offset, stream.inline.end_offset))
    if not spans:
        whole = 0 <= stream.committed_end <= stream.log_start
    else:
        follow = all(low < high for low, high in spans) and all(
            before[1] == after[0] for before, after in pairwise(spans)
        )
        whole = (
            follow and 0 <= spans[0][0] <= stream.log_start and spans[-1][1] == stream.committed_end
        )
    if not whole:
        what = (
            f"stream {stream.stream_id}: its entries do not lead from {stream.log_start} to"
            f" {stream.committed_end}"
        )
        raise ObjectCorrupt(key, at, what)


def _pack_rows(rows: Sequence[tuple[int, ...]]) -> bytes:
    return _pack([array("q", column) for column in zip(*rows, strict=True)])


def _pack(columns: Iterable["array[int]"]) -> bytes:
    packed = array("q")
    for column in columns:
        packed.extend(column)
    if sys.byteorder == "little":
        packed.byteswap()
    return packed.tobytes()


def _unpack_columns(data: bytes, count: int, key: str, at: int) -> list["array[int]"]:
    if len(data) % (8 * count):
        raise ObjectCorrupt(key, at, f"{len(data)} bytes are not {count} columns of 64-bit numbers")
    packed = array("q", data)
    if sys.byteorder == "little":
        packed.byteswap()
    length = len(packed) // count
    return [packed[index * length : (index + 1) * length] for index in range(count)]
