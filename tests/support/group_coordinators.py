"""Group coordinators over an in-memory log: each one takes over from the one before."""

import asyncio
import itertools
from uuid import UUID

from penstock.base.ids import NodeEpoch, NodeId, StreamEpoch, StreamId
from penstock.broker.groups.classic.model import GroupLimits, JoinRequest, Protocol
from penstock.broker.groups.consumer.model import ConsumerLimits
from penstock.broker.groups.coordinator.group_coordinator import GroupCoordinator
from penstock.broker.groups.share.model import ShareLimits
from penstock.broker.groups.streams.model import StreamsLimits
from penstock.broker.groups.streams.values import Subtopology, Topology
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import PartitionRecord, TopicRecord
from penstock.protocol.error_codes import ErrorCode
from tests.support.coordinator_log import MemoryLog
from tests.support.embedded import subscription
from tests.support.share_states import MemoryShareStates

TOPIC_ID = UUID(int=7)
TOPOLOGY = Topology(0, (Subtopology("0", ("t",)),))
JOINING = JoinRequest(
    "",
    None,
    "c",
    "/h",
    10_000,
    60_000,
    "consumer",
    (Protocol("range", subscription("t")),),
    needs_known_member_id=False,
)


def now_ms() -> int:
    return 1_700_000_000_000 + int(asyncio.get_running_loop().time() * 1000)


def image_with(partition_count: int) -> MetadataImage:
    """Return an image with the topic `t`."""
    image = MetadataImage()
    image.topics.create(TopicRecord(topic_id=TOPIC_ID, name="t"))
    for index in range(partition_count):
        image.topics.set_partition(
            PartitionRecord(
                topic_id=TOPIC_ID,
                partition=index,
                replicas=(NodeId(0),),
                leader=NodeId(0),
                leader_node_epoch=NodeEpoch(1),
                leader_epoch=StreamEpoch(0),
                meta_stream_id=StreamId(3 * index),
                data_stream_id=StreamId(3 * index + 1),
                txn_stream_id=StreamId(3 * index + 2),
            )
        )
    return image


class Coordinators:
    """The coordinators of group `g`, one after another."""

    def __init__(self, log=None, states=None):
        self.log = log or MemoryLog()
        self.states = states or MemoryShareStates()
        self._current = None

    def start(
        self, *, partitions=4, delay_ms=0, compaction=None, consumer=(), share=(), streams=()
    ):
        """Return the next coordinator while it loads the log; close the one before.

        partitions: of the topic `t`. delay_ms: delay of the first rebalance. consumer, share,
        streams: mappings of their limits.
        """
        self.close()
        numbers = itertools.count()
        self._current = coordinator = GroupCoordinator(
            self.log,
            GroupLimits(initial_rebalance_delay_ms=delay_ms),
            now_ms=now_ms,
            new_member_id=lambda prefix: f"{prefix}-{next(numbers)}",
            compaction=compaction,
            consumer_limits=lambda _: ConsumerLimits(**dict(consumer)),
            share_limits=lambda _: ShareLimits(**dict(share)),
            share_states=self.states,
            streams_limits=lambda _: StreamsLimits(
                **{"initial_rebalance_delay_ms": delay_ms, **dict(streams)}
            ),
        )
        coordinator.topics.reset(image_with(partitions))
        for partition in range(self.log.partition_count):
            coordinator.partition_opened(partition)
        return coordinator

    async def next(self, **settings):
        """Return the next coordinator after it has loaded the log. settings: see `start`."""
        coordinator = self.start(**settings)
        await coordinator.ready("g")
        return coordinator

    def close(self):
        if self._current is not None:
            self._current.close()


def group_of(coordinator):
    group = coordinator.find("g", create=False)
    assert not isinstance(group, ErrorCode), group
    return group
