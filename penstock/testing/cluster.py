"""The cluster of a test run, and helpers for tests.

Every helper blocks until it has taken effect, or fails within its timeout with an error that
describes the request and the result. Helpers may be called from any thread; the `a...` forms do not
block an event loop.
"""

import asyncio
import itertools
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from penstock.base.clock import wall_ms
from penstock.deploy.errors import ClusterFailed, UsageError
from penstock.protocol.batch.records import Record as BatchRecord
from penstock.testing.client import KafkaClient
from penstock.testing.client_settings import settings_of
from penstock.testing.control import AddFaults, AwaitTopic, KillBroker, RemoveFaults, RestartBroker
from penstock.testing.process import ClusterProcess
from penstock.testing.records import Data, Position, Record, encoded

if TYPE_CHECKING:
    from penstock.testing.control import AnyCommand, CommandResponse

TIMEOUT_S: Final = 10.0
_NUMBERS: Final = itertools.count()
"""Numbers that identify faults."""

_OPERATIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "put": ("put", "put_if_absent", "put_if_match"),
    "get": ("get", "get_range", "get_tail", "head"),
    "list": ("list",),
    "delete": ("delete",),
}


class StoreFaults:
    """The number of failed calls by kind, known after the block."""

    def __init__(self) -> None:
        self.injected: dict[str, int] = {}


class PenstockCluster:
    """The cluster of a test run (with pytest-xdist, of a worker). Everything created through it
    exists until the end of the run.
    """

    def __init__(self, process: ClusterProcess, client: KafkaClient) -> None:
        self._process = process
        self._client = client

    # --- where it is ------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of all brokers, separated by commas, for any Kafka client. It does not change
        when brokers are killed and restarted.
        """
        return self._process.bootstrap_servers

    def client_settings(self, library: str = "confluent-kafka") -> dict[str, Any]:
        """Return the connection settings of a client: addresses, and security settings if the
        cluster has them (`penstock_secure`).

        `library`: confluent-kafka (a config of librdkafka), kafka-python or aiokafka (keyword
        arguments), or java (properties). The user is a super user.
        """
        return settings_of(library, self.bootstrap_servers, self._process.security)

    @property
    def brokers(self) -> list[int]:
        """The ids of the brokers."""
        return list(range(len(self.bootstrap_servers.split(","))))

    # --- records ----------------------------------------------------------------------------------

    def topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str | int | bool] | None = None
    ) -> str:
        """Create a topic. Return its name as soon as it is in the metadata of every broker and
        every partition has a leader.
        """
        self._check_usable()
        texts = {
            key: str(value).lower() if isinstance(value, bool) else str(value)
            for key, value in (config or {}).items()
        }
        self._client.create_topic(name, partitions, texts, TIMEOUT_S)
        self._send_request(AwaitTopic(topic=name, timeout_ms=int(TIMEOUT_S * 1_000)))
        return name

    def produce(
        self,
        topic: str,
        *values: Data,
        key: Data = None,
        headers: Mapping[str, Data] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> list[Position]:
        """Send the values, all with this key and these headers. Return their positions once all are
        durable (acks=all, idempotent).

        A `partition` of None is chosen by key as Kafka's Java client does; without a key, values
        are distributed round robin.
        """
        self._check_usable()
        if not values:
            raise UsageError(
                f"produce({topic!r}) has no value; a record with a null value is"
                f" produce({topic!r}, None, key=...)"
            )
        now_ms = wall_ms() if timestamp_ms is None else timestamp_ms
        pairs = tuple((name, encoded(value)) for name, value in (headers or {}).items())
        records = [BatchRecord(0, now_ms, encoded(key), encoded(value), pairs) for value in values]
        return self._client.produce(topic, records, partition, timeout_s)

    def consume(
        self, topic: str, count: int | None = None, timeout_s: float = TIMEOUT_S
    ) -> list[Record]:
        """Return all records of the topic, by partition and offset, as soon as there are `count`.
        Does not join a group.

        More than `count` records are returned if there are more, so that a test detects extra
        records. None means all current records.
        """
        self._check_usable()
        return self._client.consume(topic, count, timeout_s)

    async def aproduce(
        self,
        topic: str,
        *values: Data,
        key: Data = None,
        headers: Mapping[str, Data] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> list[Position]:
        """Call `produce` without blocking the caller's event loop."""

        def send() -> list[Position]:
            return self.produce(
                topic,
                *values,
                key=key,
                headers=headers,
                partition=partition,
                timestamp_ms=timestamp_ms,
                timeout_s=timeout_s,
            )

        return await asyncio.to_thread(send)

    async def aconsume(
        self, topic: str, count: int | None = None, timeout_s: float = TIMEOUT_S
    ) -> list[Record]:
        """Call `consume` without blocking the caller's event loop, which may still have to produce
        the records.
        """
        return await asyncio.to_thread(self.consume, topic, count, timeout_s)

    # --- failures ---------------------------------------------------------------------------------

    def kill_broker(self, broker: int) -> None:
        """Crash a broker: its connections break and nothing is flushed. Other brokers take over its
        partitions; acknowledged records are in the store.
        """
        self._check_usable()
        self._send_request(KillBroker(node_id=broker))

    def restart_broker(self, broker: int) -> None:
        """Start a broker on its port, after killing it if it is running. It serves requests when
        this returns.
        """
        self._check_usable()
        self._send_request(RestartBroker(node_id=broker))

    @contextmanager
    def store_faults(
        self,
        *,
        down: bool = False,
        error_rate: float = 0.0,
        lost_response_rate: float = 0.0,
        latency_ms: tuple[float, float] | None = None,
        operations: Collection[str] = (),
        broker: int | None = None,
        seed: int = 0,
    ) -> Generator[StoreFaults]:
        """Inject failures of the object store of the brokers (or of one `broker`) within the block.

        `down`: no call gets a response. `error_rate`: the share of calls that return "503
        SlowDown". `lost_response_rate`: the share of calls that take effect without a response.
        `latency_ms`: (p50, p99) of each call. `operations`: some of put, get, list, delete; if
        empty, all are affected. `seed` seeds the random numbers.
        """
        self._check_usable()
        _check_rate("error_rate", error_rate)
        _check_rate("lost_response_rate", lost_response_rate)
        _check_latency(latency_ms)
        _check_operations(operations)
        number = next(_NUMBERS)
        p50_ms, p99_ms = latency_ms or (0.0, 0.0)
        self._send_request(
            AddFaults(
                number=number,
                down=down,
                error_rate=error_rate,
                lost_response_rate=lost_response_rate,
                latency_p50_ms=p50_ms,
                latency_p99_ms=p99_ms,
                operations=[method for name in operations for method in _OPERATIONS[name]],
                node_id=broker,
                seed=seed,
            )
        )
        faults = StoreFaults()
        try:
            yield faults
        finally:
            with suppress(ClusterFailed):  # the block itself raises the cause
                faults.injected = self._send_request(RemoveFaults(number=number)).injected

    # --- inside -----------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        """Raise an error if this object may no longer be used."""

    def _send_request(self, command: "AnyCommand") -> "CommandResponse":
        return self._process.send_request(command)


def _check_rate(name: str, rate: float) -> None:
    if not 0.0 <= rate <= 1.0:
        raise UsageError(f"store_faults({name}={rate}) is not allowed: 0.0 to 1.0")


def _check_latency(latency_ms: tuple[float, float] | None) -> None:
    if latency_ms is not None and not 0 <= latency_ms[0] <= latency_ms[1]:
        raise UsageError(
            f"store_faults(latency_ms={latency_ms}) is not allowed: (p50, p99) in ms, the second"
            " not less than the first"
        )


def _check_operations(operations: Collection[str]) -> None:
    unknown = sorted(set(operations) - set(_OPERATIONS))
    if unknown:
        raise UsageError(
            f"store_faults(operations={unknown}) is not allowed: {', '.join(_OPERATIONS)}"
        )
