"""Measure a cluster: metadata and loads from its controller, end offsets from its brokers.

Invariant: measuring changes nothing; brokers that do not answer are left out. Uses one follower and
one connection per broker while open. Must not import gRPC before it is needed. The methods block:
the class has its own event loop.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Self

from broker.wire import apis
from broker.wire.gen import list_offsets, metadata
from controller.api.load_messages import ProposeMoves
from deploy.clients.controllers import connect, no_controller
from deploy.clients.wire import WireClient
from deploy.errors import KafkaFailed
from deploy.top.cost import Prices
from deploy.top.view import STANDARD, Offsets, TopView, stored_topics, view_top
from deploy.views import view_cluster

if TYPE_CHECKING:
    from base.ids import NodeId
    from controller.api.load_messages import BrokerLoad

_TIMEOUT_S: Final = 5.0
_LATEST: Final = -1


class Watch:
    """Measure a cluster. Use as a context manager, and call `measure` repeatedly. Raises
    NoController.
    """

    def __init__(self, controller: str, prices: Prices = STANDARD) -> None:
        self._controller = controller
        self._prices = prices
        self._runner = asyncio.Runner()
        self._brokers: dict[str, WireClient] = {}
        self._before: Offsets | None = None
        self._measured_at = 0.0

    def __enter__(self) -> Self:
        self._runner.run(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._brokers.values():
            client.close()
        self._runner.run(self._close())
        self._runner.close()

    def wait(self, seconds: float) -> None:
        """Wait while following the metadata, unlike `time.sleep`."""
        self._runner.run(asyncio.sleep(seconds))

    def measure(self) -> TopView:
        loads = self._runner.run(self._loads())
        image = self._follower.image
        cluster, stored = view_cluster(image, self._controller, loads), stored_topics(image)
        addresses = [
            f"{node.host or node.machine_host}:{node.port}"
            for node in image.nodes
            if not node.fenced
        ]
        offsets, now = self._offsets(addresses), time.monotonic()
        view = view_top(
            cluster, stored, offsets, self._before, now - self._measured_at, prices=self._prices
        )
        self._before, self._measured_at = offsets, now
        return view

    async def _open(self) -> None:
        from controller.api.follower import MetadataFollower

        self._client = connect(self._controller)
        self._follower = MetadataFollower(self._client)
        try:
            await self._follower.start(_TIMEOUT_S)
        except TimeoutError:
            await self._close()
            raise no_controller(self._client, self._controller, _TIMEOUT_S) from None

    async def _close(self) -> None:
        await self._follower.stop()
        await self._client.close()

    async def _loads(self) -> "Mapping[NodeId, BrokerLoad]":
        """Return the brokers' loads, or none without an active controller. The follower makes
        progress meanwhile.
        """
        from controller.api.errors import ControllerError

        try:
            found = await self._client.propose_moves(
                ProposeMoves(moves_max=0), timeout_s=_TIMEOUT_S
            )
        except (TimeoutError, ControllerError):
            return {}
        return {broker.node_id: broker for broker in found.before}

    def _offsets(self, addresses: list[str]) -> dict[str, int]:
        """Return the sums of end offsets by topic, from the brokers that answer."""
        totals: dict[str, int] = defaultdict(int)
        for address, partitions in self._led(addresses).items():
            topics = [
                list_offsets.ListOffsetsTopic(
                    name,
                    [
                        list_offsets.ListOffsetsPartition(number, timestamp=_LATEST)
                        for number in numbers
                    ],
                )
                for name, numbers in partitions.items()
            ]
            request = list_offsets.ListOffsetsRequest(replica_id=-1, topics=topics)
            try:
                answer = self._broker(address).ask(
                    apis.LIST_OFFSETS,
                    request,
                    list_offsets.encode_request,
                    list_offsets.decode_response,
                    _TIMEOUT_S,
                )
            except KafkaFailed:
                self._forget(address)
                continue
            for topic in answer.topics:
                totals[topic.name] += sum(
                    max(part.offset, 0) for part in topic.partitions if not part.error_code
                )
        return dict(totals)

    def _led(self, addresses: list[str]) -> dict[str, dict[str, list[int]]]:
        """Return topics and partitions by leader address, from the first broker that answers."""
        request = metadata.MetadataRequest(topics=None, allow_auto_topic_creation=False)
        for address in addresses:
            try:
                answer = self._broker(address).ask(
                    apis.METADATA,
                    request,
                    metadata.encode_request,
                    metadata.decode_response,
                    _TIMEOUT_S,
                )
            except KafkaFailed:
                self._forget(address)
                continue
            at = {broker.node_id: f"{broker.host}:{broker.port}" for broker in answer.brokers}
            led: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
            for topic in answer.topics:
                for part in topic.partitions:
                    if part.leader_id in at and topic.name is not None:
                        led[at[part.leader_id]][topic.name].append(part.partition_index)
            return led
        return {}

    def _broker(self, address: str) -> WireClient:
        if address not in self._brokers:
            self._brokers[address] = WireClient(address)
        return self._brokers[address]

    def _forget(self, address: str) -> None:
        client = self._brokers.pop(address, None)
        if client is not None:
            client.close()
