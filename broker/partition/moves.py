"""Partition moves from and to this broker: start the move notices, and report step times (KIP-951).
The controller decides what to move, and `PartitionManager` closes the partitions.
"""

from collections.abc import Callable, Iterable, Mapping

from penstock.broker.partition.hosted_partition import HostedPartition
from penstock.broker.partition.move_notice import MoveNotice, MoveNoticeConfig
from penstock.broker.partition.opener import BATCH_COUNT_MAX, Steps
from penstock.broker.partition.partition import Partition
from penstock.controller.api.messages import MoveTiming
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import PartitionRecord
from penstock.controller.metadata.topics import PartitionKey, is_moving


class Moves:
    def __init__(
        self,
        image: Callable[[], MetadataImage],
        config: MoveNoticeConfig,
        report: Callable[[list[MoveTiming]], None],
        on_over: Callable[[list[PartitionKey]], None],
    ) -> None:
        """report: receives the step times of moves. on_over: called with the partitions of a notice
        that has ended. Neither must block or raise.
        """
        self._image = image
        self._config = config
        self._report = report
        self._on_over = on_over
        self._notices: set[MoveNotice] = set()

    def begin_notices(
        self, keys: Iterable[PartitionKey], hosted: Mapping[PartitionKey, HostedPartition]
    ) -> list[PartitionKey]:
        """Start the notices that are due. Return the partitions that do not (or no longer) need a
        notice.

        A partition gets one notice per move. It stays open until the notice ends, and until then,
        `PartitionManager` does not check the partition.
        """
        to_notify: list[HostedPartition] = []
        rest: list[PartitionKey] = []
        for key in keys:
            found = hosted.get(key)
            if found is None or not self._needs_notice(found):
                rest.append(key)
            elif found.notice is None:
                to_notify.append(found)
        for at in range(0, len(to_notify), BATCH_COUNT_MAX):
            self._begin_notice(to_notify[at : at + BATCH_COUNT_MAX])
        return rest

    def _needs_notice(self, hosted: HostedPartition) -> bool:
        """Return True if this is a planned move to another broker and the streams are still open
        here. The partition accepts records until its producers have received the hint.
        """
        open_partition, notice = hosted.open_partition, hosted.notice
        if (
            open_partition is None
            or open_partition.partition is None
            or hosted.busy
            or not self._config.longest_ms
        ):
            return False
        if (
            (notice is not None and notice.is_over)
            or not open_partition.partition.accepts_records
            or not open_partition.partition.log.is_dirty
            or not self._has_its_name(open_partition.partition)
        ):
            return False
        record = self._image().topics.partition(hosted.key)
        return (
            record is not None
            and is_moving(record)
            and record.leader_epoch == open_partition.record.leader_epoch
        )

    def _has_its_name(self, partition: Partition) -> bool:
        """Return False if the topic was deleted and restored under another name, because requests
        with the old name are not meant for the restored topic.
        """
        topic = self._image().topics.by_id(partition.record.topic_id)
        return topic is not None and topic.name == partition.topic_name

    def _begin_notice(self, batch: list[HostedPartition]) -> None:
        def on_over() -> None:
            self._notices.discard(notice)
            self._on_over([hosted.key for hosted in batch])

        notice = MoveNotice(
            [hosted.partition for hosted in batch if hosted.partition is not None],
            self._config,
            on_over,
        )
        self._notices.add(notice)
        for hosted in batch:
            hosted.notice = notice

    def cancel(self) -> None:
        """Cancel all notices without calling `on_over`."""
        for notice in self._notices:
            notice.cancel()

    def report(
        self, steps_of: Iterable[tuple[PartitionRecord, Steps]], *, gave_up: bool = False
    ) -> None:
        """Report the step times of completed moves. steps_of: the partition records under which the
        partitions were opened, with the steps. gave_up: whether this broker is the source.
        """
        timings: list[MoveTiming] = []
        for record, steps in steps_of:
            now = self._image().topics.partition(PartitionKey(record.topic_id, record.partition))
            if now is not None and now.move is not None:
                timing = MoveTiming(
                    topic_id=record.topic_id,
                    partition=record.partition,
                    leader_epoch=record.leader_epoch,
                    gave_up=gave_up,
                    steps=steps,
                )
                timings.append(timing)
        if timings:
            self._report(timings)
