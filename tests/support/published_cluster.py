"""A cluster based on the managers, and controllers that publish its manifest."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from penstock.base.ids import Millis
from penstock.controller.active.manifest.publisher import ManifestPublisher
from penstock.controller.config import ControllerConfig
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import Record
from penstock.stream.ports import BrokerIncarnation
from tests.support.managers_cluster import ManagersCluster, part, replaced, uploaded

T = TypeVar("T")
GRACE_MS = 120_000


class CommittedImage:
    """The runtime from the publisher's view: an image between two batches, and the records that
    change it.
    """

    def __init__(self, image: MetadataImage, epoch: int) -> None:
        self.image, self.epoch = image, epoch
        self.notes: list[Callable[[Sequence[Record]], None]] = []

    def observe(self, note: Callable[[Sequence[Record]], None]) -> None:
        self.notes.append(note)

    async def with_committed_image(self, look: Callable[[MetadataImage], T]) -> T:
        await asyncio.sleep(0)
        return look(self.image)


class PublishedCluster:
    """A cluster with one topic whose partitions grow, and controllers that publish its manifest."""

    def __init__(self, partitions: int = 2) -> None:
        self.cluster = ManagersCluster()
        self.now_s = 1_000.0
        self.watching: list[CommittedImage] = []

        def noting(records: Sequence[Record]) -> None:
            self.cluster.image.apply_all(records)  # without a full scan each time
            for runtime in self.watching:
                for note in runtime.notes:
                    note(records)

        self.cluster.apply = noting
        self.node: BrokerIncarnation = self.cluster.broker(1)
        self.cluster.topic("t", partitions)
        self.cluster.open_led(self.node)

    def publisher(
        self, store: Any, epoch: int, image: MetadataImage | None = None
    ) -> ManifestPublisher:
        """Return a publisher.

        image: the image of a controller that has not yet noticed that it is no longer the leader.
        """
        runtime = CommittedImage(image or self.cluster.image, epoch)
        if image is None:
            self.watching.append(runtime)
        config = ControllerConfig(
            data_dir=Path("unused"), cluster_id="test", manifest_grace_ms=GRACE_MS
        )
        now_ms = lambda: Millis(int(self.now_s * 1_000))  # noqa: E731
        return ManifestPublisher(config, runtime, store, now=lambda: self.now_s, now_ms=now_ms)

    def append(self, partition: int = 0, count: int = 1) -> None:
        stream_id = self.cluster.partitions("t")[partition].data_stream_id
        for _ in range(count):
            end = self.cluster.end(stream_id)
            self.cluster.commit(
                self.node,
                uploaded(self.cluster.prepare(self.node)[0], part(stream_id, end, end + 10)),
            )

    def compact(self, partition: int, first: int, count: int) -> None:
        stream_id = self.cluster.partitions("t")[partition].data_stream_id
        found = self.cluster.spans(stream_id)[first : first + count]
        new = uploaded(
            self.cluster.prepare(self.node)[0], part(stream_id, found[0][0], found[-1][1])
        )
        self.cluster.commit(
            self.node,
            new,
            replaced=[replaced(stream_id, object_id, low, high) for low, high, object_id in found],
        )
