"""Long requests: of each API that names many things, one with as many as a broker accepts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from broker.wire import apis
from broker.wire.apis import ApiSpec
from broker.wire.gen import (
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_share_group_offsets,
    alter_user_scram_credentials,
    create_acls,
    create_delegation_token,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_share_group_offsets,
    delete_topics,
    describe_configs,
    describe_delegation_token,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_share_group_offsets,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    fetch,
    find_coordinator,
    incremental_alter_configs,
    initialize_share_group_state,
    leave_group,
    list_offsets,
    list_partition_reassignments,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    read_share_group_state,
    share_fetch,
    share_group_describe,
    txn_offset_commit,
    write_share_group_state,
    write_txn_markers,
)
from broker.wire.primitives import REQUEST_ELEMENTS_MAX
from controller.metadata.configs import GROUP_RESOURCE, TOPIC_RESOURCE

ELEMENTS: Final = REQUEST_ELEMENTS_MAX - 1_000
_ID: Final = UUID(int=7)


@dataclass(frozen=True, slots=True)
class LongRequest:
    """make: the request that names so many things. elements: of the request, for each of them."""

    api: ApiSpec
    version: int
    make: Callable[[int], Any]
    elements: int = 1

    @property
    def count(self) -> int:
        return ELEMENTS // self.elements

    def request(self) -> Any:
        return self.make(self.count)


def _names(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


def _ids(count: int) -> list[UUID]:
    return [UUID(int=number + 1) for number in range(count)]


LONG_REQUESTS: Final[Mapping[str, LongRequest]] = {
    "Produce": LongRequest(
        apis.PRODUCE,
        9,
        lambda count: produce.ProduceRequest(
            acks=-1,
            timeout_ms=1_000,
            topic_data=[
                produce.TopicProduceData(
                    name=name, partition_data=[produce.PartitionProduceData(0, b"")]
                )
                for name in _names(count)
            ],
        ),
        2,
    ),
    "Fetch": LongRequest(
        apis.FETCH,
        12,
        lambda count: fetch.FetchRequest(
            topics=[
                fetch.FetchTopic(
                    topic="orders",
                    partitions=[fetch.FetchPartition(index, -1, 0) for index in range(count)],
                )
            ]
        ),
    ),
    "ListOffsets": LongRequest(
        apis.LIST_OFFSETS,
        7,
        lambda count: list_offsets.ListOffsetsRequest(
            -1,
            0,
            [
                list_offsets.ListOffsetsTopic(
                    "orders",
                    [list_offsets.ListOffsetsPartition(index, -1, -1) for index in range(count)],
                )
            ],
        ),
    ),
    "Metadata": LongRequest(
        apis.METADATA,
        12,
        lambda count: metadata.MetadataRequest(
            [metadata.MetadataRequestTopic(name=name) for name in _names(count)],
            allow_auto_topic_creation=False,
        ),
    ),
    "Metadata by id": LongRequest(
        apis.METADATA,
        12,
        lambda count: metadata.MetadataRequest(
            [metadata.MetadataRequestTopic(topic_id, None) for topic_id in _ids(count)],
            allow_auto_topic_creation=False,
        ),
    ),
    "OffsetCommit": LongRequest(
        apis.OFFSET_COMMIT,
        8,
        lambda count: offset_commit.OffsetCommitRequest(
            "g",
            topics=[
                offset_commit.OffsetCommitRequestTopic(
                    name="orders",
                    partitions=[
                        offset_commit.OffsetCommitRequestPartition(index, 1)
                        for index in range(count)
                    ],
                )
            ],
        ),
    ),
    "OffsetFetch": LongRequest(
        apis.OFFSET_FETCH,
        8,
        lambda count: offset_fetch.OffsetFetchRequest(
            [
                offset_fetch.OffsetFetchRequestGroup(
                    "g",
                    topics=[
                        offset_fetch.OffsetFetchRequestTopics(
                            name="orders", partition_indexes=range(count)
                        )
                    ],
                )
            ]
        ),
    ),
    "FindCoordinator": LongRequest(
        apis.FIND_COORDINATOR,
        4,
        lambda count: find_coordinator.FindCoordinatorRequest("", 0, _names(count)),
    ),
    "LeaveGroup": LongRequest(
        apis.LEAVE_GROUP,
        4,
        lambda count: leave_group.LeaveGroupRequest(
            "g", [leave_group.MemberIdentity(name) for name in _names(count)]
        ),
    ),
    "DescribeGroups": LongRequest(
        apis.DESCRIBE_GROUPS,
        5,
        lambda count: describe_groups.DescribeGroupsRequest(_names(count)),
    ),
    "CreateTopics": LongRequest(
        apis.CREATE_TOPICS,
        7,
        lambda count: create_topics.CreateTopicsRequest(
            [
                create_topics.CreatableTopic(
                    name, 1, 1, configs=[create_topics.CreatableTopicConfig("c", None)]
                )
                for name in _names(count)
            ]
        ),
        2,
    ),
    "DeleteTopics": LongRequest(
        apis.DELETE_TOPICS,
        6,
        lambda count: delete_topics.DeleteTopicsRequest(
            [delete_topics.DeleteTopicState(name) for name in _names(count)]
        ),
    ),
    "DeleteRecords": LongRequest(
        apis.DELETE_RECORDS,
        2,
        lambda count: delete_records.DeleteRecordsRequest(
            [
                delete_records.DeleteRecordsTopic(
                    "orders",
                    [delete_records.DeleteRecordsPartition(index) for index in range(1, count)],
                )
            ]
        ),
    ),
    "OffsetForLeaderEpoch": LongRequest(
        apis.OFFSET_FOR_LEADER_EPOCH,
        4,
        lambda count: offset_for_leader_epoch.OffsetForLeaderEpochRequest(
            topics=[
                offset_for_leader_epoch.OffsetForLeaderTopic(
                    name, [offset_for_leader_epoch.OffsetForLeaderPartition()]
                )
                for name in _names(count)
            ]
        ),
        2,
    ),
    "AddPartitionsToTxn": LongRequest(
        apis.ADD_PARTITIONS_TO_TXN,
        3,
        lambda count: add_partitions_to_txn.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="t",
            v3_and_below_topics=[
                add_partitions_to_txn.AddPartitionsToTxnTopic("orders", range(count))
            ],
        ),
    ),
    "WriteTxnMarkers": LongRequest(
        apis.WRITE_TXN_MARKERS,
        1,
        lambda count: write_txn_markers.WriteTxnMarkersRequest(
            [
                write_txn_markers.WritableTxnMarker(
                    1, 1, False, [write_txn_markers.WritableTxnMarkerTopic("orders", range(count))]
                )
            ]
        ),
    ),
    "WriteTxnMarkers of many": LongRequest(
        apis.WRITE_TXN_MARKERS,
        1,
        lambda count: write_txn_markers.WriteTxnMarkersRequest(
            [
                write_txn_markers.WritableTxnMarker(
                    number, 1, False, [write_txn_markers.WritableTxnMarkerTopic("orders", [1])]
                )
                for number in range(count)
            ]
        ),
        3,
    ),
    "TxnOffsetCommit": LongRequest(
        apis.TXN_OFFSET_COMMIT,
        3,
        lambda count: txn_offset_commit.TxnOffsetCommitRequest(
            "t",
            "g",
            topics=[
                txn_offset_commit.TxnOffsetCommitRequestTopic(
                    "orders",
                    [
                        txn_offset_commit.TxnOffsetCommitRequestPartition(index, 1)
                        for index in range(count)
                    ],
                )
            ],
        ),
    ),
    "CreateAcls": LongRequest(
        apis.CREATE_ACLS,
        3,
        lambda count: create_acls.CreateAclsRequest(
            [create_acls.AclCreation(2, name, 3, "User:u", "*", 3, 3) for name in _names(count)]
        ),
    ),
    "DeleteAcls": LongRequest(
        apis.DELETE_ACLS,
        3,
        lambda count: delete_acls.DeleteAclsRequest(
            [
                delete_acls.DeleteAclsFilter(2, name, 3, "User:u", "*", 3, 3)
                for name in _names(count)
            ]
        ),
    ),
    "DescribeConfigs": LongRequest(
        apis.DESCRIBE_CONFIGS,
        4,
        lambda count: describe_configs.DescribeConfigsRequest(
            [
                describe_configs.DescribeConfigsResource(TOPIC_RESOURCE, name, None)
                for name in _names(count)
            ]
        ),
    ),
    "AlterConfigs": LongRequest(
        apis.ALTER_CONFIGS,
        2,
        lambda count: alter_configs.AlterConfigsRequest(
            [
                alter_configs.AlterConfigsResource(
                    TOPIC_RESOURCE, name, [alter_configs.AlterableConfig("retention.ms", None)]
                )
                for name in _names(count)
            ]
        ),
        2,
    ),
    "IncrementalAlterConfigs": LongRequest(
        apis.INCREMENTAL_ALTER_CONFIGS,
        1,
        lambda count: incremental_alter_configs.IncrementalAlterConfigsRequest(
            [
                incremental_alter_configs.AlterConfigsResource(
                    GROUP_RESOURCE,
                    name,
                    [incremental_alter_configs.AlterableConfig("retention.ms", 0, None)],
                )
                for name in _names(count)
            ]
        ),
        2,
    ),
    "DescribeLogDirs": LongRequest(
        apis.DESCRIBE_LOG_DIRS,
        4,
        lambda count: describe_log_dirs.DescribeLogDirsRequest(
            [describe_log_dirs.DescribableLogDirTopic(name, [0]) for name in _names(count)]
        ),
        2,
    ),
    "AlterReplicaLogDirs": LongRequest(
        apis.ALTER_REPLICA_LOG_DIRS,
        2,
        lambda count: alter_replica_log_dirs.AlterReplicaLogDirsRequest(
            [
                alter_replica_log_dirs.AlterReplicaLogDir(
                    "d", [alter_replica_log_dirs.AlterReplicaLogDirTopic("orders", range(count))]
                )
            ]
        ),
    ),
    "CreatePartitions": LongRequest(
        apis.CREATE_PARTITIONS,
        3,
        lambda count: create_partitions.CreatePartitionsRequest(
            [create_partitions.CreatePartitionsTopic(name, 2, None) for name in _names(count)],
            timeout_ms=10_000,
        ),
    ),
    "DeleteGroups": LongRequest(
        apis.DELETE_GROUPS, 2, lambda count: delete_groups.DeleteGroupsRequest(_names(count))
    ),
    "ElectLeaders": LongRequest(
        apis.ELECT_LEADERS,
        2,
        lambda count: elect_leaders.ElectLeadersRequest(
            1, [elect_leaders.TopicPartitions("orders", range(count))]
        ),
    ),
    "AlterPartitionReassignments": LongRequest(
        apis.ALTER_PARTITION_REASSIGNMENTS,
        0,
        lambda count: alter_partition_reassignments.AlterPartitionReassignmentsRequest(
            topics=[
                alter_partition_reassignments.ReassignableTopic(
                    "unknown",
                    [
                        alter_partition_reassignments.ReassignablePartition(index, None)
                        for index in range(count)
                    ],
                )
            ]
        ),
    ),
    "ListPartitionReassignments": LongRequest(
        apis.LIST_PARTITION_REASSIGNMENTS,
        0,
        lambda count: list_partition_reassignments.ListPartitionReassignmentsRequest(
            topics=[
                list_partition_reassignments.ListPartitionReassignmentsTopics("orders", [0])
                for _ in range(count)
            ]
        ),
        2,
    ),
    "OffsetDelete": LongRequest(
        apis.OFFSET_DELETE,
        0,
        lambda count: offset_delete.OffsetDeleteRequest(
            "g",
            [
                offset_delete.OffsetDeleteRequestTopic(
                    "orders",
                    [offset_delete.OffsetDeleteRequestPartition(index) for index in range(count)],
                )
            ],
        ),
    ),
    "AlterClientQuotas": LongRequest(
        apis.ALTER_CLIENT_QUOTAS,
        1,
        lambda count: alter_client_quotas.AlterClientQuotasRequest(
            [
                alter_client_quotas.EntryData(
                    [alter_client_quotas.EntityData("user", name)],
                    [alter_client_quotas.OpData("none", 1.0)],
                )
                for name in _names(count)
            ]
        ),
        3,
    ),
    "DescribeUserScramCredentials": LongRequest(
        apis.DESCRIBE_USER_SCRAM_CREDENTIALS,
        0,
        lambda count: describe_user_scram_credentials.DescribeUserScramCredentialsRequest(
            [describe_user_scram_credentials.UserName(name) for name in _names(count)]
        ),
    ),
    "AlterUserScramCredentials": LongRequest(
        apis.ALTER_USER_SCRAM_CREDENTIALS,
        0,
        lambda count: alter_user_scram_credentials.AlterUserScramCredentialsRequest(
            [
                alter_user_scram_credentials.ScramCredentialDeletion(name, 1)
                for name in _names(count)
            ]
        ),
    ),
    "AlterUserScramCredentials with keys": LongRequest(
        apis.ALTER_USER_SCRAM_CREDENTIALS,
        0,
        lambda count: alter_user_scram_credentials.AlterUserScramCredentialsRequest(
            [],
            [
                alter_user_scram_credentials.ScramCredentialUpsertion(
                    "", 1, 4_096, b"salt", bytes(32)
                )
                for _ in range(count)
            ],
        ),
    ),
    "CreateDelegationToken": LongRequest(
        apis.CREATE_DELEGATION_TOKEN,
        3,
        lambda count: create_delegation_token.CreateDelegationTokenRequest(
            renewers=[
                create_delegation_token.CreatableRenewers("User", name) for name in _names(count)
            ]
        ),
    ),
    "DescribeDelegationToken": LongRequest(
        apis.DESCRIBE_DELEGATION_TOKEN,
        3,
        lambda count: describe_delegation_token.DescribeDelegationTokenRequest(
            [
                describe_delegation_token.DescribeDelegationTokenOwner("User", name)
                for name in _names(count)
            ]
        ),
    ),
    "DescribeProducers": LongRequest(
        apis.DESCRIBE_PRODUCERS,
        0,
        lambda count: describe_producers.DescribeProducersRequest(
            [describe_producers.TopicRequest(name, [0]) for name in _names(count)]
        ),
        2,
    ),
    "DescribeTransactions": LongRequest(
        apis.DESCRIBE_TRANSACTIONS,
        0,
        lambda count: describe_transactions.DescribeTransactionsRequest(_names(count)),
    ),
    "DescribeTopicPartitions": LongRequest(
        apis.DESCRIBE_TOPIC_PARTITIONS,
        0,
        lambda count: describe_topic_partitions.DescribeTopicPartitionsRequest(
            [describe_topic_partitions.TopicRequest(name) for name in _names(count)]
        ),
    ),
    "ShareGroupDescribe": LongRequest(
        apis.SHARE_GROUP_DESCRIBE,
        1,
        lambda count: share_group_describe.ShareGroupDescribeRequest(_names(count)),
    ),
    "ShareFetch": LongRequest(
        apis.SHARE_FETCH,
        1,
        lambda count: share_fetch.ShareFetchRequest(
            "g",
            str(_ID),
            topics=[
                share_fetch.FetchTopic(
                    _ID, [share_fetch.FetchPartition(index) for index in range(count)]
                )
            ],
        ),
    ),
    "InitializeShareGroupState": LongRequest(
        apis.INITIALIZE_SHARE_GROUP_STATE,
        0,
        lambda count: initialize_share_group_state.InitializeShareGroupStateRequest(
            "g",
            [
                initialize_share_group_state.InitializeStateData(
                    topic_id, [initialize_share_group_state.PartitionData()]
                )
                for topic_id in _ids(count)
            ],
        ),
        2,
    ),
    "ReadShareGroupState": LongRequest(
        apis.READ_SHARE_GROUP_STATE,
        0,
        lambda count: read_share_group_state.ReadShareGroupStateRequest(
            "g",
            [
                read_share_group_state.ReadStateData(
                    topic_id, [read_share_group_state.PartitionData()]
                )
                for topic_id in _ids(count)
            ],
        ),
        2,
    ),
    "WriteShareGroupState": LongRequest(
        apis.WRITE_SHARE_GROUP_STATE,
        0,
        lambda count: write_share_group_state.WriteShareGroupStateRequest(
            "g",
            [
                write_share_group_state.WriteStateData(
                    topic_id, [write_share_group_state.PartitionData()]
                )
                for topic_id in _ids(count)
            ],
        ),
        2,
    ),
    "DescribeShareGroupOffsets": LongRequest(
        apis.DESCRIBE_SHARE_GROUP_OFFSETS,
        1,
        lambda count: describe_share_group_offsets.DescribeShareGroupOffsetsRequest(
            [
                describe_share_group_offsets.DescribeShareGroupOffsetsRequestGroup(name, [])
                for name in _names(count)
            ]
        ),
    ),
    "AlterShareGroupOffsets": LongRequest(
        apis.ALTER_SHARE_GROUP_OFFSETS,
        0,
        lambda count: alter_share_group_offsets.AlterShareGroupOffsetsRequest(
            "g",
            [
                alter_share_group_offsets.AlterShareGroupOffsetsRequestTopic(
                    "orders",
                    [
                        alter_share_group_offsets.AlterShareGroupOffsetsRequestPartition(index)
                        for index in range(count)
                    ],
                )
            ],
        ),
    ),
    "DeleteShareGroupOffsets": LongRequest(
        apis.DELETE_SHARE_GROUP_OFFSETS,
        0,
        lambda count: delete_share_group_offsets.DeleteShareGroupOffsetsRequest(
            "g",
            [
                delete_share_group_offsets.DeleteShareGroupOffsetsRequestTopic(name)
                for name in _names(count)
            ],
        ),
    ),
}
