"""Respond to the Fetch of another broker with the WAL slots of a tail instead of its records
(KIP-392). Waits, epoch checks, leases and sessions are the same as for any other Fetch.
"""

from collections.abc import Iterable

from penstock.base.ids import Offset
from penstock.broker.handlers.fetch.fetch_call import FetchCall
from penstock.broker.handlers.fetch.fetch_target import FetchTarget
from penstock.broker.network.request import RequestContext
from penstock.broker.partition.partition import Partition
from penstock.broker.requests.authorization import is_broker
from penstock.broker.requests.fetch_sessions import SessionCall
from penstock.broker.requests.node import Node
from penstock.broker.tail.reported_tail import SLOTS_MAX, encode_reported_tail
from penstock.protocol.gen.fetch import FetchRequest


def is_of_follower(node: Node, ctx: RequestContext, request: FetchRequest) -> bool:
    """Return whether the client is a live broker of this cluster. If so, record it as a
    follower.
    """
    return (
        request.replica_state is not None
        and request.replica_state.replica_id >= 0
        and is_broker(node, ctx)
        and node.tail_followers.record_request(request)
    )


class TailFetch(FetchCall):
    __slots__ = ()

    def __init__(
        self, node: Node, ctx: RequestContext, request: FetchRequest, call: SessionCall
    ) -> None:
        request.replica_state = None
        super().__init__(node, ctx, request, call, None)

    def _deny(self, target: FetchTarget) -> None:
        """Allow brokers to read every topic. `is_of_follower` has verified that the client is a
        broker.
        """

    def _take_cached(self, target: FetchTarget, partition: Partition) -> None:
        offset, end_offset = Offset(target.wanted.fetch_offset), partition.high_watermark
        if offset >= end_offset or self._budget_bytes <= 0:
            return
        log, node = partition.log, self._node
        report = encode_reported_tail(
            node.node_epoch,
            end_offset,
            node.storage.tail(log.data.stream_id, offset, SLOTS_MAX),
            log.transactions.aborted_since(log.data.committed_offset, end_offset),
            node.storage.wal_store_id,
        )
        target.result.records = (report,)
        self._size_bytes += len(report)
        self._budget_bytes -= len(report)

    def _count(self, targets: Iterable[FetchTarget]) -> int:
        """Return the first error. No bytes are counted, because consumers receive the records from
        the follower.
        """
        return next((target.result.error_code for target in targets if target.result.error_code), 0)
