"""One request of each API, about resources that exist, do not exist, or may be hidden from the
client.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple
from uuid import UUID

from penstock.base.acls import Operation, PatternType, Permission, ResourceType
from penstock.protocol import apis
from penstock.protocol.apis import ApiSpec
from penstock.protocol.gen import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_share_group_offsets,
    alter_user_scram_credentials,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_delegation_token,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_share_group_offsets,
    delete_share_group_state,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_delegation_token,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_share_group_offsets,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    expire_delegation_token,
    fetch,
    find_coordinator,
    get_telemetry_subscriptions,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    initialize_share_group_state,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    push_telemetry,
    read_share_group_state,
    read_share_group_state_summary,
    renew_delegation_token,
    sasl_authenticate,
    sasl_handshake,
    share_acknowledge,
    share_fetch,
    share_group_describe,
    share_group_heartbeat,
    streams_group_describe,
    streams_group_heartbeat,
    sync_group,
    txn_offset_commit,
    unregister_broker,
    update_features,
    write_share_group_state,
    write_txn_markers,
)

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
    yield Question(
        "delete by old name",
        apis.DELETE_TOPICS,
        delete_topics.DeleteTopicsRequest([], [HIDDEN, ABSENT, GONE], 10_000),
        5,
    )
    yield Question(
        "commit of a transaction",
        apis.TXN_OFFSET_COMMIT,
        txn_offset_commit.TxnOffsetCommitRequest(
            IDS[1],
            GROUPS[1],
            5,
            0,
            topics=[
                txn_offset_commit.TxnOffsetCommitRequestTopic(
                    HIDDEN, [txn_offset_commit.TxnOffsetCommitRequestPartition(0, 1)]
                )
            ],
        ),
    )


def _authentication() -> Iterator[Question]:
    """Yield requests that need no rights, and requests about tokens and users."""
    yield Question("versions", apis.API_VERSIONS, api_versions.ApiVersionsRequest("client", "1.0"))
    yield Question("handshake", apis.SASL_HANDSHAKE, sasl_handshake.SaslHandshakeRequest("PLAIN"))
    yield Question(
        "authenticate", apis.SASL_AUTHENTICATE, sasl_authenticate.SaslAuthenticateRequest(b"x")
    )
    yield Question(
        "create token",
        apis.CREATE_DELEGATION_TOKEN,
        create_delegation_token.CreateDelegationTokenRequest(
            "User", "someone", [create_delegation_token.CreatableRenewers("User", "renewer")], 1_000
        ),
    )
    yield Question(
        "renew token",
        apis.RENEW_DELEGATION_TOKEN,
        renew_delegation_token.RenewDelegationTokenRequest(b"hmac", 1_000),
    )
    yield Question(
        "expire token",
        apis.EXPIRE_DELEGATION_TOKEN,
        expire_delegation_token.ExpireDelegationTokenRequest(b"hmac", 1_000),
    )
    yield Question(
        "tokens",
        apis.DESCRIBE_DELEGATION_TOKEN,
        describe_delegation_token.DescribeDelegationTokenRequest(
            [describe_delegation_token.DescribeDelegationTokenOwner("User", "someone")]
        ),
    )
    yield Question(
        "alter credentials",
        apis.ALTER_USER_SCRAM_CREDENTIALS,
        alter_user_scram_credentials.AlterUserScramCredentialsRequest(
            [alter_user_scram_credentials.ScramCredentialDeletion("x", 1)]
        ),
    )
    yield Question(
        "telemetry",
        apis.GET_TELEMETRY_SUBSCRIPTIONS,
        get_telemetry_subscriptions.GetTelemetrySubscriptionsRequest(),
    )
    yield Question("push", apis.PUSH_TELEMETRY, push_telemetry.PushTelemetryRequest(UNKNOWN_ID, 1))


def _topics(ids: dict[str, UUID]) -> Iterator[Question]:
    named = [metadata.MetadataRequestTopic(name=name) for name in (*TOPICS, "bad name")]
    by_id = [
        metadata.MetadataRequestTopic(topic_id, None) for topic_id in (*ids.values(), UNKNOWN_ID)
    ]
    for version in (4, 8, 9, 12, 13):
        has_operations = version >= 8
        yield Question(
            f"metadata by name {version}",
            apis.METADATA,
            metadata.MetadataRequest(
                named,
                allow_auto_topic_creation=False,
                include_cluster_authorized_operations=8 <= version <= 10,
                include_topic_authorized_operations=has_operations,
            ),
            version,
        )
    yield Question(
        "metadata by id", apis.METADATA, metadata.MetadataRequest(by_id, False, False, True), 12
    )
    yield Question("metadata of all", apis.METADATA, metadata.MetadataRequest(None), 12)
    yield Question(
        "partitions",
        apis.DESCRIBE_TOPIC_PARTITIONS,
        describe_topic_partitions.DescribeTopicPartitionsRequest(
            [describe_topic_partitions.TopicRequest(name) for name in TOPICS]
        ),
    )
    yield Question(
        "all partitions",
        apis.DESCRIBE_TOPIC_PARTITIONS,
        describe_topic_partitions.DescribeTopicPartitionsRequest([]),
    )
    yield Question(
        "create",
        apis.CREATE_TOPICS,
        create_topics.CreateTopicsRequest(
            [create_topics.CreatableTopic(name, 1, 1) for name in TOPICS], validate_only=True
        ),
    )
    yield Question(
        "delete by name",
        apis.DELETE_TOPICS,
        delete_topics.DeleteTopicsRequest(
            [delete_topics.DeleteTopicState(name) for name in (HIDDEN, ABSENT, GONE)],
            timeout_ms=10_000,
        ),
    )
    yield Question(
        "delete by id",
        apis.DELETE_TOPICS,
        delete_topics.DeleteTopicsRequest(
            [
                delete_topics.DeleteTopicState(None, topic_id)
                for topic_id in (ids[HIDDEN], UNKNOWN_ID)
            ],
            timeout_ms=10_000,
        ),
    )
    yield Question(
        "add partitions",
        apis.CREATE_PARTITIONS,
        create_partitions.CreatePartitionsRequest(
            [create_partitions.CreatePartitionsTopic(name, 4, None) for name in TOPICS],
            10_000,
            validate_only=True,
        ),
    )
    resources = [
        *((TOPIC_TYPE, name) for name in TOPICS),
        (BROKER_TYPE, "1"),
        (CLIENT_METRICS_TYPE, "metrics"),
        *((GROUP_TYPE, name) for name in GROUPS),
    ]
    yield Question(
        "configs",
        apis.DESCRIBE_CONFIGS,
        describe_configs.DescribeConfigsRequest(
            [
                describe_configs.DescribeConfigsResource(kind, name, ["no.such.config"])
                for kind, name in resources
            ]
        ),
    )
    yield Question(
        "alter configs",
        apis.INCREMENTAL_ALTER_CONFIGS,
        incremental_alter_configs.IncrementalAlterConfigsRequest(
            [
                incremental_alter_configs.AlterConfigsResource(kind, name, [])
                for kind, name in resources
                if name not in (ABSENT, GONE)
            ],
            validate_only=True,
        ),
    )
    yield Question(
        "replace configs",
        apis.ALTER_CONFIGS,
        alter_configs.AlterConfigsRequest(
            [alter_configs.AlterConfigsResource(kind, name, []) for kind, name in resources[:6]],
            validate_only=True,
        ),
    )
    yield Question(
        "log dirs",
        apis.DESCRIBE_LOG_DIRS,
        describe_log_dirs.DescribeLogDirsRequest([]),
    )


def _records(ids: dict[str, UUID]) -> Iterator[Question]:
    for transactional_id in (None, *IDS):
        yield Question(
            f"produce as {transactional_id}",
            apis.PRODUCE,
            produce.ProduceRequest(
                transactional_id,
                -1,
                5_000,
                [
                    produce.TopicProduceData(None, name, [produce.PartitionProduceData(0, b"")])
                    for name in (HIDDEN, GONE)
                ],
            ),
            12,
        )
    yield Question(
        "produce by id",
        apis.PRODUCE,
        produce.ProduceRequest(
            None,
            -1,
            5_000,
            [
                produce.TopicProduceData(topic_id, "", [produce.PartitionProduceData(0, b"")])
                for topic_id in (ids[HIDDEN], UNKNOWN_ID)
            ],
        ),
        13,
    )
    partition = fetch.FetchPartition(0, fetch_offset=0, partition_max_bytes=1_000)
    yield Question(
        "fetch by name",
        apis.FETCH,
        fetch.FetchRequest(topics=[fetch.FetchTopic(None, name, [partition]) for name in TOPICS]),
        12,
    )
    yield Question(
        "fetch by id",
        apis.FETCH,
        fetch.FetchRequest(
            topics=[fetch.FetchTopic(topic_id, "", [partition]) for topic_id in ids.values()]
        ),
        16,
    )
    yield Question(
        "offsets",
        apis.LIST_OFFSETS,
        list_offsets.ListOffsetsRequest(
            -1,
            topics=[
                list_offsets.ListOffsetsTopic(
                    name, [list_offsets.ListOffsetsPartition(0, timestamp=-1)]
                )
                for name in TOPICS
            ],
        ),
        10,
    )
    yield Question(
        "leader epochs",
        apis.OFFSET_FOR_LEADER_EPOCH,
        offset_for_leader_epoch.OffsetForLeaderEpochRequest(
            -1,
            [
                offset_for_leader_epoch.OffsetForLeaderTopic(
                    name, [offset_for_leader_epoch.OffsetForLeaderPartition(0, -1, 0)]
                )
                for name in TOPICS
            ],
        ),
    )
    yield Question(
        "delete records",
        apis.DELETE_RECORDS,
        delete_records.DeleteRecordsRequest(
            [
                delete_records.DeleteRecordsTopic(
                    name, [delete_records.DeleteRecordsPartition(0, 0)]
                )
                for name in TOPICS
            ],
            10_000,
        ),
    )
    yield Question(
        "producers",
        apis.DESCRIBE_PRODUCERS,
        describe_producers.DescribeProducersRequest(
            [describe_producers.TopicRequest(name, [0]) for name in TOPICS]
        ),
    )


def _groups(ids: dict[str, UUID]) -> Iterator[Question]:
    for group in GROUPS:
        yield Question(
            f"commit to {group}",
            apis.OFFSET_COMMIT,
            offset_commit.OffsetCommitRequest(
                group,
                topics=[
                    offset_commit.OffsetCommitRequestTopic(
                        None, name, [offset_commit.OffsetCommitRequestPartition(0, 3)]
                    )
                    for name in TOPICS
                ],
            ),
            9,
        )
        yield Question(
            f"commit by id to {group}",
            apis.OFFSET_COMMIT,
            offset_commit.OffsetCommitRequest(
                group,
                topics=[
                    offset_commit.OffsetCommitRequestTopic(
                        topic_id, "", [offset_commit.OffsetCommitRequestPartition(0, 3)]
                    )
                    for topic_id in (*ids.values(), UNKNOWN_ID)
                ],
            ),
            10,
        )
        yield Question(
            f"sync {group}",
            apis.SYNC_GROUP,
            sync_group.SyncGroupRequest(group, 1, "member", None, "consumer", "range"),
        )
        yield Question(
            f"heartbeat {group}",
            apis.HEARTBEAT,
            heartbeat.HeartbeatRequest(group, 1, "member"),
        )
        yield Question(
            f"leave {group}",
            apis.LEAVE_GROUP,
            leave_group.LeaveGroupRequest(group, [leave_group.MemberIdentity("member")]),
        )
        yield Question(
            f"leave alone {group}",
            apis.LEAVE_GROUP,
            leave_group.LeaveGroupRequest(group, member_id="member"),
            2,
        )
        yield Question(
            f"delete offsets of {group}",
            apis.OFFSET_DELETE,
            offset_delete.OffsetDeleteRequest(
                group,
                [
                    offset_delete.OffsetDeleteRequestTopic(
                        name, [offset_delete.OffsetDeleteRequestPartition(0)]
                    )
                    for name in (HIDDEN, GONE)
                ],
            ),
        )
        yield Question(
            f"consumer of {group}",
            apis.CONSUMER_GROUP_HEARTBEAT,
            consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
                group,
                "AAAAAAAAAAAAAAAAAAAAAA",
                0,
                rebalance_timeout_ms=10_000,
                subscribed_topic_names=[SEEN, HIDDEN],
                topic_partitions=[],
            ),
        )
        yield Question(
            f"share consumer of {group}",
            apis.SHARE_GROUP_HEARTBEAT,
            share_group_heartbeat.ShareGroupHeartbeatRequest(
                group, "AAAAAAAAAAAAAAAAAAAAAA", 0, None, [SEEN, HIDDEN]
            ),
        )
        yield Question(
            f"streams member of {group}",
            apis.STREAMS_GROUP_HEARTBEAT,
            streams_group_heartbeat.StreamsGroupHeartbeatRequest(
                group,
                "AAAAAAAAAAAAAAAAAAAAAA",
                rebalance_timeout_ms=10_000,
                topology=streams_group_heartbeat.Topology(
                    0, [streams_group_heartbeat.Subtopology("0", [SEEN, HIDDEN])]
                ),
                process_id="process",
                task_offsets=None,
                task_end_offsets=None,
            ),
        )
    yield Question(
        "join",
        apis.JOIN_GROUP,
        join_group.JoinGroupRequest(
            GROUPS[1],
            10_000,
            10_000,
            "",
            None,
            "consumer",
            [join_group.JoinGroupRequestProtocol("range", b"")],
        ),
    )
    for version in (1, 7):
        yield Question(
            f"fetch offsets {version}",
            apis.OFFSET_FETCH,
            offset_fetch.OffsetFetchRequest(
                group_id=GROUPS[0],
                topics=[offset_fetch.OffsetFetchRequestTopic(name, [0]) for name in TOPICS],
            ),
            version,
        )
    yield Question(
        "fetch offsets",
        apis.OFFSET_FETCH,
        offset_fetch.OffsetFetchRequest(
            [
                offset_fetch.OffsetFetchRequestGroup(
                    group,
                    topics=[
                        offset_fetch.OffsetFetchRequestTopics(None, name, [0]) for name in TOPICS
                    ],
                )
                for group in GROUPS
            ]
        ),
        9,
    )
    yield Question(
        "fetch offsets by id",
        apis.OFFSET_FETCH,
        offset_fetch.OffsetFetchRequest(
            [
                offset_fetch.OffsetFetchRequestGroup(
                    GROUPS[0],
                    topics=[
                        offset_fetch.OffsetFetchRequestTopics(topic_id, "", [0])
                        for topic_id in (*ids.values(), UNKNOWN_ID)
                    ],
                )
            ]
        ),
        10,
    )
    yield Question(
        "fetch all offsets",
        apis.OFFSET_FETCH,
        offset_fetch.OffsetFetchRequest(
            [offset_fetch.OffsetFetchRequestGroup(group, topics=None) for group in GROUPS]
        ),
        9,
    )
    for key_type, keys in ((0, GROUPS), (1, IDS)):
        for version in (3, 4):
            yield Question(
                f"coordinator {key_type} {version}",
                apis.FIND_COORDINATOR,
                find_coordinator.FindCoordinatorRequest(keys[1], key_type, list(keys)),
                version,
            )
    for version in (0, 5, 6):
        yield Question(
            f"describe groups {version}",
            apis.DESCRIBE_GROUPS,
            describe_groups.DescribeGroupsRequest(list(GROUPS), version >= 3),
            version,
        )
    yield Question("list groups", apis.LIST_GROUPS, list_groups.ListGroupsRequest())
    yield Question(
        "delete groups", apis.DELETE_GROUPS, delete_groups.DeleteGroupsRequest([GROUPS[1]])
    )
    yield Question(
        "describe consumer groups",
        apis.CONSUMER_GROUP_DESCRIBE,
        consumer_group_describe.ConsumerGroupDescribeRequest(list(GROUPS), True),
    )
    yield Question(
        "describe share groups",
        apis.SHARE_GROUP_DESCRIBE,
        share_group_describe.ShareGroupDescribeRequest(list(GROUPS), True),
    )
    yield Question(
        "describe streams groups",
        apis.STREAMS_GROUP_DESCRIBE,
        streams_group_describe.StreamsGroupDescribeRequest(list(GROUPS), True),
    )


def _share_groups(ids: dict[str, UUID]) -> Iterator[Question]:
    for group in GROUPS:
        yield Question(
            f"share fetch of {group}",
            apis.SHARE_FETCH,
            share_fetch.ShareFetchRequest(
                group,
                "AAAAAAAAAAAAAAAAAAAAAA",
                5,
                topics=[
                    share_fetch.FetchTopic(topic_id, [share_fetch.FetchPartition(0)])
                    for topic_id in ids.values()
                ],
            ),
        )
        yield Question(
            f"share acknowledge of {group}",
            apis.SHARE_ACKNOWLEDGE,
            share_acknowledge.ShareAcknowledgeRequest(group, "AAAAAAAAAAAAAAAAAAAAAA", 5),
        )
        yield Question(
            f"share offsets of {group}",
            apis.DESCRIBE_SHARE_GROUP_OFFSETS,
            describe_share_group_offsets.DescribeShareGroupOffsetsRequest(
                [
                    describe_share_group_offsets.DescribeShareGroupOffsetsRequestGroup(
                        group,
                        [
                            describe_share_group_offsets.DescribeShareGroupOffsetsRequestTopic(
                                name, [0]
                            )
                            for name in TOPICS
                        ],
                    )
                ]
            ),
        )
    alter = alter_share_group_offsets
    yield Question(
        "alter share offsets",
        apis.ALTER_SHARE_GROUP_OFFSETS,
        alter.AlterShareGroupOffsetsRequest(
            GROUPS[1],
            [
                alter.AlterShareGroupOffsetsRequestTopic(
                    HIDDEN, [alter.AlterShareGroupOffsetsRequestPartition(0, 0)]
                )
            ],
        ),
    )
    yield Question(
        "delete share offsets",
        apis.DELETE_SHARE_GROUP_OFFSETS,
        delete_share_group_offsets.DeleteShareGroupOffsetsRequest(
            GROUPS[1], [delete_share_group_offsets.DeleteShareGroupOffsetsRequestTopic(HIDDEN)]
        ),
    )


def share_state_questions(topic_id: UUID) -> Iterator[Question]:
    """Yield inter-broker requests about share partitions."""
    group = GROUPS[1]
    yield Question(
        "initialize state",
        apis.INITIALIZE_SHARE_GROUP_STATE,
        initialize_share_group_state.InitializeShareGroupStateRequest(
            group,
            [
                initialize_share_group_state.InitializeStateData(
                    topic_id, [initialize_share_group_state.PartitionData(0, 0, 0)]
                )
            ],
        ),
    )
    yield Question(
        "read state",
        apis.READ_SHARE_GROUP_STATE,
        read_share_group_state.ReadShareGroupStateRequest(
            group,
            [
                read_share_group_state.ReadStateData(
                    topic_id, [read_share_group_state.PartitionData(0, 0)]
                )
            ],
        ),
    )
    yield Question(
        "write state",
        apis.WRITE_SHARE_GROUP_STATE,
        write_share_group_state.WriteShareGroupStateRequest(
            group,
            [
                write_share_group_state.WriteStateData(
                    topic_id, [write_share_group_state.PartitionData(0, 0, 0, 0)]
                )
            ],
        ),
    )
    yield Question(
        "delete state",
        apis.DELETE_SHARE_GROUP_STATE,
        delete_share_group_state.DeleteShareGroupStateRequest(
            group,
            [
                delete_share_group_state.DeleteStateData(
                    topic_id, [delete_share_group_state.PartitionData(0)]
                )
            ],
        ),
    )
    yield Question(
        "state summary",
        apis.READ_SHARE_GROUP_STATE_SUMMARY,
        read_share_group_state_summary.ReadShareGroupStateSummaryRequest(
            group,
            [
                read_share_group_state_summary.ReadStateSummaryData(
                    topic_id, [read_share_group_state_summary.PartitionData(0, 0)]
                )
            ],
        ),
    )


def _transactions() -> Iterator[Question]:
    yield Question(
        "idempotent producer",
        apis.INIT_PRODUCER_ID,
        init_producer_id.InitProducerIdRequest(None, 10_000),
    )
    hidden = IDS[1]
    yield Question(
        "transactional producer",
        apis.INIT_PRODUCER_ID,
        init_producer_id.InitProducerIdRequest(hidden, 10_000),
        5,
    )
    for transactional_id in IDS:
        yield Question(
            f"add partitions as {transactional_id}",
            apis.ADD_PARTITIONS_TO_TXN,
            add_partitions_to_txn.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=transactional_id,
                v3_and_below_producer_id=5,
                v3_and_below_producer_epoch=0,
                v3_and_below_topics=[
                    add_partitions_to_txn.AddPartitionsToTxnTopic(name, [0]) for name in TOPICS
                ],
            ),
            3,
        )
        yield Question(
            f"add offsets as {transactional_id}",
            apis.ADD_OFFSETS_TO_TXN,
            add_offsets_to_txn.AddOffsetsToTxnRequest(transactional_id, 5, 0, GROUPS[1]),
        )
        yield Question(
            f"end as {transactional_id}",
            apis.END_TXN,
            end_txn.EndTxnRequest(transactional_id, 5, 0, committed=True),
        )
        for group in GROUPS:
            yield Question(
                f"commit offsets as {transactional_id} of {group}",
                apis.TXN_OFFSET_COMMIT,
                txn_offset_commit.TxnOffsetCommitRequest(
                    transactional_id,
                    group,
                    5,
                    0,
                    topics=[
                        txn_offset_commit.TxnOffsetCommitRequestTopic(
                            name, [txn_offset_commit.TxnOffsetCommitRequestPartition(0, 1)]
                        )
                        for name in (HIDDEN, GONE)
                    ],
                ),
                4,
            )
    yield Question(
        "verify",
        apis.ADD_PARTITIONS_TO_TXN,
        add_partitions_to_txn.AddPartitionsToTxnRequest(
            [
                add_partitions_to_txn.AddPartitionsToTxnTransaction(
                    hidden,
                    5,
                    0,
                    True,
                    [add_partitions_to_txn.AddPartitionsToTxnTopic(HIDDEN, [0])],
                )
            ]
        ),
        5,
    )
    yield Question(
        "markers",
        apis.WRITE_TXN_MARKERS,
        write_txn_markers.WriteTxnMarkersRequest(
            [
                write_txn_markers.WritableTxnMarker(
                    5, 0, False, [write_txn_markers.WritableTxnMarkerTopic(GONE, [0])], 0
                )
            ]
        ),
        1,
    )
    yield Question(
        "describe transactions",
        apis.DESCRIBE_TRANSACTIONS,
        describe_transactions.DescribeTransactionsRequest(list(IDS)),
    )
    yield Question(
        "list transactions", apis.LIST_TRANSACTIONS, list_transactions.ListTransactionsRequest()
    )


def _cluster() -> Iterator[Question]:
    yield Question(
        "elect",
        apis.ELECT_LEADERS,
        elect_leaders.ElectLeadersRequest(
            0, [elect_leaders.TopicPartitions(name, [0]) for name in (HIDDEN, GONE)], 5_000
        ),
    )
    yield Question(
        "reassign",
        apis.ALTER_PARTITION_REASSIGNMENTS,
        alter_partition_reassignments.AlterPartitionReassignmentsRequest(
            5_000,
            topics=[
                alter_partition_reassignments.ReassignableTopic(
                    GONE, [alter_partition_reassignments.ReassignablePartition(0, [1])]
                )
            ],
        ),
    )
    yield Question(
        "reassignments",
        apis.LIST_PARTITION_REASSIGNMENTS,
        list_partition_reassignments.ListPartitionReassignmentsRequest(5_000, None),
    )
    yield Question(
        "quotas",
        apis.DESCRIBE_CLIENT_QUOTAS,
        describe_client_quotas.DescribeClientQuotasRequest(),
    )
    yield Question(
        "quotas altered",
        apis.ALTER_CLIENT_QUOTAS,
        alter_client_quotas.AlterClientQuotasRequest(
            [
                alter_client_quotas.EntryData(
                    [alter_client_quotas.EntityData("user", "x")],
                    [alter_client_quotas.OpData("producer_byte_rate", 1e6)],
                )
            ],
            validate_only=True,
        ),
    )
    yield Question(
        "credentials",
        apis.DESCRIBE_USER_SCRAM_CREDENTIALS,
        describe_user_scram_credentials.DescribeUserScramCredentialsRequest(
            [describe_user_scram_credentials.UserName("x")]
        ),
    )
    yield Question(
        "quorum",
        apis.DESCRIBE_QUORUM,
        describe_quorum.DescribeQuorumRequest(
            [describe_quorum.TopicData("elsewhere", [describe_quorum.PartitionData(0)])]
        ),
    )
    yield Question(
        "features",
        apis.UPDATE_FEATURES,
        update_features.UpdateFeaturesRequest(
            5_000, [update_features.FeatureUpdateKey("none", 1)], validate_only=True
        ),
    )
    yield Question("cluster", apis.DESCRIBE_CLUSTER, describe_cluster.DescribeClusterRequest(True))
    yield Question(
        "unregister", apis.UNREGISTER_BROKER, unregister_broker.UnregisterBrokerRequest(99)
    )
    for version in (0, 1):
        yield Question(
            f"config resources {version}",
            apis.LIST_CONFIG_RESOURCES,
            list_config_resources.ListConfigResourcesRequest([16] if version else []),
            version,
        )
    yield Question(
        "move log dirs",
        apis.ALTER_REPLICA_LOG_DIRS,
        alter_replica_log_dirs.AlterReplicaLogDirsRequest(
            [
                alter_replica_log_dirs.AlterReplicaLogDir(
                    "/nowhere", [alter_replica_log_dirs.AlterReplicaLogDirTopic(GONE, [0])]
                )
            ]
        ),
    )


def _acls() -> Iterator[Question]:
    yield Question("acls", apis.DESCRIBE_ACLS, everything(), None)
    absent = create_acls.AclCreation(
        ResourceType.TOPIC,
        "",
        PatternType.LITERAL,
        "User:nobody",
        "*",
        Operation.READ,
        Permission.ALLOW,
    )
    yield Question("create acls", apis.CREATE_ACLS, create_acls.CreateAclsRequest([absent]))
    yield Question(
        "delete acls",
        apis.DELETE_ACLS,
        delete_acls.DeleteAclsRequest(
            [
                delete_acls.DeleteAclsFilter(
                    ResourceType.ANY,
                    None,
                    PatternType.ANY,
                    "User:nobody",
                    None,
                    Operation.ANY,
                    Permission.ANY,
                )
            ]
        ),
    )


def everything() -> describe_acls.DescribeAclsRequest:
    return describe_acls.DescribeAclsRequest(
        ResourceType.ANY, None, PatternType.ANY, None, None, Operation.ANY, Permission.ANY
    )
