"""A client of group coordinators, for comparisons with Kafka."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from penstock.protocol import apis
from penstock.protocol.apis import ApiSpec
from tests.support.clients import create_topic
from tests.support.edge_client import EdgeClient
from tests.support.requests import make_request


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

    def ask(self, api: ApiSpec, /, **fields: Any) -> Any:
        """Send a request with these fields in the newest version of its API."""
        return self.send_request(api, make_request(api, **fields))

    def topic_ids(self) -> dict[str, UUID]:
        response = self.ask(apis.METADATA, topics=None)
        return {topic["name"]: topic["topic_id"] for topic in response["topics"]}

    def named(self, topics: Sequence[Any]) -> dict[str, list[int]]:
        """Return the partitions by topic name."""
        names = {topic_id: name for name, topic_id in self.topic_ids().items()}
        return {names[topic["topic_id"]]: sorted(topic["partitions"]) for topic in topics}

    def listed(self, group: str, **filters: Any) -> Any:
        groups = self.ask(apis.LIST_GROUPS, **filters)["groups"]
        return [found for found in groups if found["group_id"] == group]

    def delete(self, group: str) -> Any:
        return self.ask(apis.DELETE_GROUPS, groups_names=[group])["results"]
