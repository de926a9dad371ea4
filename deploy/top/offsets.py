"""Ask the leaders for the end offsets of their partitions, over connections that stay open.

Invariant: brokers that do not answer are left out. The methods block.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from penstock.deploy.clients.security import ClientSecurity
from penstock.deploy.clients.wire import WireClient
from penstock.deploy.errors import KafkaFailed
from penstock.protocol import apis
from penstock.protocol.gen import list_offsets, metadata
from penstock.protocol.offset_specs import LATEST

_TIMEOUT_S: Final = 5.0

Ends = dict[str, dict[int, int]]
"""End offset by topic and partition."""


class EndOffsets:
    """One connection to each broker. security: how to connect; None as `--command-config` says."""

    def __init__(self, security: ClientSecurity | None = None) -> None:
        self._security = security
        self._brokers: dict[str, WireClient] = {}

    def close(self) -> None:
        for client in self._brokers.values():
            client.close()
        self._brokers.clear()

    def measure(self, addresses: Sequence[str], topics: Sequence[str] | None = None) -> Ends:
        """Return the end offsets, from the brokers that answer. addresses: brokers, as HOST:PORT.
        topics: None for all.
        """
        found: Ends = defaultdict(dict)
        for address, partitions in self._led(addresses, topics).items():
            for topic in self._ask(address, partitions):
                for part in topic.partitions:
                    if not part.error_code:
                        found[topic.name][part.partition_index] = max(part.offset, 0)
        return dict(found)

    def _ask(
        self, address: str, partitions: Mapping[str, Sequence[int]]
    ) -> Sequence[list_offsets.ListOffsetsTopicResponse]:
        topics = [
            list_offsets.ListOffsetsTopic(
                name,
                [list_offsets.ListOffsetsPartition(number, timestamp=LATEST) for number in numbers],
            )
            for name, numbers in partitions.items()
        ]
        request = list_offsets.ListOffsetsRequest(replica_id=-1, topics=topics)
        try:
            return (
                self._broker(address)
                .ask(
                    apis.LIST_OFFSETS,
                    request,
                    list_offsets.encode_request,
                    list_offsets.decode_response,
                    _TIMEOUT_S,
                )
                .topics
            )
        except KafkaFailed:
            self._forget(address)
            return ()

    def _led(
        self, addresses: Sequence[str], topics: Sequence[str] | None
    ) -> dict[str, dict[str, list[int]]]:
        """Return topics and partitions by leader address, from the first broker that answers."""
        wanted = (
            None
            if topics is None
            else [metadata.MetadataRequestTopic(name=name) for name in topics]
        )
        request = metadata.MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
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
            self._brokers[address] = WireClient(address, self._security)
        return self._brokers[address]

    def _forget(self, address: str) -> None:
        client = self._brokers.pop(address, None)
        if client is not None:
            client.close()
