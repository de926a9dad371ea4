"""ACLs at the controller: which ones can be added, what filters remove, and snapshots."""

import msgspec
import pytest

from penstock.base.acls import Operation, PatternType, Permission, ResourceType
from penstock.controller.api.messages import CreateAcls, DeleteAcls, Status
from penstock.controller.managers import acls
from penstock.controller.metadata.acls import AclFilter
from penstock.controller.metadata.delta import MetadataDelta
from penstock.controller.metadata.errors import InvariantBroken
from penstock.controller.metadata.records import AclEntry, AclRecord, AclRemoved
from tests.support.managers_cluster import ManagersCluster, snapshot_of

TOPIC = AclEntry(
    ResourceType.TOPIC,
    PatternType.LITERAL,
    "orders",
    "User:alice",
    "*",
    Operation.READ,
    Permission.ALLOW,
)
PREFIX = msgspec.structs.replace(TOPIC, pattern_type=int(PatternType.PREFIXED), resource_name="ord")
WILDCARD = msgspec.structs.replace(TOPIC, resource_name="*", host="10.0.0.1")
GROUP = msgspec.structs.replace(
    TOPIC, resource_type=int(ResourceType.GROUP), permission=int(Permission.DENY)
)


@pytest.fixture
def cluster() -> ManagersCluster:
    return ManagersCluster()


def create(cluster: ManagersCluster, *requested: AclEntry) -> list[tuple[Status, str]]:
    result = acls.create_acls(cluster.image, CreateAcls(acls=list(requested)))
    assert result.value is not None
    cluster.apply(result.records)
    return [(item.status, item.detail) for item in result.value.items]


def delete(cluster: ManagersCluster, *filters: AclFilter) -> list[list[AclEntry]]:
    result = acls.delete_acls(cluster.image, DeleteAcls(filters=list(filters)))
    assert result.value is not None
    cluster.apply(result.records)
    return [item.acls for item in result.value.items]


def test_an_acl_is_added_once(cluster: ManagersCluster) -> None:
    assert create(cluster, TOPIC, TOPIC, GROUP) == [(Status.OK, "")] * 3
    assert list(cluster.image.acls) == [TOPIC, GROUP]
    result = acls.create_acls(cluster.image, CreateAcls(acls=[TOPIC]))
    assert result.status is Status.OK
    assert not result.records


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"resource_type": 1}, "Invalid resourceType ANY"),
        ({"resource_type": 99}, "Invalid resourceType UNKNOWN"),
        ({"pattern_type": 2}, "Invalid patternType MATCH"),
        ({"operation": 1}, "Invalid operation ANY"),
        ({"permission": 1}, "Invalid permissionType ANY"),
        ({"resource_name": ""}, "Invalid empty resource name"),
        ({"resource_type": 4}, "The only valid name for the CLUSTER resource is kafka-cluster"),
        ({"principal": "alice"}, "Could not parse principal from `alice`"),
    ],
)
def test_invalid_acls_are_rejected_and_the_others_added(
    cluster: ManagersCluster, change: dict[str, object], reason: str
) -> None:
    (status, detail), others = create(cluster, msgspec.structs.replace(TOPIC, **change), GROUP)
    assert status is Status.INVALID_REQUEST
    assert detail.startswith(reason)
    assert others == (Status.OK, "")
    assert list(cluster.image.acls) == [GROUP]


def matching(cluster: ManagersCluster, wanted: AclFilter) -> list[AclEntry]:
    return [acl for acl in cluster.image.acls if wanted.matches(acl)]


def test_a_filter_removes_matching_acls(cluster: ManagersCluster) -> None:
    create(cluster, TOPIC, PREFIX, WILDCARD, GROUP)
    match = AclFilter(pattern_type=int(PatternType.MATCH), resource_name="orders")
    literal = AclFilter(pattern_type=int(PatternType.LITERAL), resource_name="orders")
    assert matching(cluster, match) == [TOPIC, PREFIX, WILDCARD, GROUP]
    assert matching(cluster, literal) == [TOPIC, GROUP]
    assert matching(cluster, AclFilter(host="10.0.0.1")) == [WILDCARD]
    assert matching(cluster, AclFilter(permission=int(Permission.DENY))) == [GROUP]
    assert matching(cluster, AclFilter(principal="User:bob")) == []
    topics = AclFilter(resource_type=int(ResourceType.TOPIC))
    assert delete(cluster, topics, match) == [
        [TOPIC, PREFIX, WILDCARD],
        [TOPIC, PREFIX, WILDCARD, GROUP],
    ]
    assert len(cluster.image.acls) == 0


def test_an_invalid_filter_is_rejected_and_the_others_applied(cluster: ManagersCluster) -> None:
    create(cluster, TOPIC)
    request = DeleteAcls(filters=[AclFilter(resource_type=0), AclFilter(operation=0), AclFilter()])
    result = acls.delete_acls(cluster.image, request)
    assert result.value is not None
    pattern, entry, everything = result.value.items
    assert (pattern.status, pattern.detail) == (Status.INVALID_REQUEST, "Unknown patternFilter.")
    assert (entry.status, entry.detail) == (Status.INVALID_REQUEST, "Unknown entryFilter.")
    assert everything.acls == [TOPIC]


def test_acls_above_the_limit_are_rejected(
    cluster: ManagersCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acls, "ACLS_MAX", 2)
    monkeypatch.setattr(acls, "ACLS_PER_REQUEST_MAX", 3)
    monkeypatch.setattr(acls, "FILTERS_MAX", 1)
    assert [status for status, _ in create(cluster, TOPIC, GROUP, PREFIX)] == [
        Status.OK,
        Status.OK,
        Status.INVALID_REQUEST,
    ]
    many = acls.create_acls(cluster.image, CreateAcls(acls=[TOPIC] * 4))
    assert many.status is Status.INVALID_REQUEST
    filters = acls.delete_acls(cluster.image, DeleteAcls(filters=[AclFilter()] * 2))
    assert filters.status is Status.INVALID_REQUEST
    monkeypatch.setattr(acls, "ACLS_PER_REQUEST_MAX", 1)
    matched = acls.delete_acls(cluster.image, DeleteAcls(filters=[AclFilter()]))
    assert matched.status is Status.INVALID_REQUEST
    assert not matched.records


def test_many_filters_are_compared_with_few_acls(
    cluster: ManagersCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparisons block the controller."""
    named = [msgspec.structs.replace(TOPIC, resource_name=f"topic-{at}") for at in range(100)]
    users = [msgspec.structs.replace(TOPIC, principal=f"User:{at}") for at in range(100)]
    create(cluster, *named, *users, PREFIX, WILDCARD)
    monkeypatch.setattr(acls, "COMPARISONS_MAX", 1_000)
    filters = [
        *(AclFilter(resource_name=acl.resource_name, principal=acl.principal) for acl in named),
        *(AclFilter(principal=acl.principal) for acl in users),
        *(
            AclFilter(resource_name=name, pattern_type=int(PatternType.MATCH))
            for name in ("topic-1", "topic-55")
        ),
    ]
    found = acls.delete_acls(cluster.image, DeleteAcls(filters=filters))
    assert found.value is not None
    expected = [matching(cluster, wanted) for wanted in filters]
    assert [item.acls for item in found.value.items] == expected
    unnamed = [AclFilter(host=f"10.0.0.{at}") for at in range(6)]
    refused = acls.delete_acls(cluster.image, DeleteAcls(filters=unnamed))
    assert refused.status is Status.INVALID_REQUEST
    assert "comparisons" in refused.detail
    monkeypatch.setattr(acls, "COMPARISONS_MAX", 1)
    assert acls.delete_acls(cluster.image, DeleteAcls(filters=unnamed[:1])).status is Status.OK


def test_a_snapshot_contains_the_acls(cluster: ManagersCluster) -> None:
    create(cluster, TOPIC, GROUP)
    delete(cluster, AclFilter(resource_type=int(ResourceType.GROUP)))
    copy = snapshot_of(cluster.image)
    assert list(copy.acls) == [TOPIC]
    assert copy == cluster.image


def test_a_delta_contains_the_acls(cluster: ManagersCluster) -> None:
    create(cluster, TOPIC)
    assert MetadataDelta.of([AclRecord(GROUP), AclRemoved(TOPIC)]).acls == {GROUP, TOPIC}
    with pytest.raises(InvariantBroken):
        cluster.image.acls.remove(AclRemoved(GROUP))
