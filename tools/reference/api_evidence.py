"""The clients that each API was tested with, and one test file for each.

A test checks that every served API is listed and that the files exist. Add the client and its test
when adding an API.
"""

from collections.abc import Mapping
from typing import Final

JAVA: Final = "Java"
LIBRDKAFKA: Final = "librdkafka"
KAFKA_PYTHON: Final = "kafka-python"
AIOKAFKA: Final = "aiokafka"
KAFKAJS: Final = "kafkajs"
REQUESTS: Final = "requests"


_ACLS: Final = "tests/integration/test_acls.py"
_ACL_COMMANDS: Final = "tests/interop/test_interop_acls.py"
_AUTHENTICATION: Final = "tests/integration/test_authentication.py"
_USERS: Final = "tests/interop/test_interop_users.py"
_TOKENS: Final = "tests/interop/test_interop_delegation_tokens.py"
_ADMIN_APIS: Final = "tests/interop/test_interop_admin_apis.py"
_CLIENT_METRICS: Final = "tests/integration/test_client_metrics.py"
_CLIENT_TELEMETRY: Final = "tests/interop/test_interop_client_telemetry.py"
_CLIENTS_ADMIN: Final = "tests/integration/test_clients_admin.py"
_CLIENTS_CONSUMER_GROUPS: Final = "tests/integration/test_clients_consumer_groups.py"
_CLIENTS_GROUPS: Final = "tests/integration/test_clients_groups.py"
_CLIENTS_GROUPS_PYTHON: Final = "tests/integration/test_clients_groups_python.py"
_CLIENTS_MATRIX: Final = "tests/integration/test_clients_matrix.py"
_COMMANDS: Final = "tests/interop/test_interop_commands.py"
_CONFIGS: Final = "tests/interop/test_interop_configs.py"
_CONNECT: Final = "tests/interop/test_interop_connect.py"
_CONSUMER_GROUPS: Final = "tests/interop/test_interop_consumer_groups.py"
_DATA_REQUESTS: Final = "tests/interop/test_interop_data_requests.py"
_FETCH_SESSIONS: Final = "tests/interop/test_interop_fetch_sessions.py"
_JAVA_CLIENTS: Final = "tests/interop/test_interop_java_clients.py"
_KAFKAJS: Final = "tests/interop/test_interop_kafkajs.py"
_QUOTAS: Final = "tests/interop/test_interop_quotas.py"
_SHARE_CONSUMERS: Final = "tests/interop/test_interop_share_consumers.py"
_SHARE_GROUPS: Final = "tests/interop/test_interop_share_groups.py"
_STREAMS: Final = "tests/interop/test_interop_streams.py"
_STREAMS_GROUPS: Final = "tests/interop/test_interop_streams_groups.py"
_TOPIC_REQUESTS: Final = "tests/interop/test_interop_topic_requests.py"
_TRANSACTIONS: Final = "tests/interop/test_interop_transactions.py"

_AUTHENTICATED: Final = {
    JAVA: _USERS,
    LIBRDKAFKA: _AUTHENTICATION,
    KAFKA_PYTHON: _AUTHENTICATION,
    AIOKAFKA: _AUTHENTICATION,
    KAFKAJS: _KAFKAJS,
    REQUESTS: _AUTHENTICATION,
}

_PUSHED: Final = {
    JAVA: _CLIENT_TELEMETRY,
    LIBRDKAFKA: _CLIENT_METRICS,
    REQUESTS: _CLIENT_TELEMETRY,
}

EVIDENCE: Final[Mapping[str, Mapping[str, str]]] = {
    "SaslHandshake": _AUTHENTICATED,
    "SaslAuthenticate": _AUTHENTICATED,
    "Produce": {
        JAVA: _JAVA_CLIENTS,
        LIBRDKAFKA: _CLIENTS_MATRIX,
        KAFKA_PYTHON: _CLIENTS_MATRIX,
        AIOKAFKA: _CLIENTS_MATRIX,
        KAFKAJS: _KAFKAJS,
        REQUESTS: _DATA_REQUESTS,
    },
    "Fetch": {
        JAVA: _JAVA_CLIENTS,
        LIBRDKAFKA: _CLIENTS_MATRIX,
        KAFKA_PYTHON: _CLIENTS_MATRIX,
        AIOKAFKA: _CLIENTS_MATRIX,
        KAFKAJS: _KAFKAJS,
        REQUESTS: _DATA_REQUESTS,
    },
    "ListOffsets": {
        JAVA: _COMMANDS,
        LIBRDKAFKA: _CLIENTS_MATRIX,
        KAFKA_PYTHON: _CLIENTS_MATRIX,
        AIOKAFKA: _CLIENTS_MATRIX,
        KAFKAJS: _KAFKAJS,
        REQUESTS: _DATA_REQUESTS,
    },
    "Metadata": {
        JAVA: _COMMANDS,
        LIBRDKAFKA: _CLIENTS_MATRIX,
        KAFKA_PYTHON: _CLIENTS_MATRIX,
        AIOKAFKA: _CLIENTS_MATRIX,
        KAFKAJS: _KAFKAJS,
        REQUESTS: _SHARE_CONSUMERS,
    },
    "OffsetCommit": {
        JAVA: _JAVA_CLIENTS,
        LIBRDKAFKA: _CLIENTS_MATRIX,
        KAFKA_PYTHON: _CLIENTS_ADMIN,
        AIOKAFKA: _CLIENTS_ADMIN,
        KAFKAJS: _KAFKAJS,
        REQUESTS: _CONSUMER_GROUPS,
    },
    "OffsetFetch": {
        JAVA: _JAVA_CLIENTS,
        LIBRDKAFKA: _CLIENTS_MATRIX,
        KAFKA_PYTHON: _CLIENTS_ADMIN,
        AIOKAFKA: _CLIENTS_ADMIN,
        KAFKAJS: _KAFKAJS,
        REQUESTS: _CONSUMER_GROUPS,
    },
    "FindCoordinator": {
        JAVA: _JAVA_CLIENTS,
        LIBRDKAFKA: _CLIENTS_MATRIX,
        KAFKA_PYTHON: _CLIENTS_ADMIN,
        AIOKAFKA: _CLIENTS_ADMIN,
        KAFKAJS: _KAFKAJS,
        REQUESTS: _SHARE_CONSUMERS,
    },
    "JoinGroup": {
        JAVA: _COMMANDS,
        LIBRDKAFKA: _CLIENTS_MATRIX,
        KAFKA_PYTHON: _CLIENTS_ADMIN,
        AIOKAFKA: _CLIENTS_ADMIN,
        KAFKAJS: _KAFKAJS,
        REQUESTS: _CONSUMER_GROUPS,
    },
    "Heartbeat": {
        JAVA: _CONNECT,
        LIBRDKAFKA: _CLIENTS_MATRIX,
        KAFKA_PYTHON: _CLIENTS_GROUPS_PYTHON,
        AIOKAFKA: _CLIENTS_GROUPS_PYTHON,
        KAFKAJS: _KAFKAJS,
        REQUESTS: _CONSUMER_GROUPS,
    },
    "LeaveGroup": {
        JAVA: _COMMANDS,
        LIBRDKAFKA: _CLIENTS_MATRIX,
        KAFKA_PYTHON: _CLIENTS_ADMIN,
        AIOKAFKA: _CLIENTS_ADMIN,
        KAFKAJS: _KAFKAJS,
        REQUESTS: _CONSUMER_GROUPS,
    },
    "SyncGroup": {
        JAVA: _COMMANDS,
        LIBRDKAFKA: _CLIENTS_MATRIX,
        KAFKA_PYTHON: _CLIENTS_ADMIN,
        AIOKAFKA: _CLIENTS_ADMIN,
        KAFKAJS: _KAFKAJS,
        REQUESTS: _CONSUMER_GROUPS,
    },
    "DescribeGroups": {
        JAVA: _COMMANDS,
        LIBRDKAFKA: _CLIENTS_ADMIN,
        KAFKA_PYTHON: _CLIENTS_ADMIN,
        AIOKAFKA: _CLIENTS_ADMIN,
        KAFKAJS: _KAFKAJS,
        REQUESTS: _CONSUMER_GROUPS,
    },
    "ListGroups": {
        JAVA: _COMMANDS,
        LIBRDKAFKA: _CLIENTS_ADMIN,
        KAFKA_PYTHON: _CLIENTS_ADMIN,
        AIOKAFKA: _CLIENTS_ADMIN,
        KAFKAJS: _KAFKAJS,
        REQUESTS: _CONSUMER_GROUPS,
    },
    "ApiVersions": {
        JAVA: _COMMANDS,
        LIBRDKAFKA: _CLIENTS_MATRIX,
        KAFKA_PYTHON: _CLIENTS_MATRIX,
        AIOKAFKA: _CLIENTS_MATRIX,
        KAFKAJS: _KAFKAJS,
        REQUESTS: _CLIENTS_MATRIX,
    },
    "CreateTopics": {
        JAVA: _COMMANDS,
        LIBRDKAFKA: _CLIENTS_MATRIX,
        KAFKA_PYTHON: _CLIENTS_ADMIN,
        KAFKAJS: _KAFKAJS,
        REQUESTS: _TOPIC_REQUESTS,
    },
    "DeleteTopics": {
        JAVA: _COMMANDS,
        LIBRDKAFKA: _DATA_REQUESTS,
        KAFKAJS: _KAFKAJS,
        REQUESTS: _TOPIC_REQUESTS,
    },
    "DeleteRecords": {JAVA: _COMMANDS, LIBRDKAFKA: _FETCH_SESSIONS, KAFKAJS: _KAFKAJS},
    "InitProducerId": {
        JAVA: _JAVA_CLIENTS,
        LIBRDKAFKA: _CLIENTS_MATRIX,
        KAFKA_PYTHON: _CLIENTS_MATRIX,
        AIOKAFKA: _CLIENTS_MATRIX,
        KAFKAJS: _KAFKAJS,
        REQUESTS: _TRANSACTIONS,
    },
    "OffsetForLeaderEpoch": {JAVA: _JAVA_CLIENTS, LIBRDKAFKA: _CLIENTS_GROUPS},
    "AddPartitionsToTxn": {
        LIBRDKAFKA: _COMMANDS,
        AIOKAFKA: _TRANSACTIONS,
        KAFKAJS: _KAFKAJS,
        REQUESTS: _TRANSACTIONS,
    },
    "AddOffsetsToTxn": {
        LIBRDKAFKA: _TRANSACTIONS,
        AIOKAFKA: _TRANSACTIONS,
        KAFKAJS: _KAFKAJS,
        REQUESTS: _TRANSACTIONS,
    },
    "EndTxn": {
        JAVA: _JAVA_CLIENTS,
        LIBRDKAFKA: _DATA_REQUESTS,
        AIOKAFKA: _TRANSACTIONS,
        KAFKAJS: _KAFKAJS,
        REQUESTS: _TRANSACTIONS,
    },
    "WriteTxnMarkers": {JAVA: _ADMIN_APIS},
    "TxnOffsetCommit": {
        JAVA: _JAVA_CLIENTS,
        LIBRDKAFKA: _TRANSACTIONS,
        AIOKAFKA: _TRANSACTIONS,
        KAFKAJS: _KAFKAJS,
        REQUESTS: _TRANSACTIONS,
    },
    "DescribeAcls": {
        JAVA: _ACL_COMMANDS,
        LIBRDKAFKA: _ACLS,
        KAFKAJS: _KAFKAJS,
        REQUESTS: _ACL_COMMANDS,
    },
    "CreateAcls": {
        JAVA: _ACL_COMMANDS,
        LIBRDKAFKA: _ACLS,
        KAFKAJS: _KAFKAJS,
        REQUESTS: _ACL_COMMANDS,
    },
    "DeleteAcls": {
        JAVA: _ACL_COMMANDS,
        LIBRDKAFKA: _ACLS,
        KAFKAJS: _KAFKAJS,
        REQUESTS: _ACL_COMMANDS,
    },
    "DescribeConfigs": {
        JAVA: _COMMANDS,
        LIBRDKAFKA: _CLIENTS_ADMIN,
        KAFKA_PYTHON: _CLIENTS_ADMIN,
        KAFKAJS: _KAFKAJS,
        REQUESTS: _CONFIGS,
    },
    "AlterConfigs": {LIBRDKAFKA: _CLIENTS_ADMIN, KAFKAJS: _KAFKAJS, REQUESTS: _ADMIN_APIS},
    "AlterReplicaLogDirs": {REQUESTS: _ADMIN_APIS},
    "DescribeLogDirs": {JAVA: _COMMANDS, REQUESTS: _ADMIN_APIS},
    "CreatePartitions": {
        JAVA: _COMMANDS,
        LIBRDKAFKA: _CLIENTS_ADMIN,
        KAFKA_PYTHON: _CLIENTS_ADMIN,
        KAFKAJS: _KAFKAJS,
        REQUESTS: _TOPIC_REQUESTS,
    },
    "CreateDelegationToken": {JAVA: _TOKENS, REQUESTS: _TOKENS},
    "RenewDelegationToken": {JAVA: _TOKENS, REQUESTS: _TOKENS},
    "ExpireDelegationToken": {JAVA: _TOKENS, REQUESTS: _TOKENS},
    "DescribeDelegationToken": {JAVA: _TOKENS, REQUESTS: _TOKENS},
    "DeleteGroups": {
        JAVA: _COMMANDS,
        LIBRDKAFKA: _CLIENTS_ADMIN,
        KAFKA_PYTHON: _CLIENTS_ADMIN,
        KAFKAJS: _KAFKAJS,
        REQUESTS: _CONSUMER_GROUPS,
    },
    "ElectLeaders": {JAVA: _COMMANDS},
    "IncrementalAlterConfigs": {JAVA: _COMMANDS, LIBRDKAFKA: _CLIENTS_ADMIN, REQUESTS: _CONFIGS},
    "AlterPartitionReassignments": {JAVA: _COMMANDS, KAFKAJS: _KAFKAJS, REQUESTS: _DATA_REQUESTS},
    "ListPartitionReassignments": {JAVA: _COMMANDS, KAFKAJS: _KAFKAJS},
    "OffsetDelete": {JAVA: _COMMANDS, KAFKA_PYTHON: _CLIENTS_ADMIN, REQUESTS: _CONSUMER_GROUPS},
    "DescribeClientQuotas": {JAVA: _QUOTAS, REQUESTS: _QUOTAS},
    "AlterClientQuotas": {JAVA: _QUOTAS, REQUESTS: _QUOTAS},
    "DescribeUserScramCredentials": {JAVA: _USERS, REQUESTS: _USERS},
    "AlterUserScramCredentials": {JAVA: _USERS, REQUESTS: _USERS},
    "DescribeQuorum": {JAVA: _COMMANDS},
    "UpdateFeatures": {JAVA: _COMMANDS, REQUESTS: _TRANSACTIONS},
    "DescribeCluster": {JAVA: _COMMANDS},
    "DescribeProducers": {JAVA: _COMMANDS},
    "UnregisterBroker": {JAVA: _COMMANDS},
    "DescribeTransactions": {JAVA: _COMMANDS, REQUESTS: _TRANSACTIONS},
    "ListTransactions": {JAVA: _COMMANDS, REQUESTS: _ADMIN_APIS},
    "ConsumerGroupHeartbeat": {
        JAVA: _JAVA_CLIENTS,
        LIBRDKAFKA: _CLIENTS_CONSUMER_GROUPS,
        REQUESTS: _CONSUMER_GROUPS,
    },
    "ConsumerGroupDescribe": {
        JAVA: _COMMANDS,
        LIBRDKAFKA: _CLIENTS_ADMIN,
        REQUESTS: _CONSUMER_GROUPS,
    },
    "GetTelemetrySubscriptions": _PUSHED,
    "PushTelemetry": _PUSHED,
    "ListConfigResources": {JAVA: _COMMANDS, REQUESTS: _ADMIN_APIS},
    "DescribeTopicPartitions": {JAVA: _COMMANDS, REQUESTS: _ADMIN_APIS},
    "ShareGroupHeartbeat": {JAVA: _SHARE_CONSUMERS, REQUESTS: _SHARE_CONSUMERS},
    "ShareGroupDescribe": {JAVA: _COMMANDS, REQUESTS: _SHARE_GROUPS},
    "StreamsGroupHeartbeat": {JAVA: _STREAMS, REQUESTS: _STREAMS_GROUPS},
    "StreamsGroupDescribe": {JAVA: _COMMANDS, REQUESTS: _STREAMS_GROUPS},
    "ShareFetch": {JAVA: _SHARE_CONSUMERS, REQUESTS: _SHARE_CONSUMERS},
    "ShareAcknowledge": {JAVA: _SHARE_CONSUMERS, REQUESTS: _SHARE_CONSUMERS},
    "InitializeShareGroupState": {REQUESTS: _SHARE_GROUPS},
    "ReadShareGroupState": {REQUESTS: _SHARE_GROUPS},
    "WriteShareGroupState": {REQUESTS: _SHARE_GROUPS},
    "DeleteShareGroupState": {REQUESTS: _SHARE_GROUPS},
    "ReadShareGroupStateSummary": {REQUESTS: _SHARE_GROUPS},
    "DescribeShareGroupOffsets": {JAVA: _COMMANDS, REQUESTS: _SHARE_GROUPS},
    "AlterShareGroupOffsets": {JAVA: _COMMANDS, REQUESTS: _SHARE_GROUPS},
    "DeleteShareGroupOffsets": {JAVA: _COMMANDS, REQUESTS: _SHARE_GROUPS},
}
"""Test files of each API by client."""
