"""Write records of a transaction without a coordinator, as clients before KIP-890 could. Brokers
accept them only with `transaction.partition.verification.enable=false`.
"""

import time
from dataclasses import replace
from typing import Final

from penstock.protocol import apis
from penstock.protocol.batch.header import TRANSACTIONAL_MASK
from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.gen import produce as wire
from tests.support.wire import wire_client

HANGING_ID: Final = 424_242
HANGING_EPOCH: Final = 3
_PRODUCE: Final = replace(apis.PRODUCE, max=11)
"""In later versions, Produce itself adds the partition to the transaction."""


def produce_hanging(bootstrap: str, topic: str, producer_id: int = HANGING_ID) -> None:
    """Write one record, an hour old, to partition 0, whose leader is at `bootstrap`."""
    timestamp_ms = time.time_ns() // 1_000_000 - 3_600_000
    batch = encode_batch(
        [Record(0, timestamp_ms, b"key", b"hanging")],
        producer_id=producer_id,
        producer_epoch=HANGING_EPOCH,
        base_sequence=0,
        attributes=TRANSACTIONAL_MASK,
    )
    data = wire.TopicProduceData(name=topic, partition_data=[wire.PartitionProduceData(0, batch)])
    request = wire.ProduceRequest(
        transactional_id="hanging", acks=-1, timeout_ms=30_000, topic_data=[data]
    )
    with wire_client(bootstrap) as client:
        response = client.send_request(_PRODUCE, request, wire.ProduceResponse)
    assert response.responses[0].partition_responses[0].error_code == 0
