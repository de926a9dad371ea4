"""Write changes made by operators, and by brokers for their clients, to the audit log.

For forwarded requests, an entry contains the client as the principal, and the broker. Brokers also
log these changes, but not changes made with a stolen broker key. Without TLS, callers have no
names, and nothing is logged.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from penstock.base.audit import ChangeLog, log, shown
from penstock.base.clock import MonotonicClock
from penstock.base.log_limit import LogLimit
from penstock.controller.api import load_messages as lm
from penstock.controller.api import messages as m
from penstock.controller.api import quota_messages as qm
from penstock.controller.api import scram_messages as sm
from penstock.controller.api import token_messages as tm
from penstock.controller.api.caller_checks import Gate
from penstock.controller.api.callers import Caller, CallerRole
from penstock.controller.api.transport import CallContext, host_of
from penstock.controller.metadata.acls import acl_text
from penstock.controller.metadata.configs import RESOURCE_NOUNS, TOPIC_RESOURCE
from penstock.controller.metadata.quotas import entity_text

_Asked = TypeVar("_Asked")


class AdminLog:
    """Logs administrative changes. gate: identifies callers. now: in seconds."""

    def __init__(self, gate: Gate, now: MonotonicClock) -> None:
        self._gate = gate
        self._now = now
        self._changes = ChangeLog(now)
        self._refusals = LogLimit()

    def entry(self, request: m.Message, context: CallContext) -> Callable[[m.Reply[Any]], None]:
        """Return a callback for the reply, which logs the changes made by a request. It is called
        even if the caller has canceled the call, which an attacker might do to hide a change.
        """
        kind, client, caller = type(request), _client(request), self._gate.caller(context)
        if (
            kind not in CHANGES
            or caller is None
            or getattr(request, "validate_only", False)
            or (client is None and CallerRole.ADMIN not in caller.roles)
        ):
            return _log_nothing
        change, resources = CHANGES[kind]
        principal, host = (
            (str(caller), host_of(context)) if client is None else (client.principal, client.host)
        )

        def write(reply: m.Reply[Any]) -> None:
            if reply.status is m.Status.OK:
                self._changes.write(
                    change,
                    resources(request, reply.value),
                    principal=principal,
                    host=host,
                    api=kind.__name__,
                    **_forwarded_by(client, caller),
                )

        return write

    def refused(self, request: m.Message, reason: str, context: CallContext) -> None:
        """Log that a broker may not send the request, or may not send it for this client."""
        suppressed_count = self._refusals.take(self._now())
        if suppressed_count is None:
            return
        client, caller = _client(request), self._gate.caller(context)
        log.warning(
            "forwarded_request_rejected",
            principal=shown("" if client is None else client.principal),
            host=shown(host_of(context) if client is None else client.host),
            api=type(request).__name__,
            reason=shown(reason),
            suppressed_count=suppressed_count,
            **_forwarded_by(client, caller),
        )


def _log_nothing(_: m.Reply[Any]) -> None:
    """The callback for a request that is not logged."""


def _client(request: m.Message) -> m.Requester | None:
    return request.forwarded_for if isinstance(request, m.ForwardedMessage) else None


def _forwarded_by(client: m.Requester | None, caller: Caller | None) -> dict[str, str]:
    """Return the log fields that describe the broker: its id, and the names in its certificate."""
    if client is None:
        return {}
    return {"broker_id": str(client.broker_id), "certificate": shown(str(caller or ""))}


def _done(
    text: Callable[[_Asked], str], requested: Iterable[_Asked], items: Iterable[m.ItemResult]
) -> list[str]:
    """Return the distinct descriptions of completed items. Rejected items may have no description,
    because their codes may be unknown.
    """
    return list(
        dict.fromkeys(
            text(each)
            for each, item in zip(requested, items, strict=True)
            if item.status is m.Status.OK
        )
    )


def _topics_created(_: m.CreateTopics, value: m.TopicsCreated) -> list[str]:
    return [topic.name for topic in value.topics if topic.status is m.Status.OK]


def _topics_deleted(request: m.DeleteTopics, value: m.ItemResults) -> list[str]:
    """Return the topic ids, because the names no longer exist."""
    return _done(str, request.topic_ids, value.items)


def _partitions_added(request: m.CreatePartitions, value: m.ItemResults) -> list[str]:
    return _done(lambda topic: f"{topic.name}: {topic.total}", request.topics, value.items)


def _partition(item: m.PartitionTarget | m.PartitionName | lm.LeaderMove) -> str:
    return f"{item.topic}-{item.partition}"


def _leaders_moved(request: lm.MoveLeaders, value: m.ItemResults) -> list[str]:
    return _done(
        lambda move: f"{_partition(move)} to broker {move.target}", request.moves, value.items
    )


def _configs_altered(request: m.AlterConfigs, value: m.ItemResults) -> list[str]:
    changed = [(change.resource_type, change.resource_name) for change in request.changes]
    topics = [(TOPIC_RESOURCE, name) for name in request.replaced_topics]
    replaced = [(item.resource_type, item.resource_name) for item in request.replaced]
    return _done(
        lambda resource: f"{RESOURCE_NOUNS[resource[0]]} {resource[1]}",
        (*changed, *topics, *replaced),
        value.items,
    )


def _acls_removed(_: m.DeleteAcls, value: m.AclsDeleted) -> list[str]:
    return list(dict.fromkeys(acl_text(acl) for item in value.items for acl in item.acls))


def _quotas_altered(_: qm.AlterQuotas, value: qm.QuotasAltered) -> list[str]:
    results = value.results
    return [entity_text(item.entity) for item in results if item.status is m.Status.OK]


def _users_altered(_: sm.AlterScramCredentials, value: sm.ScramAltered) -> list[str]:
    return [item.user for item in value.results if item.status is m.Status.OK]


def _token(_: object, value: tm.DelegationTokenReply) -> list[str]:
    return [f"{value.token.token_id} of {value.token.owner}"]


def _named(*fields: str) -> Callable[[Any, object], list[str]]:
    """Return a function that returns the values of these fields of a request."""
    return lambda request, _: [str(getattr(request, field)) for field in fields]


_Resources = Callable[[Any, Any], Sequence[str]]
CHANGES: Final[Mapping[type[m.Message], tuple[str, _Resources]]] = {
    m.CreateTopics: ("topics_created", _topics_created),
    m.DeleteTopics: ("topics_deleted", _topics_deleted),
    m.CreatePartitions: ("partitions_added", _partitions_added),
    m.AlterReassignments: (
        "partitions_reassigned",
        lambda request, value: _done(_partition, request.partitions, value.items),
    ),
    m.ElectPreferred: (
        "leaders_elected",
        lambda request, value: _done(_partition, request.partitions, value.items),
    ),
    lm.MoveLeaders: ("leaders_moved", _leaders_moved),
    m.AlterConfigs: ("configs_altered", _configs_altered),
    m.UpdateFeatures: (
        "features_updated",
        lambda request, _: [f"{item.name}={item.level}" for item in request.updates],
    ),
    m.CreateAcls: (
        "acls_added",
        lambda request, value: _done(acl_text, request.acls, value.items),
    ),
    m.DeleteAcls: ("acls_removed", _acls_removed),
    sm.AlterScramCredentials: ("users_altered", _users_altered),
    qm.AlterQuotas: ("quotas_altered", _quotas_altered),
    tm.CreateDelegationToken: ("delegation_token_created", _token),
    tm.RenewDelegationToken: ("delegation_token_renewed", _token),
    tm.ExpireDelegationToken: ("delegation_token_expired", _token),
    m.RemoveBroker: ("broker_unregistered", _named("node_id")),
    m.DrainBroker: ("broker_drained", _named("node_id")),
    m.AbandonWalStore: ("wal_store_abandoned", _named("store_id")),
    m.DrainWalStore: ("wal_store_drain_altered", _named("store_id")),
    m.PutKeyValue: ("key_put", _named("key")),
    m.DeleteKeyValue: ("key_deleted", _named("key")),
    m.AddVoter: ("voter_added", _named("controller")),
    m.RemoveController: ("controller_removed", _named("node_id")),
    m.TransferLeadership: ("leadership_transferred", _named("node_id")),
}
"""For each request that changes the metadata or the quorum, the name of the change, and a function
that returns the changed resources, given the request and the reply's value. Object rewrites are not
included, because they are invisible to readers.
"""
