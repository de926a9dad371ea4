"""Long requests of group, transaction and share group APIs."""

from collections.abc import Mapping
from typing import Final

from penstock.protocol import apis
from tests.support.long_request import ID, LongRequest, ids, names

GROUP_REQUESTS: Final[Mapping[str, LongRequest]] = {
    "OffsetCommit": LongRequest(
        apis.OFFSET_COMMIT,
        8,
        lambda count: {
            "group_id": "g",
            "topics": [
                {
                    "name": "orders",
                    "partitions": [
                        {"partition_index": index, "committed_offset": 1} for index in range(count)
                    ],
                }
            ],
        },
    ),
    "OffsetFetch": LongRequest(
        apis.OFFSET_FETCH,
        8,
        lambda count: {
            "groups": [
                {"group_id": "g", "topics": [{"name": "orders", "partition_indexes": range(count)}]}
            ]
        },
    ),
    "OffsetFetch of many groups": LongRequest(
        apis.OFFSET_FETCH,
        8,
        lambda count: {"groups": [{"group_id": name, "topics": None} for name in names(count)]},
    ),
    "FindCoordinator": LongRequest(
        apis.FIND_COORDINATOR,
        4,
        lambda count: {"coordinator_keys": names(count)},
    ),
    "LeaveGroup": LongRequest(
        apis.LEAVE_GROUP,
        4,
        lambda count: {"group_id": "g", "members": [{"member_id": name} for name in names(count)]},
    ),
    "DescribeGroups": LongRequest(
        apis.DESCRIBE_GROUPS,
        5,
        lambda count: {"groups": names(count)},
    ),
    "ConsumerGroupDescribe": LongRequest(
        apis.CONSUMER_GROUP_DESCRIBE,
        1,
        lambda count: {"group_ids": names(count)},
    ),
    "DeleteGroups": LongRequest(
        apis.DELETE_GROUPS, 2, lambda count: {"groups_names": names(count)}
    ),
    "OffsetDelete": LongRequest(
        apis.OFFSET_DELETE,
        0,
        lambda count: {
            "group_id": "g",
            "topics": [
                {
                    "name": "orders",
                    "partitions": [{"partition_index": index} for index in range(count)],
                }
            ],
        },
    ),
    "AddPartitionsToTxn": LongRequest(
        apis.ADD_PARTITIONS_TO_TXN,
        3,
        lambda count: {
            "v3_and_below_transactional_id": "t",
            "v3_and_below_topics": [{"name": "orders", "partitions": range(count)}],
        },
    ),
    "AddPartitionsToTxn of brokers": LongRequest(
        apis.ADD_PARTITIONS_TO_TXN,
        5,
        lambda count: {
            "transactions": [
                {
                    "transactional_id": name,
                    "producer_id": 1,
                    "producer_epoch": 1,
                    "verify_only": True,
                    "topics": [{"name": "orders", "partitions": [0]}],
                }
                for name in names(count)
            ]
        },
        3,
    ),
    "WriteTxnMarkers": LongRequest(
        apis.WRITE_TXN_MARKERS,
        1,
        lambda count: {
            "markers": [
                {
                    "producer_id": 1,
                    "producer_epoch": 1,
                    "topics": [{"name": "orders", "partition_indexes": range(count)}],
                }
            ]
        },
    ),
    "WriteTxnMarkers of many": LongRequest(
        apis.WRITE_TXN_MARKERS,
        1,
        lambda count: {
            "markers": [
                {
                    "producer_id": number,
                    "producer_epoch": 1,
                    "topics": [{"name": "orders", "partition_indexes": [1]}],
                }
                for number in range(count)
            ]
        },
        3,
    ),
    "TxnOffsetCommit": LongRequest(
        apis.TXN_OFFSET_COMMIT,
        3,
        lambda count: {
            "transactional_id": "t",
            "group_id": "g",
            "topics": [
                {
                    "name": "orders",
                    "partitions": [
                        {"partition_index": index, "committed_offset": 1} for index in range(count)
                    ],
                }
            ],
        },
    ),
    "DescribeTransactions": LongRequest(
        apis.DESCRIBE_TRANSACTIONS,
        0,
        lambda count: {"transactional_ids": names(count)},
    ),
    "ShareGroupDescribe": LongRequest(
        apis.SHARE_GROUP_DESCRIBE,
        1,
        lambda count: {"group_ids": names(count)},
    ),
    "StreamsGroupHeartbeat": LongRequest(
        apis.STREAMS_GROUP_HEARTBEAT,
        0,
        lambda count: {
            "group_id": "g",
            "member_id": "m",
            "rebalance_timeout_ms": 1_000,
            "topology": {
                "epoch": 0,
                "subtopologies": [
                    {"subtopology_id": name, "source_topics": [name, f"{name}-table"]}
                    for name in names(count)
                ],
            },
            "process_id": "p",
            "task_offsets": None,
            "task_end_offsets": None,
        },
        3,
    ),
    "StreamsGroupDescribe": LongRequest(
        apis.STREAMS_GROUP_DESCRIBE,
        0,
        lambda count: {"group_ids": names(count)},
    ),
    "ShareFetch": LongRequest(
        apis.SHARE_FETCH,
        1,
        lambda count: {
            "group_id": "g",
            "member_id": str(ID),
            "topics": [
                {
                    "topic_id": ID,
                    "partitions": [{"partition_index": index} for index in range(count)],
                }
            ],
        },
    ),
    "ShareAcknowledge": LongRequest(
        apis.SHARE_ACKNOWLEDGE,
        1,
        lambda count: {
            "group_id": "g",
            "member_id": str(ID),
            "topics": [
                {
                    "topic_id": ID,
                    "partitions": [{"partition_index": index} for index in range(count)],
                }
            ],
        },
    ),
    "InitializeShareGroupState": LongRequest(
        apis.INITIALIZE_SHARE_GROUP_STATE,
        0,
        lambda count: {
            "group_id": "g",
            "topics": [{"topic_id": topic_id, "partitions": [{}]} for topic_id in ids(count)],
        },
        2,
    ),
    "ReadShareGroupState": LongRequest(
        apis.READ_SHARE_GROUP_STATE,
        0,
        lambda count: {
            "group_id": "g",
            "topics": [{"topic_id": topic_id, "partitions": [{}]} for topic_id in ids(count)],
        },
        2,
    ),
    "WriteShareGroupState": LongRequest(
        apis.WRITE_SHARE_GROUP_STATE,
        0,
        lambda count: {
            "group_id": "g",
            "topics": [{"topic_id": topic_id, "partitions": [{}]} for topic_id in ids(count)],
        },
        2,
    ),
    "DeleteShareGroupState": LongRequest(
        apis.DELETE_SHARE_GROUP_STATE,
        0,
        lambda count: {
            "group_id": "g",
            "topics": [
                {"topic_id": ID, "partitions": [{"partition": index} for index in range(count)]}
            ],
        },
    ),
    "ReadShareGroupStateSummary": LongRequest(
        apis.READ_SHARE_GROUP_STATE_SUMMARY,
        0,
        lambda count: {
            "group_id": "g",
            "topics": [
                {"topic_id": ID, "partitions": [{"partition": index} for index in range(count)]}
            ],
        },
    ),
    "DescribeShareGroupOffsets": LongRequest(
        apis.DESCRIBE_SHARE_GROUP_OFFSETS,
        1,
        lambda count: {"groups": [{"group_id": name, "topics": []} for name in names(count)]},
    ),
    "DescribeShareGroupOffsets of partitions": LongRequest(
        apis.DESCRIBE_SHARE_GROUP_OFFSETS,
        1,
        lambda count: {
            "groups": [
                {"group_id": name, "topics": [{"topic_name": "orders", "partitions": [0]}]}
                for name in names(count)
            ]
        },
        3,
    ),
    "AlterShareGroupOffsets": LongRequest(
        apis.ALTER_SHARE_GROUP_OFFSETS,
        0,
        lambda count: {
            "group_id": "g",
            "topics": [
                {
                    "topic_name": "orders",
                    "partitions": [{"partition_index": index} for index in range(count)],
                }
            ],
        },
    ),
    "DeleteShareGroupOffsets": LongRequest(
        apis.DELETE_SHARE_GROUP_OFFSETS,
        0,
        lambda count: {"group_id": "g", "topics": [{"topic_name": name} for name in names(count)]},
    ),
}
