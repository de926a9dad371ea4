"""Measure a cluster: metadata and loads come from its controller, end offsets from its brokers.

Invariant: nothing in the cluster is changed. Values of brokers that do not respond are kept. Uses
one follower and one connection per broker while open. This module must not import gRPC before it is
needed. The methods block, because the class has its own event loop.
"""

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

from penstock.controller.api.load_messages import ProposeMoves
from penstock.deploy.admin.cost import Prices
from penstock.deploy.admin.views import ClusterView, view_cluster
from penstock.deploy.clients.controllers import connect, response_of
from penstock.deploy.errors import NoController
from penstock.deploy.top.counts import RecordCounts
from penstock.deploy.top.offsets import TIMEOUT_S, EndOffsets
from penstock.deploy.top.view import STANDARD, TopView, stored_topics, view_top, wal_store_urls_of

if TYPE_CHECKING:
    from penstock.base.ids import NodeId
    from penstock.controller.api.client import ControllerClient
    from penstock.controller.api.load_messages import BrokerLoad
    from penstock.controller.metadata.image import MetadataImage

_TIMEOUT_S: Final = 5.0
NO_RESPONSE: Final = f"no response within {TIMEOUT_S:g} s"


class Watch:
    """Measures a cluster. Use as a context manager, and call `measure` repeatedly. Raises
    NoController.
    """

    def __init__(self, controller: str, prices: Prices = STANDARD) -> None:
        self._controller = controller
        self._prices = prices
        self._runner = asyncio.Runner()
        self._ends = EndOffsets()
        self._counts = RecordCounts()

    def __enter__(self) -> Self:
        self._runner.run(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()
        self._runner.run(self._close())
        self._runner.close()

    def wait(self, seconds: float) -> None:
        """Wait while following the metadata, unlike `time.sleep`."""
        self._runner.run(asyncio.sleep(seconds))

    def measure(self) -> TopView:
        loads = self._runner.run(broker_loads(self._client)) or {}
        image = self._follower.image
        cluster, stored = view_cluster(image, self._controller, loads), stored_topics(image)
        addresses, led = broker_addresses(image), led_partitions(image)
        requested = {addresses[node]: led[node] for node in addresses if node in led}
        measured = self._ends.measure(requested)
        responded = {
            address: found.responded or bool(found.refusal)
            for address, found in zip(requested, measured, strict=True)
        }
        cluster = with_silent(cluster, {at for at in responded if not responded[at]})
        counts = self._counts.add(stored, measured, time.monotonic())
        return view_top(
            cluster,
            stored,
            counts,
            prices=self._prices,
            wal_store_urls=wal_store_urls_of(image),
        )

    async def _open(self) -> None:
        from penstock.controller.api.follower import MetadataFollower

        self._client = connect(self._controller)
        self._follower = MetadataFollower(self._client)
        try:
            await response_of(
                self._client, self._controller, _TIMEOUT_S, self._follower.start(_TIMEOUT_S)
            )
        except NoController:
            await self._close()
            raise

    async def _close(self) -> None:
        await self._follower.stop()
        await self._client.close()


def with_silent(cluster: ClusterView, silent: Collection[str]) -> ClusterView:
    """Return the view with a note on each broker that does not respond. silent: the addresses of
    these brokers.
    """
    nodes = [
        replace(node, note=NO_RESPONSE) if node.address in silent else node
        for node in cluster.nodes
    ]
    return replace(cluster, nodes=nodes)


async def broker_loads(
    client: "ControllerClient", timeout_s: float = _TIMEOUT_S
) -> "Mapping[NodeId, BrokerLoad] | None":
    """Return the brokers' loads, or None if no active controller responds."""
    from penstock.controller.api.errors import ControllerError

    try:
        found = await client.propose_moves(ProposeMoves(moves_max=0), timeout_s=timeout_s)
    except (TimeoutError, ControllerError):
        return None
    return {broker.node_id: broker for broker in found.before}


def broker_addresses(image: "MetadataImage") -> dict[int, str]:
    """Return the addresses of the live brokers, as HOST:PORT by node id."""
    return {
        node.node_id: f"{node.host or node.machine_host}:{node.port}"
        for node in image.nodes
        if not node.fenced
    }


def led_partitions(image: "MetadataImage") -> dict[int, dict[str, list[int]]]:
    """Return the partitions of all topics by leader."""
    led: dict[int, dict[str, list[int]]] = {}
    for topic in image.topics:
        for part in topic.partitions:
            if part.leader >= 0:
                led.setdefault(part.leader, {}).setdefault(topic.name, []).append(part.partition)
    return led
