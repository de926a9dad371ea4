"""Long requests of group, transaction and share group APIs."""

from collections.abc import Mapping
from typing import Final

from penstock.protocol import apis
from penstock.protocol.gen import (
    add_partitions_to_txn,
    alter_share_group_offsets,
    consumer_group_describe,
    delete_groups,
    delete_share_group_offsets,
    delete_share_group_state,
    describe_groups,
    describe_share_group_offsets,
    describe_transactions,
    find_coordinator,
    initialize_share_group_state,
    leave_group,
    offset_commit,
    offset_delete,
    offset_fetch,
    read_share_group_state,
    read_share_group_state_summary,
    share_acknowledge,
    share_fetch,
    share_group_describe,
    streams_group_describe,
    streams_group_heartbeat,
    txn_offset_commit,
    write_share_group_state,
    write_txn_markers,
)
from tests.support.long_request import ID, LongRequest, ids, names

GROUP_REQUESTS: Final[Mapping[str, LongRequest]] = {
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
    "OffsetFetch of many groups": LongRequest(
        apis.OFFSET_FETCH,
        8,
        lambda count: offset_fetch.OffsetFetchRequest(
            [offset_fetch.OffsetFetchRequestGroup(name, topics=None) for name in names(count)]
        ),
    ),
    "FindCoordinator": LongRequest(
        apis.FIND_COORDINATOR,
        4,
        lambda count: find_coordinator.FindCoordinatorRequest("", 0, names(count)),
    ),
    "LeaveGroup": LongRequest(
        apis.LEAVE_GROUP,
        4,
        lambda count: leave_group.LeaveGroupRequest(
            "g", [leave_group.MemberIdentity(name) for name in names(count)]
        ),
    ),
    "DescribeGroups": LongRequest(
        apis.DESCRIBE_GROUPS,
        5,
        lambda count: describe_groups.DescribeGroupsRequest(names(count)),
    ),
    "ConsumerGroupDescribe": LongRequest(
        apis.CONSUMER_GROUP_DESCRIBE,
        1,
        lambda count: consumer_group_describe.ConsumerGroupDescribeRequest(names(count)),
    ),
    "DeleteGroups": LongRequest(
        apis.DELETE_GROUPS, 2, lambda count: delete_groups.DeleteGroupsRequest(names(count))
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
    "AddPartitionsToTxn of brokers": LongRequest(
        apis.ADD_PARTITIONS_TO_TXN,
        5,
        lambda count: add_partitions_to_txn.AddPartitionsToTxnRequest(
            [
                add_partitions_to_txn.AddPartitionsToTxnTransaction(
                    name,
                    1,
                    1,
                    True,
                    [add_partitions_to_txn.AddPartitionsToTxnTopic("orders", [0])],
                )
                for name in names(count)
            ]
        ),
        3,
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
    "DescribeTransactions": LongRequest(
        apis.DESCRIBE_TRANSACTIONS,
        0,
        lambda count: describe_transactions.DescribeTransactionsRequest(names(count)),
    ),
    "ShareGroupDescribe": LongRequest(
        apis.SHARE_GROUP_DESCRIBE,
        1,
        lambda count: share_group_describe.ShareGroupDescribeRequest(names(count)),
    ),
    "StreamsGroupHeartbeat": LongRequest(
        apis.STREAMS_GROUP_HEARTBEAT,
        0,
        lambda count: streams_group_heartbeat.StreamsGroupHeartbeatRequest(
            "g",
            "m",
            rebalance_timeout_ms=1_000,
            topology=streams_group_heartbeat.Topology(
                0,
                [
                    streams_group_heartbeat.Subtopology(name, [name, f"{name}-table"])
                    for name in names(count)
                ],
            ),
            process_id="p",
            task_offsets=None,
            task_end_offsets=None,
        ),
        3,
    ),
    "StreamsGroupDescribe": LongRequest(
        apis.STREAMS_GROUP_DESCRIBE,
        0,
        lambda count: streams_group_describe.StreamsGroupDescribeRequest(names(count)),
    ),
    "ShareFetch": LongRequest(
        apis.SHARE_FETCH,
        1,
        lambda count: share_fetch.ShareFetchRequest(
            "g",
            str(ID),
            topics=[
                share_fetch.FetchTopic(
                    ID, [share_fetch.FetchPartition(index) for index in range(count)]
                )
            ],
        ),
    ),
    "ShareAcknowledge": LongRequest(
        apis.SHARE_ACKNOWLEDGE,
        1,
        lambda count: share_acknowledge.ShareAcknowledgeRequest(
            "g",
            str(ID),
            topics=[
                share_acknowledge.AcknowledgeTopic(
                    ID, [share_acknowledge.AcknowledgePartition(index) for index in range(count)]
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
                for topic_id in ids(count)
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
                for topic_id in ids(count)
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
                for topic_id in ids(count)
            ],
        ),
        2,
    ),
    "DeleteShareGroupState": LongRequest(
        apis.DELETE_SHARE_GROUP_STATE,
        0,
        lambda count: delete_share_group_state.DeleteShareGroupStateRequest(
            "g",
            [
                delete_share_group_state.DeleteStateData(
                    ID,
                    [delete_share_group_state.PartitionData(index) for index in range(count)],
                )
            ],
        ),
    ),
    "ReadShareGroupStateSummary": LongRequest(
        apis.READ_SHARE_GROUP_STATE_SUMMARY,
        0,
        lambda count: read_share_group_state_summary.ReadShareGroupStateSummaryRequest(
            "g",
            [
                read_share_group_state_summary.ReadStateSummaryData(
                    ID,
                    [read_share_group_state_summary.PartitionData(index) for index in range(count)],
                )
            ],
        ),
    ),
    "DescribeShareGroupOffsets": LongRequest(
        apis.DESCRIBE_SHARE_GROUP_OFFSETS,
        1,
        lambda count: describe_share_group_offsets.DescribeShareGroupOffsetsRequest(
            [
                describe_share_group_offsets.DescribeShareGroupOffsetsRequestGroup(name, [])
                for name in names(count)
            ]
        ),
    ),
    "DescribeShareGroupOffsets of partitions": LongRequest(
        apis.DESCRIBE_SHARE_GROUP_OFFSETS,
        1,
        lambda count: describe_share_group_offsets.DescribeShareGroupOffsetsRequest(
            [
                describe_share_group_offsets.DescribeShareGroupOffsetsRequestGroup(
                    name,
                    [
                        describe_share_group_offsets.DescribeShareGroupOffsetsRequestTopic(
                            "orders", [0]
                        )
                    ],
                )
                for name in names(count)
            ]
        ),
        3,
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
                for name in names(count)
            ],
        ),
    ),
}
