"""Write `docs/reference/kafka-apis.md`: the Kafka APIs that brokers serve, with their versions.

    python -m deploy.reference.kafka_apis > docs/reference/kafka-apis.md

Invariant: repeatable; the file in `docs/` is this output, byte for byte (a test compares).
"""

import sys
from collections.abc import Iterator
from typing import Final

from broker.handlers.table import INLINE, make_handlers
from broker.wire.apis import APIS, ApiSpec

_HEAD: Final = """\
# Kafka APIs

<!-- Written by `python -m deploy.reference.kafka_apis`; do not edit. -->

Brokers serve these APIs, and announce them in their answer to ApiVersions.
A request with another key or version closes the connection, as in Kafka; only ApiVersions is answered in any version.
Versions that use compact lengths and tagged fields (KIP-482) are called flexible.

| API | key | versions | flexible from |
|---|---|---|---|
"""
_ABSENT_HEAD: Final = """
Produce is announced from version 0 because older versions of librdkafka stop compressing otherwise (KAFKA-18659).
Brokers serve it from version 3.

Two APIs carry tagged fields of Penstock, which Kafka's clients and brokers skip: 10000 in the markers of WriteTxnMarkers (the serial), and 10000 to 10002 in the partitions of DescribeLogDirs (the number of objects, the bytes that are in WAL objects, and the bytes that a fork, a snapshot, a deleted topic or deleted records count too).

Consumer groups exist under both protocols: `group.protocol=classic`, and `group.protocol=consumer` (KIP-848) with the assignors `uniform` and `range` on the broker.
A live group changes its protocol when the first member of the consumer protocol joins or the last one leaves, and the classic members go on; `group.consumer.migration.policy` limits that.
Groups have Kafka's configs (`kafka-configs.sh --entity-type groups`): session timeouts and heartbeat intervals hold from a member's next heartbeat; those of streams groups have no effect.
Racks do not influence assignments.
Share groups (KIP-932) have the assignor `simple`.
ShareFetch of a partition whose topic does not exist gets UNKNOWN_TOPIC_ID for the partition, where Kafka 4.2 fails the request.
The first start offset of a group in a partition is stored before anything is delivered: in Kafka a group that begins at the end may pass over records when its leader fails early.
AlterShareGroupOffsets begins a new epoch of the group, unlike in Kafka, and refuses negative offsets; InitializeShareGroupState changes nothing in the epoch that a state already has ([ADR 0053](../adr/0053-share-groups.md)).

Brokers have configs of their own and configs for all of them (`kafka-configs.sh --entity-type brokers`), with Kafka's sources and synonyms.
Live settings of Penstock change at once, also some that Kafka refuses, such as `num.partitions`.
The rates of `kafka-reassign-partitions.sh --throttle` and a few sizes of thread pools are stored and have no effect.
Unlike Kafka, brokers refuse names that they do not know, and there are no defaults for all topics.

A Fetch with a rack (version 11 and later) may be answered with a preferred read replica: any broker in that rack, because all of them can read what is in the store ([Read in the own zone](../how-to/tune-latency-and-cost.md#read-in-the-own-zone)).

Features have levels (KIP-584): `transaction.version` 0 to 2, `group.version` and `share.version` 0 to 1, which ApiVersions tells; `penstock features` and `kafka-features.sh` change them.
New clusters have the newest ones; a cluster that is older than features has `transaction.version` 0, `group.version` 1 and `share.version` 0 until someone changes them.
From level 2 on Java clients use version 2 of transactions (KIP-890); level 1 only changes the records of `__transaction_state`.
There is no metadata version, so `kafka-features.sh upgrade --release-version` fails; name the features instead.
A level needs every registered broker; controllers are not asked, so update their software first.

Some APIs answer about things that brokers do not have.
AlterReplicaLogDirs knows one log directory, the object store.
DescribeClientQuotas and DescribeUserScramCredentials find nothing, and ListConfigResources finds no loggers and no client metrics.
DescribeProducers is answered by the leader of a partition, because no other broker knows producers: `kafka-transactions.sh find-hanging --broker-id` fails if another broker leads a partition of which this one is a candidate, so use `--topic`, or `penstock transactions find-hanging`.

## Not served

| APIs | consequence |
|---|---|
"""
ABSENT: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (("SaslHandshake", "SaslAuthenticate"), "No authentication: listeners are `PLAINTEXT`."),
    (
        ("DescribeAcls", "CreateAcls", "DeleteAcls"),
        "No ACLs: every client that reaches a listener has all rights.",
    ),
    (("AlterClientQuotas",), "No quotas: DescribeClientQuotas finds none."),
    (("StreamsGroupHeartbeat",), "Kafka Streams uses the classic group protocol (no KIP-1071)."),
    (
        ("CreateDelegationToken", "AlterUserScramCredentials"),
        "No credentials are managed: DescribeUserScramCredentials finds none.",
    ),
    (
        ("GetTelemetrySubscriptions", "PushTelemetry"),
        "Brokers do not collect metrics of clients (no KIP-714).",
    ),
)
"""APIs that clients may look for, and the consequence of their absence."""


def markdown() -> str:
    served = {*make_handlers(), *INLINE}
    rows = "\n".join(_row(api) for api in APIS.values() if api.key in served)
    return _HEAD + rows + "\n" + _ABSENT_HEAD + "\n".join(_absent_rows()) + "\n"


def _row(api: ApiSpec) -> str:
    versions = (
        f"{api.served_min}" if api.served_min == api.max else f"{api.served_min} to {api.max}"
    )
    flexible = f"{api.flexible_from}" if api.flexible_from <= api.max else ""
    return f"| {api.name} | {api.key} | {versions} | {flexible} |"


def _absent_rows() -> Iterator[str]:
    for names, consequence in ABSENT:
        yield f"| {', '.join(names)} | {consequence} |"


if __name__ == "__main__":
    sys.stdout.write(markdown())
