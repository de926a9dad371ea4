"""Which broker serves a fetch of records that the leader would have to read from the store."""

from uuid import UUID

import msgspec
import pytest

from penstock.base.ids import NodeId, Offset, StreamId
from penstock.broker.handlers.fetch.racks import COMMITTED_BYTES_MIN, broker_in_rack, is_far_behind
from tests.support.managers_cluster import ManagersCluster, part, uploaded

TOPIC_ID = UUID(int=7)
DATA = StreamId(1)
BYTES_PER_OFFSET = 10
"""Used by `part`."""


@pytest.fixture
def cluster() -> ManagersCluster:
    return ManagersCluster()


def add(cluster: ManagersCluster, node_id: int, rack: str | None, **changes: bool) -> None:
    cluster.broker(node_id)
    record = cluster.image.nodes.get(NodeId(node_id))
    assert record is not None
    cluster.image.nodes.set_node(msgspec.structs.replace(record, rack=rack, **changes))


def test_readers_of_one_partition_share_a_live_broker(cluster: ManagersCluster) -> None:
    for node_id in (1, 2, 3):
        add(cluster, node_id, "b")
    add(cluster, 4, "b", fenced=True)
    add(cluster, 5, "a")
    add(cluster, 6, None)
    chosen = [broker_in_rack(cluster.image, "b", TOPIC_ID, index) for index in range(6)]
    assert set(chosen[:3]) == {1, 2, 3}, "neighbors have different ones"
    assert chosen == [broker_in_rack(cluster.image, "b", TOPIC_ID, index) for index in range(6)]
    assert broker_in_rack(cluster.image, "a", TOPIC_ID, 0) == 5
    assert broker_in_rack(cluster.image, "c", TOPIC_ID, 0) is None


def test_only_consumers_far_behind_are_redirected(cluster: ManagersCluster) -> None:
    node = cluster.broker(1)
    cluster.topic("t")
    cluster.open_led(node)
    far = COMMITTED_BYTES_MIN // BYTES_PER_OFFSET
    cluster.commit(node, uploaded(cluster.prepare(node)[0], part(DATA, 0, far)))
    cluster.commit(node, uploaded(cluster.prepare(node)[0], part(DATA, far, far + 10)))
    assert is_far_behind(cluster.image, DATA, Offset(0))
    assert is_far_behind(cluster.image, DATA, Offset(9))
    assert not is_far_behind(cluster.image, DATA, Offset(12))
    assert not is_far_behind(cluster.image, DATA, Offset(far + 10)), "nothing is there yet"
    assert not is_far_behind(cluster.image, StreamId(77), Offset(0))
