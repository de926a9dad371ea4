"""The ACL index: spellings of hosts, memory limits, and incremental changes."""

from ipaddress import ip_address

import pytest

from penstock.base.acls import Operation, PatternType, Permission, ResourceType
from penstock.base.principal import ANONYMOUS, USER, Principal
from penstock.controller.metadata import acl_index as acls
from penstock.controller.metadata.acl_index import AclIndex, canonical_host
from penstock.controller.metadata.records import AclEntry

ALICE = Principal(USER, "alice")
TOPIC, READ = ResourceType.TOPIC, Operation.READ


def allow(
    name: str,
    *,
    principal: str = "User:alice",
    host: str = "*",
    operation: Operation = READ,
    pattern: PatternType = PatternType.LITERAL,
    permission: Permission = Permission.ALLOW,
) -> AclEntry:
    return AclEntry(TOPIC, pattern, name, principal, host, operation, permission)


@pytest.mark.parametrize(
    ("written", "peer"),
    [
        ("0:0:0:0:0:0:0:1", "::1"),  # as formatted by Java
        ("2001:DB8::1", str(ip_address("2001:db8::1"))),
        ("10.0.0.1", "10.0.0.1"),
        ("10.0.0.1", "::ffff:10.0.0.1"),
        ("somewhere", "somewhere"),
    ],
)
def test_hosts_are_compared_as_addresses(written: str, peer: str) -> None:
    index = AclIndex([allow("t", host=written)])
    assert index.allows(ALICE, peer, READ, TOPIC, "t")
    assert not index.allows(ALICE, "10.9.9.9", READ, TOPIC, "t")
    assert canonical_host(written) == canonical_host(peer)


def test_acl_changes_invalidate_cached_decisions() -> None:
    acl = allow("t")
    index = AclIndex([acl])
    assert index.allows(ALICE, "h", READ, TOPIC, "t")
    index.remove(acl)
    assert not index.allows(ALICE, "h", READ, TOPIC, "t")
    index.add(acl)
    index.add(acl)
    assert index.allows(ALICE, "h", READ, TOPIC, "t")
    index.replace([allow("t", permission=Permission.DENY)])
    assert not index.allows(ALICE, "h", READ, TOPIC, "t")
    assert len(index) == 1


def test_a_prefix_length_is_removed_with_its_last_acl() -> None:
    first, second = (allow(name, pattern=PatternType.PREFIXED) for name in ("ab", "cd"))
    index = AclIndex([first, second])
    index.remove(first)
    assert index.allows(ALICE, "h", READ, TOPIC, "cdx")
    assert not index.allows(ALICE, "h", READ, TOPIC, "abx")
    index.remove(second)
    assert not index.allows(ALICE, "h", READ, TOPIC, "cdx")


def test_an_empty_name_does_not_stand_for_any_resource() -> None:
    index = AclIndex([allow("t")])
    assert index.allows_any(ALICE, "h", READ, TOPIC)
    assert not index.allows(ALICE, "h", READ, TOPIC, "")


def test_cached_decisions_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acls, "RESPONSES_MAX", 10)
    index = AclIndex([allow("t", pattern=PatternType.PREFIXED)])
    for number in range(100):
        assert index.allows(ALICE, f"h{number}", READ, TOPIC, f"t{number}")
        assert not index.allows(ANONYMOUS, "h", READ, TOPIC, f"t{number}")
        assert index.remembered_count <= 10
    before = index.remembered_count
    assert index.allows(ALICE, "h", READ, TOPIC, "t" * (acls.REMEMBERED_CHARS_MAX + 1))
    assert index.remembered_count == before


def test_a_client_with_many_lookups_does_not_evict_cached_decisions_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acls, "CLIENT_RESPONSES_MAX", 10)
    index = AclIndex([allow("t")])
    assert index.allows(ALICE, "h", READ, TOPIC, "t")
    for number in range(100):
        index.allows(ANONYMOUS, "h", READ, TOPIC, f"t{number}")
    assert index.remembered_count == 11
    assert index.allows(ALICE, "h", READ, TOPIC, "t")
    assert index.remembered_count == 11, "the response was remembered"
