"""The APIs of a broker, each with its handler and the permissions that the handler may check. Other
APIs are neither listed nor supported. The API-specific limits are in `protocol.request_limits`.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from penstock.base.acls import Operation, ResourceType
from penstock.broker.handlers import (
    acls,
    alter_replica_log_dirs,
    authentication,
    client_metrics,
    client_quotas,
    cluster,
    delegation_tokens,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    find_coordinator,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    produce,
    quorum,
    reassignments,
    scram_credentials,
    transactions,
    txn_markers,
    unregister_broker,
    update_features,
)
from penstock.broker.handlers.api_versions import make_handler
from penstock.broker.handlers.configs import alter_configs, list_config_resources
from penstock.broker.handlers.configs import describe_configs as configs
from penstock.broker.handlers.fetch import handler as fetch
from penstock.broker.handlers.groups import classic, offset_delete
from penstock.broker.handlers.groups import consumer as consumer_groups
from penstock.broker.handlers.groups import share as share_groups
from penstock.broker.handlers.groups import streams as streams_groups
from penstock.broker.handlers.share import acknowledge as share_acknowledge
from penstock.broker.handlers.share import fetch as share_fetch
from penstock.broker.handlers.share import offsets as share_offsets
from penstock.broker.handlers.share import states as share_states
from penstock.broker.handlers.topics import delete_records
from penstock.broker.handlers.topics import handlers as topics
from penstock.broker.requests.api_rights import (
    AS_BROKER,
    BROKERS,
    CLUSTER,
    CLUSTER_ALTER,
    CLUSTER_DESCRIBE,
    CREATE,
    DESCRIBED,
    GROUP,
    LOGIN,
    MEMBER,
    OWN_METRICS,
    OWN_TOKENS,
    TOPIC,
    TRANSACTIONAL_ID,
    ApiRights,
    needs,
    on,
)
from penstock.broker.requests.node import Handler, InlineHandler
from penstock.protocol import apis


class Served(NamedTuple):
    handler: Handler
    rights: ApiRights


INLINE: Final[Mapping[int, InlineHandler]] = {apis.PRODUCE.key: produce.handle_produce}

_STATELESS: Final[Mapping[int, Served]] = {
    apis.FETCH.key: Served(fetch.handle_fetch, needs((Operation.READ, TOPIC), AS_BROKER)),
    apis.LIST_OFFSETS.key: Served(
        list_offsets.handle_list_offsets, needs((Operation.DESCRIBE, TOPIC), AS_BROKER)
    ),
    apis.OFFSET_COMMIT.key: Served(
        classic.handle_offset_commit, needs(*on(Operation.READ, GROUP, TOPIC))
    ),
    apis.OFFSET_FETCH.key: Served(
        classic.handle_offset_fetch, needs(*on(Operation.DESCRIBE, GROUP, TOPIC), AS_BROKER)
    ),
    apis.FIND_COORDINATOR.key: Served(
        find_coordinator.handle_find_coordinator,
        needs(*on(Operation.DESCRIBE, GROUP, TRANSACTIONAL_ID), AS_BROKER),
    ),
    apis.JOIN_GROUP.key: Served(classic.handle_join_group, MEMBER),
    apis.HEARTBEAT.key: Served(classic.handle_heartbeat, MEMBER),
    apis.LEAVE_GROUP.key: Served(classic.handle_leave_group, MEMBER),
    apis.SYNC_GROUP.key: Served(classic.handle_sync_group, MEMBER),
    apis.DESCRIBE_GROUPS.key: Served(
        classic.handle_describe_groups, needs((Operation.DESCRIBE, GROUP))
    ),
    apis.LIST_GROUPS.key: Served(
        classic.handle_list_groups,
        needs(*on(Operation.DESCRIBE, CLUSTER, GROUP), AS_BROKER, hides=True),
    ),
    apis.SASL_HANDSHAKE.key: Served(authentication.handle_sasl_handshake, LOGIN),
    apis.SASL_AUTHENTICATE.key: Served(authentication.handle_sasl_authenticate, LOGIN),
    apis.CREATE_TOPICS.key: Served(
        topics.handle_create_topics,
        needs(
            *CREATE,
            (Operation.READ, TOPIC),
            (Operation.DELETE, TOPIC),
            (Operation.ALTER, TOPIC),
            (Operation.DESCRIBE_CONFIGS, TOPIC),
        ),
    ),
    apis.DELETE_TOPICS.key: Served(
        topics.handle_delete_topics,
        needs(*on(Operation.DELETE, CLUSTER, TOPIC), (Operation.DESCRIBE, TOPIC)),
    ),
    apis.DELETE_RECORDS.key: Served(
        delete_records.handle_delete_records, needs((Operation.DELETE, TOPIC))
    ),
    apis.INIT_PRODUCER_ID.key: Served(
        transactions.handle_init_producer_id,
        needs(*on(Operation.WRITE, TRANSACTIONAL_ID, TOPIC), (Operation.IDEMPOTENT_WRITE, CLUSTER)),
    ),
    apis.OFFSET_FOR_LEADER_EPOCH.key: Served(
        offset_for_leader_epoch.handle_offset_for_leader_epoch,
        needs((Operation.DESCRIBE, TOPIC), AS_BROKER),
    ),
    apis.ADD_PARTITIONS_TO_TXN.key: Served(
        transactions.handle_add_partitions_to_txn,
        needs(*on(Operation.WRITE, TRANSACTIONAL_ID, TOPIC), AS_BROKER),
    ),
    apis.ADD_OFFSETS_TO_TXN.key: Served(
        transactions.handle_add_offsets_to_txn,
        needs((Operation.WRITE, TRANSACTIONAL_ID), (Operation.READ, GROUP)),
    ),
    apis.END_TXN.key: Served(
        transactions.handle_end_txn, needs((Operation.WRITE, TRANSACTIONAL_ID))
    ),
    apis.TXN_OFFSET_COMMIT.key: Served(
        transactions.handle_txn_offset_commit,
        needs((Operation.WRITE, TRANSACTIONAL_ID), *on(Operation.READ, GROUP, TOPIC)),
    ),
    apis.WRITE_TXN_MARKERS.key: Served(
        txn_markers.handle_write_txn_markers, needs((Operation.ALTER, CLUSTER), AS_BROKER)
    ),
    apis.DESCRIBE_ACLS.key: Served(acls.handle_describe_acls, CLUSTER_DESCRIBE),
    apis.CREATE_ACLS.key: Served(acls.handle_create_acls, CLUSTER_ALTER),
    apis.DELETE_ACLS.key: Served(acls.handle_delete_acls, CLUSTER_ALTER),
    apis.DESCRIBE_CONFIGS.key: Served(
        configs.handle_describe_configs,
        needs(*on(Operation.DESCRIBE_CONFIGS, TOPIC, GROUP, CLUSTER)),
    ),
    apis.ALTER_CONFIGS.key: Served(
        alter_configs.handle_alter_configs,
        needs(*on(Operation.ALTER_CONFIGS, TOPIC, GROUP, CLUSTER)),
    ),
    apis.ALTER_REPLICA_LOG_DIRS.key: Served(
        alter_replica_log_dirs.handle_alter_replica_log_dirs, CLUSTER_ALTER
    ),
    apis.DESCRIBE_LOG_DIRS.key: Served(
        describe_log_dirs.handle_describe_log_dirs, needs((Operation.DESCRIBE, CLUSTER), hides=True)
    ),
    apis.CREATE_PARTITIONS.key: Served(
        topics.handle_create_partitions, needs((Operation.ALTER, TOPIC))
    ),
    apis.CREATE_DELEGATION_TOKEN.key: Served(
        delegation_tokens.handle_create_delegation_token,
        needs(
            (Operation.CREATE_TOKENS, ResourceType.USER), unchecked="a token of the client itself"
        ),
    ),
    apis.RENEW_DELEGATION_TOKEN.key: Served(
        delegation_tokens.handle_renew_delegation_token, OWN_TOKENS
    ),
    apis.EXPIRE_DELEGATION_TOKEN.key: Served(
        delegation_tokens.handle_expire_delegation_token, OWN_TOKENS
    ),
    apis.DESCRIBE_DELEGATION_TOKEN.key: Served(
        delegation_tokens.handle_describe_delegation_token,
        needs(
            (Operation.DESCRIBE_TOKENS, ResourceType.USER),
            (Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN),
            unchecked="the owner, the creator and the renewers of a token",
        ),
    ),
    apis.DELETE_GROUPS.key: Served(classic.handle_delete_groups, needs((Operation.DELETE, GROUP))),
    apis.ELECT_LEADERS.key: Served(reassignments.handle_elect_leaders, CLUSTER_ALTER),
    apis.INCREMENTAL_ALTER_CONFIGS.key: Served(
        alter_configs.handle_incremental_alter_configs,
        needs(*on(Operation.ALTER_CONFIGS, TOPIC, GROUP, CLUSTER)),
    ),
    apis.ALTER_PARTITION_REASSIGNMENTS.key: Served(
        reassignments.handle_alter_partition_reassignments, CLUSTER_ALTER
    ),
    apis.LIST_PARTITION_REASSIGNMENTS.key: Served(
        reassignments.handle_list_partition_reassignments, CLUSTER_DESCRIBE
    ),
    apis.OFFSET_DELETE.key: Served(
        offset_delete.handle_offset_delete,
        needs((Operation.DELETE, GROUP), (Operation.READ, TOPIC)),
    ),
    apis.DESCRIBE_CLIENT_QUOTAS.key: Served(
        client_quotas.handle_describe_client_quotas, needs((Operation.DESCRIBE_CONFIGS, CLUSTER))
    ),
    apis.ALTER_CLIENT_QUOTAS.key: Served(
        client_quotas.handle_alter_client_quotas, needs((Operation.ALTER_CONFIGS, CLUSTER))
    ),
    apis.ALTER_USER_SCRAM_CREDENTIALS.key: Served(
        scram_credentials.handle_alter_user_scram_credentials, CLUSTER_ALTER
    ),
    apis.DESCRIBE_USER_SCRAM_CREDENTIALS.key: Served(
        scram_credentials.handle_describe_user_scram_credentials, CLUSTER_DESCRIBE
    ),
    apis.DESCRIBE_QUORUM.key: Served(quorum.handle_describe_quorum, CLUSTER_DESCRIBE),
    apis.UPDATE_FEATURES.key: Served(update_features.handle_update_features, CLUSTER_ALTER),
    apis.DESCRIBE_CLUSTER.key: Served(
        cluster.handle_describe_cluster,
        needs(
            (Operation.DESCRIBE, CLUSTER),
            unchecked="clients find brokers; only operations need the right",
        ),
    ),
    apis.DESCRIBE_PRODUCERS.key: Served(
        describe_producers.handle_describe_producers, needs((Operation.READ, TOPIC), AS_BROKER)
    ),
    apis.UNREGISTER_BROKER.key: Served(unregister_broker.handle_unregister_broker, CLUSTER_ALTER),
    apis.DESCRIBE_TRANSACTIONS.key: Served(
        transactions.handle_describe_transactions,
        needs(*on(Operation.DESCRIBE, TRANSACTIONAL_ID, TOPIC)),
    ),
    apis.LIST_TRANSACTIONS.key: Served(
        transactions.handle_list_transactions,
        needs((Operation.DESCRIBE, TRANSACTIONAL_ID), hides=True),
    ),
    apis.CONSUMER_GROUP_HEARTBEAT.key: Served(
        consumer_groups.handle_consumer_group_heartbeat,
        needs((Operation.READ, GROUP), (Operation.DESCRIBE, TOPIC)),
    ),
    apis.CONSUMER_GROUP_DESCRIBE.key: Served(
        consumer_groups.handle_consumer_group_describe, DESCRIBED
    ),
    apis.LIST_CONFIG_RESOURCES.key: Served(
        list_config_resources.handle_list_config_resources,
        needs((Operation.DESCRIBE_CONFIGS, CLUSTER)),
    ),
    apis.DESCRIBE_TOPIC_PARTITIONS.key: Served(
        describe_topic_partitions.handle_describe_topic_partitions,
        needs((Operation.DESCRIBE, TOPIC), hides=True),
    ),
    apis.SHARE_GROUP_HEARTBEAT.key: Served(
        share_groups.handle_share_group_heartbeat,
        needs((Operation.READ, GROUP), (Operation.DESCRIBE, TOPIC)),
    ),
    apis.SHARE_GROUP_DESCRIBE.key: Served(
        share_groups.handle_share_group_describe,
        needs(*on(Operation.DESCRIBE, GROUP, TOPIC), AS_BROKER),
    ),
    apis.STREAMS_GROUP_HEARTBEAT.key: Served(
        streams_groups.handle_streams_group_heartbeat,
        needs((Operation.READ, GROUP), (Operation.DESCRIBE, TOPIC), *CREATE),
    ),
    apis.STREAMS_GROUP_DESCRIBE.key: Served(
        streams_groups.handle_streams_group_describe, DESCRIBED
    ),
    apis.SHARE_FETCH.key: Served(
        share_fetch.handle_share_fetch, needs(*on(Operation.READ, GROUP, TOPIC))
    ),
    apis.SHARE_ACKNOWLEDGE.key: Served(
        share_acknowledge.handle_share_acknowledge, needs(*on(Operation.READ, GROUP, TOPIC))
    ),
    apis.INITIALIZE_SHARE_GROUP_STATE.key: Served(
        share_states.handle_initialize_share_group_state, BROKERS
    ),
    apis.READ_SHARE_GROUP_STATE.key: Served(share_states.handle_read_share_group_state, BROKERS),
    apis.WRITE_SHARE_GROUP_STATE.key: Served(share_states.handle_write_share_group_state, BROKERS),
    apis.DELETE_SHARE_GROUP_STATE.key: Served(
        share_states.handle_delete_share_group_state, BROKERS
    ),
    apis.READ_SHARE_GROUP_STATE_SUMMARY.key: Served(
        share_states.handle_read_share_group_state_summary, BROKERS
    ),
    apis.DESCRIBE_SHARE_GROUP_OFFSETS.key: Served(
        share_offsets.handle_describe_share_group_offsets,
        needs(*on(Operation.DESCRIBE, GROUP, TOPIC)),
    ),
    apis.ALTER_SHARE_GROUP_OFFSETS.key: Served(
        share_offsets.handle_alter_share_group_offsets, needs(*on(Operation.READ, GROUP, TOPIC))
    ),
    apis.DELETE_SHARE_GROUP_OFFSETS.key: Served(
        share_offsets.handle_delete_share_group_offsets,
        needs((Operation.DELETE, GROUP), (Operation.READ, TOPIC)),
    ),
}

_OF_CLIENT_METRICS: Final[Mapping[int, Served]] = {
    apis.GET_TELEMETRY_SUBSCRIPTIONS.key: Served(
        client_metrics.handle_get_telemetry_subscriptions, OWN_METRICS
    ),
    apis.PUSH_TELEMETRY.key: Served(client_metrics.handle_push_telemetry, OWN_METRICS),
}

API_RIGHTS: Final[Mapping[int, ApiRights]] = {
    **{key: served.rights for key, served in {**_STATELESS, **_OF_CLIENT_METRICS}.items()},
    # The handlers of these APIs are inline or stateful.
    apis.PRODUCE.key: needs(
        *on(Operation.WRITE, TOPIC, TRANSACTIONAL_ID), (Operation.ALTER, TOPIC)
    ),
    apis.METADATA.key: needs(
        *on(Operation.DESCRIBE, TOPIC, GROUP, CLUSTER),
        *CREATE,
        (Operation.DESCRIBE_CONFIGS, TOPIC),
        hides=True,
    ),
    apis.API_VERSIONS.key: LOGIN,
}
"""Permissions by API key."""


def make_handlers(*, has_client_metrics: bool = False) -> dict[int, Handler]:
    """Return the handlers of a broker. has_client_metrics: whether the broker has a receiver for
    client metrics. Without one, the broker does not list the client metrics APIs, so that clients
    do not use them.
    """
    served = {**_STATELESS, **(_OF_CLIENT_METRICS if has_client_metrics else {})}
    handlers = {key: api.handler for key, api in served.items()}
    handlers[apis.METADATA.key] = metadata.make_metadata_handler()
    handlers[apis.API_VERSIONS.key] = make_handler([*handlers, *INLINE])
    return handlers
