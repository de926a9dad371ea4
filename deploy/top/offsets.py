"""Request the end offsets of partitions from their leaders over persistent connections.

Invariant: a broker that does not respond in time does not delay the others. The methods block.
"""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from penstock.deploy.clients.security import ClientSecurity
from penstock.deploy.clients.wire import WireClient
from penstock.protocol import apis
from penstock.protocol.client.brokers import offsets_request
from penstock.protocol.client.connection import wait_at_most
from penstock.protocol.client.errors import KafkaFailed, NoResponse
from penstock.protocol.gen import list_offsets
from penstock.protocol.offset_specs import LATEST

TIMEOUT_S: Final = 1.5
_AT_ONCE: Final = 16

Ends = Mapping[str, Mapping[int, int]]
"""End offset by topic and partition."""
Led = Mapping[str, Sequence[int]]
"""Partitions by topic."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The end offsets of one broker, requested at asked_at, by time.monotonic(). refusal: the
    reason why it rejected the request or the connection; empty if it did not.
    """

    requested_at: float
    ends: Ends = field(default_factory=dict[str, Mapping[int, int]])
    responded: bool = False
    refusal: str = ""


class EndOffsets:
    """Keeps one connection to each broker. security: how to connect; None for the settings of
    `--command-config`. timeout_s: for each request.
    """

    def __init__(
        self,
        security: ClientSecurity | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._security = security
        self._timeout_s = timeout_s
        self._brokers: dict[str, WireClient] = {}

    def close(self) -> None:
        for client in list(self._brokers.values()):
            client.close()
        self._brokers.clear()

    def measure(self, led: Mapping[str, Led]) -> list[Measured]:
        """Return the end offsets of all brokers. led: partitions by the address of their leader, as
        HOST:PORT.
        """
        if not led:
            return []
        with ThreadPoolExecutor(min(len(led), _AT_ONCE)) as pool:
            return list(pool.map(self.of_broker, led, led.values()))

    def of_broker(self, address: str, partitions: Led) -> Measured:
        """Return the end offsets of partitions that a broker leads. Threads may call it for
        different brokers.
        """
        wait_at_most(self._timeout_s)
        requested_at = time.monotonic()
        keys = ((topic, number) for topic, numbers in partitions.items() for number in numbers)
        try:
            response = self._broker(address).send_request(
                apis.LIST_OFFSETS,
                offsets_request(dict.fromkeys(keys, LATEST)),
                list_offsets.ListOffsetsResponse,
                self._timeout_s,
            )
        except KafkaFailed as error:
            client = self._brokers.pop(address, None)
            if client is not None:
                client.close()
            return Measured(
                requested_at, refusal="" if isinstance(error, NoResponse) else str(error)
            )
        ends = {
            topic.name: {
                part.partition_index: max(part.offset, 0)
                for part in topic.partitions
                if not part.error_code
            }
            for topic in response.topics
        }
        return Measured(requested_at, ends, responded=True)

    def _broker(self, address: str) -> WireClient:
        if address not in self._brokers:
            self._brokers[address] = WireClient(address, self._security)
        return self._brokers[address]
