"""Append to a Penstock cluster at the offsets of the source.

The progress of a partition is the log end of the target. Repeated batches are ignored, because they
are already in the log (`broker.partition.mirrored`).
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from penstock.deploy.mirror.batches import at_source_offsets
from penstock.deploy.mirror.cluster import Cluster, grouped, produce_request
from penstock.deploy.mirror.source import Copy
from penstock.deploy.mirror.state import UNKNOWN, PartitionState
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode, known_code
from penstock.protocol.gen import delete_records, produce
from penstock.protocol.offset_specs import EARLIEST, LATEST

_TIMEOUT_MS: Final = 30_000


class SameOffsets:
    """Implements `TargetWriter` for topics that are mirrors."""

    def __init__(self, target: Cluster) -> None:
        self._target = target

    def start(self) -> None:
        """Do nothing: any number of mirrors may append."""

    def find_positions(self, states: Sequence[PartitionState]) -> None:
        keys = [state.key for state in states]
        ends, starts = self._target.offsets(keys, LATEST), self._target.offsets(keys, EARLIEST)
        for state in states:
            state.position, state.target_start = ends[state.key], starts[state.key]

    def append(self, copies: Sequence[Copy]) -> None:
        """Append the fetched batches, and wait until they are durable. Raises KafkaFailed."""
        by_key = {copy.state.key: copy for copy in copies}
        by_source = groupby(
            sorted(copies, key=lambda copy: copy.state.mirror_source),
            lambda copy: copy.state.mirror_source,
        )
        for mirror_source, group in by_source:
            keys = [copy.state.key for copy in group]
            for leader, led in self._target.by_leader(keys).items():
                self._append(mirror_source, leader, [by_key[key] for key in led])

    def _append(self, mirror_source: str, leader: int, copies: Sequence[Copy]) -> None:
        data = {
            copy.state.key: b"".join(
                at_source_offsets(copy.batches, copy.state.position, copy.next_offset)
            )
            for copy in copies
        }
        response = self._target.send_request(
            apis.PRODUCE,
            produce_request(data, _TIMEOUT_MS, mirror_source=mirror_source),
            produce.ProduceResponse,
            node=leader,
        )
        by_key = {copy.state.key: copy for copy in copies}
        results = [
            (by_key[topic.name, part.index], part)
            for topic in response.responses
            for part in topic.partition_responses
        ]
        for copy, part in results:
            _settle(copy, part)
        for copy, part in results:
            if part.error_code and not copy.state.error and copy.state.position != UNKNOWN:
                what = f"{copy.state.name} cannot be appended to at the target"
                self._target.check(part.error_code, part.error_message, what)

    def tend(self, states: Sequence[PartitionState]) -> None:
        """Delete records of the target below the log start of the source. Raises KafkaFailed."""
        behind = {
            state.key: state
            for state in states
            if state.target_start < state.source_start <= state.position
        }
        for leader, led in self._target.by_leader(behind).items():
            topics = [
                delete_records.DeleteRecordsTopic(
                    topic, [delete_records.DeleteRecordsPartition(*item) for item in items]
                )
                for topic, items in grouped({key: behind[key].source_start for key in led}).items()
            ]
            response = self._target.send_request(
                apis.DELETE_RECORDS,
                delete_records.DeleteRecordsRequest(topics, _TIMEOUT_MS),
                delete_records.DeleteRecordsResponse,
                node=leader,
            )
            for result in response.topics:
                for part in result.partitions:
                    state = behind[result.name, part.partition_index]
                    what = f"the log start of {state.name} cannot be moved at the target"
                    self._target.check(part.error_code, None, what)
                    state.target_start = part.low_watermark


def _settle(copy: Copy, part: produce.PartitionProduceResponse) -> None:
    state = copy.state
    if not part.error_code:
        copy.settle()
    elif known_code(part.error_code) is ErrorCode.POLICY_VIOLATION:
        state.error = part.error_message or "its mirror has ended"
    elif known_code(part.error_code) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
        # Another mirror of the same source may be behind or ahead.
        state.position = UNKNOWN
