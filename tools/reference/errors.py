"""Write `docs/reference/errors.md`: the Kafka error codes that brokers send and the error classes,
with what to do.

    python -m tools.reference.errors > docs/reference/errors.md

Invariant: repeatable; the file in `docs/` is this output, byte for byte (a test compares). Another
test compares `ADVICE` with the codes that the sources of the broker name.
"""

import inspect
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Final

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
from penstock.protocol.error_codes import ErrorCode
from penstock.stream import errors as stream

_HEAD: Final = """\
# Errors

<!-- Written by `python -m tools.reference.errors`; do not edit. -->

## Kafka error codes

These are the codes that brokers send.
"Retried" means that Kafka's clients try again by themselves, so an application sees the error only when its timeout is over.

| code | name | retried | what to do |
|---|---|---|---|
"""
_CLASSES_HEAD: Final = """
## Error classes

Messages of nodes, commands, `scan`, Spark and table export carry these names.
"Retry" means that the same call may succeed later without a change.
"""
_ASK_LEADER: Final = "Refresh metadata and ask the leader. Clients do so by themselves."
_ASK_COORDINATOR: Final = "Look the coordinator up again. Clients do so by themselves."
_REJOIN: Final = (
    "Join the group again. Clients do so by themselves; commits of the old generation are refused."
)
_NEW_PRODUCER: Final = "Close the producer and open another one. A newer start of the same `transactional.id` may be running."

ADVICE: Final[dict[ErrorCode, str]] = {
    ErrorCode.UNKNOWN_SERVER_ERROR: "This is a bug. The log of the broker has an event `request_failed` with the traceback.",
    ErrorCode.OFFSET_OUT_OF_RANGE: "The partition does not have the offset. `auto.offset.reset` decides where to go on.",
    ErrorCode.CORRUPT_MESSAGE: (
        "To a producer: the batch was damaged on its way and is sent again. To a consumer: an object of the store is damaged or lost. "
        "Run `penstock doctor`."
    ),
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "Check the name, or create the topic. A new topic may take a moment to reach all brokers.",
    ErrorCode.LEADER_NOT_AVAILABLE: "Wait: an election is under way, or the leader still opens the partition.",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: _ASK_LEADER,
    ErrorCode.REQUEST_TIMED_OUT: "The store or the controllers are slow. Run `penstock top` and `penstock doctor`.",
    ErrorCode.MESSAGE_TOO_LARGE: "Send smaller batches, or raise `max.message.bytes` of the topic.",
    ErrorCode.OFFSET_METADATA_TOO_LARGE: "Commit less metadata with the offset.",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "Wait: the coordinator reads its log.",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: _ASK_COORDINATOR,
    ErrorCode.NOT_COORDINATOR: _ASK_COORDINATOR,
    ErrorCode.INVALID_TOPIC_EXCEPTION: "Use another name: at most 249 letters, digits, `.`, `_`, `-`. Internal topics are read-only.",
    ErrorCode.RECORD_LIST_TOO_LARGE: "Send fewer records in one request.",
    ErrorCode.INVALID_REQUIRED_ACKS: "Set `acks` to `all`, `1` or `0`.",
    ErrorCode.ILLEGAL_GENERATION: _REJOIN,
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "Give all members of the group the same protocol type and at least one common assignor.",
    ErrorCode.INVALID_GROUP_ID: "Set a `group.id` that is not empty.",
    ErrorCode.UNKNOWN_MEMBER_ID: _REJOIN,
    ErrorCode.INVALID_SESSION_TIMEOUT: (
        "Choose a `session.timeout.ms` between `group.min.session.timeout.ms` and `group.max.session.timeout.ms`."
    ),
    ErrorCode.REBALANCE_IN_PROGRESS: _REJOIN,
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE: "Commit fewer offsets, or less metadata, in one request.",
    ErrorCode.INVALID_TIMESTAMP: (
        "Correct the clock of the producer, or raise `message.timestamp.before.max.ms` or `message.timestamp.after.max.ms` of the topic."
    ),
    ErrorCode.UNSUPPORTED_VERSION: "The client asks for a version that is not served; see [Kafka APIs](kafka-apis.md).",
    ErrorCode.TOPIC_ALREADY_EXISTS: "Use the topic that exists, or choose another name.",
    ErrorCode.INVALID_PARTITIONS: "Ask for more partitions than there are; partitions cannot be removed.",
    ErrorCode.INVALID_REPLICATION_FACTOR: "Use -1, or at most the number of brokers. It counts candidates, not copies.",
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: "Name brokers that exist, each once.",
    ErrorCode.INVALID_CONFIG: "Correct the topic config that the message names; see [Configuration](configuration.md#topics).",
    ErrorCode.NOT_CONTROLLER: "The controllers elect a leader. Try again.",
    ErrorCode.INVALID_REQUEST: "The request contradicts itself; the message says how.",
    ErrorCode.POLICY_VIOLATION: "CreateTopics, CreatePartitions, Metadata: the cluster has as many partitions as `max.partitions` of its controllers allows; delete topics or snapshots, or raise it; or one request has more than 10,000 partitions: make several. DeleteRecords: the topic has `cleanup.policy=compact`; add `delete` to the policy if its records may be deleted. Produce: only a [mirror](../how-to/mirror-clusters.md) writes to the topic, until `penstock mirror finish`.",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: (
        "Records between this batch and the one before were not written. Clients send them again in order; "
        "if they cannot, close the producer and open another one."
    ),
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: "Nothing: the batch was written before. Its offset is not known any more.",
    ErrorCode.INVALID_PRODUCER_EPOCH: _NEW_PRODUCER,
    ErrorCode.INVALID_TXN_STATE: "Begin a transaction before writing to it, and end it once.",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: _NEW_PRODUCER,
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "Lower `transaction.timeout.ms` to at most the broker's `transaction.max.timeout.ms`.",
    ErrorCode.CONCURRENT_TRANSACTIONS: "Wait: the last transaction of this producer is being completed. Clients do so by themselves.",
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: "Nothing: brokers send it to each other when a coordinator has moved.",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Add an ACL for the topic, or remove one that denies it: `penstock acls list --topic NAME`. A client that may not describe a topic does not learn whether it exists.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Add an ACL for the group, or remove one that denies it: `penstock acls list --group NAME`.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Add an ACL for the cluster, or remove one that denies it: `penstock acls list --cluster`. An idempotent producer gets it if it may write to no topic.",
    ErrorCode.SECURITY_DISABLED: "Set `authorizer.class.name` on the brokers before you change ACLs.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Name the transactional id in the Produce request: its records belong to a transaction. With ACLs, the client needs Write on it.",
    ErrorCode.NOT_ENOUGH_REPLICAS: "Wait: the coordinator of the transaction moves or starts. Clients try again.",
    ErrorCode.NETWORK_EXCEPTION: "Nothing: a broker did not reach the coordinator of a transaction, and asks again.",
    ErrorCode.OPERATION_NOT_ATTEMPTED: "Look at the other partitions in the answer: one of them was refused.",
    ErrorCode.KAFKA_STORAGE_ERROR: "The store refuses or has lost an object. Run `penstock doctor`.",
    ErrorCode.LOG_DIR_NOT_FOUND: "Leave the partition where it is: the object store is the only log directory.",
    ErrorCode.RESOURCE_NOT_FOUND: "Check the user and the mechanism: `penstock users list` shows the users in the metadata. Users of `sasl.users.file` are not there.",
    ErrorCode.DUPLICATE_RESOURCE: "Name each user once.",
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: "Use a mechanism that the brokers name in `sasl.enabled.mechanisms`.",
    ErrorCode.ILLEGAL_SASL_STATE: "Authenticate only on listeners with SASL (`SASL_PLAINTEXT`, `SASL_SSL`), and once.",
    ErrorCode.SASL_AUTHENTICATION_FAILED: "Check user and password, or the token. The broker's log has an event `authentication_failed` with the reason.",
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "Set `delegation.token.secret.key` on all brokers.",
    ErrorCode.DELEGATION_TOKEN_NOT_FOUND: "Check the token: it does not exist, was expired, or the brokers have another `delegation.token.secret.key` now. `penstock tokens list` lists tokens.",
    ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH: "Renew and expire tokens as their owner or as a renewer.",
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "Ask for tokens on a listener with SASL or with client certificates, and do not log in with a token for that.",
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "Give the client the right `CreateTokens` for the owner: an ACL on the resource type User.",
    ErrorCode.DELEGATION_TOKEN_EXPIRED: "Create another token: this one has ended.",
    ErrorCode.INVALID_PRINCIPAL_TYPE: "Name renewers as `User:name`.",
    ErrorCode.UNACCEPTABLE_CREDENTIAL: "Use 4,096 to 16,384 iterations and a user name that is not empty.",
    ErrorCode.INVALID_UPDATE_VERSION: "Ask for a level that `penstock features list` shows as supported, when all brokers run software that supports it; the message says what is wrong.",
    ErrorCode.NON_EMPTY_GROUP: "Stop the members of the group before deleting it or its offsets.",
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: "Wait as long as the answer says: the client creates or deletes more partitions than its `controller_mutation_rate`. `penstock quotas list` shows it. To a push of metrics: nothing, it came too early, and the client tries again.",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "Stop the members of the group that subscribe to the topic, then delete its offsets.",
    ErrorCode.GROUP_ID_NOT_FOUND: "Check the group's id; groups without members and offsets are removed.",
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND: "Nothing: the broker has started again, or gave the session to another client. Clients then send full requests.",
    ErrorCode.INVALID_FETCH_SESSION_EPOCH: "Nothing: a request was lost or repeated. Clients begin a new session.",
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR: "Nothing: the client changed between topic names and topic ids within a session. It begins a new one.",
    ErrorCode.SHARE_SESSION_NOT_FOUND: "Nothing: the broker has started again, or the connection was closed. Consumers begin a new session; what they had is delivered again.",
    ErrorCode.INVALID_SHARE_SESSION_EPOCH: "Nothing: a request was lost or repeated. Consumers begin a new session.",
    ErrorCode.SHARE_SESSION_LIMIT_REACHED: "Run fewer consumers of share groups, raise `group.share.max.share.sessions`, or add brokers.",
    ErrorCode.UNKNOWN_SUBSCRIPTION_ID: "Nothing: the subscription to metrics of the client changed. The client asks for it again.",
    ErrorCode.TELEMETRY_TOO_LARGE: "Name fewer `metrics` in the subscription, or raise `telemetry.max.bytes`.",
    ErrorCode.INVALID_RECORD_STATE: "The record was not locked for this consumer any more, and may be delivered again: work faster, renew the lock, or raise `share.record.lock.duration.ms`.",
    ErrorCode.FENCED_LEADER_EPOCH: _ASK_LEADER,
    ErrorCode.UNKNOWN_LEADER_EPOCH: "Wait: the broker has not learned of this leader epoch yet. Clients try again.",
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "Compress with gzip, snappy, lz4 or zstd.",
    ErrorCode.STALE_BROKER_EPOCH: "The broker was fenced and restarts. Try again.",
    ErrorCode.MEMBER_ID_REQUIRED: "Nothing: clients join again with the member id from the answer.",
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "Start the preferred leader, or reassign the partition.",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "Run fewer consumers in the group, or raise `group.max.size`, `group.consumer.max.size`, `group.share.max.size` or `group.streams.max.size`.",
    ErrorCode.FENCED_INSTANCE_ID: "Give each consumer a `group.instance.id` of its own.",
    ErrorCode.FENCED_MEMBER_EPOCH: _REJOIN,
    ErrorCode.UNRELEASED_INSTANCE_ID: (
        "Wait until the consumer with this `group.instance.id` has closed or its session is over, or use another id."
    ),
    ErrorCode.UNSUPPORTED_ASSIGNOR: "Use `uniform` or `range` as `group.remote.assignor`; `group.consumer.assignors` has the allowed ones.",
    ErrorCode.STALE_MEMBER_EPOCH: "The group has moved on. Clients repeat the commit after their next heartbeat.",
    ErrorCode.FENCED_STATE_EPOCH: "Nothing: the share group was altered, and the broker that leads the share partition reads its state again.",
    ErrorCode.INVALID_REGULAR_EXPRESSION: (
        "Correct the regular expression of the subscription. The syntax is that of RE2, without look-ahead and back-references; at most 4,096 characters and as many instructions."
    ),
    ErrorCode.STREAMS_INVALID_TOPOLOGY: "Correct the topology of the Kafka Streams application; the message says what is wrong with it.",
    ErrorCode.STREAMS_INVALID_TOPOLOGY_EPOCH: "Use a topology epoch of 0 or more.",
    ErrorCode.ELECTION_NOT_NEEDED: "Nothing: the preferred leader leads already.",
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: "Nothing: there is no move to cancel.",
    ErrorCode.INVALID_RECORD: "Correct the record; the message says what is wrong with it.",
    ErrorCode.UNSTABLE_OFFSET_COMMIT: "Wait: a transaction with this offset is open. Clients try again.",
    ErrorCode.PRODUCER_FENCED: _NEW_PRODUCER,
    ErrorCode.UNKNOWN_TOPIC_ID: "Refresh metadata: the topic was deleted, and perhaps created again under the same name.",
    ErrorCode.BROKER_ID_NOT_REGISTERED: "The broker was removed from the cluster. Ask another one.",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "Check the transactional id; ids that are not used expire.",
    ErrorCode.TRANSACTION_ABORTABLE: "Abort the transaction and begin another one: the partition is not part of this one.",
    ErrorCode.MISMATCHED_ENDPOINT_TYPE: "Send requests for controllers to a controller, and requests for brokers to a broker.",
    ErrorCode.UNSUPPORTED_ENDPOINT_TYPE: "Ask for endpoint type 1 (brokers).",
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
    ("Command line", deploy),
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
