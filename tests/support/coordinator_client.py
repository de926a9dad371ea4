"""A client of one group that looks up the group's coordinator again whenever it changes."""

import time
from typing import Any

from penstock.base.ids import NodeId
from penstock.broker.coordination.internal_topics import OFFSETS_TOPIC
from penstock.controller.api.messages import AlterReassignments, PartitionTarget
from penstock.deploy.clients.security import PLAINTEXT
from penstock.protocol import apis
from penstock.protocol.apis import ApiSpec
from penstock.protocol.client.brokers import GROUP, MOVED, Brokers
from penstock.protocol.client.errors import KafkaFailed
from penstock.protocol.error_codes import ErrorCode, known_code
from penstock.protocol.gen import delete_groups
from tests.support.clients import TIMEOUT_S
from tests.support.cluster import Cluster
from tests.support.wire import wire_client


class CoordinatorClient:
    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self.group = group

    def send_request(self, api: ApiSpec, request: object, code_of: Any) -> Any:
        """Return the response of the coordinator. code_of: returns the error code of a response."""
        end_s = time.monotonic() + TIMEOUT_S
        while True:
            try:
                response = self._ask_once(api, request)
            except (KafkaFailed, OSError):
                response = None
            code = ErrorCode.NOT_COORDINATOR if response is None else known_code(code_of(response))
            if code not in MOVED:
                return response
            assert time.monotonic() < end_s, f"{api.name}: {code.name}"
            time.sleep(0.05)

    def _ask_once(self, api: ApiSpec, request: object) -> Any:
        with Brokers(self._cluster.bootstrap, PLAINTEXT) as brokers:
            node = brokers.coordinator(GROUP, self.group)
            return brokers.send_request(api, request, object, node=node, version=api.max)

    def delete(self) -> ErrorCode:
        request = delete_groups.DeleteGroupsRequest([self.group])
        response = self.send_request(
            apis.DELETE_GROUPS, request, lambda found: found.results[0].error_code
        )
        return known_code(response.results[0].error_code)


def send(address: str, api: ApiSpec, request: object) -> Any:
    with wire_client(address) as client:
        return client.send_request(api, request, object)


def coordinator_of(cluster: Cluster, group: str) -> int:
    return cluster.leader_of(OFFSETS_TOPIC, cluster.broker.groups.partition_of(group) or 0)


def group_on(cluster: Cluster, group: str, kind: str) -> Any:
    """Return the group of this kind (consumer, share or streams) at its coordinator, or None until
    a broker has loaded it.
    """
    for broker in cluster.brokers.values():
        found = broker.groups.find(group, create=False)
        if not isinstance(found, ErrorCode) and getattr(found, kind) is not None:
            return getattr(found, kind)
    return None


async def end_coordinator(cluster: Cluster, group: str, end: str) -> None:
    """End the coordinator role of one broker, so that the other one coordinates the group.

    end: how the role ends: killed, stopped or moved.
    """
    node_id = coordinator_of(cluster, group)
    if end == "killed":
        await cluster.kill_broker(node_id)
    elif end == "stopped":
        await cluster.stop_broker(node_id)
    else:
        (other,) = cluster.brokers.keys() - {node_id}
        partition = cluster.broker.groups.partition_of(group) or 0
        move = PartitionTarget(topic=OFFSETS_TOPIC, partition=partition, replicas=[NodeId(other)])
        await cluster.broker.client.alter_reassignments(AlterReassignments(partitions=[move]))
