"""Allocate blocks of producer ids to brokers. The unused ids of a block are lost when the broker
stops.
"""

from penstock.controller.api.messages import AllocateProducerIds, ProducerIdBlock
from penstock.controller.managers.checks import check_node
from penstock.controller.managers.result import Refused, Result
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import ProducerIdsAllocated
from penstock.stream.ports import BrokerIncarnation

BLOCK_IDS = 1_000


def allocate_producer_ids(
    image: MetadataImage, request: AllocateProducerIds
) -> Result[ProducerIdBlock]:
    try:
        check_node(image, BrokerIncarnation(request.node_id, request.node_epoch))
    except Refused as refused:
        return refused.result()
    first = image.next_producer_id
    return Result(
        [ProducerIdsAllocated(first + BLOCK_IDS)],
        value=ProducerIdBlock(first_producer_id=first, count=BLOCK_IDS),
    )
