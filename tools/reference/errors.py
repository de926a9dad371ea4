"""Write `docs/reference/errors.md`: the Kafka error codes that brokers send and the error classes.

python -m tools.reference.errors > docs/reference/errors.md

Tests compare the output with the file, and `ADVICE` with the codes in the broker's sources.
"""

import inspect
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Final

from penstock.base import errors as base
from penstock.controller.api import errors as controller
from penstock.deploy import errors as deploy
from penstock.lake.fetch import errors as reader
from penstock.lake.manifest import errors as manifest
from penstock.lake.spark import errors as spark
from penstock.lake.spark.sink import errors as sink
from penstock.lake.table import errors as table
from penstock.objectstore import errors as objectstore
from penstock.protocol import errors as wire
from penstock.protocol.batch import errors as batches
from penstock.protocol.client import errors as client
from penstock.protocol.error_codes import ErrorCode
from penstock.stream import errors as stream

_HEAD: Final = """\
# Errors

<!-- Written by `python -m tools.reference.errors`; do not edit. -->

## Kafka error codes

Error codes that brokers return.
"Retried" means that Kafka's clients retry automatically, so an application sees the error only after its timeout.

| code | name | retried | solution |
|---|---|---|---|
"""
_CLASSES_HEAD: Final = """
## Error classes

Error messages of nodes, commands, `scan`, Spark and table export contain these names.
"Retry" means that the same call may succeed later.
"""
_ASK_LEADER: Final = "Refresh metadata and contact the leader. Clients do this automatically."
_ASK_COORDINATOR: Final = "Look up the coordinator again. Clients do this automatically."
_REJOIN: Final = "Join the group again. Clients do this automatically; commits of the old generation are rejected."
_NEW_PRODUCER: Final = "Close the producer and open another one. Another producer with the same `transactional.id` may be running."

ADVICE: Final[dict[ErrorCode, str]] = {
    ErrorCode.UNKNOWN_SERVER_ERROR: "This is a bug. The `request_failed` event in the log of the broker contains the traceback.",
    ErrorCode.OFFSET_OUT_OF_RANGE: "The partition does not have the offset. Consumers apply `auto.offset.reset`.",
    ErrorCode.CORRUPT_MESSAGE: (
        "Producers: the batch was corrupted in transit and is resent. Consumers: an object in the store is damaged or lost. "
        "Run `penstock doctor`."
    ),
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "Check the name, or create the topic. A new topic may take a moment to reach all brokers.",
    ErrorCode.LEADER_NOT_AVAILABLE: "Wait: an election is in progress, or the leader is opening the partition.",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: _ASK_LEADER,
    ErrorCode.REQUEST_TIMED_OUT: "The store or the controllers are slow. Run `penstock top` and `penstock doctor`.",
    ErrorCode.MESSAGE_TOO_LARGE: "Send smaller batches, or increase `max.message.bytes` of the topic.",
    ErrorCode.OFFSET_METADATA_TOO_LARGE: "Commit less metadata with the offset.",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "Wait: the coordinator is loading its log.",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: _ASK_COORDINATOR,
    ErrorCode.NOT_COORDINATOR: _ASK_COORDINATOR,
    ErrorCode.INVALID_TOPIC_EXCEPTION: "Use another name: at most 249 letters, digits, `.`, `_`, `-`. Internal topics are read-only.",
    ErrorCode.RECORD_LIST_TOO_LARGE: "Send fewer records per request.",
    ErrorCode.INVALID_REQUIRED_ACKS: "Set `acks` to `all`, `1` or `0`.",
    ErrorCode.ILLEGAL_GENERATION: _REJOIN,
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "Give all members of the group the same protocol type and at least one common assignor.",
    ErrorCode.INVALID_GROUP_ID: "Set a non-empty `group.id`.",
    ErrorCode.UNKNOWN_MEMBER_ID: _REJOIN,
    ErrorCode.INVALID_SESSION_TIMEOUT: (
        "Choose a `session.timeout.ms` between `group.min.session.timeout.ms` and `group.max.session.timeout.ms`."
    ),
    ErrorCode.REBALANCE_IN_PROGRESS: _REJOIN,
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE: "Commit fewer offsets, or less metadata, in one request.",
    ErrorCode.INVALID_TIMESTAMP: (
        "Correct the clock of the producer, or increase `message.timestamp.before.max.ms` or `message.timestamp.after.max.ms` of the topic."
    ),
    ErrorCode.UNSUPPORTED_VERSION: "The client uses an unsupported version; see [Kafka APIs](kafka-apis.md).",
    ErrorCode.TOPIC_ALREADY_EXISTS: "Use the existing topic, or choose another name.",
    ErrorCode.INVALID_PARTITIONS: "Specify more partitions than the topic has; partitions cannot be removed.",
    ErrorCode.INVALID_REPLICATION_FACTOR: "Use -1, or at most the number of brokers. It is the number of possible leaders, not of copies.",
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: "List existing brokers, each once.",
    ErrorCode.INVALID_CONFIG: "Correct the topic config in the message; see [Configuration](configuration.md#topics).",
    ErrorCode.NOT_CONTROLLER: "The controllers are electing a leader. Retry.",
    ErrorCode.INVALID_REQUEST: "The request is inconsistent; see the message.",
    ErrorCode.POLICY_VIOLATION: "CreateTopics, CreatePartitions, Metadata: the cluster has as many partitions as `max.partitions` of its controllers allows; delete topics or snapshots, or increase it; or the request has more than 10,000 partitions: split it. DeleteRecords: the topic has `cleanup.policy=compact`; add `delete` to the policy if its records may be deleted. Produce: only a [mirror](../how-to/mirror-clusters.md) writes to the topic, until `penstock mirror finish`.",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: (
        "Records between this batch and the previous one were not written. Clients resend them in order; "
        "if they cannot, close the producer and open another one."
    ),
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: "None required: the batch was already written. Its offset is no longer known.",
    ErrorCode.INVALID_PRODUCER_EPOCH: _NEW_PRODUCER,
    ErrorCode.INVALID_TXN_STATE: "Begin a transaction before writing to it, and end it only once.",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: _NEW_PRODUCER,
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "Lower `transaction.timeout.ms` to at most the broker's `transaction.max.timeout.ms`.",
    ErrorCode.CONCURRENT_TRANSACTIONS: "Wait: the last transaction of this producer is being completed. Clients do this automatically.",
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: "None required: brokers return it to each other after a coordinator has moved.",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Add an ACL for the topic, or remove one that denies it: `penstock acls list --topic NAME`. Clients without Describe cannot find out whether a topic exists.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Add an ACL for the group, or remove one that denies it: `penstock acls list --group NAME`.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Add an ACL for the cluster, or remove one that denies it: `penstock acls list --cluster`. Idempotent producers get it if they cannot write to any topic.",
    ErrorCode.SECURITY_DISABLED: "Set `authorizer.class.name` on the brokers before you change ACLs.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Include the transactional id in the Produce request, whose records belong to a transaction. If ACLs are enabled, the client needs Write on it.",
    ErrorCode.NOT_ENOUGH_REPLICAS: "Wait: the coordinator of the transaction is moving or starting. Clients retry.",
    ErrorCode.NETWORK_EXCEPTION: "None required: a broker could not reach the coordinator of a transaction and retries.",
    ErrorCode.OPERATION_NOT_ATTEMPTED: "Check the other partitions in the response: one of them was rejected.",
    ErrorCode.KAFKA_STORAGE_ERROR: "The store is failing or has lost an object. Run `penstock doctor`.",
    ErrorCode.LOG_DIR_NOT_FOUND: "Do not move the partition: the object store is the only log directory.",
    ErrorCode.RESOURCE_NOT_FOUND: "Check the user and the mechanism: `penstock users list` shows the users in the metadata. Users of `sasl.users.file` are not included.",
    ErrorCode.DUPLICATE_RESOURCE: "List each user once.",
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: "Use a mechanism listed in `sasl.enabled.mechanisms` of the brokers.",
    ErrorCode.ILLEGAL_SASL_STATE: "Authenticate only on listeners with SASL (`SASL_PLAINTEXT`, `SASL_SSL`), and once.",
    ErrorCode.SASL_AUTHENTICATION_FAILED: "Check user and password, or the token. The `authentication_failed` event in the log of the broker contains the reason.",
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "Set `delegation.token.secret.key` on all brokers.",
    ErrorCode.DELEGATION_TOKEN_NOT_FOUND: "Check the token: it does not exist, was expired, or `delegation.token.secret.key` has changed. `penstock tokens list` lists tokens.",
    ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH: "Renew and expire tokens as their owner or as a renewer.",
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "Request tokens on a listener with SASL or client certificates, with a login that is not itself a token.",
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "Give the client the right `CreateTokens` for the owner: an ACL on the resource type User.",
    ErrorCode.DELEGATION_TOKEN_EXPIRED: "Create another token: this one has expired.",
    ErrorCode.INVALID_PRINCIPAL_TYPE: "Specify renewers as `User:name`.",
    ErrorCode.UNACCEPTABLE_CREDENTIAL: "Use 4,096 to 16,384 iterations and a non-empty user name.",
    ErrorCode.INVALID_UPDATE_VERSION: "Choose a level that `penstock features list` shows as supported, once all brokers support it; see the message.",
    ErrorCode.NON_EMPTY_GROUP: "Stop the members of the group before deleting it or its offsets.",
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: "Wait for the throttle time: the client exceeds its `controller_mutation_rate`, which `penstock quotas list` shows. For a push of metrics: none required, it was too early, and the client retries.",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "Stop the members of the group that subscribe to the topic, then delete its offsets.",
    ErrorCode.GROUP_ID_NOT_FOUND: "Check the group id; groups without members and offsets are removed.",
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND: "None required: the broker has restarted, or evicted the session. Clients then send full requests.",
    ErrorCode.INVALID_FETCH_SESSION_EPOCH: "None required: a request was lost or repeated. Clients start a new session.",
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR: "None required: the client switched between topic names and topic ids within a session. It starts a new one.",
    ErrorCode.SHARE_SESSION_NOT_FOUND: "None required: the broker has restarted, or the connection was closed. Consumers start a new session; locked records are delivered again.",
    ErrorCode.INVALID_SHARE_SESSION_EPOCH: "None required: a request was lost or repeated. Consumers start a new session.",
    ErrorCode.SHARE_SESSION_LIMIT_REACHED: "Run fewer share group consumers, increase `group.share.max.share.sessions`, or add brokers.",
    ErrorCode.UNKNOWN_SUBSCRIPTION_ID: "None required: the metrics subscription of the client has changed. The client requests it again.",
    ErrorCode.TELEMETRY_TOO_LARGE: "List fewer `metrics` in the subscription, or increase `telemetry.max.bytes`.",
    ErrorCode.INVALID_RECORD_STATE: "The record was no longer locked by this consumer and may be delivered again: process records faster, renew the lock, or increase `share.record.lock.duration.ms`.",
    ErrorCode.FENCED_LEADER_EPOCH: _ASK_LEADER,
    ErrorCode.UNKNOWN_LEADER_EPOCH: "Wait: the broker has not received this leader epoch yet. Clients retry.",
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "Compress with gzip, snappy, lz4 or zstd.",
    ErrorCode.STALE_BROKER_EPOCH: "The broker was fenced and is restarting. Retry.",
    ErrorCode.MEMBER_ID_REQUIRED: "None required: clients join again with the member id in the response.",
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "Start the preferred leader, or reassign the partition.",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "Run fewer consumers in the group, or increase `group.max.size`, `group.consumer.max.size`, `group.share.max.size` or `group.streams.max.size`.",
    ErrorCode.FENCED_INSTANCE_ID: "Use a unique `group.instance.id` for each consumer.",
    ErrorCode.FENCED_MEMBER_EPOCH: _REJOIN,
    ErrorCode.UNRELEASED_INSTANCE_ID: (
        "Wait until the consumer with this `group.instance.id` has left or its session has expired, or use another id."
    ),
    ErrorCode.UNSUPPORTED_ASSIGNOR: "Use `uniform` or `range` as `group.remote.assignor`; `group.consumer.assignors` has the allowed ones.",
    ErrorCode.STALE_MEMBER_EPOCH: "The epoch of the group has advanced. Clients retry the commit after their next heartbeat.",
    ErrorCode.FENCED_STATE_EPOCH: "None required: the share group was altered, and the leader of the share partition reloads its state.",
    ErrorCode.INVALID_REGULAR_EXPRESSION: (
        "Correct the regular expression of the subscription. The syntax is that of RE2, without look-ahead and back-references; at most 4,096 characters and as many instructions."
    ),
    ErrorCode.STREAMS_INVALID_TOPOLOGY: "Correct the topology of the Kafka Streams application; see the message.",
    ErrorCode.STREAMS_INVALID_TOPOLOGY_EPOCH: "Use a topology epoch of 0 or more.",
    ErrorCode.ELECTION_NOT_NEEDED: "None required: the preferred leader already leads the partition.",
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: "None required: there is no move to cancel.",
    ErrorCode.INVALID_RECORD: "Correct the record; see the message.",
    ErrorCode.UNSTABLE_OFFSET_COMMIT: "Wait: a transaction with this offset is open. Clients retry.",
    ErrorCode.PRODUCER_FENCED: _NEW_PRODUCER,
    ErrorCode.UNKNOWN_TOPIC_ID: "Refresh metadata: the topic was deleted, and possibly recreated with the same name.",
    ErrorCode.BROKER_ID_NOT_REGISTERED: "The broker was removed from the cluster. Contact another one.",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "Check the transactional id; unused ids expire.",
    ErrorCode.TRANSACTION_ABORTABLE: "Abort the transaction and begin another one: the partition is not part of this one.",
    ErrorCode.MISMATCHED_ENDPOINT_TYPE: "Send requests for controllers to a controller, and requests for brokers to a broker.",
    ErrorCode.UNSUPPORTED_ENDPOINT_TYPE: "Use endpoint type 1 (brokers).",
}
"""Advice for each code that a broker sends."""

MODULES: Final[tuple[tuple[str, ModuleType], ...]] = (
    ("Object store", objectstore),
    ("Streams: WAL, objects, reads", stream),
    ("Record batches", batches),
    ("Controllers", controller),
    ("Kafka protocol", wire),
    ("Readers: the manifest", manifest),
    ("Readers: `scan` and Spark tasks", reader),
    ("Spark source", spark),
    ("Spark sink", sink),
    ("Table export", table),
    ("Kafka clients", client),
    ("Command line", deploy),
    ("Bases", base),
)


def markdown() -> str:
    codes = "\n".join(_code_row(code) for code in sorted(ADVICE))
    chapters = "\n".join(
        f"\n### {title}\n\n| error | retry | meaning |\n|---|---|---|\n{_table(module)}"
        for title, module in MODULES
    )
    return f"{_HEAD}{codes}\n{_CLASSES_HEAD}{chapters}\n"


def classes(module: ModuleType) -> Iterator[type[Exception]]:
    """Return the error classes that `module` defines, in the order of the file."""
    for found in vars(module).values():
        if (
            inspect.isclass(found)
            and issubclass(found, Exception)
            and found.__module__ == module.__name__
        ):
            yield found


def _code_row(code: ErrorCode) -> str:
    return f"| {code.value} | `{code.name}` | {_yes(code.retriable)} | {ADVICE[code]} |"


def _table(module: ModuleType) -> str:
    return "\n".join(
        f"| `{found.__name__}` | {_yes(getattr(found, 'retriable', False))} | {_meaning(found)} |"
        for found in classes(module)
    )


def _meaning(found: type[Exception]) -> str:
    return " ".join((found.__doc__ or "").split()).replace("|", "\\|")


def _yes(condition: object) -> str:
    return "yes" if condition else ""


if __name__ == "__main__":
    sys.stdout.write(markdown())
