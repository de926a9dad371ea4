"""A client of group coordinators, for comparisons with Kafka."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from penstock.protocol import apis
from penstock.protocol.gen import delete_groups, list_groups, metadata
from tests.support.clients import create_topic
from tests.support.edge_client import EdgeClient


class GroupClient(EdgeClient):
    """A connection that tracks the epochs of members as clients do. topics: topics with their
    partition counts, created if missing.
    """

    def __init__(self, address: str, topics: Mapping[str, int]) -> None:
        super().__init__(address)
        self.epochs: dict[str, int] = {}
        for topic, count in topics.items():
            if topic not in self.topic_ids():
                create_topic(self.address, topic, count)

    def topic_ids(self) -> dict[str, UUID]:
        response = self.send_request(apis.METADATA, metadata.MetadataRequest(topics=None))
        return {topic["name"]: topic["topic_id"] for topic in response["topics"]}

    def named(self, topics: Sequence[Any]) -> dict[str, list[int]]:
        """Return the partitions by topic name."""
        names = {topic_id: name for name, topic_id in self.topic_ids().items()}
        return {names[topic["topic_id"]]: sorted(topic["partitions"]) for topic in topics}

    def listed(self, group: str, **filters: Any) -> Any:
        request = list_groups.ListGroupsRequest(**filters)
        groups = self.send_request(apis.LIST_GROUPS, request)["groups"]
        return [found for found in groups if found["group_id"] == group]

    def delete(self, group: str) -> Any:
        request = delete_groups.DeleteGroupsRequest([group])
        return self.send_request(apis.DELETE_GROUPS, request)["results"]
