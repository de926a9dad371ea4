"""Decide which callers may call which controller methods, by the names in their certificates. Pure.

Methods without an entry in METHODS cannot be called, and a caller without a role cannot call any
method. A certificate that contains a node id is valid only for this id.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from penstock.controller.api import load_messages as lm
from penstock.controller.api import messages as m
from penstock.controller.api import quota_messages as qm
from penstock.controller.api import rewrite_messages as rm
from penstock.controller.api import scram_messages as sm
from penstock.controller.api import token_messages as tm

FOLLOW: Final = "Follow"
EXCHANGE: Final = "Exchange"
ID: Final = "{id}"
"""Placeholder for a node id in a name."""


class CallerRole(StrEnum):
    BROKER = "broker"
    CONTROLLER = "controller"
    ADMIN = "admin"
    """Operator commands."""


@dataclass(frozen=True, slots=True)
class NameRules:
    """The certificate names of each role. `{id}` in a name stands for a node id."""

    broker: tuple[str, ...]
    controller: tuple[str, ...]
    admin: tuple[str, ...]

    def of(self, role: CallerRole) -> tuple[str, ...]:
        match role:
            case CallerRole.BROKER:
                return self.broker
            case CallerRole.CONTROLLER:
                return self.controller
            case CallerRole.ADMIN:
                return self.admin


class Caller(NamedTuple):
    """The peer of a connection. names: the names in its certificate. roles: its roles, each with
    the node ids in the certificate. A role without ids may act as any node.
    """

    names: tuple[str, ...]
    roles: Mapping[CallerRole, frozenset[int]]

    def __str__(self) -> str:
        return ", ".join(self.names) or "a certificate without names"


_BROKER: Final = frozenset({CallerRole.BROKER})
_CONTROLLER: Final = frozenset({CallerRole.CONTROLLER})
_ADMIN: Final = frozenset({CallerRole.ADMIN})
_EACH: Final = frozenset(CallerRole)
_BY_MESSAGE: Final[dict[type[m.Message], frozenset[CallerRole]]] = {
    m.RegisterBroker: _BROKER,
    m.UnregisterBroker: _BROKER,
    m.OpenStreams: _BROKER,
    m.TrimStream: _BROKER,
    m.PrepareObjects: _BROKER,
    m.Commit: _BROKER,
    m.CommitRecovered: _BROKER,
    m.AllocateProducerIds: _BROKER,
    m.ReportMoves: _BROKER,
    m.ConfirmMetadata: _BROKER,
    lm.ReportLoad: _BROKER,
    tm.CreateDelegationToken: _BROKER,
    tm.RenewDelegationToken: _BROKER,
    tm.ExpireDelegationToken: _BROKER,
    m.RemoveBroker: _BROKER | _ADMIN,
    m.CreateTopics: _BROKER | _ADMIN,
    m.DeleteTopics: _BROKER | _ADMIN,
    m.CreatePartitions: _BROKER | _ADMIN,
    m.AlterReassignments: _BROKER | _ADMIN,
    m.ElectPreferred: _BROKER | _ADMIN,
    m.DrainBroker: _BROKER | _ADMIN,
    m.AlterConfigs: _BROKER | _ADMIN,
    m.UpdateFeatures: _BROKER | _ADMIN,
    m.CreateAcls: _BROKER | _ADMIN,
    m.DeleteAcls: _BROKER | _ADMIN,
    sm.AlterScramCredentials: _BROKER | _ADMIN,
    qm.AlterQuotas: _BROKER | _ADMIN,
    m.AbandonWalStore: _ADMIN,
    m.DrainWalStore: _ADMIN,
    lm.MoveLeaders: _ADMIN,
    lm.ProposeMoves: _ADMIN,
    m.TraceMove: _ADMIN,
    m.PutKeyValue: _ADMIN,
    m.GetKeyValue: _ADMIN,
    m.DeleteKeyValue: _ADMIN,
    rm.PrepareRewrite: _ADMIN,
    rm.CommitRewrite: _ADMIN,
    m.AddVoter: _ADMIN,
    m.RemoveController: _ADMIN,
    m.TransferLeadership: _ADMIN,
    m.AddLearner: _CONTROLLER,
    m.DescribeController: _EACH,
    m.DescribeQuorum: _EACH,
}
METHODS: Final[Mapping[str, frozenset[CallerRole]]] = {
    **{kind.__name__: roles for kind, roles in _BY_MESSAGE.items()},
    FOLLOW: _BROKER | _ADMIN,
    EXCHANGE: _CONTROLLER,
}
"""The roles that may call each method. Brokers also forward client requests. Admins may follow only
without a session.
"""

ACTS_AS: Final[Mapping[str, CallerRole]] = {
    kind.__name__: CallerRole.BROKER
    for kind in (
        m.RegisterBroker,
        m.UnregisterBroker,
        m.OpenStreams,
        m.TrimStream,
        m.PrepareObjects,
        m.Commit,
        m.CommitRecovered,
        m.AllocateProducerIds,
        m.ReportMoves,
        lm.ReportLoad,
        m.DrainBroker,
    )
} | {m.AddLearner.__name__: CallerRole.CONTROLLER}
"""Requests whose `node_id` must be the caller's own, and the required role. An admin may drain any
broker.
"""


def identify(names: Iterable[str], rules: NameRules) -> Caller:
    """Return the caller, with the roles to which its names belong."""
    found, roles = tuple(dict.fromkeys(names)), dict[CallerRole, frozenset[int]]()
    for role in CallerRole:
        matches = [
            match
            for rule in rules.of(role)
            for name in found
            if (match := _pattern(rule).fullmatch(name)) is not None
        ]
        if matches:
            roles[role] = frozenset(int(match[1]) for match in matches if match.re.groups)
    return Caller(found, roles)


def _pattern(rule: str) -> re.Pattern[str]:
    before, separator, after = rule.partition(ID)
    number = "([0-9]{1,10})" if separator else ""
    return re.compile(re.escape(before) + number + re.escape(after))


def method_refusal(caller: Caller, method: str) -> str:
    """Return the reason why the caller may not call the method, or "" if it may."""
    allowed = METHODS[method]
    if not allowed.isdisjoint(caller.roles):
        return ""
    if not caller.roles:
        return (
            f"the certificate ({caller}) contains no name of a broker, controller or admin: use"
            " another certificate, or add a name to controller.ssl.broker.names,"
            " controller.ssl.controller.names or controller.ssl.admin.names of the controllers"
        )
    return (
        f"the certificate ({caller}) is of {_listed(caller.roles)}; {method} is for"
        f" {_listed(allowed)}"
    )


def id_refusal(caller: Caller, role: CallerRole, node_id: int) -> str:
    """Return the reason why the caller may not act as this node, or "" if it may."""
    ids = caller.roles.get(role)
    if ids is None:
        return f"the certificate ({caller}) is not of the role {role}"
    if ids and node_id not in ids:
        named = ", ".join(map(str, sorted(ids)))
        return (
            f"the certificate ({caller}) is of {role} {named}, not of {role} {node_id}: set"
            " node.id to the id in the certificate, or use another certificate"
        )
    return ""


def request_refusal(caller: Caller, request: object) -> str:
    """Return the reason why the caller may not send this request for the node in it, or "" if it
    may.
    """
    method = type(request).__name__
    role = ACTS_AS.get(method)
    if role is None or (CallerRole.ADMIN in METHODS[method] and CallerRole.ADMIN in caller.roles):
        return ""
    node_id: int = getattr(request, "node_id")  # noqa: B009 - each class of ACTS_AS has it
    return id_refusal(caller, role, node_id)


def _listed(roles: Iterable[CallerRole]) -> str:
    return " and ".join(sorted(roles))
