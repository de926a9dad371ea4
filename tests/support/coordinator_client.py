"""A client of one group that finds its coordinator again whenever it has lost it."""

import time
from typing import Any, Final

from penstock.base.ids import NodeId
from penstock.broker.coordination.internal_topics import OFFSETS_TOPIC
from penstock.controller.api.messages import AlterReassignments, PartitionTarget
from penstock.deploy.clients.wire import WireClient
from penstock.deploy.errors import KafkaFailed
from penstock.protocol import apis
from penstock.protocol.apis import ApiSpec
from penstock.protocol.codecs import CODECS
from penstock.protocol.error_codes import ErrorCode, known_code
from penstock.protocol.gen import delete_groups, find_coordinator
from tests.support.clients import TIMEOUT_S
from tests.support.cluster import Cluster

_RETRIED: Final = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}


class CoordinatorClient:
    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self.group = group

    def ask(self, api: ApiSpec, request: object, code_of: Any) -> Any:
        """Return the answer of the coordinator. code_of: returns the error code of an answer."""
        end_s = time.monotonic() + TIMEOUT_S
        while True:
            try:
                answer = self._ask_once(api, request)
            except (KafkaFailed, OSError):
                answer = None
            code = ErrorCode.NOT_COORDINATOR if answer is None else known_code(code_of(answer))
            if code not in _RETRIED:
                return answer
            assert time.monotonic() < end_s, f"{api.name}: {code.name}"
            time.sleep(0.05)

    def _ask_once(self, api: ApiSpec, request: object) -> Any:
        find = find_coordinator.FindCoordinatorRequest(key_type=0, coordinator_keys=[self.group])
        found = send(self._cluster.bootstrap, apis.FIND_COORDINATOR, find).coordinators[0]
        if found.error_code:
            return None
        return send(f"{found.host}:{found.port}", api, request)

    def delete(self) -> ErrorCode:
        request = delete_groups.DeleteGroupsRequest([self.group])
        answer = self.ask(apis.DELETE_GROUPS, request, lambda found: found.results[0].error_code)
        return known_code(answer.results[0].error_code)


def send(address: str, api: ApiSpec, request: object) -> Any:
    codec = CODECS[api.key]
    with WireClient(address) as client:
        return client.ask(api, request, codec.encode_request, codec.decode_response)


def coordinator_of(cluster: Cluster, group: str) -> int:
    return cluster.leader_of(OFFSETS_TOPIC, cluster.broker.groups.partition_of(group) or 0)


async def end_coordinator(cluster: Cluster, group: str, end: str) -> None:
    """Let another broker of two coordinate the group. end: of this one; killed, stopped or
    moved.
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
