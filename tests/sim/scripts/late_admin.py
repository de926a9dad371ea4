"""Scripts about late copies of administrators' requests, and of read-only requests.

Each copy arrives after the next request for the same resource was served.
"""

import asyncio
from typing import Any, Final

from penstock.base.acls import Operation, PatternType, Permission, ResourceType
from penstock.base.scram import ScramMechanism
from penstock.controller.api.errors import RequestRefused
from penstock.controller.api.messages import Status
from penstock.controller.api.token_messages import (
    CreateDelegationToken,
    ExpireDelegationToken,
    RenewDelegationToken,
)
from penstock.controller.metadata.configs import TOPIC_RESOURCE
from penstock.controller.metadata.features import TRANSACTION_VERSION
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import (
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_user_scram_credentials,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    describe_groups,
    elect_leaders,
    incremental_alter_configs,
    list_groups,
    metadata,
    offset_fetch,
    unregister_broker,
    update_features,
)
from tests.sim.directed import Script
from tests.sim.directed_clients import Group
from tests.sim.overtaken_logs import FetchingClient, offset_of
from tests.sim.scripts.late_requests import PART, Request, topic_id_of

_EARLIEST: Final = -2
_TIMEOUT_S: Final = 10.0
_UPGRADE, _DOWNGRADE = 1, 2
_PRODUCED: Final = "producer_byte_rate"
APPEND: Final = 2


async def _send_request(script: Script, request: Request) -> Any:
    return await script.send_request(script.broker(1), *request)


async def succeed(script: Script, *requests: Request) -> None:
    """Send requests that contain one item each and must succeed."""
    for request in requests:
        response = await _send_request(script, request)
        items = next(
            found
            for name in ("responses", "results", "filter_results", "entries")
            if (found := getattr(response, name, None)) is not None
        )
        code = ErrorCode(items[0].error_code)
        assert code is ErrorCode.NONE, f"{request[0].name} gets {code.name}"


# --- topics ---------------------------------------------------------------------------------------


async def delete_records_late(script: Script) -> None:
    """Deliver a deletion of records again after the deletion of more records."""
    await script.create("t")
    for value in (b"0", b"1", b"2", b"3"):
        await script.write(PART, (b"k", value))
    for offset in (1, 3, 1):
        requested = delete_records.DeleteRecordsPartition(PART[1], offset)
        topic = delete_records.DeleteRecordsTopic("t", [requested])
        request = delete_records.DeleteRecordsRequest([topic], timeout_ms=5_000)
        found = (
            (await _send_request(script, (apis.DELETE_RECORDS, 2, request))).topics[0].partitions[0]
        )
        assert found.error_code == ErrorCode.NONE, ErrorCode(found.error_code)
    assert found.low_watermark == 3, f"a late deletion returns the log start {found.low_watermark}"
    start = await offset_of(script, PART, _EARLIEST)
    assert start == 3, f"the log start goes from 3 back to {start}"


async def create_a_topic_late(script: Script) -> None:
    """Deliver the creation of a topic again after one of its configs was changed."""
    config = create_topics.CreatableTopicConfig("retention.ms", "1000")
    topic = create_topics.CreatableTopic("t", 1, 1, [], [config])
    create: Request = apis.CREATE_TOPICS, 7, create_topics.CreateTopicsRequest([topic], 10_000)
    await _send_request(script, create)
    await script.until(lambda: script.world.metadata.image.topics.by_name("t"))
    topic_id = topic_id_of(script)
    await _send_request(script, setting("retention.ms", "2000"))
    code = ErrorCode((await _send_request(script, create)).topics[0].error_code)
    assert (code, topic_id_of(script)) == (ErrorCode.TOPIC_ALREADY_EXISTS, topic_id), (
        f"a topic that exists is created with {code.name}"
    )
    found = _configs(script)
    assert found == {"retention.ms": "2000"}, f"the topic has the configs {found}"


async def add_partitions_late(script: Script) -> None:
    """Deliver an addition of partitions again after the next one."""
    await script.create("t")
    for total in (2, 3, 2, 3):
        topic = create_partitions.CreatePartitionsTopic("t", total, None)
        request = create_partitions.CreatePartitionsRequest([topic], 10_000)
        await _send_request(script, (apis.CREATE_PARTITIONS, 3, request))
    count = len(script.topic("t").partitions)
    assert count == 3, f"the topic has {count} partitions"


# --- configs --------------------------------------------------------------------------------------


def setting(name: str, value: str, operation: int = 0, topic: str = "t") -> Request:
    """Return the request that sets a config of a topic, or appends to it with `APPEND`."""
    config = incremental_alter_configs.AlterableConfig(name, operation, value)
    resource = incremental_alter_configs.AlterConfigsResource(TOPIC_RESOURCE, topic, [config])
    request = incremental_alter_configs.IncrementalAlterConfigsRequest([resource])
    return apis.INCREMENTAL_ALTER_CONFIGS, 1, request


def replacing(name: str, value: str, topic: str = "t") -> Request:
    """Return the request that replaces all configs of a topic."""
    config = alter_configs.AlterableConfig(name, value)
    resource = alter_configs.AlterConfigsResource(TOPIC_RESOURCE, topic, [config])
    return apis.ALTER_CONFIGS, 2, alter_configs.AlterConfigsRequest([resource])


def _configs(script: Script) -> dict[str, str]:
    return dict(script.world.metadata.image.configs.get(TOPIC_RESOURCE, "t"))


async def append_to_a_config_late(script: Script) -> None:
    """Deliver an addition to a list config of a topic again."""
    await script.create("t", cleanup_policy="delete")
    await succeed(script, *[setting("cleanup.policy", "compact", APPEND)] * 2)
    found = _configs(script)["cleanup.policy"]
    assert found == "delete,compact", f"the list is {found}"


async def append_to_a_config_at_once(script: Script) -> None:
    """Let each broker add to and remove from a list config concurrently. No broker undoes the
    change of another.
    """
    name = "leader.replication.throttled.replicas"
    await script.create("t")
    brokers = script.world.brokers.values()
    for operation, expected in ((APPEND, {f"{at}:1" for at in range(len(brokers))}), (3, set())):
        asking = [
            script.send_request(broker, *setting(name, f"{at}:1", operation))
            for at, broker in enumerate(brokers)
        ]
        for response in await asyncio.gather(*asking):
            code = ErrorCode(response.responses[0].error_code)
            assert code is ErrorCode.NONE, f"a change of a list gets {code.name}"
        found = {item for item in _configs(script)[name].split(",") if item}
        assert found == expected, f"the list is {sorted(found)}"


async def alter_configs_late(script: Script) -> None:
    """Deliver config changes after the topic was deleted. A recreated topic starts without them."""
    await script.create("t")
    requests = replacing("retention.ms", "1000"), setting("max.message.bytes", "1000")
    await succeed(script, *requests)
    await script.delete("t")
    for request in requests:
        await _send_request(script, request)
    await script.create("t")
    found = _configs(script)
    assert not found, f"the next topic has the configs {found}"


# --- client rights and limits ---------------------------------------------------------------------


def _acl(operation: Operation, topic: str) -> tuple[Any, ...]:
    kind, pattern = ResourceType.TOPIC, PatternType.LITERAL
    return kind, topic, pattern, "User:alice", "*", operation, Permission.ALLOW


def adding_acl(operation: Operation, topic: str = "t") -> Request:
    acl = create_acls.AclCreation(*_acl(operation, topic))
    return apis.CREATE_ACLS, 3, create_acls.CreateAclsRequest([acl])


def removing_acl(operation: Operation, topic: str = "t") -> Request:
    requested = delete_acls.DeleteAclsFilter(*_acl(operation, topic))
    return apis.DELETE_ACLS, 3, delete_acls.DeleteAclsRequest([requested])


def altering_quota(key: str, value: float | None, user: str = "alice") -> Request:
    """Return the request that sets or removes a quota of a user."""
    entity = alter_client_quotas.EntityData("user", user)
    op = alter_client_quotas.OpData(key, value or 0.0, remove=value is None)
    entry = alter_client_quotas.EntryData([entity], [op])
    return apis.ALTER_CLIENT_QUOTAS, 1, alter_client_quotas.AlterClientQuotasRequest([entry])


def altering_credential(
    mechanism: ScramMechanism, user: str = "alice", *, deletes: bool = False
) -> Request:
    wire = alter_user_scram_credentials
    deletion = wire.ScramCredentialDeletion(user, mechanism)
    upsertion = wire.ScramCredentialUpsertion(user, mechanism, 4096, b"salt", b"password")
    request = wire.AlterUserScramCredentialsRequest(
        [deletion] if deletes else [], [] if deletes else [upsertion]
    )
    return apis.ALTER_USER_SCRAM_CREDENTIALS, 0, request


async def create_acls_late(script: Script) -> None:
    """Deliver the creation of an ACL again, then delete the ACL."""
    script.authorize()
    adding = adding_acl(Operation.READ)
    await succeed(script, adding, adding, removing_acl(Operation.READ))
    found = len(script.world.metadata.image.acls)
    assert not found, f"{found} ACLs are left after the deletion"


async def delete_acls_late(script: Script) -> None:
    """Deliver the deletion of an ACL again. It removes no other ACL of the topic."""
    script.authorize()
    removing = removing_acl(Operation.READ)
    await succeed(
        script, adding_acl(Operation.READ), adding_acl(Operation.WRITE), removing, removing
    )
    found = [acl.operation for acl in script.world.metadata.image.acls]
    assert found == [Operation.WRITE], f"the topic has ACLs for {found}"


async def remove_a_quota_late(script: Script) -> None:
    """Deliver the removal of a quota again. The user's other quota remains."""
    removing = altering_quota(_PRODUCED, None)
    setting = [altering_quota(_PRODUCED, 1e3), altering_quota("consumer_byte_rate", 2e3)]
    await succeed(script, *setting, removing, removing)
    found = [dict(values) for _, values in script.world.metadata.image.quotas.items()]
    assert found == [{"consumer_byte_rate": 2e3}], f"the user has the quotas {found}"


async def delete_a_credential_late(script: Script) -> None:
    """Deliver the deletion of a SCRAM credential again. The other mechanism remains."""
    deleted, kept = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
    deleting = altering_credential(deleted, deletes=True)
    await succeed(script, altering_credential(deleted), altering_credential(kept), deleting)
    await _send_request(script, deleting)
    found = sorted(script.world.metadata.image.scram.of("alice"))
    assert found == [kept], f"alice has credentials for {found}"


async def renew_a_token_late(script: Script) -> None:
    """Deliver the renewal of a delegation token, as a broker sends it, after the token was expired
    or removed.
    """
    client, day_ms, alice = script.world.admin.client, 86_400_000, "User:alice"

    def renewing(token_id: str) -> RenewDelegationToken:
        return RenewDelegationToken(token_id=token_id, principal=alice, period_ms=day_ms)

    async def run() -> None:
        for token_id, period_ms, expected in (
            ("expired", 0, Status.TOKEN_EXPIRED),
            ("removed", -1, Status.TOKEN_NOT_FOUND),
        ):
            created = CreateDelegationToken(
                token_id=token_id,
                owner=alice,
                requester=alice,
                lifetime_ms=day_ms,
                period_ms=day_ms,
            )
            await client.create_delegation_token(created, timeout_s=_TIMEOUT_S)
            await client.renew_delegation_token(renewing(token_id), timeout_s=_TIMEOUT_S)
            ended = ExpireDelegationToken(token_id=token_id, principal=alice, period_ms=period_ms)
            await client.expire_delegation_token(ended, timeout_s=_TIMEOUT_S)
            status = Status.OK
            try:
                await client.renew_delegation_token(renewing(token_id), timeout_s=_TIMEOUT_S)
            except RequestRefused as refused:
                status = refused.status
            assert status is expected, f"the renewal of a token that is {token_id}: {status.name}"

    await script.world.admin.run(run)


# --- leaders --------------------------------------------------------------------------------------


def reassigning_to(*replicas: int, topic: str = "t") -> Request:
    part = alter_partition_reassignments.ReassignablePartition(0, list(replicas))
    named = alter_partition_reassignments.ReassignableTopic(topic, [part])
    request = alter_partition_reassignments.AlterPartitionReassignmentsRequest(topics=[named])
    return apis.ALTER_PARTITION_REASSIGNMENTS, 0, request


def electing_preferred(topic: str = "t") -> Request:
    named = elect_leaders.TopicPartitions(topic, [0])
    return apis.ELECT_LEADERS, 2, elect_leaders.ElectLeadersRequest(0, [named])


async def move_late(script: Script) -> None:
    """Deliver a reassignment and an election again after both are done. Nothing moves again."""
    await script.create("t")
    reassigning, electing = reassigning_to(2, 1), electing_preferred()
    for request in (reassigning, electing):
        await _send_request(script, request)
    await script.until_led(PART, 2)
    epoch = script.topic("t").partitions[PART[1]].leader_epoch
    for request in (reassigning, electing):
        await _send_request(script, request)
        now = script.topic("t").partitions[PART[1]]
        assert (now.leader, now.leader_epoch) == (2, epoch), (
            f"a late {request[0].name} moves the partition again"
        )


# --- the cluster ----------------------------------------------------------------------------------


async def unregister_a_broker_late(script: Script) -> None:
    """Deliver the removal of a broker again after its next start."""
    request: Request = apis.UNREGISTER_BROKER, 0, unregister_broker.UnregisterBrokerRequest(2)
    script.kill(2)
    await script.repeat(lambda: script.broker(1), request, lambda response: response)
    broker = script.world.start_broker(2)
    await script.until(lambda: broker.serving)
    await _send_request(script, request)
    assert script.world.metadata.image.nodes.get(broker.node_id), "a live broker is removed"


async def upgrade_a_feature_late(script: Script) -> None:
    """Deliver the upgrade of a feature again after the next one."""
    for level, kind in ((0, _DOWNGRADE), (1, _UPGRADE), (2, _UPGRADE), (1, _UPGRADE)):
        update = update_features.FeatureUpdateKey(TRANSACTION_VERSION, level, kind)
        request = update_features.UpdateFeaturesRequest(60_000, [update])
        await _send_request(script, (apis.UPDATE_FEATURES, 1, request))
    found = script.world.metadata.image.features.level(TRANSACTION_VERSION)
    assert found == 2, f"a late upgrade sets the level {found}"


# --- reads ----------------------------------------------------------------------------------------


async def read_a_deleted_group_late(script: Script) -> None:
    """Deliver requests that read a group after its deletion. They do not recreate it."""
    await script.create("t")
    group = Group(script)
    await group.commit(PART, 1)
    coordinator = await script.coordinator(group.name)
    deleting = delete_groups.DeleteGroupsRequest([group.name])
    deleted = await script.send_request(coordinator, apis.DELETE_GROUPS, 2, deleting)
    assert deleted.results[0].error_code == ErrorCode.NONE
    await script.send_request(
        coordinator, apis.DESCRIBE_GROUPS, 5, describe_groups.DescribeGroupsRequest([group.name])
    )
    requested = offset_fetch.OffsetFetchRequestGroup(group.name, topics=None)
    await script.send_request(
        coordinator, apis.OFFSET_FETCH, 8, offset_fetch.OffsetFetchRequest([requested])
    )
    listed = await script.send_request(
        coordinator, apis.LIST_GROUPS, 5, list_groups.ListGroupsRequest()
    )
    found = [item.group_id for item in listed.groups]
    assert not found, f"late reads create the group {found} again"


async def ask_for_metadata_late(script: Script) -> None:
    """Deliver a Metadata request for a topic that does not exist any more. It creates no topic."""
    topic = metadata.MetadataRequestTopic(None, "t")
    request = metadata.MetadataRequest([topic], allow_auto_topic_creation=False)
    await _send_request(script, (apis.METADATA, 12, request))
    assert script.world.metadata.image.topics.by_name("t") is None, "a read creates the topic"


async def close_a_fetch_session_late(script: Script) -> None:
    """Deliver the end of a fetch session again after another client has created a session."""
    await script.create("t")
    await script.write(PART, (b"k", b"0"))
    first = FetchingClient(script, PART, 0)
    await first.poll()
    ending = first.ending()
    await _send_request(script, ending)
    second = FetchingClient(script, PART, 0)
    await second.poll()
    await _send_request(script, ending)
    await script.write(PART, (b"k", b"1"))
    assert await second.poll() == [b"1"], "a session ends with that of another client"
