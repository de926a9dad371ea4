"""Declare the rights of each API: which rights its handler may check, and how it rejects a client
that lacks them.

`broker.handlers.table` serves no API without a declaration, and `broker.handlers.authorizer` fails
for undeclared rights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.base.acls import Operation, ResourceType
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode

Right = tuple[Operation, ResourceType]

_REFUSALS: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}


@dataclass(frozen=True, slots=True)
class ApiRights:
    """The rights of one API. hides: responses omit what the client may not see, instead of
    returning an error. unchecked: why some requests need no right; empty if all do.
    """

    rights: frozenset[Right]
    hides: bool = False
    unchecked: str = ""

    @property
    def refusals(self) -> frozenset[ErrorCode]:
        """Return the errors for a client that lacks a right."""
        return frozenset(_REFUSALS[kind] for _, kind in self.rights)


def _needs(*rights: Right, hides: bool = False, unchecked: str = "") -> ApiRights:
    return ApiRights(frozenset(rights), hides, unchecked)


def _on(operation: Operation, *kinds: ResourceType) -> tuple[Right, ...]:
    return tuple((operation, kind) for kind in kinds)


_T: Final = ResourceType.TOPIC
_G: Final = ResourceType.GROUP
_C: Final = ResourceType.CLUSTER
_X: Final = ResourceType.TRANSACTIONAL_ID
_AS_BROKER: Final[Right] = (Operation.CLUSTER_ACTION, _C)
_MEMBER: Final = _needs((Operation.READ, _G))
_DESCRIBED: Final = _needs(*_on(Operation.DESCRIBE, _G, _T))
_BROKERS: Final = _needs(_AS_BROKER)
_CLUSTER_ALTER: Final = _needs((Operation.ALTER, _C))
_CLUSTER_DESCRIBE: Final = _needs((Operation.DESCRIBE, _C))
_CREATE: Final = _on(Operation.CREATE, _C, _T)
_LOGIN: Final = _needs(unchecked="clients send it before they have a principal")
_OWN_METRICS: Final = _needs(unchecked="a client gets its own instance and pushes its own metrics")
_OWN_TOKENS: Final = _needs(unchecked="for the owner and the renewers of a token only")

API_RIGHTS: Final[Mapping[int, ApiRights]] = {
    apis.PRODUCE.key: _needs(*_on(Operation.WRITE, _T, _X), (Operation.ALTER, _T)),
    apis.FETCH.key: _needs((Operation.READ, _T), _AS_BROKER),
    apis.LIST_OFFSETS.key: _needs((Operation.DESCRIBE, _T), _AS_BROKER),
    apis.METADATA.key: _needs(
        *_on(Operation.DESCRIBE, _T, _G, _C),
        *_CREATE,
        (Operation.DESCRIBE_CONFIGS, _T),
        hides=True,
    ),
    apis.OFFSET_COMMIT.key: _needs(*_on(Operation.READ, _G, _T)),
    apis.OFFSET_FETCH.key: _needs(*_on(Operation.DESCRIBE, _G, _T), _AS_BROKER),
    apis.FIND_COORDINATOR.key: _needs(*_on(Operation.DESCRIBE, _G, _X), _AS_BROKER),
    apis.JOIN_GROUP.key: _MEMBER,
    apis.HEARTBEAT.key: _MEMBER,
    apis.LEAVE_GROUP.key: _MEMBER,
    apis.SYNC_GROUP.key: _MEMBER,
    apis.DESCRIBE_GROUPS.key: _needs((Operation.DESCRIBE, _G)),
    apis.LIST_GROUPS.key: _needs(*_on(Operation.DESCRIBE, _C, _G), _AS_BROKER, hides=True),
    apis.SASL_HANDSHAKE.key: _LOGIN,
    apis.API_VERSIONS.key: _LOGIN,
    apis.CREATE_TOPICS.key: _needs(
        *_CREATE,
        (Operation.READ, _T),
        (Operation.DELETE, _T),
        (Operation.ALTER, _T),
        (Operation.DESCRIBE_CONFIGS, _T),
    ),
    apis.DELETE_TOPICS.key: _needs(*_on(Operation.DELETE, _C, _T), (Operation.DESCRIBE, _T)),
    apis.DELETE_RECORDS.key: _needs((Operation.DELETE, _T)),
    apis.INIT_PRODUCER_ID.key: _needs(
        *_on(Operation.WRITE, _X, _T), (Operation.IDEMPOTENT_WRITE, _C)
    ),
    apis.OFFSET_FOR_LEADER_EPOCH.key: _needs((Operation.DESCRIBE, _T), _AS_BROKER),
    apis.ADD_PARTITIONS_TO_TXN.key: _needs(*_on(Operation.WRITE, _X, _T), _AS_BROKER),
    apis.ADD_OFFSETS_TO_TXN.key: _needs((Operation.WRITE, _X), (Operation.READ, _G)),
    apis.END_TXN.key: _needs((Operation.WRITE, _X)),
    apis.WRITE_TXN_MARKERS.key: _needs((Operation.ALTER, _C), _AS_BROKER),
    apis.TXN_OFFSET_COMMIT.key: _needs((Operation.WRITE, _X), *_on(Operation.READ, _G, _T)),
    apis.DESCRIBE_ACLS.key: _CLUSTER_DESCRIBE,
    apis.CREATE_ACLS.key: _CLUSTER_ALTER,
    apis.DELETE_ACLS.key: _CLUSTER_ALTER,
    apis.DESCRIBE_CONFIGS.key: _needs(*_on(Operation.DESCRIBE_CONFIGS, _T, _G, _C)),
    apis.ALTER_CONFIGS.key: _needs(*_on(Operation.ALTER_CONFIGS, _T, _G, _C)),
    apis.ALTER_REPLICA_LOG_DIRS.key: _CLUSTER_ALTER,
    apis.DESCRIBE_LOG_DIRS.key: _needs((Operation.DESCRIBE, _C), hides=True),  # no error before 3
    apis.SASL_AUTHENTICATE.key: _LOGIN,
    apis.CREATE_PARTITIONS.key: _needs((Operation.ALTER, _T)),
    apis.CREATE_DELEGATION_TOKEN.key: _needs(
        (Operation.CREATE_TOKENS, ResourceType.USER), unchecked="a token of the client itself"
    ),
    apis.RENEW_DELEGATION_TOKEN.key: _OWN_TOKENS,
    apis.EXPIRE_DELEGATION_TOKEN.key: _OWN_TOKENS,
    apis.DESCRIBE_DELEGATION_TOKEN.key: _needs(
        (Operation.DESCRIBE_TOKENS, ResourceType.USER),
        (Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN),
        unchecked="the owner, the creator and the renewers of a token",
    ),
    apis.DELETE_GROUPS.key: _needs((Operation.DELETE, _G)),
    apis.ELECT_LEADERS.key: _CLUSTER_ALTER,
    apis.INCREMENTAL_ALTER_CONFIGS.key: _needs(*_on(Operation.ALTER_CONFIGS, _T, _G, _C)),
    apis.ALTER_PARTITION_REASSIGNMENTS.key: _CLUSTER_ALTER,
    apis.LIST_PARTITION_REASSIGNMENTS.key: _CLUSTER_DESCRIBE,
    apis.OFFSET_DELETE.key: _needs((Operation.DELETE, _G), (Operation.READ, _T)),
    apis.DESCRIBE_CLIENT_QUOTAS.key: _needs((Operation.DESCRIBE_CONFIGS, _C)),
    apis.ALTER_CLIENT_QUOTAS.key: _needs((Operation.ALTER_CONFIGS, _C)),
    apis.DESCRIBE_USER_SCRAM_CREDENTIALS.key: _CLUSTER_DESCRIBE,
    apis.ALTER_USER_SCRAM_CREDENTIALS.key: _CLUSTER_ALTER,
    apis.DESCRIBE_QUORUM.key: _CLUSTER_DESCRIBE,
    apis.UPDATE_FEATURES.key: _CLUSTER_ALTER,
    apis.DESCRIBE_CLUSTER.key: _needs(
        (Operation.DESCRIBE, _C), unchecked="clients find brokers; only operations need the right"
    ),
    apis.DESCRIBE_PRODUCERS.key: _needs((Operation.READ, _T), _AS_BROKER),
    apis.UNREGISTER_BROKER.key: _CLUSTER_ALTER,
    apis.DESCRIBE_TRANSACTIONS.key: _needs(*_on(Operation.DESCRIBE, _X, _T)),
    apis.LIST_TRANSACTIONS.key: _needs((Operation.DESCRIBE, _X), hides=True),
    apis.CONSUMER_GROUP_HEARTBEAT.key: _needs((Operation.READ, _G), (Operation.DESCRIBE, _T)),
    apis.CONSUMER_GROUP_DESCRIBE.key: _DESCRIBED,
    apis.GET_TELEMETRY_SUBSCRIPTIONS.key: _OWN_METRICS,
    apis.PUSH_TELEMETRY.key: _OWN_METRICS,
    apis.LIST_CONFIG_RESOURCES.key: _needs((Operation.DESCRIBE_CONFIGS, _C)),
    apis.DESCRIBE_TOPIC_PARTITIONS.key: _needs((Operation.DESCRIBE, _T), hides=True),
    apis.SHARE_GROUP_HEARTBEAT.key: _needs((Operation.READ, _G), (Operation.DESCRIBE, _T)),
    apis.SHARE_GROUP_DESCRIBE.key: _DESCRIBED,
    apis.SHARE_FETCH.key: _needs(*_on(Operation.READ, _G, _T)),
    apis.SHARE_ACKNOWLEDGE.key: _needs(*_on(Operation.READ, _G, _T)),
    apis.INITIALIZE_SHARE_GROUP_STATE.key: _BROKERS,
    apis.READ_SHARE_GROUP_STATE.key: _BROKERS,
    apis.WRITE_SHARE_GROUP_STATE.key: _BROKERS,
    apis.DELETE_SHARE_GROUP_STATE.key: _BROKERS,
    apis.READ_SHARE_GROUP_STATE_SUMMARY.key: _BROKERS,
    apis.STREAMS_GROUP_HEARTBEAT.key: _needs(
        (Operation.READ, _G), (Operation.DESCRIBE, _T), *_CREATE
    ),
    apis.STREAMS_GROUP_DESCRIBE.key: _DESCRIBED,
    apis.DESCRIBE_SHARE_GROUP_OFFSETS.key: _needs(*_on(Operation.DESCRIBE, _G, _T)),
    apis.ALTER_SHARE_GROUP_OFFSETS.key: _needs(*_on(Operation.READ, _G, _T)),
    apis.DELETE_SHARE_GROUP_OFFSETS.key: _needs((Operation.DELETE, _G), (Operation.READ, _T)),
}
"""By API key."""
