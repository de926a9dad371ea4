"""Send the same requests and run the same tools against Kafka and Penstock."""

import asyncio
from typing import Any

from penstock.protocol.apis import ApiSpec
from tests.support.clients import create_topic
from tests.support.cluster import Cluster
from tests.support.conversation import send_request
from tests.support.java import JavaHome


class Both:
    """Kafka and Penstock. Results are pairs in this order."""

    def __init__(self, java: JavaHome, peer: str, cluster: Cluster) -> None:
        self._java = java
        self.addresses = (peer, cluster.bootstrap)

    async def create(self, topic: str, partitions: int = 1, **configs: Any) -> None:
        for address in self.addresses:
            await asyncio.to_thread(create_topic, address, topic, partitions, **configs)

    async def send_request(self, api: ApiSpec, request: object) -> tuple[Any, Any]:
        kafka_response, response = [
            await asyncio.to_thread(send_request, address, api, request)
            for address in self.addresses
        ]
        return kafka_response, response

    async def tool(self, main: str, *arguments: str) -> tuple[str, str]:
        """Return the output of a tool run against each side."""
        done = [
            await asyncio.to_thread(
                self._java.tool, main, "--bootstrap-server", address, *arguments
            )
            for address in self.addresses
        ]
        return done[0].stdout + done[0].stderr, done[1].stdout + done[1].stderr
