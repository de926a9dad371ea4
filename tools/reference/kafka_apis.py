"""Write `docs/reference/kafka-apis.md`: the Kafka APIs that brokers serve, with their versions.

python -m tools.reference.kafka_apis > docs/reference/kafka-apis.md
The output is deterministic; a test compares it with the file.
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

Brokers support the APIs of Apache Kafka 4.2 in their stable versions and list them in ApiVersions responses.
As in Kafka, a request with an unknown key or version closes the connection; only ApiVersions gets a response in every version.
Flexible versions use compact lengths and tagged fields (KIP-482).

| API | key | versions | Kafka 4.2 | flexible from | tested with |
|---|---|---|---|---|---|
"""
_TESTED: Final = """
Java stands for the clients and tools of Kafka 4.2, librdkafka for confluent-kafka, and kafkajs for a Node.js client.
"Requests" stands for individual requests, whose responses are compared with those of Kafka where possible.
`tools/reference/api_evidence.py` lists a test for each.

## Known differences

| API | difference from Kafka 4.2 |
|---|---|
"""
_LIMITS_HEAD: Final = f"""
## Limits of a request

Requests are limited by their number of elements: each array element, also in nested arrays, and each tagged field counts.
The limit is {REQUEST_ELEMENTS_MAX:,} for APIs that are not in the table.
Requests for 10,000 partitions or 5,000 groups are within the limits ([design note](../design/fairness.md)).
For a request with more elements, the broker closes the connection and logs the API, the number and the limit.
The last column contains additional limits. Requests above them get POLICY_VIOLATION if the API has an error for the whole request; otherwise the connection is closed.

| API | elements | including |
|---|---|---|
"""
_ABSENT_HEAD: Final = """
## Notes

Produce is announced from version 0, because older versions of librdkafka otherwise stop compressing (KAFKA-18659), but served from version 3.

Some APIs have tagged fields specific to Penstock.
Kafka clients neither send nor receive them, because a broker includes them in a response only if the request contains such a field.

| API | fields |
|---|---|
| Produce | 10000 in the request: the source of a [mirror](../how-to/mirror-clusters.md) |
| ListOffsets | 10000 in a partition of the request requests a fork point; 10000 and 10001 in the response: the fork point, or why there is none |
| Metadata | 10000 in the request includes snapshots and deleted topics; 10000 in a topic of the response: one of them |
| WriteTxnMarkers | 10000 in a marker of the request: its serial |
| DeleteShareGroupState | 10000 in a partition of the request: the group epoch of the deletion; states of later epochs are kept. Without it, the state is kept while the group exists |
| ReadShareGroupStateSummary | 10000 in a partition of the request requests deletions; 10000 in a partition of the response: the group epoch of the last one |
| DescribeLogDirs | 10000 in the request requests details; 10000 to 10002 in a partition of the response: the number of objects, the bytes in WAL objects, and the bytes shared with forks, snapshots, deleted topics or deleted records |

**Groups.** Consumer groups use `group.protocol=classic`, or `group.protocol=consumer` (KIP-848) with the assignors `uniform` and `range` on the broker.
A live group migrates when the first member of the consumer protocol joins or the last one leaves, and classic members continue; `group.consumer.migration.policy` restricts this.
Groups have Kafka's configs (`kafka-configs.sh --entity-type groups`): session timeouts and heartbeat intervals apply from a member's next heartbeat.
Share groups (KIP-932) have the assignor `simple`.
The start offset of a group in a partition is stored before the first delivery; in Kafka, a group that starts at the end may skip records if its leader fails early.
Streams groups (KIP-1071, `group.protocol=streams`) have the assignor `sticky` and the features of Kafka 4.2: no static members, warm-up tasks, regular expression sources or topology changes ([design note](../design/streams-groups.md)).

**Broker configs.** Brokers have individual and cluster-wide configs (`kafka-configs.sh --entity-type brokers`), with Kafka's sources and synonyms.
Penstock's live settings change immediately, including some that Kafka does not allow, such as `num.partitions`.
Kafka's settings without a meaning in Penstock are stored without effect: the rates of `kafka-reassign-partitions.sh --throttle`, sizes of thread pools and segments, tiered storage, `min.insync.replicas`.
Unlike Kafka, brokers reject unknown names, TLS and SASL settings, which come from files, and defaults for all topics that would have an effect, such as `log.retention.ms`: set them on each topic.
The default of `min.insync.replicas` has source 5; a new cluster of Kafka 4.2 stores it for all brokers (source 3), because of eligible leader replicas.

**Reads in the rack.** A Fetch with a rack (version 11 and later) may return a preferred read replica: any broker in that rack ([Read within a zone](../how-to/tune-latency-and-cost.md#read-within-a-zone)).
If a Fetch contains the replica id and epoch of a live broker, the response contains the WAL slots of the records in MessagePack instead of the records ([design note](../design/fetch.md#reads-in-the-rack)). Other callers get NOT_LEADER_OR_FOLLOWER.

**Features** have levels (KIP-584), which ApiVersions reports and `penstock features` and `kafka-features.sh` change: `transaction.version` 0 to 2, `group.version`, `share.version`, `streams.version` and `offsets.version` 0 to 1.
New clusters have the newest levels; a cluster created before features existed has `group.version` 1 and 0 for the others until they are upgraded.
From level 2 of `transaction.version`, Java clients use version 2 of transactions (KIP-890); level 1 only changes the records of `__transaction_state`.
`metadata.version` is always 29, that of Kafka 4.2, for tools and operators that read it.
`offsets.version` is specific to Penstock: level 1 writes version 4 of Kafka's OffsetCommitValue, with the topic id ([Connect clients](../how-to/connect-clients.md)).
Other features of Kafka's metadata do not exist, so `kafka-features.sh upgrade --release-version` fails; specify features instead.
A level requires support by every registered broker; controllers are not checked, so upgrade their software first.

**Log levels** of brokers change immediately (`penstock configs alter --broker-logger`, `kafka-configs.sh --entity-type broker-loggers`): `root` and the packages of Penstock.
A restart resets them to `log.level`.

**Client metrics.** `penstock configs alter --client-metrics` and `kafka-client-metrics.sh` manage up to 1,000 subscriptions (KIP-714).
Brokers with `client.metrics.otlp.endpoint` announce GetTelemetrySubscriptions and PushTelemetry and forward pushes to an OTLP receiver ([Collect client metrics](../how-to/monitor.md#collect-client-metrics)); others do not, like Kafka without a metrics plugin.
Clients push cumulative values, whereas Kafka requests deltas.

**Authentication.** Clients log in with SCRAM (KIP-84), PLAIN or OAUTHBEARER (KIP-255), and again before a session expires (KIP-368).
Like Kafka since KIP-768, brokers verify signed tokens with a JWKS document.
`penstock` commands get tokens with the grants `client_credentials` and `jwt-bearer` (KIP-1139), as Kafka's clients do.

**Quotas** work as in Kafka ([Set quotas](../how-to/quotas.md)): clients receive a throttle time, during which their connections are not read.
They apply per broker; as in Kafka, the active controller enforces `controller_mutation_rate`.
`request_percentage` is a share of the broker's event loop.
ApiVersions responses do not contain a throttle time.

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
"""APIs that users may look for, with the consequence of their absence."""


_ONCE: Final = "A repeated name is returned once."

DIFFERENCES: Final[Mapping[str, str]] = {
    "GetTelemetrySubscriptions": (
        "Only on brokers with `client.metrics.otlp.endpoint`. Clients are asked for cumulative"
        " values instead of deltas, and metric names are sorted."
    ),
    "PushTelemetry": (
        "Only on brokers with `client.metrics.otlp.endpoint`. A push has at most 4 MiB after"
        " decompression. Anything but OpenTelemetry's MetricsData gets INVALID_RECORD."
    ),
    "DescribeShareGroupOffsets": (
        "The empty group id gets INVALID_GROUP_ID; Kafka returns no topics if the request has none, and"
        " UNKNOWN_SERVER_ERROR otherwise."
    ),
    "StreamsGroupHeartbeat": (
        "A topology has at most 1,000 subtopologies, 10,000 topics and 10,000 tasks, and a member"
        " 100 client tags. Where Kafka returns an internal error, for example for duplicate"
        " subtopology ids, Penstock reports an invalid topology."
    ),
    "Produce": (
        "acks 1 is equivalent to acks -1: every acknowledged record is durable. If a partition is"
        " repeated, the first batch is appended and the others get INVALID_REQUEST; Kafka appends"
        " the last and silently drops the others. A transactional batch without a producer id gets"
        " INVALID_RECORD, because nothing could end its transaction, and sequence numbers of a"
        " producer with epoch -1 are checked; Kafka appends both."
    ),
    "Fetch": (
        "The last fetched epoch (version 12) is not compared, because logs are never truncated; a"
        " consumer of a mirror may have it from the source. From brokers that do not lead the"
        " partition, a debugging consumer (replica id -2) gets the records in objects, and"
        " NOT_LEADER_OR_FOLLOWER after them."
    ),
    "ListOffsets": (
        "-3 returns the newest readable record; Kafka may return one below the log start, and"
        " returns none if the newest one belongs to an open transaction."
    ),
    "CreateTopics": (
        'There may be more replicas than brokers, and names may differ only in "." and "_".'
        " Configs with the prefix `penstock.` create forks and snapshots and restore topics."
    ),
    "DeleteTopics": "A deleted topic can be restored for `delete.grace.ms`.",
    "DescribeConfigs": (
        "The loggers of brokers (type 8) are packages of Penstock. A repeated resource is"
        " described once, and a response has at most 50,000 configs, excluding those of topics."
    ),
    "JoinGroup": "A member offers at most 100 protocols, with 1 MiB of subscriptions.",
    "DescribeGroups": _ONCE,
    "ConsumerGroupDescribe": _ONCE,
    "ShareGroupDescribe": _ONCE,
    "DescribeTransactions": _ONCE,
    "DeleteGroups": _ONCE,
    "OffsetFetch": _ONCE,
    "IncrementalAlterConfigs": (
        "As DescribeConfigs; brokers reject unknown names. A value has at most 4,096 characters."
        " `match` of client metrics uses RE2 instead of Java's regular expressions."
    ),
    "AlterConfigs": "As IncrementalAlterConfigs.",
    "AlterReplicaLogDirs": "There is one log directory, the object store.",
    "ElectLeaders": "Unclean elections are never necessary.",
    "DescribeProducers": (
        "Only the leader of a partition has producer states; other replicas request them from it."
    ),
    "UpdateFeatures": "`metadata.version` has one level, 29, and there are no other features of Kafka's metadata.",
    "ConsumerGroupHeartbeat": (
        "Racks do not influence assignments. A static member may repeat its first heartbeat; Kafka"
        " returns UNRELEASED_INSTANCE_ID."
    ),
    "ShareFetch": (
        "A partition of an unknown topic gets UNKNOWN_TOPIC_ID; Kafka fails the whole request."
    ),
    "InitializeShareGroupState": (
        "It has no effect in the current epoch of a state"
        " ([design note](../design/share-groups.md))."
    ),
    "AlterShareGroupOffsets": (
        "It starts a new epoch of the group and rejects negative offsets"
        " ([design note](../design/share-groups.md))."
    ),
}
"""Known differences by API."""


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
