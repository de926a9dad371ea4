"""Measure a cluster: metadata and loads from its controller, end offsets from its brokers.

Invariant: measuring changes nothing; brokers that do not answer are left out. Uses one follower and
one connection per broker while open. Must not import gRPC before it is needed. The methods block:
the class has its own event loop.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Self

from penstock.controller.api.load_messages import ProposeMoves
from penstock.deploy.admin.cost import Prices
from penstock.deploy.admin.views import view_cluster
from penstock.deploy.clients.controllers import answer_of, connect
from penstock.deploy.errors import NoController
from penstock.deploy.top.offsets import EndOffsets
from penstock.deploy.top.view import STANDARD, Offsets, TopView, stored_topics, view_top

if TYPE_CHECKING:
    from penstock.base.ids import NodeId
    from penstock.controller.api.client import ControllerClient
    from penstock.controller.api.load_messages import BrokerLoad
    from penstock.controller.metadata.image import MetadataImage

_TIMEOUT_S: Final = 5.0


class Watch:
    """Measure a cluster. Use as a context manager, and call `measure` repeatedly. Raises
    NoController.
    """

    def __init__(self, controller: str, prices: Prices = STANDARD) -> None:
        self._controller = controller
        self._prices = prices
        self._runner = asyncio.Runner()
        self._ends = EndOffsets()
        self._before: Offsets | None = None
        self._measured_at = 0.0

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
        loads = self._runner.run(broker_loads(self._client))
        image = self._follower.image
        cluster, stored = view_cluster(image, self._controller, loads), stored_topics(image)
        addresses = list(broker_addresses(image).values())
        ends, now = self._ends.measure(addresses), time.monotonic()
        offsets = {name: sum(partitions.values()) for name, partitions in ends.items()}
        view = view_top(
            cluster, stored, offsets, self._before, now - self._measured_at, prices=self._prices
        )
        self._before, self._measured_at = offsets, now
        return view

    async def _open(self) -> None:
        from penstock.controller.api.follower import MetadataFollower

        self._client = connect(self._controller)
        self._follower = MetadataFollower(self._client)
        try:
            await answer_of(
                self._client, self._controller, _TIMEOUT_S, self._follower.start(_TIMEOUT_S)
            )
        except NoController:
            await self._close()
            raise

    async def _close(self) -> None:
        await self._follower.stop()
        await self._client.close()


async def broker_loads(client: "ControllerClient") -> "Mapping[NodeId, BrokerLoad]":
    """Return the brokers' loads, or none without an active controller."""
    from penstock.controller.api.errors import ControllerError

    try:
        found = await client.propose_moves(ProposeMoves(moves_max=0), timeout_s=_TIMEOUT_S)
    except (TimeoutError, ControllerError):
        return {}
    return {broker.node_id: broker for broker in found.before}


def broker_addresses(image: "MetadataImage") -> dict[int, str]:
    """Return the addresses of the live brokers, as HOST:PORT by node id."""
    return {
        node.node_id: f"{node.host or node.machine_host}:{node.port}"
        for node in image.nodes
        if not node.fenced
    }
