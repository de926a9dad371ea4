"""Commands of Kafka's tools that run against Apache Kafka and Penstock, and the known differences
in their output.

python -m tests.interop.commands > docs/reference/kafka-tools.md (a test compares the file)
"""

import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_PACKAGE: Final = "org.apache.kafka.tools"
TOOLS: Final[Mapping[str, str]] = {
    "ClientCompatibilityTest": f"{_PACKAGE}.ClientCompatibilityTest",
    "TransactionalMessageCopier": f"{_PACKAGE}.TransactionalMessageCopier",
    "kafka-acls": f"{_PACKAGE}.AclCommand",
    "kafka-broker-api-versions": f"{_PACKAGE}.BrokerApiVersionsCommand",
    "kafka-client-metrics": f"{_PACKAGE}.ClientMetricsCommand",
    "kafka-cluster": f"{_PACKAGE}.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": f"{_PACKAGE}.consumer.ConsoleConsumer",
    "kafka-console-producer": f"{_PACKAGE}.ConsoleProducer",
    "kafka-console-share-consumer": f"{_PACKAGE}.consumer.ConsoleShareConsumer",
    "kafka-consumer-groups": f"{_PACKAGE}.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": f"{_PACKAGE}.ConsumerPerformance",
    "kafka-delegation-tokens": f"{_PACKAGE}.DelegationTokenCommand",
    "kafka-delete-records": f"{_PACKAGE}.DeleteRecordsCommand",
    "kafka-e2e-latency": f"{_PACKAGE}.EndToEndLatency",
    "kafka-features": f"{_PACKAGE}.FeatureCommand",
    "kafka-get-offsets": f"{_PACKAGE}.GetOffsetShell",
    "kafka-groups": f"{_PACKAGE}.GroupsCommand",
    "kafka-leader-election": f"{_PACKAGE}.LeaderElectionCommand",
    "kafka-log-dirs": f"{_PACKAGE}.LogDirsCommand",
    "kafka-metadata-quorum": f"{_PACKAGE}.MetadataQuorumCommand",
    "kafka-producer-perf-test": f"{_PACKAGE}.ProducerPerformance",
    "kafka-reassign-partitions": f"{_PACKAGE}.reassign.ReassignPartitionsCommand",
    "kafka-replica-verification": f"{_PACKAGE}.ReplicaVerificationTool",
    "kafka-share-consumer-perf-test": f"{_PACKAGE}.ShareConsumerPerformance",
    "kafka-share-groups": f"{_PACKAGE}.consumer.group.ShareGroupCommand",
    "kafka-streams-application-reset": f"{_PACKAGE}.StreamsResetter",
    "kafka-streams-groups": f"{_PACKAGE}.streams.StreamsGroupCommand",
    "kafka-topics": f"{_PACKAGE}.TopicCommand",
    "kafka-transactions": f"{_PACKAGE}.TransactionsCommand",
    "kafka-verifiable-consumer": f"{_PACKAGE}.VerifiableConsumer",
    "kafka-verifiable-producer": f"{_PACKAGE}.VerifiableProducer",
    "kafka-verifiable-share-consumer": f"{_PACKAGE}.VerifiableShareConsumer",
}
"""The class that each of Kafka's shell scripts runs, and classes without a script."""

NOT_RUN: Final[Mapping[str, str]] = {
    f"{_PACKAGE}.ConnectPluginPath": "reads the files of Connect's plugins",
    f"{_PACKAGE}.JmxTool": "reads the metrics of a JVM, and brokers are none",
    f"{_PACKAGE}.LogCompactionTester": (
        "waits for the log cleaner for minutes; `tests/integration/test_log_compaction.py` compares"
        " what it keeps"
    ),
    f"{_PACKAGE}.OAuthCompatibilityTool": "asks an OAuth server",
}
"""Classes with a `main` method that the commands do not run, with the reason."""

FILES: Final[Mapping[str, str]] = {
    "delete.json": """{"version": 1, "partitions": [
        {"topic": "tools-a", "partition": 0, "offset": 2},
        {"topic": "tools-a", "partition": 1, "offset": 99}]}""",
    "topics.json": '{"version": 1, "topics": [{"topic": "tools-a"}]}',
    "move.json": """{"version": 1, "partitions": [
        {"topic": "tools-a", "partition": 0, "replicas": [1]}]}""",
    "nowhere.json": """{"version": 1, "partitions": [
        {"topic": "tools-a", "partition": 0, "replicas": [9]}]}""",
    "none.json": """{"version": 1, "partitions": [
        {"topic": "tools-none", "partition": 0, "replicas": [1]}]}""",
    "elect.json": '{"partitions": [{"topic": "tools-a", "partition": 0}]}',
    "reset.csv": '"tools-a",0,3\n',
    "empty.properties": "",
}
"""Files in the directory for which `%` in a command stands."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command to run against both sides.

    line: `@` marks the position of the address; by default it comes first. differs: why the outputs
    differ; that of Penstock then contains `says`. figures: numbers are not compared. only: lines
    that do not match this pattern are not compared. stdin: the input of the tool.
    """

    line: str
    differs: str = ""
    says: str = ""
    figures: bool = False
    only: str = ""
    stdin: str = ""

    @property
    def tool(self) -> str:
        return self.line.partition(" ")[0]

    def arguments(self, address: str, directory: str) -> list[str]:
        """Return the arguments with the address of a cluster and the directory of FILES."""
        line = self.line if "@" in self.line else f"{self.tool} @ {self.line[len(self.tool) :]}"
        line = line.replace("--broker-list @", f"--broker-list {address}")
        line = line.replace("@", f"--bootstrap-server {address}").replace("%", directory)
        return shlex.split(line)[1:]


_TOPIC: Final = "--topic tools-a"
_GROUP: Final = "--group tools-group"
_AT: Final = f"{_TOPIC} --partition 0"
_OURS: Final = "tools-|GROUP"
_CONFIGS: Final = "--entity-type topics --entity-name tools-a"
_METRICS: Final = "--name tools"
_LOGGERS: Final = "--entity-type broker-loggers --entity-name 1"
_RESET: Final = f"kafka-consumer-groups --reset-offsets {_GROUP}"
_SHARE: Final = "--group tools-share"
_SHARE_CONFIGS: Final = "--entity-type groups --entity-name tools"
_FROM_THE_BEGINNING: Final = "share.auto.offset.reset=earliest"
_SHARE_RESET: Final = f"kafka-share-groups --reset-offsets {_SHARE} --topic tools-s"
_TIMES: Final = "--num-records 100 --record-size 100 --throughput -1"
_CAPABILITIES: Final = (
    "--num-cluster-nodes 1 --cluster-id-supported True --expect-record-too-large-exception False"
    " --offsets-for-times-supported True --create-topics-supported True"
    " --describe-configs-supported True --idempotent-producer-supported True"
)

WORDS: Final = "different error message"
_PLACES: Final = "there may be more replicas than brokers, because they store no records"
_LOGGER_CONFIGS: Final = "loggers are packages of Penstock"
_CONTROLLERS: Final = "different controller ids"

COMMANDS: Final[tuple[Command, ...]] = (
    # Topics and records.
    Command(
        f"kafka-topics --create {_TOPIC} --partitions 2 --replication-factor 1"
        " --config retention.ms=100000000"
    ),
    Command(f"kafka-topics --create {_TOPIC}", WORDS, "topic 'tools-a' exists"),
    Command(f"kafka-topics --create {_TOPIC} --if-not-exists"),
    Command("kafka-topics --create --topic 'tools bad'", WORDS, "is not allowed: 1 to 249 of a-z"),
    Command("kafka-topics --create --topic tools-b --replica-assignment 1,1,1"),
    Command(
        "kafka-topics --create --topic tools-more --replication-factor 3", _PLACES, "Created topic"
    ),
    Command("kafka-topics --create --topic tools-d --partitions 0"),
    Command("kafka-topics --create --topic tools-d --config no-such=1"),
    Command("kafka-topics --list --topic tools-."),
    Command("kafka-topics --describe --topic tools-."),
    Command("kafka-topics --describe --topic tools-none"),
    Command("kafka-topics --describe --topic tools-. --under-replicated-partitions"),
    Command("kafka-topics --describe --topic tools-. --unavailable-partitions"),
    Command("kafka-topics --describe --topic tools-. --at-min-isr-partitions"),
    Command(f"kafka-topics --describe {_TOPIC} --topics-with-overrides"),
    Command("kafka-topics --alter --topic tools-b --partitions 4"),
    Command(
        "kafka-topics --alter --topic tools-b --partitions 2",
        WORDS,
        "has 4 partitions; the new total must be higher",
    ),
    Command("kafka-topics --alter --topic tools-none --partitions 2"),
    Command("kafka-topics --delete --topic tools-none"),
    Command("kafka-topics --delete --topic tools-none --if-exists"),
    Command(
        f"kafka-console-producer {_TOPIC} --reader-property parse.key=true"
        " --reader-property key.separator=:",
        stdin="a:1\nb:2\nc:3\nd:4\ne:5\n",
    ),
    Command(
        f"kafka-console-consumer {_TOPIC} --from-beginning --max-messages 5"
        " --formatter-property print.key=true"
    ),
    Command(f"kafka-console-consumer {_TOPIC} {_GROUP} --from-beginning --max-messages 5"),
    Command("kafka-get-offsets --topic-partitions tools-a:0,tools-a:1"),
    Command(f"kafka-get-offsets {_TOPIC} --time earliest"),
    Command(f"kafka-get-offsets {_TOPIC} --time earliest-local"),
    Command(f"kafka-get-offsets {_TOPIC} --time latest-tiered"),
    Command("kafka-get-offsets --topic tools-none"),
    Command("kafka-delete-records --offset-json-file %/delete.json"),
    Command("kafka-log-dirs --describe --topic-list tools-b"),
    # The size depends on the time between the records.
    Command("kafka-log-dirs --describe --topic-list tools-a --broker-list 1", figures=True),
    Command("kafka-log-dirs --describe --topic-list tools-none"),
    Command("kafka-log-dirs --describe --broker-list 9"),
    # Configs.
    Command(f"kafka-configs --describe {_CONFIGS}"),
    Command("kafka-configs --describe --entity-type topics --entity-name tools-none"),
    Command(f"kafka-configs --alter {_CONFIGS} --add-config retention.bytes=100000000"),
    Command(f"kafka-configs --alter {_CONFIGS} --delete-config retention.bytes"),
    Command(f"kafka-configs --alter {_CONFIGS} --delete-config retention.bytes"),
    Command("kafka-configs --describe --entity-type brokers --entity-name 1"),
    Command("kafka-configs --describe --entity-type brokers --entity-default"),
    Command("kafka-configs --describe --entity-type brokers --entity-name 9"),
    Command(
        "kafka-configs --alter --entity-type brokers --entity-name 1"
        " --add-config log.cleaner.backoff.ms=15000",
    ),
    Command(
        "kafka-configs --alter --entity-type brokers --entity-name 1"
        " --delete-config log.cleaner.backoff.ms",
    ),
    Command(
        "kafka-configs --describe --entity-type groups --entity-name tools-group",
    ),
    Command(
        f"kafka-configs --describe {_LOGGERS}",
        _LOGGER_CONFIGS,
        "penstock.broker.groups=",
    ),
    Command(f"kafka-configs --alter {_LOGGERS} --add-config root=ERROR"),
    Command(f"kafka-configs --alter {_LOGGERS} --add-config root=LOUD"),
    Command(f"kafka-configs --alter {_LOGGERS} --add-config nosuch=INFO"),
    Command(f"kafka-configs --alter {_LOGGERS} --delete-config root"),
    Command(f"kafka-configs --alter {_LOGGERS} --add-config root=WARN"),
    *(
        Command(f"kafka-configs --describe --entity-type {kind}")
        for kind in ("users", "clients", "ips")
    ),
    Command(
        "kafka-configs --alter --entity-type users --entity-name tools"
        " --add-config producer_byte_rate=1000",
    ),
    Command("kafka-configs --describe --entity-type users --entity-name tools"),
    Command(
        "kafka-configs --alter --entity-type users --entity-name tools"
        " --delete-config producer_byte_rate"
    ),
    # Groups.
    Command(f"kafka-consumer-groups --describe {_GROUP}"),
    Command(f"kafka-consumer-groups --describe {_GROUP} --members"),
    Command(f"kafka-consumer-groups --describe {_GROUP} --members --verbose"),
    Command(f"kafka-consumer-groups --describe {_GROUP} --state"),
    Command(
        "kafka-consumer-groups --describe --group tools-none",
    ),
    Command("kafka-consumer-groups --list", only=_OURS),
    Command("kafka-consumer-groups --list --state", only=_OURS),
    Command("kafka-consumer-groups --list --type", only=_OURS),
    Command("kafka-consumer-groups --list --state Empty", only=_OURS),
    Command("kafka-consumer-groups --list --state Odd"),
    Command("kafka-consumer-groups --list --type classic", only=_OURS),
    Command(f"{_RESET} --all-topics --to-earliest --dry-run"),
    Command(f"{_RESET} --topic tools-a:0 --to-offset 3 --execute"),
    Command(f"{_RESET} --topic tools-a:0 --shift-by 99 --execute"),
    Command(f"{_RESET} {_TOPIC} --to-current --export --dry-run"),
    Command(f"{_RESET} {_TOPIC} --to-datetime 2050-01-01T00:00:00.000 --execute"),
    Command(f"{_RESET} {_TOPIC} --by-duration P1D --execute"),
    Command(f"{_RESET} --from-file %/reset.csv --execute"),
    Command(
        f"kafka-consumer-groups --reset-offsets --group tools-new {_TOPIC} --to-latest --execute"
    ),
    Command("kafka-consumer-groups --delete-offsets --group tools-new --topic tools-a:1"),
    Command("kafka-consumer-groups --describe --group tools-new --offsets"),
    Command(f"kafka-consumer-groups --delete-offsets --group tools-none {_TOPIC}"),
    Command("kafka-consumer-groups --delete --group tools-new"),
    Command("kafka-consumer-groups --delete --group tools-none"),
    Command("kafka-groups --list", only=_OURS),
    Command("kafka-groups --list --consumer", only=_OURS),
    Command("kafka-groups --list --share", only=_OURS),
    Command("kafka-groups --list --streams", only=_OURS),
    Command("kafka-groups --list --group-type classic", only=_OURS),
    Command("kafka-groups --list --protocol consumer", only=_OURS),
    Command("kafka-streams-application-reset --application-id tools-group --input-topics tools-a"),
    Command("kafka-streams-application-reset --application-id tools-new --input-topics tools-none"),
    Command("kafka-streams-groups --list", only=_OURS),
    Command("kafka-streams-groups --delete --group tools-none"),
    Command("kafka-streams-groups --describe --group tools-none"),
    # Transactions.
    Command("kafka-transactions list --duration-filter 100000000"),
    Command("kafka-transactions describe --transactional-id tools-none"),
    Command("kafka-transactions describe-producers --topic tools-b --partition 0"),
    Command(f"kafka-transactions find-hanging {_TOPIC}"),
    Command("kafka-transactions find-hanging --broker-id 9"),
    Command(f"kafka-transactions abort {_AT} --start-offset 0"),
    Command("kafka-transactions forceTerminateTransaction --transactionalId tools-none"),
    # The cluster and its leaders.
    Command("kafka-broker-api-versions", "fewer APIs", "ProducerId"),
    Command("kafka-cluster cluster-id @"),
    Command("kafka-cluster unregister @ --id 9"),
    Command("kafka-cluster list-endpoints @"),
    Command("kafka-cluster list-endpoints @ --include-fenced-brokers"),
    Command(
        "kafka-metadata-quorum describe --status",
        "different directory ids and nodes of controllers",
        '"directoryId": ',
    ),
    Command("kafka-metadata-quorum describe --replication", figures=True),
    Command("kafka-metadata-quorum describe --replication --human-readable", figures=True),
    Command(
        "kafka-metadata-quorum remove-controller --controller-id 9"
        " --controller-directory-id 4L6g3nShT-eMCtK--X86sw",
        "`penstock quorum` changes the quorum",
        "does not support REMOVE_RAFT_VOTER",
    ),
    Command(
        "kafka-features describe",
        "no features of Kafka's metadata; additional `offsets.version`",
        "Feature: transaction.version SupportedMinVersion: 0 SupportedMaxVersion: 2",
    ),
    Command(
        "kafka-features upgrade --release-version 4.2 --dry-run",
        "some features belong to Kafka's metadata: specify the others instead",
        "does not support this feature",
    ),
    Command(
        "kafka-features upgrade --feature transaction.version=3",
        _CONTROLLERS,
        "Local controller 0 only supports versions 0-2",
    ),
    Command("kafka-features downgrade --feature transaction.version=1 --dry-run"),
    Command("kafka-features version-mapping --release-version 4.2"),
    Command("kafka-features feature-dependencies --feature transaction.version=2"),
    Command(f"kafka-leader-election --election-type preferred {_AT}"),
    Command("kafka-leader-election --election-type preferred --all-topic-partitions"),
    Command("kafka-leader-election --election-type unclean --path-to-json-file %/elect.json"),
    Command(
        "kafka-leader-election --election-type preferred --topic tools-none --partition 0",
        WORDS,
        "there is no partition tools-none-0",
    ),
    Command(
        "kafka-reassign-partitions --generate --topics-to-move-json-file %/topics.json"
        " --broker-list 1"
    ),
    Command("kafka-reassign-partitions --execute --reassignment-json-file %/move.json"),
    Command("kafka-reassign-partitions --execute --reassignment-json-file %/nowhere.json"),
    Command("kafka-reassign-partitions --execute --reassignment-json-file %/none.json"),
    Command(
        "kafka-reassign-partitions --verify --reassignment-json-file %/move.json",
    ),
    Command(
        "kafka-reassign-partitions --cancel --reassignment-json-file %/move.json",
    ),
    Command("kafka-reassign-partitions --list"),
    # Performance tools.
    Command(f"kafka-producer-perf-test @ --topic tools-b {_TIMES}", figures=True),
    Command(
        f"kafka-producer-perf-test @ --topic tools-b {_TIMES} --transactional-id tools-perf"
        " --transaction-duration-ms 10",
        figures=True,
    ),
    Command("kafka-consumer-perf-test --topic tools-b --num-records 200", figures=True),
    Command(
        "kafka-e2e-latency @ --topic tools-e --num-records 20 --producer-acks all --record-size 10",
        figures=True,
    ),
    Command("kafka-verifiable-producer --topic tools-e --max-messages 5", figures=True),
    Command(
        "kafka-verifiable-consumer --topic tools-e --group-id tools-verifiable --max-messages 10",
        figures=True,
    ),
    Command(
        "kafka-verifiable-consumer --topic tools-e --group-id tools-next --max-messages 10"
        " --group-protocol consumer",
        figures=True,
    ),
    Command(
        "TransactionalMessageCopier --broker-list @ --input-topic tools-e --input-partition 0"
        " --output-topic tools-copies --max-messages 10 --transaction-size 4"
        " --transactional-id tools-copier --consumer-group tools-copier --use-group-metadata",
        only="shutdown",
        figures=True,
    ),
    Command("kafka-get-offsets --topic tools-copies --time latest"),
    Command("kafka-consumer-groups --describe --group tools-copier"),
    Command("kafka-topics --create --topic tools-f"),
    Command(
        f"ClientCompatibilityTest --topic tools-f {_CAPABILITIES} --describe-acls-supported True",
        figures=True,
    ),
    Command("kafka-topics --delete --topic tools-f"),
    # Without an authorizer.
    Command("kafka-acls --list"),
    Command(f"kafka-acls --add --allow-principal User:a --operation Read {_TOPIC}"),
    Command(f"kafka-acls --remove --force --allow-principal User:a {_TOPIC} --operation Read"),
    # Client metrics.
    Command("kafka-client-metrics --list", only="tools"),
    Command(f"kafka-client-metrics --describe {_METRICS}"),
    Command(f"kafka-client-metrics --alter {_METRICS} --interval 60000"),
    Command(f"kafka-client-metrics --alter {_METRICS} --metrics a,b --match client_id=x"),
    Command(f"kafka-client-metrics --alter {_METRICS} --interval 99"),
    Command(f"kafka-client-metrics --alter {_METRICS} --interval soon"),
    Command(f"kafka-client-metrics --alter {_METRICS} --match nope=x"),
    Command(f"kafka-client-metrics --alter {_METRICS}"),
    Command(f"kafka-client-metrics --alter {_METRICS} --metrics ''"),
    Command("kafka-client-metrics --list", only="tools"),
    Command(f"kafka-client-metrics --describe {_METRICS}"),
    Command("kafka-client-metrics --describe", only="tools|interval.ms=60000"),
    Command("kafka-configs --describe --entity-type client-metrics --entity-name tools"),
    Command(f"kafka-client-metrics --delete {_METRICS}"),
    Command(f"kafka-client-metrics --delete {_METRICS}"),
    Command("kafka-client-metrics --list", only="tools"),
    Command("kafka-delegation-tokens --describe --command-config %/empty.properties"),
)
"""The order matters: later commands depend on the results of earlier ones."""

_LIVE: Final = "--group tools-live"
_NEXT: Final = "--group tools-live-next"
_OPEN: Final = "--transactional-id tools-open"

SHARE_COMMANDS: Final[tuple[Command, ...]] = (
    Command("kafka-topics --create --topic tools-s"),
    Command("kafka-verifiable-producer --topic tools-s --max-messages 25", figures=True),
    Command(f"kafka-configs --alter {_SHARE_CONFIGS}-share --add-config {_FROM_THE_BEGINNING}"),
    Command(
        f"kafka-configs --alter {_SHARE_CONFIGS}-share-next --add-config {_FROM_THE_BEGINNING}"
    ),
    Command(f"kafka-console-share-consumer --topic tools-s {_SHARE} --max-messages 10"),
    Command("kafka-share-groups --list", only=_OURS),
    Command("kafka-share-groups --list --state", only=_OURS),
    Command("kafka-share-groups --list --state Empty", only=_OURS),
    Command(f"kafka-share-groups --describe {_SHARE}"),
    Command(f"kafka-share-groups --describe {_SHARE} --verbose", figures=True),
    Command(f"kafka-share-groups --describe {_SHARE} --members"),
    Command(f"kafka-share-groups --describe {_SHARE} --state"),
    Command("kafka-share-groups --describe --group tools-none"),
    Command(f"{_SHARE_RESET} --to-earliest --dry-run"),
    Command(f"{_SHARE_RESET} --to-earliest --execute"),
    Command(f"{_SHARE_RESET} --to-latest --execute"),
    Command(f"{_SHARE_RESET} --to-datetime 2000-01-01T00:00:00.000 --execute"),
    Command(
        f"kafka-share-consumer-perf-test --topic tools-s {_SHARE} --num-records 20", figures=True
    ),
    Command(
        "kafka-verifiable-share-consumer --topic tools-s --group-id tools-share-next"
        " --max-messages 10",
        figures=True,
    ),
    Command("kafka-groups --list --share", only=_OURS),
    Command(f"kafka-share-groups --delete-offsets {_SHARE} --topic tools-s"),
    Command(f"kafka-share-groups --delete-offsets {_SHARE} --topic tools-none"),
    Command(f"kafka-share-groups --delete {_SHARE}"),
    Command("kafka-share-groups --delete --group tools-none"),
)
"""Commands for share groups."""

LIVE_COMMANDS: Final[tuple[Command, ...]] = (
    Command(f"kafka-consumer-groups --describe {_LIVE}"),
    Command(f"kafka-consumer-groups --describe {_LIVE} --members"),
    Command(f"kafka-consumer-groups --describe {_LIVE} --members --verbose"),
    Command(f"kafka-consumer-groups --describe {_LIVE} --state"),
    Command("kafka-consumer-groups --list --state Stable", only=_OURS),
    Command(f"kafka-consumer-groups --delete {_LIVE}"),
    Command(f"kafka-consumer-groups --delete-offsets {_LIVE} --topic tools-live"),
    Command(
        f"kafka-consumer-groups --reset-offsets {_LIVE} --topic tools-live --to-earliest --execute"
    ),
    Command(
        "kafka-streams-application-reset --application-id tools-live --input-topics tools-live"
    ),
    *(
        Command(f"kafka-consumer-groups --describe {_NEXT}{flags}")
        for flags in ("", " --members", " --members --verbose", " --state", " --state --verbose")
    ),
    Command("kafka-consumer-groups --list --type consumer", only="tools-live|GROUP"),
    Command("kafka-groups --list --group-type consumer", only="tools-live|GROUP"),
    Command(f"kafka-consumer-groups --delete {_NEXT}"),
    Command(f"kafka-consumer-groups --delete-offsets {_NEXT} --topic tools-live"),
    Command("kafka-transactions list", only="tools-open", figures=True),
    Command(f"kafka-transactions describe {_OPEN}", figures=True),
    Command("kafka-transactions describe-producers --topic tools-live --partition 0", figures=True),
    Command("kafka-get-offsets --topic tools-live --time latest"),
    Command("kafka-transactions forceTerminateTransaction --transactionalId tools-open"),
    Command(f"kafka-transactions describe {_OPEN}", figures=True),
)
"""Run while the groups `tools-live` (classic protocol) and `tools-live-next` (consumer protocol)
have a member, and the producer `tools-open` has an open transaction.
"""

_STREAMS: Final = "--group tools-streams"
_STREAMS_RESET: Final = f"kafka-streams-groups --reset-offsets {_STREAMS}"
_VIEWS: Final = ("", " --offsets", " --members", " --state")

STREAMS_LIVE_COMMANDS: Final[tuple[Command, ...]] = (
    Command("kafka-streams-groups --list", only=_OURS),
    Command("kafka-streams-groups --list --state", only=_OURS),
    Command("kafka-streams-groups --list --state Stable", only=_OURS),
    *(
        # Internal topics are created in one or several steps, and each step changes the epoch.
        Command(f"kafka-streams-groups --describe {_STREAMS}{view} --verbose", figures=True)
        for view in (" --members", " --state")
    ),
    *(
        Command(f"kafka-streams-groups --describe {_STREAMS}{view}")
        for view in (*_VIEWS, " --verbose", " --offsets --verbose")
    ),
    Command("kafka-groups --list --streams", only=_OURS),
    Command("kafka-groups --list --group-type streams", only=_OURS),
    Command("kafka-topics --describe --topic tools-streams-.*"),
    Command(f"kafka-consumer-groups --describe {_STREAMS}"),
    Command(f"kafka-share-groups --describe {_STREAMS}"),
    Command(f"{_STREAMS_RESET} --all-input-topics --to-earliest --execute"),
    Command(f"kafka-streams-groups --delete-offsets {_STREAMS} --input-topic tools-lines"),
    Command(f"kafka-streams-groups --delete {_STREAMS}"),
)
"""Run while the group `tools-streams` has two members. Its application counts the words of
`tools-lines`.
"""

STREAMS_COMMANDS: Final[tuple[Command, ...]] = (
    *(Command(f"kafka-streams-groups --describe {_STREAMS}{view}") for view in _VIEWS),
    Command("kafka-streams-groups --list --state Empty", only=_OURS),
    Command("kafka-streams-groups --describe --group tools-none"),
    Command(f"{_STREAMS_RESET} --input-topic tools-lines --to-earliest --dry-run"),
    Command(f"{_STREAMS_RESET} --input-topic tools-lines:1 --to-latest --execute"),
    Command(f"{_STREAMS_RESET} --all-input-topics --to-offset 2 --execute"),
    Command(f"{_STREAMS_RESET} --all-input-topics --shift-by 1 --dry-run --export"),
    Command(f"{_STREAMS_RESET} --all-input-topics --to-current --execute"),
    Command(f"{_STREAMS_RESET} --input-topic tools-none --to-earliest --execute"),
    Command(f"kafka-streams-groups --describe {_STREAMS} --offsets --verbose"),
    Command(
        f"{_STREAMS_RESET} --all-input-topics --to-earliest --execute --delete-internal-topic"
        " tools-streams-words-repartition"
    ),
    Command("kafka-topics --list --topic tools-streams-.*"),
    Command(f"kafka-streams-groups --delete-offsets {_STREAMS} --input-topic tools-lines"),
    Command(f"kafka-streams-groups --delete-offsets {_STREAMS} --input-topic tools-none"),
    Command(f"kafka-streams-groups --delete {_STREAMS} --delete-all-internal-topics"),
    Command("kafka-topics --list --topic tools-streams-.*"),
    Command(f"kafka-streams-groups --delete {_STREAMS}"),
)
"""Run after the members have left."""

_NOISE: Final = re.compile(
    r"^\d\d:\d\d:\d\d,\d{3} [A-Z]+ "  # a log line
    r"|^\t+(at|\.\.\.) |^Caused by: "  # a stack trace
    r'|"partitions_assigned","partitions":\[\]'  # a member that gets its partitions later
)
_NORMAL: Final = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.:,]\d{3}(Z|[+-]\d\d:?\d\d)?", "TIME"),
        (r"\b1[789]\d{11}\b", "TIME"),
        (r"\b\d+ ms ago", "TIME ago"),
        (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID"),
        (r"(?<![\w/+-])[\w/+-]{22}(?![\w/+-])", "ID"),
        (r'"logDir":"[^"]*"', '"logDir":PATH'),
        (r'"log_dirs":\["[^"]*"\]', '"log_dirs":PATH'),
        (r"min\.insync\.replicas=1( sensitive=.*)?,?", ""),  # stored by Kafka for the whole cluster
        (r"-{2,}", "--"),
        (r"\s+", " "),
    )
)


def normal(command: Command, output: str, address: str) -> list[str]:
    """Return the lines sorted, without details that differ between any two clusters."""
    port = address.rpartition(":")[2]
    lines: list[str] = []
    for line in output.splitlines():
        if _NOISE.search(line) or not re.search(command.only, line):
            continue
        kept = line.replace(address, "ADDRESS").replace(port, "PORT")
        for pattern, text in _NORMAL:
            kept = pattern.sub(text, kept)
        if command.figures:
            kept = re.sub(r"-?\d+([.,]\d+)*", "N", kept)
        lines.append(kept.strip())
    return sorted(filter(None, lines))


_HEAD: Final = """\
# Kafka's command line tools

<!-- Written by `python -m tests.interop.commands`; do not edit. -->

The tests run the commands below with the tools of Kafka 4.2 on Apache Kafka 4.2 and on Penstock.
Exit codes and output are identical, except for ids, addresses, times and measurements, and for these differences.

| command | reason for the difference |
|---|---|
"""
_COMMANDS_HEAD: Final = """
`kafka-transactions.sh describe-producers` and `kafka-delete-records.sh` wait for 60 s if a topic does not exist, as with Kafka.
`kafka-replica-verification.sh` runs until it is stopped and is compared in a separate test.
It never finds differences, because a partition has only one log: other brokers read the same objects.
`kafka-dump-log.sh`, `kafka-storage.sh` and `kafka-metadata-shell.sh` read the disks of a Kafka broker and are not applicable.

## Commands

The broker address (`--bootstrap-server`) is omitted.
The first two are classes of Kafka without a shell script.

"""


def markdown() -> str:
    """Return the reference page."""
    everything = (
        *COMMANDS,
        *SHARE_COMMANDS,
        *LIVE_COMMANDS,
        *STREAMS_LIVE_COMMANDS,
        *STREAMS_COMMANDS,
    )
    differences = "\n".join(
        f"| `{_shown(command)}` | {command.differs} |" for command in everything if command.differs
    )
    lines = dict.fromkeys(_shown(command) for command in everything)
    commands = "\n".join(sorted(lines, key=lambda line: line.partition(" ")[0]))
    return f"{_HEAD}{differences}\n{_COMMANDS_HEAD}```text\n{commands}\n```\n"


def _shown(command: Command) -> str:
    """Return the command as a user would type it, without the address."""
    line = command.line.replace("--broker-list @ ", "").replace(" @", "").replace("%/", "")
    tool, _, rest = line.partition(" ")
    return f"{tool}{'.sh' if tool.startswith('kafka-') else ''} {rest}".strip()


if __name__ == "__main__":
    sys.stdout.write(markdown())
