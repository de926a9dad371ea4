"""Read the newest records of each partition from the store, and find those that cannot be read.

Limits: the caller bounds the offsets of a partition; memory is bounded like that of one scan.
Requires the `reader` extra. The functions block; call them in a thread.
"""

from importlib import import_module
from typing import NamedTuple

from penstock.base.errors import StreamError
from penstock.deploy.doctor.facts import RecordFacts


class RecordsRead(NamedTuple):
    """offsets: number of offsets read. problem: the reason why the topic could not be read
    completely, or empty.
    """

    partitions: list[RecordFacts]
    offsets: int
    problem: str


def missing_package() -> str:
    """Return the name of a missing package that is needed to read records, or an empty string."""
    try:
        import_module("penstock.lake.arrow.topic_scan")
    except ImportError as error:
        return error.name or "pyarrow"
    return ""


def read_newest(
    store_url: str, wal_store_url: str, cluster_id: str, topic: str, newest: int
) -> RecordsRead:
    """Read the newest offsets of each partition of a topic. Raises ObjectStoreError.

    A topic that was deleted in the meantime, or is not in the manifest yet, has no partitions.
    """
    from penstock.lake.arrow.cluster import StoreCluster
    from penstock.lake.arrow.topic_scan import scan
    from penstock.lake.fetch.unreadable import UnreadableRecords
    from penstock.lake.manifest.errors import UnknownPartition

    try:
        states = StoreCluster(store_url, cluster_id, wal_store_url).partitions(topic)
        starts = {
            state.partition: max(state.log_start, state.high_watermark - newest) for state in states
        }
        found = scan(
            store_url,
            topic,
            start=starts,
            end={state.partition: state.high_watermark for state in states},
            columns=("offset",),
            cluster_id=cluster_id,
            wal_store=wal_store_url,
        )
    except UnknownPartition:
        return RecordsRead([], 0, "")
    left_out = {number: UnreadableRecords() for number in starts}
    problem = ""
    reading = found.narrowed(
        found.offsets, ("offset",), on_unreadable=lambda error: left_out[error.partition].add(error)
    )
    try:
        for _ in reading:
            pass
    except UnknownPartition:
        return RecordsRead([], 0, "")
    except StreamError as error:
        problem = str(error)
    facts = [
        RecordFacts(
            topic,
            number,
            records.count,
            tuple((error.offset, error.what) for error in records.errors),
        )
        for number, records in sorted(left_out.items())
        if records
    ]
    return RecordsRead(facts, sum(end - start for start, end in found.offsets.values()), problem)
