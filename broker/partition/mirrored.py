"""Decide which batches from a mirror are appended. They keep their offsets from the source.

Offsets are sufficient for idempotence, because only mirrors of one source write to the partition:
batches below the log end are already in the log, and batches that start above it would leave a
hole. A restarted mirror continues at the end of the log.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from crc32c import crc32c

from penstock.base.ids import Millis, Offset, StreamId
from penstock.broker.partition.producer_state import NO_SEQUENCE, KnownBatch
from penstock.broker.partition.refusal import Refusal
from penstock.broker.partition.validation import TopicRules
from penstock.protocol.batch.errors import BatchCorrupt
from penstock.protocol.batch.header import (
    CRC_START,
    BatchHeader,
    iter_headers,
    patch_offset_and_epoch,
)
from penstock.protocol.batch.uncompressed_size import uncompressed_bytes
from penstock.protocol.error_codes import ErrorCode
from penstock.stream.storage import AppendEntry

_COMPRESSION_MAX: Final = 4


class MirroredBatches(NamedTuple):
    """Batches for one partition from a mirror of `source`. records: None if the request contains
    none.
    """

    source: str
    records: memoryview | None


Positions: TypeAlias = Sequence[tuple[int, BatchHeader]]
"""The batches to append, with their positions in the records buffer."""


def plan_mirrored(
    content: MirroredBatches, rules: TopicRules, log_end: Offset
) -> Positions | KnownBatch | Refusal:
    """Return the batches that continue the log, or a known batch if it contains all of them. This
    takes 3 us per batch, plus the CRC at 27 GB/s.

    Batches have no producer, because the mirror has already resolved transactions. Empty batches
    cover gaps in the source (log compaction, markers, aborted records). After
    OUT_OF_ORDER_SEQUENCE_NUMBER, the mirror must continue at the end of the log.
    """
    if content.source != rules.mirror_source:
        message = (
            f"the topic is a mirror of {rules.mirror_source}, not of {content.source}"
            if rules.mirror_source
            else "the topic is not a mirror, or its mirror is finished"
        )
        return Refusal(ErrorCode.POLICY_VIOLATION, message)
    if not content.records:
        return Refusal(ErrorCode.INVALID_RECORD, "each partition needs at least one record batch")
    try:
        found = list(iter_headers(content.records))
    except BatchCorrupt as error:
        return Refusal(ErrorCode.CORRUPT_MESSAGE, str(error))
    refusal = _check_batches(content.records, found)
    if refusal is not None:
        return refusal
    fresh = [item for item in found if item[1].next_offset > log_end]
    if not fresh:
        first, last = found[0][1].base_offset, found[-1][1].next_offset
        return KnownBatch(NO_SEQUENCE, NO_SEQUENCE, Offset(first), Offset(last))
    if fresh[0][1].base_offset != log_end:
        message = f"a batch begins at offset {fresh[0][1].base_offset}, the log ends at {log_end}"
        return Refusal(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, message)
    return fresh


def _check_batches(records: memoryview, found: Positions) -> Refusal | None:
    expected = found[0][1].base_offset
    for at, header in found:
        if header.base_offset != expected:
            message = f"a batch begins at offset {header.base_offset}, the last ends at {expected}"
            return Refusal(ErrorCode.INVALID_RECORD, message)
        expected = header.next_offset
        if header.is_control or header.is_transactional or header.producer_id >= 0:
            message = "a mirror sends batches without a producer, a transaction or markers"
            return Refusal(ErrorCode.INVALID_RECORD, message)
        if header.record_count > header.last_offset_delta + 1:
            message = f"{header.record_count} records do not fit into the offsets of their batch"
            return Refusal(ErrorCode.INVALID_RECORD, message)
        if header.compression > _COMPRESSION_MAX:
            message = f"compression type {header.compression} is not defined"
            return Refusal(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, message)
        if crc32c(records[at + CRC_START : at + header.size_bytes]) != header.crc:
            return Refusal(ErrorCode.CORRUPT_MESSAGE, "a batch does not match its CRC32C")
    return None


def mirrored_entries(
    records: memoryview, plan: Positions, stream_id: StreamId, leader_epoch: int
) -> list[AppendEntry]:
    """Write the leader epoch into the batches in place, and return the entries to append."""
    entries: list[AppendEntry] = []
    for at, header in plan:
        batch = records[at : at + header.size_bytes]
        patch_offset_and_epoch(batch, 0, header.base_offset, leader_epoch)
        entries.append(
            AppendEntry(
                stream_id,
                Offset(header.base_offset),
                Offset(header.next_offset),
                header.record_count,
                Millis(header.min_timestamp_ms),
                Millis(header.index_timestamp_ms),
                uncompressed_bytes(header.compression, batch),
                batch,
            )
        )
    return entries
