"""The APIs that an Apache Kafka 4.2 broker advertises, with their versions.

A test in `tests/interop` compares them with the response of a running broker. Unstable versions are
not advertised.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class KafkaApiSpec(NamedTuple):
    """One API with the lowest and highest version."""

    name: str
    first: int
    last: int


KAFKA_APIS: Final[Mapping[int, KafkaApiSpec]] = {
    0: KafkaApiSpec("Produce", 0, 13),
    1: KafkaApiSpec("Fetch", 4, 18),
    2: KafkaApiSpec("ListOffsets", 1, 11),
    3: KafkaApiSpec("Metadata", 0, 13),
    8: KafkaApiSpec("OffsetCommit", 2, 10),
    9: KafkaApiSpec("OffsetFetch", 1, 10),
    10: KafkaApiSpec("FindCoordinator", 0, 6),
    11: KafkaApiSpec("JoinGroup", 0, 9),
    12: KafkaApiSpec("Heartbeat", 0, 4),
    13: KafkaApiSpec("LeaveGroup", 0, 5),
    14: KafkaApiSpec("SyncGroup", 0, 5),
    15: KafkaApiSpec("DescribeGroups", 0, 6),
    16: KafkaApiSpec("ListGroups", 0, 5),
    17: KafkaApiSpec("SaslHandshake", 0, 1),
    18: KafkaApiSpec("ApiVersions", 0, 4),
    19: KafkaApiSpec("CreateTopics", 2, 7),
    20: KafkaApiSpec("DeleteTopics", 1, 6),
    21: KafkaApiSpec("DeleteRecords", 0, 2),
    22: KafkaApiSpec("InitProducerId", 0, 5),
    23: KafkaApiSpec("OffsetForLeaderEpoch", 2, 4),
    24: KafkaApiSpec("AddPartitionsToTxn", 0, 5),
    25: KafkaApiSpec("AddOffsetsToTxn", 0, 4),
    26: KafkaApiSpec("EndTxn", 0, 5),
    27: KafkaApiSpec("WriteTxnMarkers", 1, 2),
    28: KafkaApiSpec("TxnOffsetCommit", 0, 5),
    29: KafkaApiSpec("DescribeAcls", 1, 3),
    30: KafkaApiSpec("CreateAcls", 1, 3),
    31: KafkaApiSpec("DeleteAcls", 1, 3),
    32: KafkaApiSpec("DescribeConfigs", 1, 4),
    33: KafkaApiSpec("AlterConfigs", 0, 2),
    34: KafkaApiSpec("AlterReplicaLogDirs", 1, 2),
    35: KafkaApiSpec("DescribeLogDirs", 1, 4),
    36: KafkaApiSpec("SaslAuthenticate", 0, 2),
    37: KafkaApiSpec("CreatePartitions", 0, 3),
    38: KafkaApiSpec("CreateDelegationToken", 1, 3),
    39: KafkaApiSpec("RenewDelegationToken", 1, 2),
    40: KafkaApiSpec("ExpireDelegationToken", 1, 2),
    41: KafkaApiSpec("DescribeDelegationToken", 1, 3),
    42: KafkaApiSpec("DeleteGroups", 0, 2),
    43: KafkaApiSpec("ElectLeaders", 0, 2),
    44: KafkaApiSpec("IncrementalAlterConfigs", 0, 1),
    45: KafkaApiSpec("AlterPartitionReassignments", 0, 1),
    46: KafkaApiSpec("ListPartitionReassignments", 0, 0),
    47: KafkaApiSpec("OffsetDelete", 0, 0),
    48: KafkaApiSpec("DescribeClientQuotas", 0, 1),
    49: KafkaApiSpec("AlterClientQuotas", 0, 1),
    50: KafkaApiSpec("DescribeUserScramCredentials", 0, 0),
    51: KafkaApiSpec("AlterUserScramCredentials", 0, 0),
    55: KafkaApiSpec("DescribeQuorum", 0, 2),
    57: KafkaApiSpec("UpdateFeatures", 0, 2),
    60: KafkaApiSpec("DescribeCluster", 0, 2),
    61: KafkaApiSpec("DescribeProducers", 0, 0),
    64: KafkaApiSpec("UnregisterBroker", 0, 0),
    65: KafkaApiSpec("DescribeTransactions", 0, 0),
    66: KafkaApiSpec("ListTransactions", 0, 2),
    68: KafkaApiSpec("ConsumerGroupHeartbeat", 0, 1),
    69: KafkaApiSpec("ConsumerGroupDescribe", 0, 1),
    74: KafkaApiSpec("ListConfigResources", 0, 1),
    75: KafkaApiSpec("DescribeTopicPartitions", 0, 0),
    76: KafkaApiSpec("ShareGroupHeartbeat", 1, 1),
    77: KafkaApiSpec("ShareGroupDescribe", 1, 1),
    78: KafkaApiSpec("ShareFetch", 1, 2),
    79: KafkaApiSpec("ShareAcknowledge", 1, 2),
    80: KafkaApiSpec("AddRaftVoter", 0, 1),
    81: KafkaApiSpec("RemoveRaftVoter", 0, 0),
    83: KafkaApiSpec("InitializeShareGroupState", 0, 0),
    84: KafkaApiSpec("ReadShareGroupState", 0, 0),
    85: KafkaApiSpec("WriteShareGroupState", 0, 1),
    86: KafkaApiSpec("DeleteShareGroupState", 0, 0),
    87: KafkaApiSpec("ReadShareGroupStateSummary", 0, 1),
    88: KafkaApiSpec("StreamsGroupHeartbeat", 0, 0),
    89: KafkaApiSpec("StreamsGroupDescribe", 0, 0),
    90: KafkaApiSpec("DescribeShareGroupOffsets", 0, 1),
    91: KafkaApiSpec("AlterShareGroupOffsets", 0, 0),
    92: KafkaApiSpec("DeleteShareGroupOffsets", 0, 0),
}
"""By API key."""

KAFKA_PLUGIN_APIS: Final[Mapping[int, KafkaApiSpec]] = {
    71: KafkaApiSpec("GetTelemetrySubscriptions", 0, 0),
    72: KafkaApiSpec("PushTelemetry", 0, 0),
}
"""APIs that are advertised only with a client metrics plugin (KIP-714)."""
