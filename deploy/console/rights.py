"""Request the rights of a user from the brokers (KIP-430).

The console reads metadata and objects without brokers, so it enforces the rights itself: topics
require DESCRIBE, their records require READ, and nodes and objects require DESCRIBE on the cluster.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from penstock.base.acls import Operation
from penstock.base.errors import ExpectedError
from penstock.base.scram import SCRAM_BY_NAME
from penstock.deploy.clients.security import ClientSecurity
from penstock.deploy.clients.wire import WireClient
from penstock.protocol import apis
from penstock.protocol.client.errors import AuthenticationRefused, check
from penstock.protocol.gen import describe_cluster, metadata
from penstock.protocol.sasl.mechanisms import PLAIN


class NotAllowed(ExpectedError):
    """The user lacks a right."""


@dataclass(frozen=True, slots=True)
class Rights:
    """Allowed operations on the cluster and on topics. is_bounded: False if everything is allowed,
    because the console has no login and acts as its owner.
    """

    cluster: frozenset[Operation] = frozenset()
    topics: Mapping[str, frozenset[Operation]] = field(
        default_factory=dict[str, frozenset[Operation]]
    )
    is_bounded: bool = True

    def sees(self, topic: str) -> bool:
        """Return whether the user may see the topic; for a snapshot topic, this depends on its
        original name.
        """
        return not self.is_bounded or topic.partition("@")[0] in self.topics

    @property
    def sees_cluster(self) -> bool:
        return not self.is_bounded or Operation.DESCRIBE in self.cluster

    def need_cluster(self) -> None:
        """Raise NotAllowed without DESCRIBE on the cluster."""
        if not self.sees_cluster:
            raise NotAllowed("this page requires DESCRIBE on the cluster")

    def need_topic(self, topic: str, *, records: bool = False) -> None:
        """Raise NotAllowed if the user may not see the topic or its records."""
        if not self.sees(topic):
            raise NotAllowed(f"topic {topic!r} does not exist, or you may not describe it")
        allowed = self.topics.get(topic.partition("@")[0], frozenset())
        if records and self.is_bounded and Operation.READ not in allowed:
            raise NotAllowed(f"the records of {topic!r} require READ on the topic")

    def need_everything(self) -> None:
        """Raise NotAllowed for requests for which the console cannot enforce a user's
        permissions."""
        if self.is_bounded:
            raise NotAllowed(
                "this page is only available in consoles without login, which act as their owner"
            )


EVERYTHING: Final = Rights(is_bounded=False)


def log_in(bootstrap: str, base: ClientSecurity, user: str, password: str) -> ClientSecurity:
    """Return the connection settings for this user, after a broker has accepted the password. base:
    the console's own connection settings. Both SCRAM mechanisms are tried. PLAIN, which sends the
    password itself, is used only if the console uses it. Raises AuthenticationRefused, KafkaFailed.
    """
    if not user or not password:
        raise AuthenticationRefused("enter a user and a password")
    last = AuthenticationRefused("no mechanism is known")
    tried = (PLAIN,) if base.mechanism == PLAIN else SCRAM_BY_NAME
    for mechanism in sorted(tried, key=lambda name: name != base.mechanism):
        security = replace(base, mechanism=mechanism, username=user, password=password, tokens=None)
        try:
            with WireClient(bootstrap, security):
                return security
        except AuthenticationRefused as error:
            last = error
    raise last


def request_rights(bootstrap: str, security: ClientSecurity) -> Rights:
    """Return the rights of a user. Raises KafkaFailed if they are unknown."""
    with WireClient(bootstrap, security) as client:
        cluster = client.send_request(
            apis.DESCRIBE_CLUSTER,
            describe_cluster.DescribeClusterRequest(include_cluster_authorized_operations=True),
            describe_cluster.DescribeClusterResponse,
        )
        response = client.send_request(
            apis.METADATA,
            metadata.MetadataRequest(
                None, allow_auto_topic_creation=False, include_topic_authorized_operations=True
            ),
            metadata.MetadataResponse,
        )
    check(cluster.error_code, cluster.error_message, "the rights on the cluster are not known")
    return Rights(
        operations_of(cluster.cluster_authorized_operations),
        {
            topic.name: operations_of(topic.topic_authorized_operations)
            for topic in response.topics
            if topic.name is not None and not topic.error_code
        },
    )


def operations_of(bits: int) -> frozenset[Operation]:
    """Return the operations in a bit field, which are empty if it is not set."""
    return frozenset(item for item in Operation if bits >= 0 and bits >> item & 1)
