"""Write `docs/reference/kafka-apis.md`: the Kafka APIs that brokers serve, with their versions.

    python -m tools.reference.kafka_apis > docs/reference/kafka-apis.md

Invariant: repeatable; the file in `docs/` is this output, byte for byte (a test compares).
"""

import sys
from collections.abc import Iterator, Mapping
from typing import Final

from penstock.broker.handlers.table import INLINE, make_handlers
from penstock.protocol.apis import APIS, ApiSpec
from penstock.protocol.primitives import REQUEST_ELEMENTS_MAX
from penstock.protocol.request_limits import elements_max, things_max
from tools.reference.api_evidence import EVIDENCE
from tools.reference.kafka_4_2 import KAFKA_APIS, KAFKA_PLUGIN_APIS

_HEAD: Final = """\
# Kafka APIs

<!-- Written by `python -m tools.reference.kafka_apis`; do not edit. -->

Brokers serve these APIs, and announce them in their answer to ApiVersions.
They are the APIs of Apache Kafka 4.2, in the versions that are stable there.
A request with another key or version closes the connection, as in Kafka; only ApiVersions is answered in any version.
Versions that use compact lengths and tagged fields (KIP-482) are called flexible.

| API | key | versions | Kafka 4.2 | flexible from | tested with |
|---|---|---|---|---|---|
"""
_TESTED: Final = """
Java means the clients and tools of Kafka 4.2, librdkafka the client confluent-kafka, kafkajs a client for Node.
Requests means single requests; those that Kafka has too are compared with its answers.
`tools/reference/api_evidence.py` names a test for each.

## Known differences

| API | difference from Kafka 4.2 |
|---|---|
"""
_LIMITS_HEAD: Final = f"""
## Limits of a request

A request names at most so many things, whatever their kind: each element of an array, also of one inside another, and each tagged field counts as one.
For APIs that are not in the table it is {REQUEST_ELEMENTS_MAX:,}.
What clients send for 10,000 partitions fits, and so do requests for 5,000 groups ([design note](../design/fairness.md)).
A request with more elements closes the connection, and the log of the broker names the API, the number and the limit.
The last column has further limits: a request above one of them gets POLICY_VIOLATION if the API has an error for the whole request; otherwise the connection closes.

| API | elements | of them |
|---|---|---|
"""
_ABSENT_HEAD: Final = """
## Notes

Produce is announced from version 0 because older versions of librdkafka stop compressing otherwise (KAFKA-18659).
Brokers serve it from version 3.

Some APIs have tagged fields of Penstock.
Clients of Kafka do not send them and get none, because a broker adds them to a response only if the request asks for them by such a field.

| API | fields |
|---|---|
| Produce | 10000 in the request: the source of a [mirror](../how-to/mirror-clusters.md) |
| ListOffsets | 10000 in a partition of the request asks for the point of a fork; 10000 and 10001 in the response: the point, or why there is none |
| Metadata | 10000 in the request asks for snapshots and deleted topics; 10000 in a topic of the response: one of them |
| WriteTxnMarkers | 10000 in a marker of the request: its serial |
| DescribeLogDirs | 10000 in the request asks for details; 10000 to 10002 in a partition of the response: the number of objects, the bytes in WAL objects, and the bytes that a fork, a snapshot, a deleted topic or deleted records count too |

Consumer groups exist under both protocols: `group.protocol=classic`, and `group.protocol=consumer` (KIP-848) with the assignors `uniform` and `range` on the broker.
A live group changes its protocol when the first member of the consumer protocol joins or the last one leaves, and the classic members go on; `group.consumer.migration.policy` limits that.
Groups have Kafka's configs (`kafka-configs.sh --entity-type groups`): session timeouts and heartbeat intervals hold from a member's next heartbeat.
Share groups (KIP-932) have the assignor `simple`.
The first start offset of a group in a partition is stored before anything is delivered: in Kafka a group that begins at the end may pass over records when its leader fails early.
Streams groups (KIP-1071, `group.protocol=streams`) have the assignor `sticky`, and what Kafka 4.2 has: no static members, no warm-up tasks, no sources by regular expressions, and no other topology until the group is deleted ([design note](../design/streams-groups.md)).

Brokers have configs of their own and configs for all of them (`kafka-configs.sh --entity-type brokers`), with Kafka's sources and synonyms.
Live settings of Penstock change at once, also some that Kafka refuses, such as `num.partitions`.
Those of Kafka that mean nothing here are stored and have no effect: the rates of `kafka-reassign-partitions.sh --throttle`, sizes of thread pools and segments, tiered storage, `min.insync.replicas`.
Unlike Kafka, brokers refuse names that they do not know, the settings of TLS and SASL, which come from files, and defaults for all topics that would have an effect, such as `log.retention.ms`: set them on each topic.
A topic without `min.insync.replicas` has it from the defaults, source 5; a new cluster of Kafka 4.2 stores it for all brokers, source 3, because of its eligible leader replicas.

A Fetch with a rack (version 11 and later) may be answered with a preferred read replica: any broker in that rack, because all of them can read what is in the store ([Read in the own zone](../how-to/tune-latency-and-cost.md#read-in-the-own-zone)).
A Fetch with the replica id and epoch of a live broker asks where the records are: in its answer, MessagePack that names WAL slots takes their place ([design note](../design/fetch.md#reads-in-the-rack)). From anyone else it gets NOT_LEADER_OR_FOLLOWER.

Features have levels (KIP-584): `transaction.version` 0 to 2, `group.version`, `share.version`, `streams.version` and `offsets.version` 0 to 1, which ApiVersions tells; `penstock features` and `kafka-features.sh` change them.
New clusters have the newest ones; a cluster that is older than features has `transaction.version` 0, `group.version` 1, `share.version` 0, `streams.version` 0 and `offsets.version` 0 until someone changes them.
From level 2 on Java clients use version 2 of transactions (KIP-890); level 1 only changes the records of `__transaction_state`.
`metadata.version` is always 29, that of Kafka 4.2, for tools and operators that read it.
`offsets.version` is not one of Kafka's: level 1 writes version 4 of Kafka's OffsetCommitValue, with the topic id ([Clients](../how-to/connect-clients.md)).
There are no other features of Kafka's own metadata, so `kafka-features.sh upgrade --release-version` fails; name the features instead.
A level needs every registered broker; controllers are not asked, so update their software first.

Brokers have loggers whose levels change at once (`penstock configs alter --broker-logger`, `kafka-configs.sh --entity-type broker-loggers`): `root` and the packages of Penstock.
A restart takes them back to `log.level`.

`penstock configs alter --client-metrics` and `kafka-client-metrics.sh` set, show and delete subscriptions to metrics of clients (KIP-714); there can be 1,000.
Brokers with `client.metrics.otlp.endpoint` announce GetTelemetrySubscriptions and PushTelemetry and send what clients push to a receiver of OTLP ([Collect the metrics of clients](../how-to/monitor.md#collect-the-metrics-of-clients)); others do not, as Kafka without a plugin for such metrics.
Clients push cumulative values, where Kafka asks for deltas.

Clients log in by SCRAM (KIP-84), PLAIN or OAUTHBEARER (KIP-255), and again before a session ends (KIP-368).
Brokers verify signed tokens with a JWKS document, as Kafka since KIP-768.
`penstock` commands get tokens by the grants `client_credentials` and `jwt-bearer` (KIP-1139), as Kafka's clients do.
Quotas are Kafka's ([Limit clients](../how-to/quotas.md)): clients are told to wait, and nothing is read from their connections meanwhile.
Each broker counts for itself; the active controller counts the partitions of `controller_mutation_rate`, as in Kafka.
`request_percentage` is of the time of the broker's event loop.
ApiVersions does not tell the time to wait.

## Not served

| APIs | consequence |
|---|---|
"""
ABSENT: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (
        ("AddRaftVoter", "RemoveRaftVoter"),
        "`penstock quorum add` and `remove` change the quorum.",
    ),
)
"""APIs that clients may look for, and the consequence of their absence."""


_ONCE: Final = "A name that is repeated is answered once."

DIFFERENCES: Final[Mapping[str, str]] = {
    "GetTelemetrySubscriptions": (
        "Only of brokers with `client.metrics.otlp.endpoint`. Clients are asked for cumulative"
        " values, not for deltas, and the names of metrics come in alphabetical order."
    ),
    "PushTelemetry": (
        "Only of brokers with `client.metrics.otlp.endpoint`. A push has at most 4 MiB"
        " decompressed. What is not OpenTelemetry's MetricsData gets INVALID_RECORD."
    ),
    "DescribeShareGroupOffsets": (
        "The empty group id gets INVALID_GROUP_ID; Kafka returns no topics if none are named, and"
        " UNKNOWN_SERVER_ERROR otherwise."
    ),
    "StreamsGroupHeartbeat": (
        "A topology has at most 1,000 subtopologies, 10,000 topics and 10,000 tasks, and a member"
        " 100 client tags. What Kafka answers with an internal error, such as two subtopologies of"
        " the same id, is an invalid topology."
    ),
    "Produce": (
        "acks 1 means the same as acks -1: every acknowledged record is durable. Of a partition that"
        " is named twice the first batch is appended, and the others get INVALID_REQUEST; Kafka"
        " appends the last and drops the others without a word. A transactional batch without a"
        " producer id gets INVALID_RECORD, because nothing could end its transaction, and the"
        " sequences of a producer with epoch -1 are checked; Kafka appends both."
    ),
    "Fetch": (
        "The epoch of the last record that a client fetched (version 12) is not compared, because a"
        " log is never truncated; a consumer of a mirror may have it from the source. A debugging consumer (replica id -2) gets from brokers that do not lead a partition what"
        " is in objects, and NOT_LEADER_OR_FOLLOWER behind that."
    ),
    "ListOffsets": (
        "-3 finds the newest record that the client can read; Kafka may name one below the log"
        " start, and finds none if the newest one belongs to an open transaction."
    ),
    "CreateTopics": (
        'There may be more replicas than brokers, and names may differ in "." and "_" alone.'
        " Configs that begin with `penstock.` make forks, snapshots and topics that come back."
    ),
    "DeleteTopics": "A deleted topic can come back for `delete.grace.ms`.",
    "DescribeConfigs": (
        "The loggers of brokers (type 8) are packages of Penstock. A resource that is named again"
        " is described once, and one answer has at most 50,000 configs that are not of topics."
    ),
    "DescribeGroups": _ONCE,
    "ConsumerGroupDescribe": _ONCE,
    "ShareGroupDescribe": _ONCE,
    "DescribeTransactions": _ONCE,
    "DeleteGroups": _ONCE,
    "OffsetFetch": _ONCE,
    "IncrementalAlterConfigs": (
        "As DescribeConfigs; brokers refuse names that they do not know. A value has 4,096"
        " characters at most. `match` of client metrics takes the regular expressions of RE2, not"
        " those of Java."
    ),
    "AlterConfigs": "As IncrementalAlterConfigs.",
    "AlterReplicaLogDirs": "There is one log directory, the object store.",
    "ElectLeaders": "An unclean election is never needed.",
    "DescribeProducers": (
        "Only the leader of a partition knows producers; the other candidates ask it."
    ),
    "UpdateFeatures": "`metadata.version` has one level, 29, and there are no other features of Kafka's metadata.",
    "ConsumerGroupHeartbeat": "Racks do not influence assignments.",
    "ShareFetch": (
        "A partition whose topic does not exist gets UNKNOWN_TOPIC_ID, where Kafka fails the"
        " request."
    ),
    "InitializeShareGroupState": (
        "It changes nothing in the epoch that a state already has"
        " ([design note](../design/share-groups.md))."
    ),
    "AlterShareGroupOffsets": (
        "It begins a new epoch of the group, and refuses negative offsets"
        " ([design note](../design/share-groups.md))."
    ),
}
"""What is known to differ, by the name of the API."""


def markdown() -> str:
    served = {*make_handlers(has_client_metrics=True), *INLINE}
    rows = "\n".join(_row(api) for api in APIS.values() if api.key in served)
    differences = "\n".join(f"| {name} | {text} |" for name, text in DIFFERENCES.items())
    parts = (
        _HEAD + rows,
        _TESTED + differences,
        _LIMITS_HEAD + "\n".join(_limit_rows()),
        _ABSENT_HEAD + "\n".join(_absent_rows()),
    )
    return "\n".join(parts) + "\n"


def _row(api: ApiSpec) -> str:
    flexible = f"{api.flexible_from}" if api.flexible_from <= api.max else ""
    kafka = KAFKA_APIS.get(api.key) or KAFKA_PLUGIN_APIS[api.key]
    cells = (
        api.name,
        str(api.key),
        _versions(api.served_min, api.max),
        _versions(kafka.first, kafka.last),
        flexible,
        ", ".join(EVIDENCE[api.name]),
    )
    return f"| {' | '.join(cells)} |"


def _versions(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first} to {last}"


def _limit_rows() -> Iterator[str]:
    for api in APIS.values():
        elements, things = elements_max(api.key), things_max(api.key)
        if elements != REQUEST_ELEMENTS_MAX or things is not None:
            of_them = "" if things is None else f"{things.max:,} {things.name}"
            yield f"| {api.name} | {elements:,} | {of_them} |"


def _absent_rows() -> Iterator[str]:
    for names, consequence in ABSENT:
        yield f"| {', '.join(names)} | {consequence} |"


if __name__ == "__main__":
    sys.stdout.write(markdown())
