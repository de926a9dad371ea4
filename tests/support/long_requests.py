"""Long requests of each API that accepts lists, with as many elements as a broker accepts."""

from collections.abc import Mapping
from typing import Final

from penstock.controller.metadata.configs import GROUP_RESOURCE, TOPIC_RESOURCE
from penstock.protocol import apis
from penstock.protocol.gen import (
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_user_scram_credentials,
    create_acls,
    create_delegation_token,
    create_partitions,
    create_topics,
    delete_acls,
    delete_records,
    delete_topics,
    describe_configs,
    describe_delegation_token,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    describe_user_scram_credentials,
    elect_leaders,
    fetch,
    incremental_alter_configs,
    list_offsets,
    list_partition_reassignments,
    metadata,
    offset_for_leader_epoch,
    produce,
)
from tests.support.long_group_requests import GROUP_REQUESTS
from tests.support.long_request import UNKNOWN_NODES, LongRequest, ids, names

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
                for name in names(count)
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
    "Fetch of many topics": LongRequest(
        apis.FETCH,
        12,
        lambda count: fetch.FetchRequest(
            topics=[
                fetch.FetchTopic(topic=name, partitions=[fetch.FetchPartition(0, -1, 0)])
                for name in names(count)
            ]
        ),
        2,
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
    "ListOffsets of many topics": LongRequest(
        apis.LIST_OFFSETS,
        7,
        lambda count: list_offsets.ListOffsetsRequest(
            -1,
            0,
            [
                list_offsets.ListOffsetsTopic(name, [list_offsets.ListOffsetsPartition(0, -1, -1)])
                for name in names(count)
            ],
        ),
        2,
    ),
    "Metadata": LongRequest(
        apis.METADATA,
        12,
        lambda count: metadata.MetadataRequest(
            [metadata.MetadataRequestTopic(name=name) for name in names(count)],
            allow_auto_topic_creation=False,
        ),
    ),
    "Metadata by id": LongRequest(
        apis.METADATA,
        12,
        lambda count: metadata.MetadataRequest(
            [metadata.MetadataRequestTopic(topic_id, None) for topic_id in ids(count)],
            allow_auto_topic_creation=False,
        ),
    ),
    "CreateTopics": LongRequest(
        apis.CREATE_TOPICS,
        7,
        lambda count: create_topics.CreateTopicsRequest(
            [
                create_topics.CreatableTopic(
                    name, 1, 1, configs=[create_topics.CreatableTopicConfig("c", None)]
                )
                for name in names(count)
            ]
        ),
        2,
    ),
    "CreateTopics with replicas": LongRequest(
        apis.CREATE_TOPICS,
        7,
        lambda count: create_topics.CreateTopicsRequest(
            [
                create_topics.CreatableTopic(
                    "n",
                    -1,
                    -1,
                    [
                        create_topics.CreatableReplicaAssignment(index, UNKNOWN_NODES)
                        for index in range(count)
                    ],
                )
            ]
        ),
        4,
    ),
    "DeleteTopics": LongRequest(
        apis.DELETE_TOPICS,
        6,
        lambda count: delete_topics.DeleteTopicsRequest(
            [delete_topics.DeleteTopicState(name) for name in names(count)], timeout_ms=10_000
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
                for name in names(count)
            ]
        ),
        2,
    ),
    "CreateAcls": LongRequest(
        apis.CREATE_ACLS,
        3,
        lambda count: create_acls.CreateAclsRequest(
            [create_acls.AclCreation(2, name, 3, "User:u", "*", 3, 3) for name in names(count)]
        ),
    ),
    "DeleteAcls": LongRequest(
        apis.DELETE_ACLS,
        3,
        lambda count: delete_acls.DeleteAclsRequest(
            [delete_acls.DeleteAclsFilter(2, name, 3, "User:u", "*", 3, 3) for name in names(count)]
        ),
    ),
    "DescribeConfigs": LongRequest(
        apis.DESCRIBE_CONFIGS,
        4,
        lambda count: describe_configs.DescribeConfigsRequest(
            [
                describe_configs.DescribeConfigsResource(TOPIC_RESOURCE, name, None)
                for name in names(count)
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
                for name in names(count)
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
                for name in names(count)
            ]
        ),
        2,
    ),
    "DescribeLogDirs": LongRequest(
        apis.DESCRIBE_LOG_DIRS,
        4,
        lambda count: describe_log_dirs.DescribeLogDirsRequest(
            [describe_log_dirs.DescribableLogDirTopic(name, [0]) for name in names(count)]
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
            [create_partitions.CreatePartitionsTopic(name, 2, None) for name in names(count)],
            timeout_ms=10_000,
        ),
    ),
    "CreatePartitions with replicas": LongRequest(
        apis.CREATE_PARTITIONS,
        3,
        lambda count: create_partitions.CreatePartitionsRequest(
            [
                create_partitions.CreatePartitionsTopic(
                    "orders",
                    count + 1,
                    [
                        create_partitions.CreatePartitionsAssignment(UNKNOWN_NODES)
                        for _ in range(count)
                    ],
                )
            ],
            timeout_ms=10_000,
        ),
        4,
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
    "AlterPartitionReassignments with replicas": LongRequest(
        apis.ALTER_PARTITION_REASSIGNMENTS,
        0,
        lambda count: alter_partition_reassignments.AlterPartitionReassignmentsRequest(
            topics=[
                alter_partition_reassignments.ReassignableTopic(
                    "unknown",
                    [
                        alter_partition_reassignments.ReassignablePartition(index, UNKNOWN_NODES)
                        for index in range(count)
                    ],
                )
            ]
        ),
        4,
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
    "AlterClientQuotas": LongRequest(
        apis.ALTER_CLIENT_QUOTAS,
        1,
        lambda count: alter_client_quotas.AlterClientQuotasRequest(
            [
                alter_client_quotas.EntryData(
                    [alter_client_quotas.EntityData("user", name)],
                    [alter_client_quotas.OpData("none", 1.0)],
                )
                for name in names(count)
            ]
        ),
        3,
    ),
    "DescribeUserScramCredentials": LongRequest(
        apis.DESCRIBE_USER_SCRAM_CREDENTIALS,
        0,
        lambda count: describe_user_scram_credentials.DescribeUserScramCredentialsRequest(
            [describe_user_scram_credentials.UserName(name) for name in names(count)]
        ),
    ),
    "AlterUserScramCredentials": LongRequest(
        apis.ALTER_USER_SCRAM_CREDENTIALS,
        0,
        lambda count: alter_user_scram_credentials.AlterUserScramCredentialsRequest(
            [alter_user_scram_credentials.ScramCredentialDeletion(name, 1) for name in names(count)]
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
                create_delegation_token.CreatableRenewers("User", name) for name in names(count)
            ]
        ),
    ),
    "DescribeDelegationToken": LongRequest(
        apis.DESCRIBE_DELEGATION_TOKEN,
        3,
        lambda count: describe_delegation_token.DescribeDelegationTokenRequest(
            [
                describe_delegation_token.DescribeDelegationTokenOwner("User", name)
                for name in names(count)
            ]
        ),
    ),
    "DescribeProducers": LongRequest(
        apis.DESCRIBE_PRODUCERS,
        0,
        lambda count: describe_producers.DescribeProducersRequest(
            [describe_producers.TopicRequest(name, [0]) for name in names(count)]
        ),
        2,
    ),
    "DescribeTopicPartitions": LongRequest(
        apis.DESCRIBE_TOPIC_PARTITIONS,
        0,
        lambda count: describe_topic_partitions.DescribeTopicPartitionsRequest(
            [describe_topic_partitions.TopicRequest(name) for name in names(count)]
        ),
    ),
    **GROUP_REQUESTS,
}
