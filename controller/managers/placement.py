"""Place the candidates of partitions on brokers, like Kafka's `StripedReplicaPlacer` without racks.

The candidates of partition i start at broker (start + i) mod n. `start` is derived from the number
of partitions ever created, so that small topics are spread as well. A factor of 1 to 15 is always
accepted, because durability comes from the store.
"""

from collections.abc import Collection, Sequence

from penstock.base.ids import NodeId
from penstock.controller.api.messages import Status
from penstock.controller.managers.result import Refused
from penstock.controller.metadata.image import MetadataImage

REPLICATION_FACTOR_MAX = 15
REPLICATION_FACTOR_DEFAULT = 3


class Placement:
    """Chooses candidates for the new partitions of one transaction, from the brokers with a
    session, or from all registered brokers if none has a session.
    """

    def __init__(self, image: MetadataImage, live: Collection[NodeId]) -> None:
        registered = sorted(node.node_id for node in image.nodes)
        self._known = frozenset(registered)
        self._live = frozenset(
            node.node_id
            for node in image.nodes
            if node.node_id in live and not (node.fenced or node.draining)
        )
        self._brokers: list[NodeId] = [
            node_id for node_id in registered if node_id in self._live
        ] or registered
        self._next = image.next_stream_id // 3

    def candidates(self, count: int, factor: int) -> list[tuple[NodeId, ...]]:
        """Return the candidates of `count` partitions. factor -1: three, or the number of brokers
        if there are fewer.
        """
        if factor == -1:
            factor = REPLICATION_FACTOR_DEFAULT
        if not 1 <= factor <= REPLICATION_FACTOR_MAX:
            detail = (
                f"replication factor {factor} is not allowed: 1 to {REPLICATION_FACTOR_MAX}, or -1"
                " for the default"
            )
            raise Refused(Status.INVALID_REPLICATION_FACTOR, detail)
        brokers = self._brokers
        if not brokers:
            raise Refused(
                Status.INVALID_REPLICATION_FACTOR,
                "no broker is registered yet: start one and try again",
            )
        width = min(factor, len(brokers))
        rows = [
            tuple(brokers[(self._next + row + nth) % len(brokers)] for nth in range(width))
            for row in range(count)
        ]
        self._next += count
        return rows

    def check(self, assignment: Sequence[Sequence[NodeId]]) -> list[tuple[NodeId, ...]]:
        """Check an explicit assignment: all rows have the same length and contain distinct
        registered brokers, one of them live. Raises Refused.
        """
        wanted = len(assignment[0]) if assignment else 0
        for index, row in enumerate(assignment):
            problem = self._problem(row, wanted)
            if problem:
                raise Refused(
                    Status.INVALID_REPLICA_ASSIGNMENT,
                    f"assignment number {index}, {list(row)}: {problem}",
                )
        return [tuple(row) for row in assignment]

    def _problem(self, row: Sequence[NodeId], wanted: int) -> str:
        if not 1 <= len(row) <= REPLICATION_FACTOR_MAX:
            return f"1 to {REPLICATION_FACTOR_MAX} brokers are allowed"
        if len(row) != wanted:
            return f"all partitions must have {wanted} brokers"
        if len(set(row)) != len(row):
            return "it contains a broker twice"
        if unknown := [node_id for node_id in row if node_id not in self._known]:
            return f"brokers {unknown} are not registered"
        if self._live and not self._live.intersection(row):
            return "none of these brokers is alive"
        return ""
