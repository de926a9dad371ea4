"""Evaluates ACLs like Kafka's StandardAuthorizer (KIP-11, KIP-290). See
docs/design/authorization.md.

A decision takes 1 us if it is cached, and 40 us otherwise with 10,000 ACLs (`benchmarks/acls.py`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final

from penstock.base.acls import (
    WILDCARD,
    WILDCARD_PRINCIPAL,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from penstock.base.principal import Principal
from penstock.controller.metadata.records import AclEntry

RESPONSES_MAX: Final = 100_000
"""Maximum number of cached decisions. Each takes about 200 bytes. The entire cache is cleared when
it is full.
"""

CLIENT_RESPONSES_MAX: Final = 20_000
"""Maximum number of cached decisions for one principal at one host, so that a client that uses many
names does not evict the decisions of other clients.
"""

REMEMBERED_CHARS_MAX: Final = 256
"""Decisions about longer names are not cached. Topic names are never this long."""

HOSTS_MAX: Final = 1_000
"""Number of hosts whose canonical form is cached. Computing it takes 4 us, and the rest of a
decision 2 us.
"""

_ALL: Final = int(Operation.ALL)
_IMPLYING: Final[Mapping[Operation, Sequence[Operation]]] = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}
_ALLOWING: Final[Mapping[int, frozenset[int]]] = {
    operation: frozenset(map(int, (operation, Operation.ALL, *_IMPLYING.get(operation, ()))))
    for operation in Operation
}
"""For each operation, the operations whose ALLOW also allows it."""

_ALLOWED_BY: Final[Mapping[int, int]] = {
    by: sum(1 << operation for operation, allowing in _ALLOWING.items() if by in allowing)
    for by in Operation
}
"""For each operation, the operations that an ALLOW of it allows, as a bit field."""

_PROBE_NAME: Final = "hardcode"
"""A name that represents any resource, as in Kafka."""

_Question = tuple[int, int, str]
"""Operation, resource type and resource name. A negative type means any resource of this type."""


_Rule = tuple[str, int, bool]
"""Canonical host, operation, and whether the operation is denied. A tuple, because it is evaluated
in the inner loop.
"""
_Rules = dict[AclEntry, _Rule]


class _Pattern:
    """The ACLs of one resource pattern, by principal."""

    __slots__ = ("by_principal",)

    def __init__(self) -> None:
        self.by_principal: dict[str, _Rules] = {}

    def add(self, acl: AclEntry, rule: _Rule) -> None:
        self.by_principal.setdefault(acl.principal, {})[acl] = rule

    def remove(self, acl: AclEntry) -> None:
        acls = self.by_principal[acl.principal]
        del acls[acl]
        if not acls:
            del self.by_principal[acl.principal]


@dataclass(slots=True)
class _Patterns:
    """The resource patterns of one resource type."""

    literal: dict[str, _Pattern] = field(default_factory=dict[str, _Pattern])
    prefixed: dict[str, _Pattern] = field(default_factory=dict[str, _Pattern])
    lengths: dict[int, int] = field(default_factory=dict[int, int])
    """Number of prefixes of each length."""
    by_principal: dict[str, _Rules] = field(default_factory=dict[str, _Rules])

    def add(self, acl: AclEntry) -> None:
        patterns, name = self._of(acl), acl.resource_name
        if name not in patterns:
            patterns[name] = _Pattern()
            if patterns is self.prefixed:
                self.lengths[len(name)] = self.lengths.get(len(name), 0) + 1
        rule = canonical_host(acl.host), acl.operation, acl.permission == Permission.DENY
        patterns[name].add(acl, rule)
        self.by_principal.setdefault(acl.principal, {})[acl] = rule

    def remove(self, acl: AclEntry) -> None:
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

    def _of(self, acl: AclEntry) -> dict[str, _Pattern]:
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
    """The ACLs of a cluster, indexed for evaluation. Not thread-safe. Any change clears the cached
    decisions.

    An ACL applies to a resource if its pattern is the literal name, the literal name `*`, or a
    prefix of the name; if its principal is the principal or `User:*`; and if its host is the host
    or `*`. Hosts are compared as addresses.

    Super users may perform every operation. A DENY of the operation or of ALL takes precedence over
    an ALLOW. An ALLOW of Read, Write, Delete or Alter implies Describe, and an ALLOW of
    AlterConfigs implies DescribeConfigs. If patterns match the resource but no ACL applies, the
    operation is denied. If no pattern matches, `allow.everyone.if.no.acl.found` decides.

    super_users: principals such as `User:name`. allows_without_acl:
    `allow.everyone.if.no.acl.found`.
    """

    def __init__(
        self,
        acls: Iterable[AclEntry] = (),
        *,
        super_users: Iterable[str] = (),
        allows_without_acl: bool = False,
    ) -> None:
        self._super_users = frozenset(super_users)
        self._allows_without_acl = allows_without_acl
        self._types: dict[int, _Patterns] = {}
        self._acls: dict[AclEntry, None] = {}
        self._decisions: dict[tuple[Principal, str], dict[_Question, bool]] = {}
        self.remembered_count = 0
        """Number of cached decisions."""
        for acl in acls:
            self.add(acl)

    def __len__(self) -> int:
        return len(self._acls)

    def __iter__(self) -> Iterator[AclEntry]:
        return iter(self._acls)

    def add(self, acl: AclEntry) -> None:
        """Add an ACL unless it exists."""
        if acl not in self._acls:
            self._acls[acl] = None
            self._types.setdefault(acl.resource_type, _Patterns()).add(acl)
            self._forget()

    def remove(self, acl: AclEntry) -> None:
        """Remove an ACL if it exists."""
        if acl in self._acls:
            del self._acls[acl]
            self._types[acl.resource_type].remove(acl)
            self._forget()

    def replace(self, acls: Iterable[AclEntry]) -> None:
        """Replace all ACLs."""
        self._types, self._acls = {}, {}
        self._forget()
        for acl in acls:
            self.add(acl)

    def _forget(self) -> None:
        if self._decisions:
            self._decisions = {}
            self.remembered_count = 0

    def allows(
        self, principal: Principal, host: str, operation: int, resource_type: int, name: str
    ) -> bool:
        """Return whether the principal may perform the operation on the resource from this host."""
        question = operation, resource_type, name
        decisions = self._decisions.get((principal, host))
        if decisions is not None:
            known = decisions.get(question)
            if known is not None:
                return known
        allowed = self._decide(str(principal), canonical_host(host), operation, resource_type, name)
        self._remember(principal, host, question, allowed=allowed)
        return allowed

    def allows_any(
        self, principal: Principal, host: str, operation: int, resource_type: int
    ) -> bool:
        """Return whether the principal may perform the operation on at least one resource of the
        type.
        """
        question = operation, -resource_type, ""
        known = self._decisions.get((principal, host), {}).get(question)
        if known is not None:
            return known
        name, address = str(principal), canonical_host(host)
        allowed = self._decide(
            name, address, operation, resource_type, _PROBE_NAME
        ) or self._decide_any(name, address, operation, resource_type)
        self._remember(principal, host, question, allowed=allowed)
        return allowed

    def operations(self, principal: Principal, host: str, resource_type: int, name: str) -> int:
        """Return the operations that the principal may perform from this host, as a bit field. The
        result is not cached, so this takes as long as an uncached `allows`.
        """
        supported, text = ALL_OPERATIONS[resource_type], str(principal)
        if text in self._super_users:
            return supported
        patterns = self._types.get(resource_type)
        found = [] if patterns is None else patterns.matching(name)
        if not found:
            return supported if self._allows_without_acl else 0
        address = canonical_host(host)
        allowed = denied = 0
        for pattern in found:
            for by_host, by_operation, is_denied in _counting(pattern.by_principal, text):
                if by_host not in (WILDCARD, address):
                    continue
                if is_denied:
                    denied |= supported if by_operation == _ALL else 1 << by_operation
                else:
                    allowed |= _ALLOWED_BY[by_operation]
        return allowed & ~denied & supported

    def _remember(
        self, principal: Principal, host: str, question: _Question, *, allowed: bool
    ) -> None:
        if len(question[2]) > REMEMBERED_CHARS_MAX:
            return
        if self.remembered_count >= RESPONSES_MAX:
            self._forget()
        decisions = self._decisions.setdefault((principal, host), {})
        if len(decisions) >= CLIENT_RESPONSES_MAX:
            self.remembered_count -= len(decisions)
            decisions.clear()
        decisions[question] = allowed
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
        allowing = _ALLOWING[operation]
        for pattern in found:
            for by_host, by_operation, is_denied in _counting(pattern.by_principal, principal):
                if by_host not in (WILDCARD, host):
                    continue
                if is_denied:
                    if by_operation in (operation, _ALL):
                        return False
                elif by_operation in allowing:
                    allowed = True
        return allowed

    def _decide_any(self, principal: str, host: str, operation: int, resource_type: int) -> bool:
        """Return whether an ALLOW exists that no DENY covers. Operations do not imply others here,
        as in Kafka.
        """
        patterns = self._types.get(resource_type)
        denied: set[tuple[int, str]] = set()
        allowed: set[tuple[int, str]] = set()
        by_principal = {} if patterns is None else patterns.by_principal
        for named in dict.fromkeys((principal, WILDCARD_PRINCIPAL)):
            for acl, (by_host, by_operation, is_denied) in by_principal.get(named, {}).items():
                if by_host in (WILDCARD, host) and by_operation in (operation, _ALL):
                    (denied if is_denied else allowed).add((acl.pattern_type, acl.resource_name))
        everything = PatternType.LITERAL, WILDCARD
        if everything in denied:
            return False
        return everything in allowed or any(
            pattern not in denied and not _has_denied_prefix(pattern[1], denied)
            for pattern in allowed
        )


@lru_cache(maxsize=HOSTS_MAX)
def canonical_host(text: str) -> str:
    """Return the canonical form of an address. Other strings are returned unchanged."""
    try:
        address = ip_address(text)
    except ValueError:
        return text
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(address)


def _counting(by_principal: Mapping[str, _Rules], principal: str) -> Iterator[_Rule]:
    """Yield the rules for the principal and the rules for all principals."""
    rules = by_principal.get(principal)
    if rules is not None:
        yield from rules.values()
    if principal != WILDCARD_PRINCIPAL:
        rules = by_principal.get(WILDCARD_PRINCIPAL)
        if rules is not None:
            yield from rules.values()


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
"""Operations that responses with authorized operations contain, by resource type."""

ALL_OPERATIONS: Final = {
    resource_type: sum(1 << operation for operation in operations)
    for resource_type, operations in SUPPORTED.items()
}
"""The operations of `SUPPORTED` as bit fields."""
