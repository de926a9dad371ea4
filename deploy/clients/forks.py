"""Create several forks, or the topics of a snapshot, in one request; delete topics.

Invariant: no call takes longer than its timeout, and every failure is a KafkaFailed.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from penstock.deploy.clients.wire import WireClient
from penstock.protocol import apis
from penstock.protocol.client.errors import check
from penstock.protocol.gen import create_topics, delete_topics

FORK_SOURCE: Final = "penstock.fork.source"
_TIMEOUT_MS: Final = 30_000


def create_forks(
    bootstrap: str, sources: Mapping[str, str]
) -> dict[str, create_topics.CreatableTopicResult]:
    """Create topics that start with the logs of other topics. sources: the source topics by the
    name of the new topic. Return the results of topics that were not created, by name.
    """
    request = create_topics.CreateTopicsRequest(
        topics=[
            create_topics.CreatableTopic(
                name, -1, -1, [], [create_topics.CreatableTopicConfig(FORK_SOURCE, source)]
            )
            for name, source in sources.items()
        ],
        timeout_ms=_TIMEOUT_MS,
    )
    with WireClient(bootstrap) as client:
        response = client.send_request(
            apis.CREATE_TOPICS, request, create_topics.CreateTopicsResponse
        )
    return {item.name: item for item in response.topics if item.error_code}


def delete_all(bootstrap: str, names: Sequence[str]) -> None:
    """Delete topics, including snapshot topics. Raise KafkaFailed for the first topic that was not
    deleted.
    """
    with WireClient(bootstrap) as client:
        delete_on(client, names)


def delete_on(
    client: WireClient, names: Sequence[str]
) -> Sequence[delete_topics.DeletableTopicResult]:
    """Delete topics through this client, and return the results in the order of the names."""
    request = delete_topics.DeleteTopicsRequest(
        topics=[delete_topics.DeleteTopicState(name) for name in names], timeout_ms=_TIMEOUT_MS
    )
    response = client.send_request(apis.DELETE_TOPICS, request, delete_topics.DeleteTopicsResponse)
    for item in response.responses:
        check(item.error_code, item.error_message, f"topic {item.name!r} was not deleted")
    return response.responses
