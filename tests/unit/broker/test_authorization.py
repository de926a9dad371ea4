"""How handlers apply authorization decisions, and how denials are logged."""

from typing import Any
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from penstock.base import audit
from penstock.base.acls import (
    CLUSTER_NAME,
    STANDARD_AUTHORIZER,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from penstock.base.principal import ANONYMOUS, USER, Principal
from penstock.base.settings import SettingInvalid
from penstock.broker.errors import ErrorCode
from penstock.broker.security.config import SecurityConfig
from penstock.controller.api import messages
from penstock.controller.api.errors import refusal
from penstock.controller.metadata.records import AclEntry
from penstock.protocol import apis
from penstock.protocol.error_codes import known_code
from penstock.protocol.gen import (
    create_acls,
    create_topics,
    delete_acls,
    delete_share_group_state,
    delete_topics,
    describe_acls,
    describe_cluster,
    metadata,
)
from tests.support.handlers import Fixture

ALICE = Principal(USER, "alice")
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def acl(
    kind: ResourceType,
    name: str,
    operation: Operation,
    *,
    pattern: PatternType = PatternType.LITERAL,
    permission: Permission = Permission.ALLOW,
) -> AclEntry:
    return AclEntry(kind, pattern, name, "User:alice", "*", operation, permission)


def topic(name: str, operation: Operation) -> AclEntry:
    return acl(ResourceType.TOPIC, name, operation)


def cluster(operation: Operation) -> AclEntry:
    return acl(ResourceType.CLUSTER, CLUSTER_NAME, operation)


@pytest.fixture
async def fixture() -> Fixture:
    fixture = Fixture()
    fixture.connection.principal = ALICE
    return fixture


async def create(fixture: Fixture, name: str, **configs: str) -> ErrorCode:
    requested = create_topics.CreatableTopic(
        name,
        -1,
        -1,
        configs=[
            create_topics.CreatableTopicConfig(key.replace("_", "."), value)
            for key, value in configs.items()
        ],
    )
    response = await fixture.send_request(
        apis.CREATE_TOPICS, 7, topics=[requested], validate_only=True
    )
    return known_code(response.topics[0].error_code)


async def test_only_topics_that_the_client_may_describe_are_listed(fixture: Fixture) -> None:
    for name in ("mine", "other"):
        fixture.topic(name)
    fixture.authorize(topic("mine", Operation.READ))
    response = await fixture.send_request(apis.METADATA, 12, topics=None)
    assert [item.name for item in response.topics] == ["mine"]
    known, hidden, absent = (await fixture.metadata("mine", "other", "none")).topics
    assert known.error_code == ErrorCode.NONE
    assert hidden.error_code == absent.error_code == DENIED
    assert hidden.topic_id == absent.topic_id


async def test_super_users_and_resources_without_acls_are_allowed(fixture: Fixture) -> None:
    fixture.topic("t")
    fixture.authorize(super_users="User:root; User:alice")
    assert (await fixture.metadata("t")).topics[0].error_code == ErrorCode.NONE
    fixture.connection.principal = Principal(USER, "bob")
    assert (await fixture.metadata("t")).topics[0].error_code == DENIED
    fixture.authorize(allow_everyone_if_no_acl_found=True)
    assert (await fixture.metadata("t")).topics[0].error_code == ErrorCode.NONE
    fixture.authorize(topic("t", Operation.READ), allow_everyone_if_no_acl_found=True)
    assert (await fixture.metadata("t")).topics[0].error_code == DENIED


async def test_auto_creation_of_topics_is_authorized(fixture: Fixture) -> None:
    fixture.authorize(topic("new", Operation.DESCRIBE), topic("free", Operation.ALL))
    refused, created = (await fixture.metadata("new", "free", auto=True)).topics
    assert refused.error_code == DENIED
    assert created.error_code == ErrorCode.NONE
    assert [item.name for request in fixture.client.requested for item in request.topics] == [
        "free"
    ]


async def test_forking_a_topic_requires_read_on_its_source(fixture: Fixture) -> None:
    fixture.authorize(topic("fork", Operation.CREATE))
    fork = {"penstock_fork_source": "source"}
    assert await create(fixture, "fork", **fork) is DENIED
    fixture.authorize(topic("source", Operation.READ))
    assert await create(fixture, "other", **fork) is DENIED
    assert fixture.client.requested == []


async def test_responses_list_allowed_operations_on_a_snapshot(fixture: Fixture) -> None:
    for name in ("orders", "orders@before"):
        fixture.topic(name)
    fixture.authorize(topic("orders", Operation.READ))
    request = metadata.MetadataRequest(
        [metadata.MetadataRequestTopic(name=name) for name in ("orders", "orders@before")],
        include_topic_authorized_operations=True,
    )
    response = await fixture.send_request(apis.METADATA, 12, request)
    assert [item.topic_authorized_operations for item in response.topics] == [
        1 << Operation.READ | 1 << Operation.DESCRIBE
    ] * 2


async def test_snapshots_have_the_acls_of_their_topic(fixture: Fixture) -> None:
    fixture.authorize(topic("orders", Operation.DESCRIBE))
    snapshot = {"penstock_fork_source": "orders"}
    assert await create(fixture, "orders@before", **snapshot) is DENIED
    shown = metadata.MetadataRequest(
        [metadata.MetadataRequestTopic(name=name) for name in ("orders@before", "other@before")],
        frozen_topics=True,
    )
    absent, hidden = (await fixture.send_request(apis.METADATA, 12, shown)).topics
    assert absent.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert hidden.error_code == DENIED


async def test_undeletion_requires_delete_or_alter_on_the_old_name(fixture: Fixture) -> None:
    """Under another name it also requires Read, because other ACLs apply to the records there."""
    fixture.authorize(cluster(Operation.CREATE))
    assert await create(fixture, "old", penstock_undelete="old") is DENIED
    fixture.authorize(topic("old", Operation.READ))
    assert await create(fixture, "old", penstock_undelete="old") is DENIED
    assert await create(fixture, "new", penstock_undelete="old") is DENIED
    fixture.authorize(topic("old", Operation.ALTER))
    assert await create(fixture, "old", penstock_undelete="old") is ErrorCode.NONE
    assert await create(fixture, "new", penstock_undelete="old") is ErrorCode.NONE
    fixture.authorize(topic("older", Operation.DELETE))
    assert await create(fixture, "older", penstock_undelete="older") is ErrorCode.NONE
    assert await create(fixture, "new", penstock_undelete="older") is DENIED


async def test_a_denied_deletion_by_id_does_not_reveal_the_topic_name(fixture: Fixture) -> None:
    topic_id = fixture.topic("t")

    async def delete(name: str | None, requested: UUID | None) -> Any:
        state = delete_topics.DeleteTopicState(name, requested)
        request = delete_topics.DeleteTopicsRequest([state], timeout_ms=1_000)
        return (await fixture.send_request(apis.DELETE_TOPICS, 6, request)).responses[0]

    fixture.authorize()
    hidden = await delete(None, topic_id)
    assert (hidden.error_code, hidden.name, hidden.topic_id) == (DENIED, None, topic_id)
    hidden, absent = await delete("t", None), await delete("none", None)
    assert (hidden.error_code, hidden.topic_id) == (absent.error_code, absent.topic_id)
    assert hidden.error_code == DENIED
    fixture.authorize(topic("t", Operation.DESCRIBE))
    shown = await delete(None, topic_id)
    assert (shown.error_code, shown.name) == (DENIED, "t")
    assert fixture.client.requested == []


async def test_authorized_operations_follow_the_acls(fixture: Fixture) -> None:
    fixture.topic("t")
    request = metadata.MetadataRequest(
        [metadata.MetadataRequestTopic(name="t")], include_topic_authorized_operations=True
    )
    cluster_request = describe_cluster.DescribeClusterRequest(True)
    fixture.authorize(topic("t", Operation.WRITE), cluster(Operation.ALTER_CONFIGS))
    (shown,) = (await fixture.send_request(apis.METADATA, 12, request)).topics
    assert shown.topic_authorized_operations == 1 << Operation.WRITE | 1 << Operation.DESCRIBE
    response = await fixture.send_request(apis.DESCRIBE_CLUSTER, 1, cluster_request)
    assert response.cluster_authorized_operations == 0
    fixture.authorize(cluster(Operation.DESCRIBE))
    response = await fixture.send_request(apis.DESCRIBE_CLUSTER, 1, cluster_request)
    expected = (Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS, Operation.DESCRIBE)
    assert response.cluster_authorized_operations == sum(1 << operation for operation in expected)


# --- ACL APIs -------------------------------------------------------------------------------------


def creation(name: str) -> create_acls.AclCreation:
    return create_acls.AclCreation(
        ResourceType.TOPIC,
        name,
        PatternType.LITERAL,
        "User:bob",
        "*",
        Operation.READ,
        Permission.ALLOW,
    )


def of_topic(name: str | None) -> delete_acls.DeleteAclsFilter:
    return delete_acls.DeleteAclsFilter(
        ResourceType.TOPIC,
        name,
        PatternType.ANY,
        None,
        None,
        Operation.ANY,
        Permission.ANY,
    )


async def test_acls_are_changed_listed_and_logged(fixture: Fixture) -> None:
    fixture.authorize(cluster(Operation.ALTER))
    with capture_logs() as logs:
        for _ in range(2):
            response = await fixture.send_request(
                apis.CREATE_ACLS, 3, creations=[creation("t"), creation("")]
            )
            assert [result.error_code for result in response.results] == [
                ErrorCode.NONE,
                ErrorCode.INVALID_REQUEST,
            ]
    changes = [entry for entry in logs if entry["event"] == "admin_change"]
    assert [(entry["change"], entry["principal"]) for entry in changes] == [
        ("acls_added", "User:alice")
    ]
    requested = describe_acls.DescribeAclsRequest(
        ResourceType.TOPIC, "t", PatternType.MATCH, None, None, Operation.ANY, Permission.ANY
    )
    (resource,) = (await fixture.send_request(apis.DESCRIBE_ACLS, 3, requested)).resources
    assert [entry.principal for entry in resource.acls] == ["User:bob"]
    with capture_logs() as logs:
        response = await fixture.send_request(
            apis.DELETE_ACLS, 3, filters=[of_topic("t"), of_topic("none")]
        )
    assert [len(result.matching_acls) for result in response.filter_results] == [1, 0]
    (removed,) = logs
    assert removed["change"] == "acls_removed"
    assert removed["resources"] == ["ALLOW User:bob READ from * on TOPIC LITERAL t"]
    assert not (await fixture.send_request(apis.DESCRIBE_ACLS, 3, requested)).resources


async def test_acl_changes_apply_when_the_response_arrives(fixture: Fixture) -> None:
    fixture.topic("t")
    fixture.authorize(cluster(Operation.ALTER))
    bob = Principal(USER, "bob")

    async def code_of_bob() -> int:
        fixture.connection.principal = bob
        code = (await fixture.metadata("t")).topics[0].error_code
        fixture.connection.principal = ALICE
        return int(code)

    assert await code_of_bob() == DENIED
    await fixture.send_request(apis.CREATE_ACLS, 3, creations=[creation("t")])
    assert await code_of_bob() == ErrorCode.NONE
    await fixture.send_request(apis.DELETE_ACLS, 3, filters=[of_topic("t")])
    assert await code_of_bob() == DENIED


async def test_acl_requests_fail_without_an_authorizer_and_without_rights(fixture: Fixture) -> None:
    async def codes() -> list[int]:
        created = await fixture.send_request(apis.CREATE_ACLS, 3, creations=[creation("t")])
        deleted = await fixture.send_request(apis.DELETE_ACLS, 3, filters=[of_topic(None)])
        requested = describe_acls.DescribeAclsRequest(
            ResourceType.ANY, None, PatternType.ANY, None, None, Operation.ANY, Permission.ANY
        )
        described = await fixture.send_request(apis.DESCRIBE_ACLS, 3, requested)
        return [
            created.results[0].error_code,
            deleted.filter_results[0].error_code,
            described.error_code,
        ]

    assert await codes() == [ErrorCode.SECURITY_DISABLED] * 3
    fixture.authorize()
    assert await codes() == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * 3
    assert fixture.client.requested == []
    fixture.authorize(cluster(Operation.ALL))
    fixture.client.fail_with = refusal(messages.Status.CONTROLLER_BUSY, "busy")
    assert await codes() == [ErrorCode.REQUEST_TIMED_OUT] * 2 + [ErrorCode.NONE]


# --- the audit log --------------------------------------------------------------------------------


async def test_repeated_denials_are_logged_once_and_all_counted(fixture: Fixture) -> None:
    authorizer = fixture.authorize()
    with capture_logs() as logs:
        for _ in range(5):
            await fixture.metadata("t\nevent=authorization_allowed")
    denied = [entry for entry in logs if entry["event"] == "authorization_denied"]
    (entry,) = denied
    assert entry["principal"] == "User:alice"
    assert entry["host"] == fixture.connection.peer_host
    assert entry["api"] == "Metadata"
    assert (entry["operation"], entry["resource_type"]) == ("DESCRIBE", "TOPIC")
    assert entry["resource_name"] == "t\\nevent=authorization_allowed"
    assert authorizer.audit.denied[Operation.DESCRIBE, ResourceType.TOPIC] == 5


async def test_a_filtered_response_is_not_logged_as_a_denial(fixture: Fixture) -> None:
    fixture.topic("t")
    authorizer = fixture.authorize()
    with capture_logs() as logs:
        await fixture.send_request(apis.METADATA, 12, topics=None)
    assert not logs
    assert not authorizer.audit.denied


async def test_changes_are_logged_with_all_their_resources(fixture: Fixture) -> None:
    fixture.authorize(cluster(Operation.CREATE))
    names = [f"t{number}" for number in range(audit.RESOURCES_PER_LINE_MAX + 1)]
    with capture_logs() as logs:
        await create(fixture, "only-checked")
        request = create_topics.CreateTopicsRequest(
            [create_topics.CreatableTopic(name, 1, 1) for name in names]
        )
        await fixture.send_request(apis.CREATE_TOPICS, 7, request)
    changes = [entry for entry in logs if entry["event"] == "admin_change"]
    assert [entry["change"] for entry in changes] == ["topics_created"] * 2
    assert [name for entry in changes for name in entry["resources"]] == names


async def test_changes_by_authenticated_clients_are_logged_without_an_authorizer(
    fixture: Fixture,
) -> None:
    async def create_really(name: str) -> None:
        topic = create_topics.CreatableTopic(name, 1, 1)
        await fixture.send_request(apis.CREATE_TOPICS, 7, topics=[topic])

    with capture_logs() as logs:
        fixture.connection.principal = ALICE
        await create_really("t")
        fixture.connection.principal = ANONYMOUS
        await create_really("u")
    changes = [entry for entry in logs if entry["event"] == "admin_change"]
    assert [(entry["principal"], entry["resources"]) for entry in changes] == [
        ("User:alice", ["t"])
    ]


def test_text_from_clients_cannot_imitate_log_lines() -> None:
    assert audit.shown("a\r\nb\x1b[31m\u2028c") == "a\\r\\nb\\x1b[31m\\u2028c"
    assert len(audit.shown("x" * 10_000)) < 300


@pytest.mark.parametrize("group_id", ["g", ""])
async def test_a_denied_deletion_of_share_states_is_logged_once(
    fixture: Fixture, group_id: str
) -> None:
    authorizer = fixture.authorize()
    partitions = [delete_share_group_state.PartitionData(number) for number in range(2)]
    data = delete_share_group_state.DeleteStateData(UUID(int=7), partitions)
    request = delete_share_group_state.DeleteShareGroupStateRequest(group_id, [data])
    response = await fixture.send_request(apis.DELETE_SHARE_GROUP_STATE, 0, request)
    codes = {known_code(found.error_code) for found in response.results[0].partitions}
    assert codes == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    assert authorizer.audit.denied == {(Operation.CLUSTER_ACTION, ResourceType.CLUSTER): 1}


# --- settings -------------------------------------------------------------------------------------


def test_authorizer_settings_are_validated() -> None:
    assert not SecurityConfig().has_authorizer
    assert SecurityConfig(authorizer="StandardAuthorizer").has_authorizer
    names = SecurityConfig(super_users="User:a;User:CN=b,O=c; ").super_user_names()
    assert names == {"User:a", "User:CN=b,O=c"}
    with pytest.raises(SettingInvalid):
        SecurityConfig(authorizer="Other")
    with pytest.raises(SettingInvalid):
        SecurityConfig(super_users="alice")
    assert SecurityConfig(authorizer=STANDARD_AUTHORIZER).has_authorizer
