"""The supported Kafka APIs: keys, names, versions. ApiVersions, parsing and code generation share
this table. Every listed version can be parsed, with two exceptions: like Kafka 4, brokers list
Produce from version 0 although they serve only 3 and later (KAFKA-18659: otherwise, older
librdkafka stops compressing). A request with an unserved version closes the connection.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class ApiSpec:
    """One API. `module` is the name of its codec in `protocol.gen`."""

    key: int
    name: str
    module: str
    announced_min: int
    served_min: int
    max: int
    flexible_from: int

    @property
    def codec(self) -> Any:  # noqa: ANN401 - messages have their own types
        """The module in `protocol.gen`, imported on first use. `protocol.codecs` imports all of
        them.
        """
        return import_module(f"penstock.protocol.gen.{self.module}")

    def serves(self, version: int) -> bool:
        return self.served_min <= version <= self.max

    def is_flexible(self, version: int) -> bool:
        """Return True if this version uses compact lengths, tagged fields and request header v2."""
        return version >= self.flexible_from


_declared: list[ApiSpec] = []


def _api(
    key: int,
    name: str,
    module: str,
    versions: tuple[int, int],
    flexible_from: int,
    *,
    served_min: int | None = None,
) -> ApiSpec:
    announced_min, maximum = versions
    served = announced_min if served_min is None else served_min
    api = ApiSpec(key, name, module, announced_min, served, maximum, flexible_from)
    _declared.append(api)
    return api


PRODUCE: Final = _api(0, "Produce", "produce", (0, 13), 9, served_min=3)
FETCH: Final = _api(1, "Fetch", "fetch", (4, 18), 12)
LIST_OFFSETS: Final = _api(2, "ListOffsets", "list_offsets", (1, 11), 6)
METADATA: Final = _api(3, "Metadata", "metadata", (0, 13), 9)
OFFSET_COMMIT: Final = _api(8, "OffsetCommit", "offset_commit", (2, 10), 8)
OFFSET_FETCH: Final = _api(9, "OffsetFetch", "offset_fetch", (1, 10), 6)
FIND_COORDINATOR: Final = _api(10, "FindCoordinator", "find_coordinator", (0, 6), 3)
JOIN_GROUP: Final = _api(11, "JoinGroup", "join_group", (0, 9), 6)
HEARTBEAT: Final = _api(12, "Heartbeat", "heartbeat", (0, 4), 4)
LEAVE_GROUP: Final = _api(13, "LeaveGroup", "leave_group", (0, 5), 4)
SYNC_GROUP: Final = _api(14, "SyncGroup", "sync_group", (0, 5), 4)
DESCRIBE_GROUPS: Final = _api(15, "DescribeGroups", "describe_groups", (0, 6), 5)
LIST_GROUPS: Final = _api(16, "ListGroups", "list_groups", (0, 5), 3)
SASL_HANDSHAKE: Final = _api(17, "SaslHandshake", "sasl_handshake", (0, 1), 2)
API_VERSIONS: Final = _api(18, "ApiVersions", "api_versions", (0, 4), 3)
CREATE_TOPICS: Final = _api(19, "CreateTopics", "create_topics", (2, 7), 5)
DELETE_TOPICS: Final = _api(20, "DeleteTopics", "delete_topics", (1, 6), 4)
DELETE_RECORDS: Final = _api(21, "DeleteRecords", "delete_records", (0, 2), 2)
INIT_PRODUCER_ID: Final = _api(22, "InitProducerId", "init_producer_id", (0, 5), 2)
OFFSET_FOR_LEADER_EPOCH: Final = _api(
    23, "OffsetForLeaderEpoch", "offset_for_leader_epoch", (2, 4), 4
)
ADD_PARTITIONS_TO_TXN: Final = _api(24, "AddPartitionsToTxn", "add_partitions_to_txn", (0, 5), 3)
ADD_OFFSETS_TO_TXN: Final = _api(25, "AddOffsetsToTxn", "add_offsets_to_txn", (0, 4), 3)
END_TXN: Final = _api(26, "EndTxn", "end_txn", (0, 5), 3)
WRITE_TXN_MARKERS: Final = _api(27, "WriteTxnMarkers", "write_txn_markers", (1, 2), 1)
TXN_OFFSET_COMMIT: Final = _api(28, "TxnOffsetCommit", "txn_offset_commit", (0, 5), 3)
DESCRIBE_ACLS: Final = _api(29, "DescribeAcls", "describe_acls", (1, 3), 2)
CREATE_ACLS: Final = _api(30, "CreateAcls", "create_acls", (1, 3), 2)
DELETE_ACLS: Final = _api(31, "DeleteAcls", "delete_acls", (1, 3), 2)
DESCRIBE_CONFIGS: Final = _api(32, "DescribeConfigs", "describe_configs", (1, 4), 4)
ALTER_CONFIGS: Final = _api(33, "AlterConfigs", "alter_configs", (0, 2), 2)
ALTER_REPLICA_LOG_DIRS: Final = _api(34, "AlterReplicaLogDirs", "alter_replica_log_dirs", (1, 2), 2)
DESCRIBE_LOG_DIRS: Final = _api(35, "DescribeLogDirs", "describe_log_dirs", (1, 4), 2)
SASL_AUTHENTICATE: Final = _api(36, "SaslAuthenticate", "sasl_authenticate", (0, 2), 2)
CREATE_PARTITIONS: Final = _api(37, "CreatePartitions", "create_partitions", (0, 3), 2)
CREATE_DELEGATION_TOKEN: Final = _api(
    38, "CreateDelegationToken", "create_delegation_token", (1, 3), 2
)
RENEW_DELEGATION_TOKEN: Final = _api(
    39, "RenewDelegationToken", "renew_delegation_token", (1, 2), 2
)
EXPIRE_DELEGATION_TOKEN: Final = _api(
    40, "ExpireDelegationToken", "expire_delegation_token", (1, 2), 2
)
DESCRIBE_DELEGATION_TOKEN: Final = _api(
    41, "DescribeDelegationToken", "describe_delegation_token", (1, 3), 2
)
DELETE_GROUPS: Final = _api(42, "DeleteGroups", "delete_groups", (0, 2), 2)
ELECT_LEADERS: Final = _api(43, "ElectLeaders", "elect_leaders", (0, 2), 2)
INCREMENTAL_ALTER_CONFIGS: Final = _api(
    44, "IncrementalAlterConfigs", "incremental_alter_configs", (0, 1), 1
)
ALTER_PARTITION_REASSIGNMENTS: Final = _api(
    45, "AlterPartitionReassignments", "alter_partition_reassignments", (0, 1), 0
)
LIST_PARTITION_REASSIGNMENTS: Final = _api(
    46, "ListPartitionReassignments", "list_partition_reassignments", (0, 0), 0
)
OFFSET_DELETE: Final = _api(47, "OffsetDelete", "offset_delete", (0, 0), 1)
DESCRIBE_CLIENT_QUOTAS: Final = _api(
    48, "DescribeClientQuotas", "describe_client_quotas", (0, 1), 1
)
ALTER_CLIENT_QUOTAS: Final = _api(49, "AlterClientQuotas", "alter_client_quotas", (0, 1), 1)
DESCRIBE_USER_SCRAM_CREDENTIALS: Final = _api(
    50, "DescribeUserScramCredentials", "describe_user_scram_credentials", (0, 0), 0
)
ALTER_USER_SCRAM_CREDENTIALS: Final = _api(
    51, "AlterUserScramCredentials", "alter_user_scram_credentials", (0, 0), 0
)
DESCRIBE_QUORUM: Final = _api(55, "DescribeQuorum", "describe_quorum", (0, 2), 0)
UPDATE_FEATURES: Final = _api(57, "UpdateFeatures", "update_features", (0, 2), 0)
DESCRIBE_CLUSTER: Final = _api(60, "DescribeCluster", "describe_cluster", (0, 2), 0)
DESCRIBE_PRODUCERS: Final = _api(61, "DescribeProducers", "describe_producers", (0, 0), 0)
UNREGISTER_BROKER: Final = _api(64, "UnregisterBroker", "unregister_broker", (0, 0), 0)
DESCRIBE_TRANSACTIONS: Final = _api(65, "DescribeTransactions", "describe_transactions", (0, 0), 0)
LIST_TRANSACTIONS: Final = _api(66, "ListTransactions", "list_transactions", (0, 2), 0)
CONSUMER_GROUP_HEARTBEAT: Final = _api(
    68, "ConsumerGroupHeartbeat", "consumer_group_heartbeat", (0, 1), 0
)
CONSUMER_GROUP_DESCRIBE: Final = _api(
    69, "ConsumerGroupDescribe", "consumer_group_describe", (0, 1), 0
)
GET_TELEMETRY_SUBSCRIPTIONS: Final = _api(
    71, "GetTelemetrySubscriptions", "get_telemetry_subscriptions", (0, 0), 0
)
PUSH_TELEMETRY: Final = _api(72, "PushTelemetry", "push_telemetry", (0, 0), 0)
LIST_CONFIG_RESOURCES: Final = _api(74, "ListConfigResources", "list_config_resources", (0, 1), 0)
DESCRIBE_TOPIC_PARTITIONS: Final = _api(
    75, "DescribeTopicPartitions", "describe_topic_partitions", (0, 0), 0
)
SHARE_GROUP_HEARTBEAT: Final = _api(76, "ShareGroupHeartbeat", "share_group_heartbeat", (1, 1), 0)
SHARE_GROUP_DESCRIBE: Final = _api(77, "ShareGroupDescribe", "share_group_describe", (1, 1), 0)
SHARE_FETCH: Final = _api(78, "ShareFetch", "share_fetch", (1, 2), 0)
SHARE_ACKNOWLEDGE: Final = _api(79, "ShareAcknowledge", "share_acknowledge", (1, 2), 0)
INITIALIZE_SHARE_GROUP_STATE: Final = _api(
    83, "InitializeShareGroupState", "initialize_share_group_state", (0, 0), 0
)
READ_SHARE_GROUP_STATE: Final = _api(84, "ReadShareGroupState", "read_share_group_state", (0, 0), 0)
WRITE_SHARE_GROUP_STATE: Final = _api(
    85, "WriteShareGroupState", "write_share_group_state", (0, 1), 0
)
DELETE_SHARE_GROUP_STATE: Final = _api(
    86, "DeleteShareGroupState", "delete_share_group_state", (0, 0), 0
)
READ_SHARE_GROUP_STATE_SUMMARY: Final = _api(
    87, "ReadShareGroupStateSummary", "read_share_group_state_summary", (0, 1), 0
)
STREAMS_GROUP_HEARTBEAT: Final = _api(
    88, "StreamsGroupHeartbeat", "streams_group_heartbeat", (0, 0), 0
)
STREAMS_GROUP_DESCRIBE: Final = _api(
    89, "StreamsGroupDescribe", "streams_group_describe", (0, 0), 0
)
DESCRIBE_SHARE_GROUP_OFFSETS: Final = _api(
    90, "DescribeShareGroupOffsets", "describe_share_group_offsets", (0, 1), 0
)
ALTER_SHARE_GROUP_OFFSETS: Final = _api(
    91, "AlterShareGroupOffsets", "alter_share_group_offsets", (0, 0), 0
)
DELETE_SHARE_GROUP_OFFSETS: Final = _api(
    92, "DeleteShareGroupOffsets", "delete_share_group_offsets", (0, 0), 0
)

APIS: Final = {api.key: api for api in _declared}
"""The APIs by key, in the order used by ApiVersions."""
