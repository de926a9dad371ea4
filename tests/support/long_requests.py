"""Long requests of each API that accepts lists, with as many elements as a broker accepts."""

from collections.abc import Mapping
from typing import Final

from penstock.controller.metadata.configs import GROUP_RESOURCE, TOPIC_RESOURCE
from penstock.protocol import apis
from tests.support.long_group_requests import GROUP_REQUESTS
from tests.support.long_request import UNKNOWN_NODES, LongRequest, ids, names

LONG_REQUESTS: Final[Mapping[str, LongRequest]] = {
    "Produce": LongRequest(
        apis.PRODUCE,
        9,
        lambda count: {
            "acks": -1,
            "timeout_ms": 1_000,
            "topic_data": [
                {"name": name, "partition_data": [{"index": 0, "records": b""}]}
                for name in names(count)
            ],
        },
        2,
    ),
    "Fetch": LongRequest(
        apis.FETCH,
        12,
        lambda count: {
            "topics": [
                {
                    "topic": "orders",
                    "partitions": [
                        {"partition": index, "fetch_offset": 0} for index in range(count)
                    ],
                }
            ]
        },
    ),
    "Fetch of many topics": LongRequest(
        apis.FETCH,
        12,
        lambda count: {
            "topics": [
                {"topic": name, "partitions": [{"partition": 0, "fetch_offset": 0}]}
                for name in names(count)
            ]
        },
        2,
    ),
    "ListOffsets": LongRequest(
        apis.LIST_OFFSETS,
        7,
        lambda count: {
            "replica_id": -1,
            "topics": [
                {
                    "name": "orders",
                    "partitions": [
                        {"partition_index": index, "timestamp": -1} for index in range(count)
                    ],
                }
            ],
        },
    ),
    "ListOffsets of many topics": LongRequest(
        apis.LIST_OFFSETS,
        7,
        lambda count: {
            "replica_id": -1,
            "topics": [
                {"name": name, "partitions": [{"partition_index": 0, "timestamp": -1}]}
                for name in names(count)
            ],
        },
        2,
    ),
    "Metadata": LongRequest(
        apis.METADATA,
        12,
        lambda count: {
            "topics": [{"name": name} for name in names(count)],
            "allow_auto_topic_creation": False,
        },
    ),
    "Metadata by id": LongRequest(
        apis.METADATA,
        12,
        lambda count: {
            "topics": [{"topic_id": topic_id, "name": None} for topic_id in ids(count)],
            "allow_auto_topic_creation": False,
        },
    ),
    "CreateTopics": LongRequest(
        apis.CREATE_TOPICS,
        7,
        lambda count: {
            "topics": [
                {
                    "name": name,
                    "num_partitions": 1,
                    "replication_factor": 1,
                    "configs": [{"name": "c", "value": None}],
                }
                for name in names(count)
            ]
        },
        2,
    ),
    "CreateTopics with replicas": LongRequest(
        apis.CREATE_TOPICS,
        7,
        lambda count: {
            "topics": [
                {
                    "name": "n",
                    "num_partitions": -1,
                    "replication_factor": -1,
                    "assignments": [
                        {"partition_index": index, "broker_ids": UNKNOWN_NODES}
                        for index in range(count)
                    ],
                }
            ]
        },
        4,
    ),
    "DeleteTopics": LongRequest(
        apis.DELETE_TOPICS,
        6,
        lambda count: {"topics": [{"name": name} for name in names(count)], "timeout_ms": 10_000},
    ),
    "DeleteRecords": LongRequest(
        apis.DELETE_RECORDS,
        2,
        lambda count: {
            "topics": [
                {
                    "name": "orders",
                    "partitions": [{"partition_index": index} for index in range(1, count)],
                }
            ]
        },
    ),
    "OffsetForLeaderEpoch": LongRequest(
        apis.OFFSET_FOR_LEADER_EPOCH,
        4,
        lambda count: {"topics": [{"topic": name, "partitions": [{}]} for name in names(count)]},
        2,
    ),
    "CreateAcls": LongRequest(
        apis.CREATE_ACLS,
        3,
        lambda count: {
            "creations": [
                {
                    "resource_type": 2,
                    "resource_name": name,
                    "principal": "User:u",
                    "host": "*",
                    "operation": 3,
                    "permission_type": 3,
                }
                for name in names(count)
            ]
        },
    ),
    "DeleteAcls": LongRequest(
        apis.DELETE_ACLS,
        3,
        lambda count: {
            "filters": [
                {
                    "resource_type_filter": 2,
                    "resource_name_filter": name,
                    "principal_filter": "User:u",
                    "host_filter": "*",
                    "operation": 3,
                    "permission_type": 3,
                }
                for name in names(count)
            ]
        },
    ),
    "DescribeConfigs": LongRequest(
        apis.DESCRIBE_CONFIGS,
        4,
        lambda count: {
            "resources": [
                {"resource_type": TOPIC_RESOURCE, "resource_name": name, "configuration_keys": None}
                for name in names(count)
            ]
        },
    ),
    "AlterConfigs": LongRequest(
        apis.ALTER_CONFIGS,
        2,
        lambda count: {
            "resources": [
                {
                    "resource_type": TOPIC_RESOURCE,
                    "resource_name": name,
                    "configs": [{"name": "retention.ms", "value": None}],
                }
                for name in names(count)
            ]
        },
        2,
    ),
    "IncrementalAlterConfigs": LongRequest(
        apis.INCREMENTAL_ALTER_CONFIGS,
        1,
        lambda count: {
            "resources": [
                {
                    "resource_type": GROUP_RESOURCE,
                    "resource_name": name,
                    "configs": [{"name": "retention.ms", "value": None}],
                }
                for name in names(count)
            ]
        },
        2,
    ),
    "DescribeLogDirs": LongRequest(
        apis.DESCRIBE_LOG_DIRS,
        4,
        lambda count: {"topics": [{"topic": name, "partitions": [0]} for name in names(count)]},
        2,
    ),
    "AlterReplicaLogDirs": LongRequest(
        apis.ALTER_REPLICA_LOG_DIRS,
        2,
        lambda count: {
            "dirs": [{"path": "d", "topics": [{"name": "orders", "partitions": range(count)}]}]
        },
    ),
    "CreatePartitions": LongRequest(
        apis.CREATE_PARTITIONS,
        3,
        lambda count: {
            "topics": [{"name": name, "count": 2, "assignments": None} for name in names(count)],
            "timeout_ms": 10_000,
        },
    ),
    "CreatePartitions with replicas": LongRequest(
        apis.CREATE_PARTITIONS,
        3,
        lambda count: {
            "topics": [
                {
                    "name": "orders",
                    "count": count + 1,
                    "assignments": [{"broker_ids": UNKNOWN_NODES} for _ in range(count)],
                }
            ],
            "timeout_ms": 10_000,
        },
        4,
    ),
    "ElectLeaders": LongRequest(
        apis.ELECT_LEADERS,
        2,
        lambda count: {
            "election_type": 1,
            "topic_partitions": [{"topic": "orders", "partitions": range(count)}],
        },
    ),
    "AlterPartitionReassignments": LongRequest(
        apis.ALTER_PARTITION_REASSIGNMENTS,
        0,
        lambda count: {
            "topics": [
                {
                    "name": "unknown",
                    "partitions": [{"partition_index": index} for index in range(count)],
                }
            ]
        },
    ),
    "AlterPartitionReassignments with replicas": LongRequest(
        apis.ALTER_PARTITION_REASSIGNMENTS,
        0,
        lambda count: {
            "topics": [
                {
                    "name": "unknown",
                    "partitions": [
                        {"partition_index": index, "replicas": UNKNOWN_NODES}
                        for index in range(count)
                    ],
                }
            ]
        },
        4,
    ),
    "ListPartitionReassignments": LongRequest(
        apis.LIST_PARTITION_REASSIGNMENTS,
        0,
        lambda count: {
            "topics": [{"name": "orders", "partition_indexes": [0]} for _ in range(count)]
        },
        2,
    ),
    "AlterClientQuotas": LongRequest(
        apis.ALTER_CLIENT_QUOTAS,
        1,
        lambda count: {
            "entries": [
                {
                    "entity": [{"entity_type": "user", "entity_name": name}],
                    "ops": [{"key": "none", "value": 1.0}],
                }
                for name in names(count)
            ]
        },
        3,
    ),
    "DescribeUserScramCredentials": LongRequest(
        apis.DESCRIBE_USER_SCRAM_CREDENTIALS,
        0,
        lambda count: {"users": [{"name": name} for name in names(count)]},
    ),
    "AlterUserScramCredentials": LongRequest(
        apis.ALTER_USER_SCRAM_CREDENTIALS,
        0,
        lambda count: {"deletions": [{"name": name, "mechanism": 1} for name in names(count)]},
    ),
    "AlterUserScramCredentials with keys": LongRequest(
        apis.ALTER_USER_SCRAM_CREDENTIALS,
        0,
        lambda count: {
            "deletions": [],
            "upsertions": [
                {"mechanism": 1, "iterations": 4_096, "salt": b"salt", "salted_password": bytes(32)}
                for _ in range(count)
            ],
        },
    ),
    "CreateDelegationToken": LongRequest(
        apis.CREATE_DELEGATION_TOKEN,
        3,
        lambda count: {
            "renewers": [
                {"principal_type": "User", "principal_name": name} for name in names(count)
            ]
        },
    ),
    "DescribeDelegationToken": LongRequest(
        apis.DESCRIBE_DELEGATION_TOKEN,
        3,
        lambda count: {
            "owners": [{"principal_type": "User", "principal_name": name} for name in names(count)]
        },
    ),
    "DescribeProducers": LongRequest(
        apis.DESCRIBE_PRODUCERS,
        0,
        lambda count: {
            "topics": [{"name": name, "partition_indexes": [0]} for name in names(count)]
        },
        2,
    ),
    "DescribeTopicPartitions": LongRequest(
        apis.DESCRIBE_TOPIC_PARTITIONS,
        0,
        lambda count: {"topics": [{"name": name} for name in names(count)]},
    ),
    **GROUP_REQUESTS,
}
