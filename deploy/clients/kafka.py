"""Wrap confluent-kafka for the command line, with type annotations and actionable errors.

Invariant: no call takes longer than its timeout, and every failure is a KafkaFailed. librdkafka's
log lines are not printed to the terminal. Import this module only when it is needed, because it
loads librdkafka.
"""

from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from penstock.controller.metadata.configs import TOPIC_RESOURCE
from penstock.deploy.clients.brokers import Brokers, no_topic
from penstock.deploy.clients.configs import describe
from penstock.deploy.clients.security import ClientSecurity, current_security
from penstock.deploy.clients.silent_brokers import INTERVAL_MS, SilentBrokers
from penstock.deploy.clients.target import find_brokers
from penstock.deploy.clients.wire import check_reachable
from penstock.deploy.errors import UsageError
from penstock.deploy.output import counted
from penstock.protocol.client.errors import (
    NOT_FOUND,
    AuthenticationRefused,
    DoesNotExist,
    KafkaFailed,
    NoResponse,
    Refused,
)
from penstock.protocol.offset_specs import EARLIEST, LATEST

if TYPE_CHECKING:
    from confluent_kafka.admin._metadata import ClusterMetadata

TIMEOUT_S: Final = 10.0
_PRODUCE_S: Final = 60.0
CRITICAL: Final = 2
REFRESH_MS: Final = 500
"""Metadata refresh interval of an admin client, which applies after its controller has died; the
default is 5 min.
"""
_HUNG: Final[dict[str, str | float | bool]] = {
    "topic.metadata.refresh.interval.ms": 2_000,
    "api.version.request.timeout.ms": 5_000,
    "statistics.interval.ms": INTERVAL_MS,
}
"""Properties that make producers and consumers abandon a hung leader early. With the defaults, this
takes a minute.
"""
_UNREACHABLE: Final = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._RESOLVE,
    }
)
_REFUSED: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL})
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class PartitionView:
    partition: int
    leader: int
    replicas: list[int]
    isr: list[int]


@dataclass(frozen=True, slots=True)
class TopicView:
    name: str
    partitions: list[PartitionView]


@contextmanager
def accepted_by_client(failed: str) -> Generator[None]:
    """Raise UsageError for numbers out of range and names with a null character, which librdkafka
    does not accept.
    """
    try:
        yield
    except (OverflowError, ValueError) as error:
        raise UsageError(f"{failed}: {error}") from None


def interruptible(call: partial[_T]) -> _T:
    """Call a method that runs callbacks. confluent-kafka 2.16 loses the KeyboardInterrupt of a
    Ctrl-C in a callback, and returns NULL without an exception: a `partial` turns this into
    SystemError, whereas a call that CPython has specialized ends the process with SIGSEGV.
    """
    try:
        return call()
    except SystemError:
        raise KeyboardInterrupt from None


class Kafka:
    """Client of the cluster with these bootstrap servers."""

    def __init__(self, bootstrap: str, security: ClientSecurity | None = None) -> None:
        """security: how to connect; None for the settings of `--command-config`. Raises KafkaFailed
        immediately if no broker responds, or none accepts these settings, because librdkafka would
        retry until its timeout without reporting the reason.
        """
        self._target = find_brokers(bootstrap)
        self._security = security or current_security()
        check_reachable(self._target, self._security)
        # The results of AdminClient are not typed.
        self._admin: Any = AdminClient(self.config(topic_metadata_refresh_interval_ms=REFRESH_MS))
        self.silent = SilentBrokers()
        """The brokers that do not respond to the producer or consumer."""

    def config(self, **more: str | float | bool) -> dict[str, Any]:
        """Return client properties; `_` in a name becomes `.`. Raises KafkaFailed."""
        named = {name.replace("_", "."): value for name, value in more.items()}
        return {
            "bootstrap.servers": self._target.bootstrap,
            "log_level": CRITICAL,
            **self._security.properties(),
            **self._tokens(),
            **named,
        }

    def _tokens(self) -> dict[str, Any]:
        """Return the properties that make librdkafka obtain tokens. A token is requested here to
        report errors of the endpoint, which librdkafka would only log.
        """
        tokens = self._security.tokens
        if tokens is None:
            return {}
        first = [tokens.refresh("")]

        def refresh(config: str) -> tuple[str, float]:
            return first.pop() if first else tokens.refresh(config)

        return {"sasl.oauthbearer.method": "default", "oauth_cb": refresh}

    def producer(self, **more: str | float | bool) -> Producer:
        # Without idempotence, a retry might store a record twice.
        timeout_s = TIMEOUT_S if more.get("enable_idempotence") else _PRODUCE_S
        return Producer(self._steady(socket_timeout_ms=int(timeout_s * 1_000), **more))

    def consumer(self, **more: str | float | bool) -> Consumer:
        return Consumer(self._steady(socket_timeout_ms=int(TIMEOUT_S * 1_000), **more))

    def _steady(self, **more: str | float | bool) -> dict[str, Any]:
        callbacks = {"stats_cb": self.silent.read, "error_cb": self._check_access}
        return {**self.config(**_HUNG, **more), **callbacks}

    def _check_access(self, error: KafkaError) -> None:
        """Raise AuthenticationRefused, from `poll` or `flush`, if the brokers no longer accept the
        client: librdkafka would retry forever. librdkafka reports the same errors for a broker that
        stops during a handshake, so this method opens another connection to find out.
        """
        if error.code() not in _REFUSED:
            return
        try:
            check_reachable(self._target, self._security)
        except AuthenticationRefused:
            raise
        except KafkaFailed:
            pass

    def brokers(self) -> dict[int, str]:
        """Return host:port of the brokers by id."""
        brokers = self._metadata().brokers
        return {node_id: f"{broker.host}:{broker.port}" for node_id, broker in brokers.items()}

    def topics(self) -> list[TopicView]:
        """Return all topics, sorted by name."""
        views = [
            TopicView(
                name,
                [
                    PartitionView(index, part.leader, list(part.replicas), list(part.isrs))
                    for index, part in sorted(topic.partitions.items())
                ],
            )
            for name, topic in self._metadata().topics.items()
        ]
        return sorted(views, key=lambda view: view.name)

    def topic(self, name: str) -> TopicView:
        """Return one topic. Raises KafkaFailed, with a similar topic name if there is one."""
        found = {view.name: view for view in self.topics()}
        if name not in found:
            raise no_topic(name, found)
        return found[name]

    def create_topic(
        self, name: str, partitions: int, replication_factor: int, config: Mapping[str, str]
    ) -> None:
        failed = f"topic {name!r} was not created"
        with accepted_by_client(failed):
            topic = NewTopic(name, partitions, replication_factor, config=dict(config))
            created = self._admin.create_topics([topic], request_timeout=TIMEOUT_S)[name]
        self._result(created, failed)

    def add_partitions(self, name: str, total: int) -> None:
        """Add partitions to a topic. total: the new partition count."""
        failed = f"topic {name!r} did not get {counted(total, 'partition')}"
        with accepted_by_client(failed):
            added = self._admin.create_partitions(
                [NewPartitions(name, total)], request_timeout=TIMEOUT_S
            )[name]
        self._result(added, failed)

    def topic_config(self, name: str) -> dict[str, str]:
        """Return every config of a topic, including defaults."""
        resource = TOPIC_RESOURCE, name
        views = describe(self._target.bootstrap, resource, security=self._security)
        return {view.name: view.value for view in views}

    def offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Return the earliest and latest offset of each partition."""
        keys = [(topic, index) for index in partitions]
        with self._brokers() as brokers:
            earliest = brokers.offsets(keys, EARLIEST)
            latest = brokers.offsets(keys, LATEST, committed=True)
        return {key[1]: (earliest[key], latest[key]) for key in keys}

    def offsets_for_time(
        self, topic: str, ends: Mapping[int, int], timestamp_ms: int
    ) -> dict[int, int]:
        """Return the first offset of each partition whose record is not older than `timestamp_ms`,
        or the end of the log if there is none. Do not use it to delete records: see
        `first_offsets`.

        ends: high watermark by partition.
        """
        found = self.first_offsets(topic, list(ends), timestamp_ms)
        return {index: ends[index] if at is None else at for index, at in found.items()}

    def first_offsets(
        self, topic: str, partitions: Sequence[int], timestamp_ms: int
    ) -> dict[int, int | None]:
        """Return the first offset of each partition whose record is not older than `timestamp_ms`,
        or None if there is none.
        """
        keys = [(topic, index) for index in partitions]
        with self._brokers() as brokers:
            found = brokers.offsets(keys, timestamp_ms, committed=True)
        return {key[1]: found[key] if found[key] >= 0 else None for key in keys}

    def delete_records(self, topic: str, starts: Mapping[int, int]) -> dict[int, int | str]:
        """Delete the records before an offset of each partition.

        Returns the new earliest offset by partition, or the reason why it did not change.
        """
        with accepted_by_client(f"records of {topic!r} were not deleted"):
            wanted = [TopicPartition(topic, index, offset) for index, offset in starts.items()]
        futures = self._admin.delete_records(
            wanted, request_timeout=TIMEOUT_S, operation_timeout=TIMEOUT_S
        )
        results: dict[int, int | str] = {}
        for part, future in futures.items():
            try:
                results[part.partition] = self._result(
                    future, f"records of {topic}-{part.partition} were not deleted"
                ).low_watermark
            except KafkaFailed as error:
                results[part.partition] = str(error)
        return dict(sorted(results.items()))

    def _brokers(self) -> Brokers:
        return Brokers(self._target.bootstrap, security=self._security)

    def _result(self, future: "Future[_T]", failed: str) -> _T:
        try:
            return future.result(TIMEOUT_S + 1)
        except KafkaException as error:
            raise self.failure(cast("KafkaError", error.args[0]), failed) from None
        except TimeoutError:
            raise KafkaFailed(f"{failed}: no response within {TIMEOUT_S:.0f} s") from None

    def _metadata(self) -> "ClusterMetadata":
        try:
            found: ClusterMetadata = self._admin.list_topics(timeout=TIMEOUT_S)
            return found
        except KafkaException as error:
            failed = "the brokers did not respond"
            raise self.failure(cast("KafkaError", error.args[0]), failed) from None

    def failure(self, error: KafkaError, failed: str) -> KafkaFailed:
        """Describe a client error."""
        if error.code() in _UNREACHABLE:
            # A broker has responded before; see `__init__`.
            return NoResponse(
                f"{failed}: a broker that the request needs does not respond ({error.name()});"
                " `penstock nodes` shows the brokers"
            )
        if error.code() > 0 and error.code() not in NOT_FOUND:  # from a broker
            return Refused(failed, error.code(), error.str())
        kind = DoesNotExist if error.code() in NOT_FOUND else KafkaFailed
        return kind(f"{failed}: {error.str()} ({error.name()})")
