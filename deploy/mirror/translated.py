"""Append with translated offsets: to Apache Kafka, or to topics with other records.

Each fetch is copied in one transaction, which also contains the new segments of the offset maps.
After a crash, the maps and the records therefore end at the same point. Limits: a transaction
contains the result of one fetch (`source.FETCH_BYTES_MAX`).
"""

import time
from collections.abc import Mapping, Sequence
from typing import Final

from penstock.deploy.mirror.batches import NewBatch, committed_batches, for_producer
from penstock.deploy.mirror.cluster import Cluster
from penstock.deploy.mirror.progress import (
    Progress,
    begun_record,
    finished_record,
    read_progress,
    segment_record,
)
from penstock.deploy.mirror.source import PARTITION_BYTES_MAX, Copy
from penstock.deploy.mirror.state import PartitionState
from penstock.deploy.mirror.transactions import TransactionalProducer
from penstock.deploy.mirror.translation import Segment, segments_of
from penstock.protocol import apis
from penstock.protocol.batch.records import Record, decode_records, encode_batch
from penstock.protocol.client.brokers import Partition
from penstock.protocol.client.errors import KafkaFailed, Refused
from penstock.protocol.error_codes import ErrorCode, known_code
from penstock.protocol.gen import fetch
from penstock.protocol.offset_specs import EARLIEST, LATEST

_RECORDS_MAX: Final = 2_000
"""Maximum number of segments, of 200 bytes each, in one batch of a progress topic."""

_UNSOUND: Final = (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)
"""Kafka's errors for batches with unreadable records."""


class TranslatedOffsets:
    """Implements `TargetWriter` for topics with other offsets than the source. Only the newest
    instance with a given name can append.
    """

    def __init__(
        self,
        target: Cluster,
        source: Cluster,
        progress_topic: str,
        progress: Progress | None = None,
    ) -> None:
        """progress: the last known progress, which is used until `start` has read the current
        one.
        """
        self._target = target
        self._source = source
        self._topic = progress_topic
        self._producer = TransactionalProducer(target, progress_topic)
        self.progress = progress or Progress()
        self._read_to = 0
        self._is_refused = False
        """Whether the target has rejected records of the last append; they are then checked."""

    def start(self) -> None:
        """Fence other mirrors of this name, and read their progress."""
        self._producer.start()
        records, self._read_to = _records_from(self._target, self._topic, 0)
        self.progress = _progress_of(records, self._topic)

    def find_positions(self, states: Sequence[PartitionState]) -> None:
        self._begin({state.key[0]: (state.topic_id, state.target_id) for state in states})
        fresh: list[PartitionState] = []
        for state in states:
            found = self.progress.map_of(state.key).next_source
            if found is None:
                fresh.append(state)
            else:
                state.position = found
        starts = self._source.offsets([state.key for state in fresh], EARLIEST)
        for state in fresh:
            state.position = starts[state.key]

    def _begin(self, topics: Mapping[str, tuple[str, str]]) -> None:
        """Record that this mirror writes to these topics, before it writes the first records. This
        discards the progress of topics with other ids.
        """
        fresh = {
            name: ids for name, ids in topics.items() if not self.progress.has_begun(name, *ids)
        }
        if fresh:
            now_ms = _now_ms()
            self._producer.add([(self._topic, 0)])
            self._append_progress([begun_record(name, *fresh[name], now_ms) for name in fresh])
            self._producer.commit()
            for name, ids in fresh.items():
                self.progress.begin(name, *ids)

    def append(self, copies: Sequence[Copy]) -> None:
        """Append the fetched batches in one transaction. Raises KafkaFailed and Ended; either all
        or none of the batches are then visible, and `start` finds out which.
        """
        batches = {
            copy.state.key: list(for_producer(copy.batches, checks_all=self._is_refused))
            for copy in copies
        }
        batches = {key: items for key, items in batches.items() if items}
        segments: dict[Partition, list[Segment]] = {}
        if batches:
            try:
                segments = self._append(batches, {copy.state.key: copy for copy in copies})
            except Refused as error:
                self._is_refused = known_code(error.code) in _UNSOUND
                raise
        self._is_refused = False
        for copy in copies:
            key = copy.state.key
            self.progress.map_of(key).extend(segments.get(key, ()))
            copy.settle()

    def _append(
        self, batches: Mapping[Partition, Sequence[NewBatch]], copies: Mapping[Partition, Copy]
    ) -> dict[Partition, list[Segment]]:
        progress_key = self._topic, 0
        self._producer.add([*batches, progress_key])
        segments: dict[Partition, list[Segment]] = {key: [] for key in batches}
        for number in range(max(map(len, batches.values()))):
            wave = {key: items[number] for key, items in batches.items() if number < len(items)}
            bases = self._producer.append(
                {key: (batch.data, batch.record_count) for key, batch in wave.items()}
            )
            for key, batch in wave.items():
                is_last = number + 1 == len(batches[key])
                behind = (
                    copies[key].next_offset if is_last else batches[key][number + 1].runs[0].source
                )
                segments[key] += segments_of(batch.runs, bases[key], behind)
        now_ms = _now_ms()
        records = [
            segment_record(key, copies[key].state.topic_id, segment, now_ms)
            for key, items in segments.items()
            for segment in items
        ]
        self._append_progress(records)
        self._producer.commit()
        return segments

    def finish(self, topics: Mapping[str, str]) -> None:
        """Record that the mirror of these topics has ended. topics: their ids at the source."""
        now_ms = _now_ms()
        self._producer.add([(self._topic, 0)])
        self._append_progress([finished_record(*item, now_ms) for item in topics.items()])
        self._producer.commit()

    def tend(self, states: Sequence[PartitionState]) -> None:
        """Determine the topics that `penstock mirror finish` has ended. Deletes no records, because
        the target has its own retention.
        """
        records, self._read_to = _records_from(self._target, self._topic, self._read_to)
        found = _progress_of(records, self._topic)
        self.progress.finished |= {
            name
            for name in found.finished
            if found.topic_ids[name] == self.progress.topic_ids.get(name)
        }

    def _append_progress(self, records: Sequence[Record]) -> None:
        for start in range(0, len(records), _RECORDS_MAX):
            part = [
                record._replace(offset=at)
                for at, record in enumerate(records[start : start + _RECORDS_MAX])
            ]
            self._producer.append({(self._topic, 0): (encode_batch(part), len(part))})


def load_progress(target: Cluster, topic: str) -> Progress:
    """Return the progress of a mirror. Reads the whole progress topic. Raises KafkaFailed."""
    records, _ = _records_from(target, topic, 0)
    return _progress_of(records, topic)


def _records_from(target: Cluster, topic: str, offset: int) -> tuple[list[Record], int]:
    """Return the committed records from `offset` on, and the end."""
    return target.retried(lambda: _read(target, topic, offset))


def _read(target: Cluster, topic: str, offset: int) -> tuple[list[Record], int]:
    key = topic, 0
    offset = max(offset, target.offsets([key], EARLIEST)[key])
    end = target.offsets([key], LATEST, committed=True)[key]
    records: list[Record] = []
    while offset < end:
        (leader,) = target.by_leader([key])
        wanted = fetch.FetchPartition(
            partition=0, fetch_offset=offset, partition_max_bytes=PARTITION_BYTES_MAX
        )
        response = target.send_request(
            apis.FETCH,
            fetch.FetchRequest(
                max_wait_ms=500,
                min_bytes=1,
                max_bytes=PARTITION_BYTES_MAX,
                isolation_level=1,
                topics=[fetch.FetchTopic(topic=topic, partitions=[wanted])],
            ),
            fetch.FetchResponse,
            node=leader,
        )
        part = response.responses[0].partitions[0]
        target.check(part.error_code, None, f"{topic} cannot be read")
        batches, offset = committed_batches(part.records, offset, part.aborted_transactions)
        for batch in batches:
            records += decode_records(batch.data)
    return records, offset


def _progress_of(records: Sequence[Record], topic: str) -> Progress:
    try:
        return read_progress(records)
    except ValueError as error:
        raise KafkaFailed(f"topic {topic!r}: {error}; delete the topic to start over") from None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
