"""One request of each API, about resources that exist, do not exist, or may be hidden from the
client.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple
from uuid import UUID

from penstock.base.acls import Operation, PatternType, Permission, ResourceType
from penstock.protocol import apis
from penstock.protocol.apis import ApiSpec
from penstock.protocol.gen import describe_acls
from tests.support.requests import make_request

SEEN, HIDDEN, ABSENT, GONE = "seen", "hidden", "seen-absent", "absent"
"""Topics: two exist; a test's ACLs may apply to names with the prefix `seen`."""
TOPICS = (SEEN, HIDDEN, ABSENT, GONE)
GROUPS = ("seen-group", "hidden-group")
IDS = ("seen-id", "hidden-id")
UNKNOWN_ID = UUID(int=77)
TOPIC_TYPE, BROKER_TYPE, CLIENT_METRICS_TYPE, GROUP_TYPE = 2, 4, 16, 32


class Question(NamedTuple):
    name: str
    api: ApiSpec
    request: Any
    version: int | None = None


def ask(name: str, api: ApiSpec, version: int | None = None, /, **fields: Any) -> Question:
    return Question(name, api, make_request(api, **fields), version)


def questions(ids: dict[str, UUID]) -> Iterator[Question]:
    """Yield requests that do not affect each other. ids: the topic ids."""
    yield from _topics(ids)
    yield from _records(ids)
    yield from _groups(ids)
    yield from _share_groups(ids)
    yield from _transactions()
    yield from _cluster()
    yield from _acls()


def all_questions(ids: dict[str, UUID]) -> Iterator[Question]:
    """Yield requests of every API, including inter-broker requests and those that need a specific
    version.
    """
    yield from questions(ids)
    yield from share_state_questions(ids[HIDDEN])
    yield from _authentication()
    yield ask(
        "delete by old name",
        apis.DELETE_TOPICS,
        5,
        topics=[],
        topic_names=[HIDDEN, ABSENT, GONE],
        timeout_ms=10_000,
    )
    yield ask(
        "commit of a transaction",
        apis.TXN_OFFSET_COMMIT,
        transactional_id=IDS[1],
        group_id=GROUPS[1],
        producer_id=5,
        producer_epoch=0,
        topics=[{"name": HIDDEN, "partitions": [{"partition_index": 0, "committed_offset": 1}]}],
    )


def _authentication() -> Iterator[Question]:
    """Yield requests that need no rights, and requests about tokens and users."""
    yield ask(
        "versions", apis.API_VERSIONS, client_software_name="client", client_software_version="1.0"
    )
    yield ask("handshake", apis.SASL_HANDSHAKE, mechanism="PLAIN")
    yield ask("authenticate", apis.SASL_AUTHENTICATE, auth_bytes=b"x")
    yield ask(
        "create token",
        apis.CREATE_DELEGATION_TOKEN,
        owner_principal_type="User",
        owner_principal_name="someone",
        renewers=[{"principal_type": "User", "principal_name": "renewer"}],
        max_lifetime_ms=1_000,
    )
    yield ask("renew token", apis.RENEW_DELEGATION_TOKEN, hmac=b"hmac", renew_period_ms=1_000)
    yield ask(
        "expire token", apis.EXPIRE_DELEGATION_TOKEN, hmac=b"hmac", expiry_time_period_ms=1_000
    )
    yield ask(
        "tokens",
        apis.DESCRIBE_DELEGATION_TOKEN,
        owners=[{"principal_type": "User", "principal_name": "someone"}],
    )
    yield ask(
        "alter credentials",
        apis.ALTER_USER_SCRAM_CREDENTIALS,
        deletions=[{"name": "x", "mechanism": 1}],
    )
    yield ask("telemetry", apis.GET_TELEMETRY_SUBSCRIPTIONS)
    yield ask("push", apis.PUSH_TELEMETRY, client_instance_id=UNKNOWN_ID, subscription_id=1)


def _topics(ids: dict[str, UUID]) -> Iterator[Question]:
    named = [{"name": name} for name in (*TOPICS, "bad name")]
    by_id = [{"topic_id": topic_id, "name": None} for topic_id in (*ids.values(), UNKNOWN_ID)]
    for version in (4, 8, 9, 12, 13):
        has_operations = version >= 8
        yield ask(
            f"metadata by name {version}",
            apis.METADATA,
            version,
            topics=named,
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=8 <= version <= 10,
            include_topic_authorized_operations=has_operations,
        )
    yield ask(
        "metadata by id",
        apis.METADATA,
        12,
        topics=by_id,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    yield ask("metadata of all", apis.METADATA, 12, topics=None)
    yield ask(
        "partitions", apis.DESCRIBE_TOPIC_PARTITIONS, topics=[{"name": name} for name in TOPICS]
    )
    yield ask("all partitions", apis.DESCRIBE_TOPIC_PARTITIONS, topics=[])
    yield ask(
        "create",
        apis.CREATE_TOPICS,
        topics=[{"name": name, "num_partitions": 1, "replication_factor": 1} for name in TOPICS],
        validate_only=True,
    )
    yield ask(
        "delete by name",
        apis.DELETE_TOPICS,
        topics=[{"name": name} for name in (HIDDEN, ABSENT, GONE)],
        timeout_ms=10_000,
    )
    yield ask(
        "delete by id",
        apis.DELETE_TOPICS,
        topics=[{"topic_id": topic_id} for topic_id in (ids[HIDDEN], UNKNOWN_ID)],
        timeout_ms=10_000,
    )
    yield ask(
        "add partitions",
        apis.CREATE_PARTITIONS,
        topics=[{"name": name, "count": 4, "assignments": None} for name in TOPICS],
        timeout_ms=10_000,
        validate_only=True,
    )
    resources = [
        *((TOPIC_TYPE, name) for name in TOPICS),
        (BROKER_TYPE, "1"),
        (CLIENT_METRICS_TYPE, "metrics"),
        *((GROUP_TYPE, name) for name in GROUPS),
    ]
    yield ask(
        "configs",
        apis.DESCRIBE_CONFIGS,
        resources=[
            {"resource_type": kind, "resource_name": name, "configuration_keys": ["no.such.config"]}
            for kind, name in resources
        ],
    )
    yield ask(
        "alter configs",
        apis.INCREMENTAL_ALTER_CONFIGS,
        resources=[
            {"resource_type": kind, "resource_name": name, "configs": []}
            for kind, name in resources
            if name not in (ABSENT, GONE)
        ],
        validate_only=True,
    )
    yield ask(
        "replace configs",
        apis.ALTER_CONFIGS,
        resources=[
            {"resource_type": kind, "resource_name": name, "configs": []}
            for kind, name in resources[:6]
        ],
        validate_only=True,
    )
    yield ask("log dirs", apis.DESCRIBE_LOG_DIRS, topics=[])


def _records(ids: dict[str, UUID]) -> Iterator[Question]:
    for transactional_id in (None, *IDS):
        yield ask(
            f"produce as {transactional_id}",
            apis.PRODUCE,
            12,
            transactional_id=transactional_id,
            acks=-1,
            timeout_ms=5_000,
            topic_data=[
                {"name": name, "partition_data": [{"index": 0, "records": b""}]}
                for name in (HIDDEN, GONE)
            ],
        )
    yield ask(
        "produce by id",
        apis.PRODUCE,
        13,
        acks=-1,
        timeout_ms=5_000,
        topic_data=[
            {"topic_id": topic_id, "partition_data": [{"index": 0, "records": b""}]}
            for topic_id in (ids[HIDDEN], UNKNOWN_ID)
        ],
    )
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000}
    yield ask(
        "fetch by name",
        apis.FETCH,
        12,
        topics=[{"topic": name, "partitions": [partition]} for name in TOPICS],
    )
    yield ask(
        "fetch by id",
        apis.FETCH,
        16,
        topics=[{"topic_id": topic_id, "partitions": [partition]} for topic_id in ids.values()],
    )
    yield ask(
        "offsets",
        apis.LIST_OFFSETS,
        10,
        replica_id=-1,
        topics=[
            {"name": name, "partitions": [{"partition_index": 0, "timestamp": -1}]}
            for name in TOPICS
        ],
    )
    yield ask(
        "leader epochs",
        apis.OFFSET_FOR_LEADER_EPOCH,
        replica_id=-1,
        topics=[
            {"topic": name, "partitions": [{"partition": 0, "leader_epoch": 0}]} for name in TOPICS
        ],
    )
    yield ask(
        "delete records",
        apis.DELETE_RECORDS,
        topics=[
            {"name": name, "partitions": [{"partition_index": 0, "offset": 0}]} for name in TOPICS
        ],
        timeout_ms=10_000,
    )
    yield ask(
        "producers",
        apis.DESCRIBE_PRODUCERS,
        topics=[{"name": name, "partition_indexes": [0]} for name in TOPICS],
    )


def _groups(ids: dict[str, UUID]) -> Iterator[Question]:
    for group in GROUPS:
        yield ask(
            f"commit to {group}",
            apis.OFFSET_COMMIT,
            9,
            group_id=group,
            topics=[
                {"name": name, "partitions": [{"partition_index": 0, "committed_offset": 3}]}
                for name in TOPICS
            ],
        )
        yield ask(
            f"commit by id to {group}",
            apis.OFFSET_COMMIT,
            10,
            group_id=group,
            topics=[
                {
                    "topic_id": topic_id,
                    "partitions": [{"partition_index": 0, "committed_offset": 3}],
                }
                for topic_id in (*ids.values(), UNKNOWN_ID)
            ],
        )
        yield ask(
            f"sync {group}",
            apis.SYNC_GROUP,
            group_id=group,
            generation_id=1,
            member_id="member",
            protocol_type="consumer",
            protocol_name="range",
        )
        yield ask(
            f"heartbeat {group}",
            apis.HEARTBEAT,
            group_id=group,
            generation_id=1,
            member_id="member",
        )
        yield ask(
            f"leave {group}", apis.LEAVE_GROUP, group_id=group, members=[{"member_id": "member"}]
        )
        yield ask(f"leave alone {group}", apis.LEAVE_GROUP, 2, group_id=group, member_id="member")
        yield ask(
            f"delete offsets of {group}",
            apis.OFFSET_DELETE,
            group_id=group,
            topics=[
                {"name": name, "partitions": [{"partition_index": 0}]} for name in (HIDDEN, GONE)
            ],
        )
        yield ask(
            f"consumer of {group}",
            apis.CONSUMER_GROUP_HEARTBEAT,
            group_id=group,
            member_id="AAAAAAAAAAAAAAAAAAAAAA",
            rebalance_timeout_ms=10_000,
            subscribed_topic_names=[SEEN, HIDDEN],
            topic_partitions=[],
        )
        yield ask(
            f"share consumer of {group}",
            apis.SHARE_GROUP_HEARTBEAT,
            group_id=group,
            member_id="AAAAAAAAAAAAAAAAAAAAAA",
            subscribed_topic_names=[SEEN, HIDDEN],
        )
        yield ask(
            f"streams member of {group}",
            apis.STREAMS_GROUP_HEARTBEAT,
            group_id=group,
            member_id="AAAAAAAAAAAAAAAAAAAAAA",
            rebalance_timeout_ms=10_000,
            topology={
                "epoch": 0,
                "subtopologies": [{"subtopology_id": "0", "source_topics": [SEEN, HIDDEN]}],
            },
            process_id="process",
            task_offsets=None,
            task_end_offsets=None,
        )
    yield ask(
        "join",
        apis.JOIN_GROUP,
        group_id=GROUPS[1],
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[{"name": "range"}],
    )
    for version in (1, 7):
        yield ask(
            f"fetch offsets {version}",
            apis.OFFSET_FETCH,
            version,
            group_id=GROUPS[0],
            topics=[{"name": name, "partition_indexes": [0]} for name in TOPICS],
        )
    yield ask(
        "fetch offsets",
        apis.OFFSET_FETCH,
        9,
        groups=[
            {
                "group_id": group,
                "topics": [{"name": name, "partition_indexes": [0]} for name in TOPICS],
            }
            for group in GROUPS
        ],
    )
    yield ask(
        "fetch offsets by id",
        apis.OFFSET_FETCH,
        10,
        groups=[
            {
                "group_id": GROUPS[0],
                "topics": [
                    {"topic_id": topic_id, "partition_indexes": [0]}
                    for topic_id in (*ids.values(), UNKNOWN_ID)
                ],
            }
        ],
    )
    yield ask(
        "fetch all offsets",
        apis.OFFSET_FETCH,
        9,
        groups=[{"group_id": group, "topics": None} for group in GROUPS],
    )
    for key_type, keys in ((0, GROUPS), (1, IDS)):
        for version in (3, 4):
            yield ask(
                f"coordinator {key_type} {version}",
                apis.FIND_COORDINATOR,
                version,
                key=keys[1],
                key_type=key_type,
                coordinator_keys=list(keys),
            )
    for version in (0, 5, 6):
        yield ask(
            f"describe groups {version}",
            apis.DESCRIBE_GROUPS,
            version,
            groups=list(GROUPS),
            include_authorized_operations=version >= 3,
        )
    yield ask("list groups", apis.LIST_GROUPS)
    yield ask("delete groups", apis.DELETE_GROUPS, groups_names=[GROUPS[1]])
    yield ask(
        "describe consumer groups",
        apis.CONSUMER_GROUP_DESCRIBE,
        group_ids=list(GROUPS),
        include_authorized_operations=True,
    )
    yield ask(
        "describe share groups",
        apis.SHARE_GROUP_DESCRIBE,
        group_ids=list(GROUPS),
        include_authorized_operations=True,
    )
    yield ask(
        "describe streams groups",
        apis.STREAMS_GROUP_DESCRIBE,
        group_ids=list(GROUPS),
        include_authorized_operations=True,
    )


def _share_groups(ids: dict[str, UUID]) -> Iterator[Question]:
    for group in GROUPS:
        yield ask(
            f"share fetch of {group}",
            apis.SHARE_FETCH,
            group_id=group,
            member_id="AAAAAAAAAAAAAAAAAAAAAA",
            share_session_epoch=5,
            topics=[
                {"topic_id": topic_id, "partitions": [{"partition_index": 0}]}
                for topic_id in ids.values()
            ],
        )
        yield ask(
            f"share acknowledge of {group}",
            apis.SHARE_ACKNOWLEDGE,
            group_id=group,
            member_id="AAAAAAAAAAAAAAAAAAAAAA",
            share_session_epoch=5,
        )
        yield ask(
            f"share offsets of {group}",
            apis.DESCRIBE_SHARE_GROUP_OFFSETS,
            groups=[
                {
                    "group_id": group,
                    "topics": [{"topic_name": name, "partitions": [0]} for name in TOPICS],
                }
            ],
        )
    yield ask(
        "alter share offsets",
        apis.ALTER_SHARE_GROUP_OFFSETS,
        group_id=GROUPS[1],
        topics=[{"topic_name": HIDDEN, "partitions": [{"partition_index": 0}]}],
    )
    yield ask(
        "delete share offsets",
        apis.DELETE_SHARE_GROUP_OFFSETS,
        group_id=GROUPS[1],
        topics=[{"topic_name": HIDDEN}],
    )


def share_state_questions(topic_id: UUID) -> Iterator[Question]:
    """Yield inter-broker requests about share partitions."""
    group = GROUPS[1]
    yield ask(
        "initialize state",
        apis.INITIALIZE_SHARE_GROUP_STATE,
        group_id=group,
        topics=[{"topic_id": topic_id, "partitions": [{"partition": 0}]}],
    )
    yield ask(
        "read state",
        apis.READ_SHARE_GROUP_STATE,
        group_id=group,
        topics=[{"topic_id": topic_id, "partitions": [{"partition": 0, "leader_epoch": 0}]}],
    )
    yield ask(
        "write state",
        apis.WRITE_SHARE_GROUP_STATE,
        group_id=group,
        topics=[{"topic_id": topic_id, "partitions": [{"partition": 0, "leader_epoch": 0}]}],
    )
    yield ask(
        "delete state",
        apis.DELETE_SHARE_GROUP_STATE,
        group_id=group,
        topics=[{"topic_id": topic_id, "partitions": [{"partition": 0}]}],
    )
    yield ask(
        "state summary",
        apis.READ_SHARE_GROUP_STATE_SUMMARY,
        group_id=group,
        topics=[{"topic_id": topic_id, "partitions": [{"partition": 0, "leader_epoch": 0}]}],
    )


def _transactions() -> Iterator[Question]:
    yield ask(
        "idempotent producer",
        apis.INIT_PRODUCER_ID,
        transactional_id=None,
        transaction_timeout_ms=10_000,
    )
    hidden = IDS[1]
    yield ask(
        "transactional producer",
        apis.INIT_PRODUCER_ID,
        5,
        transactional_id=hidden,
        transaction_timeout_ms=10_000,
    )
    for transactional_id in IDS:
        yield ask(
            f"add partitions as {transactional_id}",
            apis.ADD_PARTITIONS_TO_TXN,
            3,
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=5,
            v3_and_below_topics=[{"name": name, "partitions": [0]} for name in TOPICS],
        )
        yield ask(
            f"add offsets as {transactional_id}",
            apis.ADD_OFFSETS_TO_TXN,
            transactional_id=transactional_id,
            producer_id=5,
            producer_epoch=0,
            group_id=GROUPS[1],
        )
        yield ask(
            f"end as {transactional_id}",
            apis.END_TXN,
            transactional_id=transactional_id,
            producer_id=5,
            producer_epoch=0,
            committed=True,
        )
        for group in GROUPS:
            yield ask(
                f"commit offsets as {transactional_id} of {group}",
                apis.TXN_OFFSET_COMMIT,
                4,
                transactional_id=transactional_id,
                group_id=group,
                producer_id=5,
                producer_epoch=0,
                topics=[
                    {"name": name, "partitions": [{"partition_index": 0, "committed_offset": 1}]}
                    for name in (HIDDEN, GONE)
                ],
            )
    yield ask(
        "verify",
        apis.ADD_PARTITIONS_TO_TXN,
        5,
        transactions=[
            {
                "transactional_id": hidden,
                "producer_id": 5,
                "producer_epoch": 0,
                "verify_only": True,
                "topics": [{"name": HIDDEN, "partitions": [0]}],
            }
        ],
    )
    yield ask(
        "markers",
        apis.WRITE_TXN_MARKERS,
        1,
        markers=[
            {
                "producer_id": 5,
                "producer_epoch": 0,
                "topics": [{"name": GONE, "partition_indexes": [0]}],
            }
        ],
    )
    yield ask("describe transactions", apis.DESCRIBE_TRANSACTIONS, transactional_ids=list(IDS))
    yield ask("list transactions", apis.LIST_TRANSACTIONS)


def _cluster() -> Iterator[Question]:
    yield ask(
        "elect",
        apis.ELECT_LEADERS,
        topic_partitions=[{"topic": name, "partitions": [0]} for name in (HIDDEN, GONE)],
        timeout_ms=5_000,
    )
    yield ask(
        "reassign",
        apis.ALTER_PARTITION_REASSIGNMENTS,
        timeout_ms=5_000,
        topics=[{"name": GONE, "partitions": [{"partition_index": 0, "replicas": [1]}]}],
    )
    yield ask("reassignments", apis.LIST_PARTITION_REASSIGNMENTS, timeout_ms=5_000, topics=None)
    yield ask("quotas", apis.DESCRIBE_CLIENT_QUOTAS)
    yield ask(
        "quotas altered",
        apis.ALTER_CLIENT_QUOTAS,
        entries=[
            {
                "entity": [{"entity_type": "user", "entity_name": "x"}],
                "ops": [{"key": "producer_byte_rate", "value": 1e6}],
            }
        ],
        validate_only=True,
    )
    yield ask("credentials", apis.DESCRIBE_USER_SCRAM_CREDENTIALS, users=[{"name": "x"}])
    yield ask(
        "quorum",
        apis.DESCRIBE_QUORUM,
        topics=[{"topic_name": "elsewhere", "partitions": [{"partition_index": 0}]}],
    )
    yield ask(
        "features",
        apis.UPDATE_FEATURES,
        timeout_ms=5_000,
        feature_updates=[{"feature": "none", "max_version_level": 1}],
        validate_only=True,
    )
    yield ask("cluster", apis.DESCRIBE_CLUSTER, include_cluster_authorized_operations=True)
    yield ask("unregister", apis.UNREGISTER_BROKER, broker_id=99)
    for version in (0, 1):
        yield ask(
            f"config resources {version}",
            apis.LIST_CONFIG_RESOURCES,
            version,
            resource_types=[16] if version else [],
        )
    yield ask(
        "move log dirs",
        apis.ALTER_REPLICA_LOG_DIRS,
        dirs=[{"path": "/nowhere", "topics": [{"name": GONE, "partitions": [0]}]}],
    )


def _acls() -> Iterator[Question]:
    yield Question("acls", apis.DESCRIBE_ACLS, everything())
    absent = {
        "resource_type": ResourceType.TOPIC,
        "resource_pattern_type": PatternType.LITERAL,
        "principal": "User:nobody",
        "host": "*",
        "operation": Operation.READ,
        "permission_type": Permission.ALLOW,
    }
    yield ask("create acls", apis.CREATE_ACLS, creations=[absent])
    yield ask(
        "delete acls",
        apis.DELETE_ACLS,
        filters=[
            {
                "resource_type_filter": ResourceType.ANY,
                "resource_name_filter": None,
                "pattern_type_filter": PatternType.ANY,
                "principal_filter": "User:nobody",
                "host_filter": None,
                "operation": Operation.ANY,
                "permission_type": Permission.ANY,
            }
        ],
    )


def everything() -> describe_acls.DescribeAclsRequest:
    return make_request(
        apis.DESCRIBE_ACLS,
        resource_type_filter=ResourceType.ANY,
        resource_name_filter=None,
        pattern_type_filter=PatternType.ANY,
        principal_filter=None,
        host_filter=None,
        operation=Operation.ANY,
        permission_type=Permission.ANY,
    )
