"""Query controllers and brokers: availability, leader, clocks, and the broker at each advertised
address.

Invariants: every request has a deadline, and a node that does not respond does not delay the
others. Requests change nothing. Facts are not evaluated here.
"""

import asyncio
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from penstock.controller.api.client import ControllerClient
from penstock.controller.api.errors import ControllerError, RequestRefused
from penstock.controller.api.load_messages import ProblemLog, ProposeMoves
from penstock.controller.api.messages import QuorumStatus
from penstock.controller.metadata.configs import BROKER_RESOURCE
from penstock.deploy.clients.controller_faults import faults_of
from penstock.deploy.clients.controllers import connect
from penstock.deploy.clients.wire import WireClient
from penstock.deploy.doctor.facts import (
    ClockSpan,
    ClusterFacts,
    ControllerFacts,
    ListenerFacts,
    QuorumFacts,
)
from penstock.deploy.doctor.store_facts import HERE, wall_ms
from penstock.protocol import apis
from penstock.protocol.client.errors import KafkaFailed
from penstock.protocol.gen import describe_cluster, describe_configs

CONTROLLER_S: Final = 3.0
LEADER_S: Final = 5.0
"""Maximum wait for a leader; an election takes one or two seconds."""
BROKER_S: Final = 5.0
BROKERS_AT_ONCE: Final = 16
_EXPECTED: Final = re.compile(r"expected (\d+)")
"""Matches the error of a broker that received a request for another broker, as in Kafka."""
_BROKERS: Final = 1


async def query_controllers(addresses: str) -> QuorumFacts:
    """Query the controllers at these addresses, and the other members of the quorum. addresses:
    host:port of any controllers.
    """
    requested = {item.address: item for item in await _describe(addresses.split(","))}
    members = [
        address
        for item in requested.values()
        if item.status is not None
        for address in item.status.members
    ]
    requested |= {item.address: item for item in await _describe(set(members) - set(requested))}
    if all(item.status is None for item in requested.values()):
        faults = await faults_of(list(requested))
        return QuorumFacts(addresses, tuple(requested.values()), None, {}, faults=faults)
    client = connect([item.address for item in requested.values() if item.status is not None])
    try:
        quorum = await _quorum(client)
        found = tuple(_without_duplicates(requested.values()))
        return QuorumFacts(
            addresses,
            found,
            quorum,
            *(await _broker_reports(client) if quorum is not None else ({}, {})),
        )
    finally:
        await client.close()


async def _describe(addresses: Iterable[str]) -> list[ControllerFacts]:
    return list(await asyncio.gather(*(_describe_one(address.strip()) for address in addresses)))


async def _describe_one(address: str) -> ControllerFacts:
    client = connect([address])
    try:
        await client.describe(timeout_s=CONTROLLER_S)  # opens the connection, which is not measured
        began_ms = wall_ms()
        status = await client.describe(timeout_s=CONTROLLER_S)
        ended_ms = wall_ms()
    except (TimeoutError, ControllerError, ValueError):
        return ControllerFacts(address, None)
    finally:
        await client.close()
    clock = ClockSpan(
        f"controller {status.controller_id}",
        HERE,
        status.now_ms - ended_ms,
        status.now_ms + 1 - began_ms,
    )
    return ControllerFacts(address, status, clock if status.now_ms else None)


def _without_duplicates(requested: Iterable[ControllerFacts]) -> Iterable[ControllerFacts]:
    """Yield each controller once, even if two addresses belong to it."""
    known: set[int] = set()
    for item in requested:
        if item.status is None or item.status.controller_id not in known:
            yield item
        if item.status is not None:
            known.add(item.status.controller_id)


async def _quorum(client: ControllerClient) -> QuorumStatus | None:
    try:
        return await client.describe_quorum(timeout_s=LEADER_S)
    except (TimeoutError, RequestRefused):
        return None


async def _broker_reports(client: ControllerClient) -> tuple[dict[int, str], dict[int, ProblemLog]]:
    """Return notes and troubles, by broker."""
    try:
        proposed = await client.propose_moves(ProposeMoves(moves_max=0), timeout_s=LEADER_S)
    except (TimeoutError, ControllerError):
        return {}, {}
    notes = {int(broker.node_id): broker.note for broker in proposed.before if broker.note}
    return notes, {
        int(broker.node_id): broker.problems
        for broker in proposed.before
        if broker.problems is not None
    }


async def check_listeners(seen: ClusterFacts, only: Collection[str]) -> list[ListenerFacts]:
    """Connect to every live broker at each of its addresses. only: names of listeners; if empty,
    all are checked.
    """
    wanted = [
        (broker.node_id, name, address)
        for broker in seen.brokers
        if not broker.fenced
        for name, address in broker.listeners
        if not only or name in only
    ]
    turns = asyncio.Semaphore(BROKERS_AT_ONCE)

    async def one(node_id: int, name: str, address: str) -> ListenerFacts:
        async with turns:
            return await asyncio.to_thread(_check_listener, node_id, name, address)

    return list(await asyncio.gather(*(one(*item) for item in wanted)))


def _check_listener(node_id: int, name: str, address: str) -> ListenerFacts:
    """Request this broker's configs. A different broker rejects this with an error that contains
    its id.
    """
    resource = describe_configs.DescribeConfigsResource(
        resource_type=BROKER_RESOURCE, resource_name=str(node_id), configuration_keys=["node.id"]
    )
    configs = describe_configs.DescribeConfigsRequest(resources=[resource])
    cluster = describe_cluster.DescribeClusterRequest(endpoint_type=_BROKERS)
    try:
        client = WireClient(address)
    except KafkaFailed:
        return ListenerFacts(
            node_id, name, address, problem=("no process accepts connections there")
        )
    with client:
        try:
            configs_response = client.send_request(
                apis.DESCRIBE_CONFIGS, configs, describe_configs.DescribeConfigsResponse, BROKER_S
            )
            cluster_response = client.send_request(
                apis.DESCRIBE_CLUSTER, cluster, describe_cluster.DescribeClusterResponse, BROKER_S
            )
        except KafkaFailed as error:
            return ListenerFacts(node_id, name, address, problem=str(error))
    return ListenerFacts(
        node_id,
        name,
        address,
        responder=(_node_id_of(configs_response.results), cluster_response.cluster_id),
    )


def _node_id_of(results: Sequence[describe_configs.DescribeConfigsResult]) -> int:
    for result in results:
        if result.error_code:
            other = _EXPECTED.search(result.error_message or "")
            return int(other[1]) if other else -1
        for config in result.configs:
            if config.name == "node.id" and (config.value or "").isdecimal():
                return int(config.value or "")
    return -1
