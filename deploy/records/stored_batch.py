"""Fetch single batches and decode their readable records, because librdkafka reports errors for
some undecodable batches and gets stuck at others.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.deploy.clients.brokers import Brokers
from penstock.protocol import apis
from penstock.protocol.batch.header import parse_header
from penstock.protocol.batch.records import Record
from penstock.protocol.batch.sound_records import LostRecords, decode_sound
from penstock.protocol.gen import fetch

_READ_COMMITTED: Final = 1


class StoredBatch(NamedTuple):
    """The batch at an offset: its readable records, the errors of the other records, and the next
    offset.
    """

    records: list[Record]
    lost: Sequence[LostRecords]
    base_offset: int
    next_offset: int
    is_control: bool


def stored_batch(
    brokers: Brokers, topic: str, partition: int, offset: int, *, committed: bool = True
) -> StoredBatch | None:
    """Return the batch that contains the offset; None if there is none. committed: omit batches of
    open transactions, and records of aborted ones. Raises KafkaFailed, BatchCorrupt.
    """
    return brokers.retried(lambda: _fetched(brokers, topic, partition, offset, committed))


def _fetched(
    brokers: Brokers, topic: str, partition: int, offset: int, committed: bool
) -> StoredBatch | None:
    # A broker returns at least one whole batch, even if the limit is smaller.
    wanted = fetch.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1)
    response = brokers.send_request(
        apis.FETCH,
        fetch.FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1,
            isolation_level=_READ_COMMITTED if committed else 0,
            topics=[fetch.FetchTopic(topic=topic, partitions=[wanted])],
        ),
        fetch.FetchResponse,
        node=brokers.leader(topic, partition),
    )
    failed = f"{topic}-{partition} cannot be fetched at offset {offset}"
    brokers.check(response.error_code, None, failed)
    part = response.responses[0].partitions[0]
    brokers.check(part.error_code, None, failed)
    if not part.records:
        return None
    header = parse_header(part.records)
    ends = header.base_offset, header.next_offset
    if header.is_control:
        return StoredBatch([], (), *ends, is_control=True)
    if header.is_transactional and any(
        item.producer_id == header.producer_id and item.first_offset <= header.base_offset
        for item in part.aborted_transactions or ()
    ):
        return StoredBatch([], (), *ends, is_control=False)
    records, lost = decode_sound(part.records)
    return StoredBatch(records, lost, *ends, is_control=False)
