"""The table of handlers by API. APIs without a handler are neither listed nor served, and a handler
requires declared rights.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from penstock.broker.handlers import (
    acls,
    alter_configs,
    alter_replica_log_dirs,
    authentication,
    client_metrics,
    client_quotas,
    cluster,
    configs,
    delegation_tokens,
    delete_records,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    fetch,
    find_coordinator,
    list_config_resources,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    produce,
    quorum,
    reassignments,
    scram_credentials,
    topics,
    transactions,
    txn_markers,
    unregister_broker,
    update_features,
)
from penstock.broker.handlers.api_rights import API_RIGHTS, ApiRights
from penstock.broker.handlers.api_versions import make_handler
from penstock.broker.handlers.authorizer import UndeclaredRight
from penstock.broker.handlers.groups import classic, offset_delete
from penstock.broker.handlers.groups import consumer as consumer_groups
from penstock.broker.handlers.groups import share as share_groups
from penstock.broker.handlers.groups import streams as streams_groups
from penstock.broker.handlers.node import Handler, InlineHandler
from penstock.broker.handlers.share import acknowledge as share_acknowledge
from penstock.broker.handlers.share import fetch as share_fetch
from penstock.broker.handlers.share import offsets as share_offsets
from penstock.broker.handlers.share import states as share_states
from penstock.protocol import apis

INLINE: Final[Mapping[int, InlineHandler]] = {apis.PRODUCE.key: produce.handle_produce}

_STATELESS: Final[Mapping[int, Handler]] = {
    apis.FETCH.key: fetch.handle_fetch,
    apis.LIST_OFFSETS.key: list_offsets.handle_list_offsets,
    apis.OFFSET_COMMIT.key: classic.handle_offset_commit,
    apis.OFFSET_FETCH.key: classic.handle_offset_fetch,
    apis.FIND_COORDINATOR.key: find_coordinator.handle_find_coordinator,
    apis.JOIN_GROUP.key: classic.handle_join_group,
    apis.HEARTBEAT.key: classic.handle_heartbeat,
    apis.LEAVE_GROUP.key: classic.handle_leave_group,
    apis.SYNC_GROUP.key: classic.handle_sync_group,
    apis.DESCRIBE_GROUPS.key: classic.handle_describe_groups,
    apis.LIST_GROUPS.key: classic.handle_list_groups,
    apis.SASL_HANDSHAKE.key: authentication.handle_sasl_handshake,
    apis.SASL_AUTHENTICATE.key: authentication.handle_sasl_authenticate,
    apis.CREATE_TOPICS.key: topics.handle_create_topics,
    apis.DELETE_TOPICS.key: topics.handle_delete_topics,
    apis.DELETE_RECORDS.key: delete_records.handle_delete_records,
    apis.INIT_PRODUCER_ID.key: transactions.handle_init_producer_id,
    apis.OFFSET_FOR_LEADER_EPOCH.key: offset_for_leader_epoch.handle_offset_for_leader_epoch,
    apis.ADD_PARTITIONS_TO_TXN.key: transactions.handle_add_partitions_to_txn,
    apis.ADD_OFFSETS_TO_TXN.key: transactions.handle_add_offsets_to_txn,
    apis.END_TXN.key: transactions.handle_end_txn,
    apis.TXN_OFFSET_COMMIT.key: transactions.handle_txn_offset_commit,
    apis.WRITE_TXN_MARKERS.key: txn_markers.handle_write_txn_markers,
    apis.DESCRIBE_ACLS.key: acls.handle_describe_acls,
    apis.CREATE_ACLS.key: acls.handle_create_acls,
    apis.DELETE_ACLS.key: acls.handle_delete_acls,
    apis.DESCRIBE_CONFIGS.key: configs.handle_describe_configs,
    apis.ALTER_CONFIGS.key: alter_configs.handle_alter_configs,
    apis.ALTER_REPLICA_LOG_DIRS.key: alter_replica_log_dirs.handle_alter_replica_log_dirs,
    apis.DESCRIBE_LOG_DIRS.key: describe_log_dirs.handle_describe_log_dirs,
    apis.CREATE_PARTITIONS.key: topics.handle_create_partitions,
    apis.CREATE_DELEGATION_TOKEN.key: delegation_tokens.handle_create_delegation_token,
    apis.RENEW_DELEGATION_TOKEN.key: delegation_tokens.handle_renew_delegation_token,
    apis.EXPIRE_DELEGATION_TOKEN.key: delegation_tokens.handle_expire_delegation_token,
    apis.DESCRIBE_DELEGATION_TOKEN.key: delegation_tokens.handle_describe_delegation_token,
    apis.DELETE_GROUPS.key: classic.handle_delete_groups,
    apis.ELECT_LEADERS.key: reassignments.handle_elect_leaders,
    apis.INCREMENTAL_ALTER_CONFIGS.key: alter_configs.handle_incremental_alter_configs,
    apis.ALTER_PARTITION_REASSIGNMENTS.key: reassignments.handle_alter_partition_reassignments,
    apis.LIST_PARTITION_REASSIGNMENTS.key: reassignments.handle_list_partition_reassignments,
    apis.OFFSET_DELETE.key: offset_delete.handle_offset_delete,
    apis.DESCRIBE_CLIENT_QUOTAS.key: client_quotas.handle_describe_client_quotas,
    apis.ALTER_CLIENT_QUOTAS.key: client_quotas.handle_alter_client_quotas,
    apis.ALTER_USER_SCRAM_CREDENTIALS.key: scram_credentials.handle_alter_user_scram_credentials,
    apis.DESCRIBE_USER_SCRAM_CREDENTIALS.key: (
        scram_credentials.handle_describe_user_scram_credentials
    ),
    apis.DESCRIBE_QUORUM.key: quorum.handle_describe_quorum,
    apis.UPDATE_FEATURES.key: update_features.handle_update_features,
    apis.DESCRIBE_CLUSTER.key: cluster.handle_describe_cluster,
    apis.DESCRIBE_PRODUCERS.key: describe_producers.handle_describe_producers,
    apis.UNREGISTER_BROKER.key: unregister_broker.handle_unregister_broker,
    apis.DESCRIBE_TRANSACTIONS.key: transactions.handle_describe_transactions,
    apis.LIST_TRANSACTIONS.key: transactions.handle_list_transactions,
    apis.CONSUMER_GROUP_HEARTBEAT.key: consumer_groups.handle_consumer_group_heartbeat,
    apis.CONSUMER_GROUP_DESCRIBE.key: consumer_groups.handle_consumer_group_describe,
    apis.LIST_CONFIG_RESOURCES.key: list_config_resources.handle_list_config_resources,
    apis.DESCRIBE_TOPIC_PARTITIONS.key: (
        describe_topic_partitions.handle_describe_topic_partitions
    ),
    apis.SHARE_GROUP_HEARTBEAT.key: share_groups.handle_share_group_heartbeat,
    apis.SHARE_GROUP_DESCRIBE.key: share_groups.handle_share_group_describe,
    apis.STREAMS_GROUP_HEARTBEAT.key: streams_groups.handle_streams_group_heartbeat,
    apis.STREAMS_GROUP_DESCRIBE.key: streams_groups.handle_streams_group_describe,
    apis.SHARE_FETCH.key: share_fetch.handle_share_fetch,
    apis.SHARE_ACKNOWLEDGE.key: share_acknowledge.handle_share_acknowledge,
    apis.INITIALIZE_SHARE_GROUP_STATE.key: share_states.handle_initialize_share_group_state,
    apis.READ_SHARE_GROUP_STATE.key: share_states.handle_read_share_group_state,
    apis.WRITE_SHARE_GROUP_STATE.key: share_states.handle_write_share_group_state,
    apis.DELETE_SHARE_GROUP_STATE.key: share_states.handle_delete_share_group_state,
    apis.READ_SHARE_GROUP_STATE_SUMMARY.key: share_states.handle_read_share_group_state_summary,
    apis.DESCRIBE_SHARE_GROUP_OFFSETS.key: share_offsets.handle_describe_share_group_offsets,
    apis.ALTER_SHARE_GROUP_OFFSETS.key: share_offsets.handle_alter_share_group_offsets,
    apis.DELETE_SHARE_GROUP_OFFSETS.key: share_offsets.handle_delete_share_group_offsets,
}


_OF_CLIENT_METRICS: Final[Mapping[int, Handler]] = {
    apis.GET_TELEMETRY_SUBSCRIPTIONS.key: client_metrics.handle_get_telemetry_subscriptions,
    apis.PUSH_TELEMETRY.key: client_metrics.handle_push_telemetry,
}


def make_handlers(*, has_client_metrics: bool = False) -> dict[int, Handler]:
    """Return the handlers of a broker. has_client_metrics: whether it has a receiver for client
    metrics; otherwise it does not list their APIs, so that clients do not use them.
    """
    handlers: dict[int, Handler] = dict(_STATELESS)
    if has_client_metrics:
        handlers |= _OF_CLIENT_METRICS
    handlers[apis.METADATA.key] = metadata.make_metadata_handler()
    handlers[apis.API_VERSIONS.key] = make_handler([*handlers, *INLINE])
    check_declared([*handlers, *INLINE], API_RIGHTS)
    return handlers


def check_declared(keys: Iterable[int], declared: Mapping[int, ApiRights]) -> None:
    """Raise UndeclaredRight if one of the APIs does not declare its rights."""
    for key in keys:
        if key not in declared:
            raise UndeclaredRight(
                f"{apis.APIS[key].name} has a handler but declares no rights: add them to"
                " broker/handlers/api_rights.py"
            )
