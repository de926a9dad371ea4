"""Fetch committed records from the leaders of the source.

Invariant: if the source has topic ids (Kafka 3.1 and newer, Penstock), records are copied only from
the original topic, never from a recreated one. Limits: a response contains at most FETCH_BYTES_MAX,
or one batch if it is larger.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from penstock.deploy.mirror.batches import OldFormat, SourceBatch, committed_batches
from penstock.deploy.mirror.cluster import Cluster
from penstock.deploy.mirror.state import PartitionState
from penstock.protocol import apis
from penstock.protocol.batch.errors import BatchCorrupt
from penstock.protocol.client.brokers import Partition, by_topic
from penstock.protocol.error_codes import ErrorCode, known_code
from penstock.protocol.gen import fetch
from penstock.protocol.offset_specs import EARLIEST, LATEST

FETCH_BYTES_MAX: Final = 8 * 1024 * 1024
PARTITION_BYTES_MAX: Final = 2 * 1024 * 1024
_FETCH_BY_ID: Final = 13
"""The first version of Fetch with topic ids."""
_COMMITTED: Final = 1
"""The isolation level that excludes records of open and aborted transactions."""


@dataclass(frozen=True, slots=True)
class Copy:
    """Batches after the position of a partition, and the next fetch offset. They may begin after
    the position if records were deleted at the source.
    """

    state: PartitionState
    batches: Sequence[SourceBatch]
    next_offset: int

    def settle(self) -> None:
        """Update the state after the batches have been appended."""
        self.state.position = self.next_offset
        self.state.records += sum(header.record_count for header, _ in self.batches)
        self.state.size_bytes += sum(header.size_bytes for header, _ in self.batches)


def fetched(
    source: Cluster, leader: int, states: Sequence[PartitionState], max_wait_ms: int
) -> list[Copy]:
    """Return records of the partitions that this source broker leads. Waits for them for at most
    `max_wait_ms`. Updates the log ends in the partition states.

    Raises KafkaFailed. Unreadable batches are an error of the partition.
    """
    by_key = {state.key: state for state in states}
    version = source.version_of(
        apis.FETCH,
        leader,
        _FETCH_BY_ID if all(state.topic_id for state in states) else _FETCH_BY_ID - 1,
    )
    response = source.send_request(
        apis.FETCH, _request(by_key, max_wait_ms), fetch.FetchResponse, node=leader, version=version
    )
    source.check(response.error_code, None, "records cannot be fetched from the source")
    found: list[Copy] = []
    lost: list[PartitionState] = []
    names = {state.topic_id: state.key[0] for state in states}
    for topic in response.responses:
        name = topic.topic if topic.topic_id is None else names[str(topic.topic_id)]
        for part in topic.partitions:
            state = by_key[name, part.partition_index]
            if known_code(part.error_code) is ErrorCode.OFFSET_OUT_OF_RANGE:
                lost.append(state)
                continue
            source.check(part.error_code, None, f"{state.name} cannot be fetched from the source")
            copy = _copy(state, part)
            if copy.next_offset > state.position:
                found.append(copy)
    return found + _behind_deleted(source, lost)


def _request(states: Mapping[Partition, PartitionState], max_wait_ms: int) -> fetch.FetchRequest:
    ids = {key[0]: state.topic_id for key, state in states.items()}
    topics = [
        fetch.FetchTopic(
            topic_id=UUID(ids[topic]) if ids[topic] else None,
            topic=topic,
            partitions=[
                fetch.FetchPartition(
                    partition=index,
                    fetch_offset=states[topic, index].position,
                    partition_max_bytes=PARTITION_BYTES_MAX,
                )
                for index in indexes
            ],
        )
        for topic, indexes in by_topic(states).items()
    ]
    return fetch.FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=FETCH_BYTES_MAX,
        isolation_level=_COMMITTED,
        topics=topics,
    )


def _copy(state: PartitionState, part: fetch.PartitionData) -> Copy:
    state.end, state.source_start = part.high_watermark, part.log_start_offset
    stable = part.last_stable_offset
    state.stable_end = part.high_watermark if stable < 0 else stable
    try:
        found = committed_batches(part.records, state.position, part.aborted_transactions)
    except (OldFormat, BatchCorrupt) as error:
        state.error = str(error)
        return Copy(state, (), state.position)
    return Copy(state, *found)


def _behind_deleted(source: Cluster, lost: Sequence[PartitionState]) -> list[Copy]:
    """Return the log start of each partition whose position was deleted at the source. A position
    after the log end is an error of the partition.
    """
    found: list[Copy] = []
    keys = [state.key for state in lost]
    starts, ends = source.offsets(keys, EARLIEST), source.offsets(keys, LATEST)
    for state in lost:
        start, end = starts[state.key], ends[state.key]
        state.source_start, state.end, state.stable_end = start, end, end
        if state.position < start:
            found.append(Copy(state, (), start))
        elif state.position > end:
            state.error = (
                f"the target has offset {state.position}, but the source ends at {end}: the source"
                " lost records, or the topic is another one; delete it at the target to begin again"
            )
    return found
