"""Authorize requests that brokers forward for clients, with the controller's own ACLs, even though
a broker has already checked them (KIP-590).

Only the broker authenticates the client. With a stolen broker key, an attacker can claim any
principal, including a super user.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from penstock.base.acls import CLUSTER_NAME, Operation, ResourceType
from penstock.base.principal import Principal
from penstock.controller.api import messages as m
from penstock.controller.api import quota_messages as qm
from penstock.controller.api import scram_messages as sm
from penstock.controller.api import token_messages as tm
from penstock.controller.api.callers import FOLLOW, Caller, CallerRole, id_refusal
from penstock.controller.config import ControllerConfig
from penstock.controller.metadata.acl_index import AclIndex
from penstock.controller.metadata.configs import GROUP_RESOURCE, TOPIC_RESOURCE
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.internal_topics import INTERNAL_TOPICS
from penstock.controller.metadata.records import AclRecord, AclRemoved, Record
from penstock.controller.metadata.topic_configs import FORK_SOURCE, UNDELETE
from penstock.controller.metadata.topic_sources import name_of, of_log, sources_of


class Access(NamedTuple):
    operation: Operation
    resource_type: ResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.operation.name} on {self.resource_type.name} {self.name}"


Need = tuple[Access, ...]
"""A set of permissions, one of which the client needs."""


def _on_cluster(operation: Operation) -> Access:
    return Access(operation, ResourceType.CLUSTER, CLUSTER_NAME)


def _on_topic(operation: Operation, name: str) -> Access:
    return Access(operation, ResourceType.TOPIC, of_log(name))


def _always(operation: Operation) -> Callable[[Any, MetadataImage], Iterator[Need]]:
    need = (_on_cluster(operation),)
    return lambda _request, _image: iter((need,))


def _created_topics(request: m.CreateTopics, image: MetadataImage) -> Iterator[Need]:
    on_cluster = _on_cluster(Operation.CREATE)
    for topic in request.topics:
        yield on_cluster, _on_topic(Operation.CREATE, topic.name)
        for source in sources_of(image, topic.name, topic.configs):
            for operations in source.rights:
                yield tuple(_on_topic(operation, source.name) for operation in operations)
        if topic.fork is not None:
            # A fork contains the records of this topic, even if the configs specify another source.
            forked = name_of(image, topic.fork.source_topic_id)
            if forked is not None:
                yield (_on_topic(Operation.READ, forked),)


def _deleted_topics(request: m.DeleteTopics, image: MetadataImage) -> Iterator[Need]:
    on_cluster = _on_cluster(Operation.DELETE)
    for topic_id in (*request.topic_ids, *request.purged_ids):
        name = name_of(image, topic_id)
        if name is not None:
            yield on_cluster, _on_topic(Operation.DELETE, name)


def _grown_topics(request: m.CreatePartitions, _: MetadataImage) -> Iterator[Need]:
    for topic in request.topics:
        yield (_on_topic(Operation.ALTER, topic.name),)


def _altered_configs(request: m.AlterConfigs, _: MetadataImage) -> Iterator[Need]:
    resources = {(item.resource_type, item.resource_name) for item in request.changes}
    resources |= {(item.resource_type, item.resource_name) for item in request.replaced}
    resources |= {(TOPIC_RESOURCE, name) for name in request.replaced_topics}
    operation = Operation.ALTER_CONFIGS
    for kind, name in sorted(resources):
        if kind == TOPIC_RESOURCE:
            yield (_on_topic(operation, name),)
        elif kind == GROUP_RESOURCE:
            yield (Access(operation, ResourceType.GROUP, name),)
        else:
            yield (_on_cluster(operation),)


def _created_token(request: tm.CreateDelegationToken, _: MetadataImage) -> Iterator[Need]:
    if request.owner != request.requester:
        yield (Access(Operation.CREATE_TOKENS, ResourceType.USER, request.owner),)


def _nothing(_request: object, _image: MetadataImage) -> Iterator[Need]:
    """Require no permissions, because the manager allows only the owner and the renewers of a token
    to change it.
    """
    return iter(())


RIGHTS: Final[Mapping[type[m.Message], Callable[[Any, MetadataImage], Iterator[Need]]]] = {
    m.CreateTopics: _created_topics,
    m.DeleteTopics: _deleted_topics,
    m.CreatePartitions: _grown_topics,
    m.AlterConfigs: _altered_configs,
    m.AlterReassignments: _always(Operation.ALTER),
    m.ElectPreferred: _always(Operation.ALTER),
    m.RemoveBroker: _always(Operation.ALTER),
    m.UpdateFeatures: _always(Operation.ALTER),
    m.CreateAcls: _always(Operation.ALTER),
    m.DeleteAcls: _always(Operation.ALTER),
    sm.AlterScramCredentials: _always(Operation.ALTER),
    qm.AlterQuotas: _always(Operation.ALTER_CONFIGS),
    tm.CreateDelegationToken: _created_token,
    tm.RenewDelegationToken: _nothing,
    tm.ExpireDelegationToken: _nothing,
}
"""Permissions that the client needs for each request that brokers forward. All other broker
requests contain the broker's own id (`callers.ACTS_AS`) or change nothing (`BROKERS_READ`).
"""


def needs_of(request: m.Message, image: MetadataImage) -> Iterator[Need]:
    requested: Any = request
    yield from RIGHTS[type(request)](requested, image)


BROKERS_READ: Final = frozenset(
    {
        FOLLOW,
        m.ConfirmMetadata.__name__,
        m.DescribeController.__name__,
        m.DescribeQuorum.__name__,
    }
)
"""Requests without a node id that brokers may send for themselves."""

NAME_CHARS_MAX: Final = 4_096
"""Maximum length of a principal or host. Kafka has no limit; names in certificates and tokens are
shorter.
"""

NEEDS_MAX: Final = 20_000
"""Maximum number of permissions checked for one request, because each check takes up to 40 us on
the event loop. Brokers send only requests that need fewer.
"""

_TOKEN_PRINCIPALS: Final[Mapping[type[m.Message], str]] = {
    tm.CreateDelegationToken: "requester",
    tm.RenewDelegationToken: "principal",
    tm.ExpireDelegationToken: "principal",
}
"""The field with the principal on which the manager relies."""


class RequestAuthorizer:
    """Authorizes requests with the ACLs of one controller epoch. image: the image at the start of
    the epoch; `note` receives later changes.
    """

    def __init__(self, config: ControllerConfig, image: MetadataImage) -> None:
        self._index: AclIndex | None = None
        if config.authorizer:
            self._index = AclIndex(
                image.acls,
                super_users=config.super_user_names,
                allows_without_acl=config.allow_everyone_if_no_acl_found,
            )

    def note(self, records: Sequence[Record]) -> None:
        """Apply the changed ACLs in these records."""
        if self._index is None:
            return
        for record in records:
            if isinstance(record, AclRecord):
                self._index.add(record.acl)
            elif isinstance(record, AclRemoved):
                self._index.remove(record.acl)

    def refusal(self, request: m.Message, caller: Caller | None, image: MetadataImage) -> str:
        """Return the reason why the request is rejected, or "" if it is allowed. caller: None
        without TLS.

        A broker's request without a client is allowed only if it creates nothing but internal
        topics.
        """
        if not isinstance(request, m.ForwardedMessage):
            return ""
        client = request.forwarded_for
        if client is None:
            may_be_operator = caller is None or CallerRole.ADMIN in caller.roles
            return "" if may_be_operator or _is_internal(request) else _NO_CLIENT
        if caller is not None and CallerRole.BROKER in caller.roles:
            other = id_refusal(caller, CallerRole.BROKER, client.broker_id)
            if other:
                return other
        if max(len(client.principal), len(client.host)) > NAME_CHARS_MAX:
            return f"the name of the client or its host has more than {NAME_CHARS_MAX} characters"
        field = _TOKEN_PRINCIPALS.get(type(request))
        if field is not None and getattr(request, field) != client.principal:
            return f"{client.principal} acts as {getattr(request, field)}"
        return self._denial(request, client, image)

    def _denial(self, request: m.Message, client: m.Requester, image: MetadataImage) -> str:
        if self._index is None:
            return ""
        try:
            principal = Principal.parse(client.principal)
        except ValueError as error:
            return str(error)
        for number, need in enumerate(needs_of(request, image)):
            if number == NEEDS_MAX:
                return f"it needs more than {NEEDS_MAX:,} rights: split it"
            if not any(self._index.allows(principal, client.host, *access) for access in need):
                return f"{client.principal} needs {' or '.join(map(str, need))}"
        return ""


_NO_CLIENT: Final = (
    "it names no client. A broker may send this request only for a client that it has authenticated"
)


def _is_internal(request: m.Message) -> bool:
    """Return whether the request only creates internal topics."""
    return isinstance(request, m.CreateTopics) and all(
        topic.name in INTERNAL_TOPICS
        and topic.fork is None
        and not {FORK_SOURCE, UNDELETE} & topic.configs.keys()
        for topic in request.topics
    )
