"""Check that a mirror copies the committed records, either at the source offsets or with an exact
offset translation, for logs with gaps, transactions and merged batches.
"""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.deploy.mirror.batches import (
    SourceBatch,
    at_source_offsets,
    committed_batches,
    for_producer,
    in_transaction,
)
from penstock.deploy.mirror.translation import OffsetMap, segments_of
from penstock.protocol.batch.compression import Compression
from penstock.protocol.batch.control import Marker, encode_marker
from penstock.protocol.batch.header import (
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    check_crc,
    iter_headers,
)
from penstock.protocol.batch.records import Record, decode_records, encode_batch
from penstock.protocol.gen.fetch import AbortedTransaction

PRODUCERS = (1, 2)
SETTINGS = settings(max_examples=60, deadline=None)


@dataclass
class Log:
    """A source log: its batches in order, and the records that a read_committed consumer gets."""

    batches: list[bytes] = field(default_factory=list)
    committed: list[Record] = field(default_factory=list)
    aborted: list[tuple[AbortedTransaction, int]] = field(default_factory=list)
    """Aborted transactions with the offsets of their markers."""
    end: int = 0

    def aborted_from(self, start: int) -> list[AbortedTransaction]:
        """Return the aborted transactions listed in a fetch response that starts at this offset."""
        return [item for item, marker in self.aborted if marker >= start]

    def data(self, start: int = 0) -> bytes:
        return b"".join(
            batch for batch in self.batches if next(iter_headers(batch))[1].next_offset > start
        )


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Draw logs with batches of two transactional producers and of others. Log compaction has
    removed some records and whole batches.
    """
    log = Log(end=draw(st.integers(0, 5)))
    pending: dict[int, list[Record]] = {}
    for number in range(draw(st.integers(0, 14))):
        producer = draw(st.sampled_from((-1, *PRODUCERS)))
        if producer > 0 and pending.get(producer) and draw(st.booleans()):
            _end(log, producer, pending.pop(producer), committed=draw(st.booleans()))
            continue
        offsets = draw(st.lists(st.integers(0, 5), unique=True, max_size=4).map(sorted))
        last = max([*offsets, draw(st.integers(0, 6))])
        records = [
            Record(
                log.end + at, 1_000 + number, b"k%d" % at, b"v%d.%d" % (number, at), (("h", b"x"),)
            )
            for at in offsets
        ]
        kind = TRANSACTIONAL_MASK if producer > 0 else 0
        if records and draw(st.integers(0, 4)) == 0:
            kind |= TIMESTAMP_TYPE_MASK
            records = [record._replace(timestamp_ms=1_000 + number) for record in records]
        batch = encode_batch(
            records,
            base_offset=log.end,
            last_offset=log.end + last,
            producer_id=producer,
            producer_epoch=0 if producer > 0 else -1,
            compression=draw(st.sampled_from((Compression.NONE, Compression.ZSTD))),
            attributes=kind,
        )
        if records or draw(st.booleans()):
            log.batches.append(bytes(batch))
        if producer < 0:
            log.committed += records
        elif records:
            pending.setdefault(producer, []).extend(records)
        log.end += last + 1
    for producer, records in pending.items():
        _end(log, producer, records, committed=False)
    log.committed.sort()
    return log


def _end(log: Log, producer: int, records: list[Record], *, committed: bool) -> None:
    marker = encode_marker(Marker(producer, 0, committed, 0), 5, base_offset=log.end)
    log.batches.append(bytes(marker))
    if committed:
        log.committed += records
    else:
        log.aborted.append((AbortedTransaction(producer, records[0].offset), log.end))
    log.end += 1


def copied_parts(log: Log, data: st.DataObject) -> list[tuple[int, list[SourceBatch], int]]:
    """Fetch as a mirror does: each time the drawn number of bytes, from the current offset."""
    position = 0
    parts: list[tuple[int, list[SourceBatch], int]] = []
    while position < log.end:
        found = log.data(position)
        cut = data.draw(st.integers(len(found) // 2, len(found)))
        batches, behind = committed_batches(found[:cut], position, log.aborted_from(position))
        if behind == position:
            batches, behind = committed_batches(found, position, log.aborted_from(position))
            behind = max(behind, position)
            if behind == position:
                break
        parts.append((position, batches, behind))
        position = behind
    return parts


@SETTINGS
@given(log=logs(), data=st.data())
def test_copies_at_source_offsets_have_the_same_records_and_no_gaps(
    log: Log, data: st.DataObject
) -> None:
    target: list[Record] = []
    end = 0
    for start, batches, behind in copied_parts(log, data):
        assert start == end
        payload = b"".join(at_source_offsets(batches, start, behind))
        for at, header in iter_headers(payload):
            assert header.base_offset == end
            assert check_crc(payload, at)
            assert (header.producer_id, header.is_transactional, header.is_control) == (
                -1,
                False,
                False,
            )
            target += decode_records(memoryview(payload)[at:])
            end = header.next_offset
        assert end == behind
    assert target == log.committed


@SETTINGS
@given(log=logs(), data=st.data())
def test_translated_offsets_refer_to_the_same_records(log: Log, data: st.DataObject) -> None:
    target: list[Record] = []
    target_end = data.draw(st.integers(0, 3))
    offsets = OffsetMap()
    for _, batches, behind in copied_parts(log, data):
        new = list(for_producer(batches))
        for number, batch in enumerate(new):
            next_source = new[number + 1].runs[0].source if number + 1 < len(new) else behind
            offsets.extend(segments_of(batch.runs, target_end, next_source))
            sent = in_transaction(batch.data, 9, 0, 0)
            ((_, header),) = iter_headers(sent)
            assert check_crc(sent)
            assert header.record_count == header.last_offset_delta + 1 == batch.record_count
            target += [
                record._replace(offset=target_end + record.offset)
                for record in decode_records(sent)
            ]
            target_end += header.record_count
        target_end += bool(new)  # the transaction marker
    plain = [record._replace(offset=0) for record in target]
    assert plain == [record._replace(offset=0) for record in log.committed]
    for source in range(log.end + 3):
        translated = offsets.translated(source)
        unread = [record._replace(offset=0) for record in log.committed if record.offset >= source]
        if translated is None:
            assert not log.committed
        else:
            assert unread == [
                record._replace(offset=0) for record in target if record.offset >= translated
            ]


@SETTINGS
@given(log=logs(), data=st.data())
def test_a_fetch_that_starts_inside_a_batch_copies_the_rest(log: Log, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, log.end))
    batches, behind = committed_batches(log.data(start), start, log.aborted_from(start))
    payload = b"".join(at_source_offsets(batches, start, behind))
    records = [record for at, _ in iter_headers(payload) for record in decode_records(payload[at:])]
    assert records == [record for record in log.committed if record.offset >= start]
