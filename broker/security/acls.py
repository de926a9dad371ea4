"""Decide by ACLs what a principal may do, as Kafka's StandardAuthorizer decides it.

The ACLs of a resource are those of its literal name, of the literal name `*`, and of every prefix
of its name. They count for a principal if they name it or `User:*`, and if they name its host or
`*`. Then:

- Super users may do everything.
- A DENY of the operation, or of ALL, wins.
- An ALLOW of the operation, or of ALL, comes next. An ALLOW of Read, Write, Delete or Alter allows
  Describe, and one of AlterConfigs allows DescribeConfigs. A DENY implies nothing.
- A resource that has ACLs, but none that counts, is denied. A resource without any ACL follows
  `allow.everyone.if.no.acl.found`.

Hosts are compared as addresses, so every spelling of an IPv6 address is the same one.
Invariant: answers are those of the ACLs at the time of the call: a change forgets all answers.
Limits: ANSWERS_MAX answers are remembered; then all are forgotten.
Budget: 1 us for a remembered answer, 20 us for another one with 10,000 ACLs
(`benchmarks/acls.py`).
Must not: log, or know requests.
Source: Kafka `StandardAuthorizerData`, `Authorizer.authorizeByResourceType`; KIP-11, KIP-290.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from typing import Final

from base.acls import WILDCARD, WILDCARD_PRINCIPAL, Operation, PatternType, Permission, ResourceType
from base.principal import Principal
from controller.metadata.records import Acl

ANSWERS_MAX: Final = 100_000
"""An answer takes about 200 bytes."""

REMEMBERED_CHARS_MAX: Final = 256
"""Answers about longer names are not remembered. Names of topics are shorter."""

_IMPLYING: Final[Mapping[int, frozenset[int]]] = {
    Operation.DESCRIBE: frozenset(
        {Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}),
}
"""The operations whose ALLOW allows the operation."""

_PROBE_NAME: Final = "hardcode"
"""Stands for any resource, as in Kafka."""

_Question = tuple[int, int, str]
"""Operation, resource type and resource name. A negative type: any resource of it."""


_Acls = dict[Acl, str]
"""ACLs with their canonical hosts."""


class _Pattern:
    """The ACLs of one pattern, by principal."""

    __slots__ = ("by_principal",)

    def __init__(self) -> None:
        self.by_principal: dict[str, _Acls] = {}

    def add(self, acl: Acl, host: str) -> None:
        self.by_principal.setdefault(acl.principal, {})[acl] = host

    def remove(self, acl: Acl) -> None:
        acls = self.by_principal[acl.principal]
        del acls[acl]
        if not acls:
            del self.by_principal[acl.principal]


@dataclass(slots=True)
class _Patterns:
    """The patterns of one resource type."""

    literal: dict[str, _Pattern] = field(default_factory=dict[str, _Pattern])
    prefixed: dict[str, _Pattern] = field(default_factory=dict[str, _Pattern])
    lengths: dict[int, int] = field(default_factory=dict[int, int])
    """How many prefixes have a length."""
    by_principal: dict[str, _Acls] = field(default_factory=dict[str, _Acls])

    def add(self, acl: Acl) -> None:
        patterns, name = self._of(acl), acl.resource_name
        if name not in patterns:
            patterns[name] = _Pattern()
            if patterns is self.prefixed:
                self.lengths[len(name)] = self.lengths.get(len(name), 0) + 1
        host = canonical_host(acl.host)
        patterns[name].add(acl, host)
        self.by_principal.setdefault(acl.principal, {})[acl] = host

    def remove(self, acl: Acl) -> None:
        patterns, name = self._of(acl), acl.resource_name
        patterns[name].remove(acl)
        if not patterns[name].by_principal:
            del patterns[name]
            if patterns is self.prefixed:
                self.lengths[len(name)] -= 1
                if not self.lengths[len(name)]:
                    del self.lengths[len(name)]
        del self.by_principal[acl.principal][acl]
        if not self.by_principal[acl.principal]:
            del self.by_principal[acl.principal]

    def _of(self, acl: Acl) -> dict[str, _Pattern]:
        return self.prefixed if acl.pattern_type == PatternType.PREFIXED else self.literal

    def matching(self, name: str) -> list[_Pattern]:
        found: list[_Pattern] = []
        for literal in (name,) if name == WILDCARD else (name, WILDCARD):
            pattern = self.literal.get(literal)
            if pattern is not None:
                found.append(pattern)
        for length in self.lengths:
            pattern = self.prefixed.get(name[:length]) if length <= len(name) else None
            if pattern is not None:
                found.append(pattern)
        return found


class AclIndex:
    """The ACLs of a cluster, arranged for questions. Not thread-safe.

    super_users: as `User:name`. allows_without_acl: `allow.everyone.if.no.acl.found`.
    """

    def __init__(
        self,
        acls: Iterable[Acl] = (),
        *,
        super_users: Iterable[str] = (),
        allows_without_acl: bool = False,
    ) -> None:
        self._super_users = frozenset(super_users)
        self._allows_without_acl = allows_without_acl
        self._types: dict[int, _Patterns] = {}
        self._acls: dict[Acl, None] = {}
        self._answers: dict[tuple[Principal, str], dict[_Question, bool]] = {}
        self.remembered_count = 0
        """Remembered answers."""
        for acl in acls:
            self.add(acl)

    def __len__(self) -> int:
        return len(self._acls)

    def __iter__(self) -> Iterator[Acl]:
        return iter(self._acls)

    def add(self, acl: Acl) -> None:
        """Add an ACL. Nothing happens if it is there."""
        if acl not in self._acls:
            self._acls[acl] = None
            self._types.setdefault(acl.resource_type, _Patterns()).add(acl)
            self._forget()

    def remove(self, acl: Acl) -> None:
        """Remove an ACL. Nothing happens if it is not there."""
        if acl in self._acls:
            del self._acls[acl]
            self._types[acl.resource_type].remove(acl)
            self._forget()

    def replace(self, acls: Iterable[Acl]) -> None:
        """Hold these ACLs and no others."""
        self._types, self._acls = {}, {}
        self._forget()
        for acl in acls:
            self.add(acl)

    def _forget(self) -> None:
        if self._answers:
            self._answers = {}
            self.remembered_count = 0

    def allows(
        self, principal: Principal, host: str, operation: int, resource_type: int, name: str
    ) -> bool:
        """Return whether the principal may do this from this host."""
        question = operation, resource_type, name
        answers = self._answers.get((principal, host))
        if answers is not None:
            known = answers.get(question)
            if known is not None:
                return known
        allowed = self._decide(str(principal), canonical_host(host), operation, resource_type, name)
        self._remember(principal, host, question, allowed=allowed)
        return allowed

    def allows_any(
        self, principal: Principal, host: str, operation: int, resource_type: int
    ) -> bool:
        """Return whether the principal may do this with at least one resource of the type."""
        question = operation, -resource_type, ""
        known = self._answers.get((principal, host), {}).get(question)
        if known is not None:
            return known
        name, address = str(principal), canonical_host(host)
        allowed = self._decide(
            name, address, operation, resource_type, _PROBE_NAME
        ) or self._decide_any(name, address, operation, resource_type)
        self._remember(principal, host, question, allowed=allowed)
        return allowed

    def _remember(
        self, principal: Principal, host: str, question: _Question, *, allowed: bool
    ) -> None:
        if len(question[2]) > REMEMBERED_CHARS_MAX:
            return
        if self.remembered_count >= ANSWERS_MAX:
            self._forget()
        self._answers.setdefault((principal, host), {})[question] = allowed
        self.remembered_count += 1

    def _decide(
        self, principal: str, host: str, operation: int, resource_type: int, name: str
    ) -> bool:
        if principal in self._super_users:
            return True
        patterns = self._types.get(resource_type)
        found = [] if patterns is None else patterns.matching(name)
        if not found:
            return self._allows_without_acl
        allowed = False
        for pattern in found:
            for acl in _counting(pattern.by_principal, principal, host):
                if acl.permission == Permission.DENY:
                    if acl.operation in (operation, Operation.ALL):
                        return False
                elif _allows(acl, operation):
                    allowed = True
        return allowed

    def _decide_any(self, principal: str, host: str, operation: int, resource_type: int) -> bool:
        """Return whether some ALLOW is not covered by DENY. Nothing is implied here, as in
        Kafka.
        """
        patterns = self._types.get(resource_type)
        acls = [
            acl
            for acl in _counting({} if patterns is None else patterns.by_principal, principal, host)
            if acl.operation in (operation, Operation.ALL)
        ]
        denied = {_pattern(acl) for acl in acls if acl.permission == Permission.DENY}
        allowed = {_pattern(acl) for acl in acls if acl.permission == Permission.ALLOW}
        everything = PatternType.LITERAL, WILDCARD
        if everything in denied:
            return False
        return everything in allowed or any(
            pattern not in denied and not _has_denied_prefix(pattern[1], denied)
            for pattern in allowed
        )


def canonical_host(text: str) -> str:
    """Return an address in the one spelling that is compared; other texts as they are."""
    try:
        address = ip_address(text)
    except ValueError:
        return text
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(address)


def _counting(by_principal: Mapping[str, _Acls], principal: str, host: str) -> Iterator[Acl]:
    """Yield the ACLs that name the principal, or all of them, and the host, or all of them."""
    for named in {principal: None, WILDCARD_PRINCIPAL: None}:
        for acl, allowed_host in by_principal.get(named, {}).items():
            if allowed_host in (WILDCARD, host):
                yield acl


def _allows(acl: Acl, operation: int) -> bool:
    return acl.operation in (Operation.ALL, operation) or acl.operation in _IMPLYING.get(
        operation, ()
    )


def _pattern(acl: Acl) -> tuple[int, str]:
    return acl.pattern_type, acl.resource_name


def _has_denied_prefix(name: str, denied: set[tuple[int, str]]) -> bool:
    return any(
        (PatternType.PREFIXED, name[:length]) in denied for length in range(1, len(name) + 1)
    )


SUPPORTED: Final[dict[int, Sequence[Operation]]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
        Operation.ALTER,
        Operation.DESCRIBE,
    ),
}
"""The operations that answers about authorized operations name, by resource type."""
