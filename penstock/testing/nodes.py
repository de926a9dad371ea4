"""Controller and brokers of a test run, in one process with an in-memory store, and fault
injection.

Killed brokers do not flush or close anything, and restart on the same port. A broker that exits by
itself is restarted. Each broker has its own store faults; the controller has none.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final, cast
from uuid import UUID

import structlog

from penstock.base.errors import StreamError
from penstock.base.ids import NodeId
from penstock.base.listeners import SecurityProtocol
from penstock.base.settings import fields_of
from penstock.broker.config import BrokerConfig
from penstock.broker.coordination.internal_topics import INTERNAL_TOPICS
from penstock.broker.errors import ErrorCode
from penstock.broker.network.server import PortTaken
from penstock.broker.node import Broker
from penstock.broker.security.config import SecurityConfig
from penstock.controller.api.errors import ControllerError
from penstock.controller.api.messages import DeleteTopics
from penstock.controller.config import ControllerConfig
from penstock.controller.main import ControllerServer
from penstock.deploy.local.security import CLIENT_PROTOCOL, SecurityFiles
from penstock.objectstore.errors import ObjectStoreError
from penstock.objectstore.faults import (
    Fault,
    FaultConfig,
    FaultRule,
    FaultyStore,
    Latency,
    Selection,
)
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.retry import RetryingStore, RetryPolicy
from penstock.stream.config import StreamConfig
from penstock.testing.control import AddFaults
from penstock.testing.options import Options

log = structlog.get_logger(__name__)

HOST: Final = "127.0.0.1"
SESSION_TIMEOUT_MS: Final = 3_000
SESSION_GRACE_MS: Final = 100
"""Short, because tests wait for every failover. A false alarm is unlikely: all nodes are in one
process, so a pause of the machine affects all of them.
"""
INTERNAL_PARTITIONS: Final = 4
"""Number of partitions of each internal topic; few, because the first group or transaction of a run
waits until they exist.
"""
GROUP_SESSION_MIN_MS: Final = 100
SETTLE_S: Final = 20.0
_POLL_S: Final = 0.001
_RESTART_S: Final = 0.1
_RETENTION_CHECK_INTERVAL_MS: Final = 86_400_000
"""Longer than a run, because tests write records with old timestamps."""
_LOG_CACHE_BYTES: Final = 128 << 20
_BLOCK_BYTES: Final = 16 << 20
_PUTS: Final = frozenset({"put", "put_if_absent", "put_if_match"})
_RETRIES: Final = RetryPolicy(backoff_ms=10, backoff_max_ms=200)
_START_FAILURES: Final = (PortTaken, ControllerError, ObjectStoreError, StreamError, TimeoutError)


class Refused(Exception):
    """The cluster cannot execute a request of a test. The message is for the author of the test."""


class Nodes:
    """Call `start` once, then any other method, one at a time. Nothing needs to be stopped, because
    the process exits.
    """

    def __init__(
        self,
        options: Options,
        directory: Path,
        ports: Sequence[int],
        security: SecurityFiles | None = None,
    ) -> None:
        """security: files for brokers that require TLS and SCRAM from their clients."""
        self._options = options
        self._security = SecurityConfig() if security is None else _security_of(security)
        self._protocol = SecurityProtocol.PLAINTEXT if security is None else CLIENT_PROTOCOL
        self._directory = directory
        self._ports = list(ports)
        self._store = MemoryStore()
        self._randoms = [Random(node_id) for node_id in range(options.brokers)]  # noqa: S311 - faults, not secrets
        self._faults = [FaultyStore(self._store, random) for random in self._randoms]
        self._active: dict[int, AddFaults] = {}
        self._brokers: dict[int, Broker] = {}
        self._down: set[int] = set()
        """Brokers that a test killed."""
        self._revivals: dict[int, asyncio.Task[None]] = {}
        self._controller_address = ""
        self._topics_before: frozenset[UUID] = frozenset()
        self._groups_before: frozenset[str] = frozenset()

    async def start(self) -> None:
        """Start all nodes. If this raises PortTaken, no node is running."""
        config = ControllerConfig(
            data_dir=self._directory,
            listeners=(f"{HOST}:0",),
            session_timeout_ms=SESSION_TIMEOUT_MS,
            session_grace_ms=SESSION_GRACE_MS,
            delete_grace_ms=0,
        )
        controller = ControllerServer(config, self._store)
        await controller.start()
        self._controller_address = controller.address
        self._apply_faults()
        outcomes = await asyncio.gather(
            *map(self._start_broker, range(self._options.brokers)), return_exceptions=True
        )
        for outcome in outcomes:
            if outcome is not None:
                await asyncio.gather(*(broker.abandon() for broker in self._brokers.values()))
                await controller.stop()
                raise outcome
        await self._until(self._images_are_current, "brokers that know each other", SETTLE_S)

    # --- requests of tests ---------------------------------------------------------------------

    async def begin(self) -> None:
        self._topics_before = self._topics()
        self._groups_before = frozenset(self._groups())

    async def end(self) -> list[str]:
        """Restore the cluster. Return groups that are still in use."""
        if self._active:
            self._active.clear()
            self._apply_faults()
        for node_id in sorted(self._down):
            await self.restart(node_id)
        await self._until(
            lambda: len(self._brokers) == self._options.brokers,
            "all brokers after a test",
            SETTLE_S,
        )
        await self._delete_topics()
        return await self._delete_groups()

    async def kill(self, node_id: int) -> None:
        self._check(node_id)
        if node_id in self._down:
            raise Refused(f"broker {node_id} is already down; restart_broker({node_id}) starts it")
        self._down.add(node_id)
        revival = self._revivals.pop(node_id, None)
        if revival is not None:
            revival.cancel()
            await asyncio.wait([revival])
        broker = self._brokers.pop(node_id, None)
        if broker is not None:
            await broker.abandon()

    async def restart(self, node_id: int) -> None:
        self._check(node_id)
        if node_id not in self._down:
            await self.kill(node_id)
        try:
            async with asyncio.timeout(SETTLE_S):
                await self._start_broker(node_id)
        except PortTaken:
            port = self._ports[node_id]
            raise Refused(
                f"broker {node_id} cannot restart: another process has taken port {port} on {HOST}"
                " meanwhile"
            ) from None
        except _START_FAILURES as error:
            raise Refused(
                f"broker {node_id} did not start within {SETTLE_S:.0f} s:"
                f" {error or 'does it reach the store?'}"
            ) from None
        self._down.discard(node_id)
        await self._until(
            self._images_are_current, f"a cluster that knows broker {node_id}", SETTLE_S
        )

    async def await_topic(self, name: str, timeout_s: float) -> None:
        await self._until(
            lambda: self._serves(name),
            f"topic {name!r} to be served by the brokers that live",
            timeout_s,
        )

    def add_faults(self, faults: AddFaults) -> None:
        if faults.node_id is not None:
            self._check(faults.node_id)
        for node_id in self._affected_brokers(faults):
            self._faults[node_id].injected.clear()
            self._randoms[node_id].seed(faults.seed * self._options.brokers + node_id)
        self._active[faults.number] = faults
        self._apply_faults()

    def remove_faults(self, number: int) -> dict[str, int]:
        """Remove faults, and return the number of injected ones by kind."""
        faults = self._active.pop(number, None)
        if faults is None:
            return {}
        self._apply_faults()
        counts: Counter[str] = Counter()
        for node_id in self._affected_brokers(faults):
            counts.update(
                {
                    fault.name.lower(): count
                    for fault, count in self._faults[node_id].injected.items()
                }
            )
        return dict(counts)

    # --- faults -----------------------------------------------------------------------------------

    def _affected_brokers(self, faults: AddFaults) -> Sequence[int]:
        return range(self._options.brokers) if faults.node_id is None else (faults.node_id,)

    def _apply_faults(self) -> None:
        """Apply the newest faults first, because the first latency wins."""
        options = self._options
        lasting = (
            (Latency(options.latency_p50_ms, options.latency_p99_ms, Selection(_PUTS)),)
            if options.latency_p99_ms
            else ()
        )
        for node_id, store in enumerate(self._faults):
            mine = [
                faults
                for faults in reversed(self._active.values())
                if faults.node_id in {None, node_id}
            ]
            latencies = tuple(
                Latency(
                    faults.latency_p50_ms,
                    faults.latency_p99_ms,
                    Selection(frozenset(faults.operations)),
                )
                for faults in mine
                if faults.latency_p99_ms
            )
            store.config = FaultConfig(
                latencies + lasting, tuple(rule for faults in mine for rule in _rules(faults))
            )
            store.down = any(faults.down for faults in mine)

    # --- brokers ----------------------------------------------------------------------------------

    def _check(self, node_id: int) -> None:
        if not 0 <= node_id < self._options.brokers:
            raise Refused(
                f"broker {node_id} does not exist: ids are 0 to {self._options.brokers - 1}"
                " (--penstock-brokers sets the number)"
            )

    async def _start_broker(self, node_id: int) -> None:
        config = BrokerConfig(
            node_id=node_id,
            listeners=(f"{self._protocol}://{HOST}:{self._ports[node_id]}",),
            controllers=(self._controller_address,),
            offsets_topic_num_partitions=INTERNAL_PARTITIONS,
            transaction_state_log_num_partitions=INTERNAL_PARTITIONS,
            share_coordinator_state_topic_num_partitions=INTERNAL_PARTITIONS,
            group_initial_rebalance_delay_ms=0,
            group_min_session_timeout_ms=GROUP_SESSION_MIN_MS,
            log_retention_check_interval_ms=_RETENTION_CHECK_INTERVAL_MS,
        )
        store = RetryingStore(self._faults[node_id], _RETRIES)
        stream = StreamConfig(
            wal_linger_ms=0,
            wal_hedge_factor=0,
            log_cache_bytes_max=_LOG_CACHE_BYTES,
            block_bytes_max=_BLOCK_BYTES,
        )
        broker = await Broker.start(config, store, stream, security=self._security)
        self._brokers[node_id] = broker
        broker.ended.add_done_callback(lambda _: self._ended(node_id, broker))

    def _ended(self, node_id: int, broker: Broker) -> None:
        if self._brokers.get(node_id) is broker and node_id not in self._down:
            del self._brokers[node_id]
            self._revivals[node_id] = asyncio.get_running_loop().create_task(
                self._revive(node_id, broker)
            )

    async def _revive(self, node_id: int, broker: Broker) -> None:
        await broker.abandon()
        while node_id not in self._brokers:
            with suppress(*_START_FAILURES):
                await self._start_broker(node_id)
                log.warning("broker_restarted", node_id=node_id)
                break
            await asyncio.sleep(_RESTART_S)
        self._revivals.pop(node_id, None)

    def _images_are_current(self) -> bool:
        """Return whether every live broker's image lists all live brokers as alive, because brokers
        only direct clients to brokers that are alive in their image.
        """
        live = {NodeId(node_id) for node_id in self._brokers}
        return all(
            {state.node_id for state in broker.image.nodes if not state.fenced} >= live
            for broker in self._brokers.values()
        )

    def _serves(self, name: str) -> bool:
        brokers = list(self._brokers.values())
        topics = [broker.image.topics.by_name(name) for broker in brokers]
        if not topics or any(topic is None for topic in topics):
            return False
        count = len(topics[0].partitions) if topics[0] is not None else 0
        return all(
            any(not isinstance(broker.partitions.get(name, index), int) for broker in brokers)
            for index in range(count)
        )

    # --- cleanup after tests ----------------------------------------------------------------

    def _topics(self) -> frozenset[UUID]:
        images = [broker.image for broker in self._brokers.values()]
        return frozenset(
            topic.topic_id
            for image in images
            for topic in image.topics
            if topic.name not in INTERNAL_TOPICS
        )

    async def _delete_topics(self) -> None:
        new = self._topics() - self._topics_before
        if new:
            broker = next(iter(self._brokers.values()))
            await broker.client.delete_topics(
                DeleteTopics(topic_ids=sorted(new)), timeout_s=SETTLE_S
            )
            await self._until(
                lambda: not self._topics() & new,
                "brokers that forgot the topics of a test",
                SETTLE_S,
            )

    def _groups(self) -> dict[str, Broker]:
        return {
            group.group_id: broker
            for broker in self._brokers.values()
            for group in broker.groups.list_groups()
        }

    async def _delete_groups(self) -> list[str]:
        left: list[str] = []
        for group_id, broker in self._groups().items():
            if (
                group_id not in self._groups_before
                and await broker.groups.delete_group(group_id) is ErrorCode.NON_EMPTY_GROUP
            ):
                left.append(group_id)
        return left

    async def _until(self, condition: Callable[[], bool], what: str, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():  # noqa: ASYNC110 - conditions span brokers: no single event exists
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise Refused(f"timed out after {timeout_s:.0f} s waiting for {what}") from None


def _security_of(files: SecurityFiles) -> SecurityConfig:
    given = files.broker_settings()
    texts = {
        field.field: given[field.name] for field in fields_of(SecurityConfig) if field.name in given
    }
    return SecurityConfig(**cast("dict[str, Any]", texts))


def _rules(faults: AddFaults) -> list[FaultRule]:
    on = Selection(frozenset(faults.operations))
    rates = ((Fault.THROTTLED, faults.error_rate), (Fault.LOST_RESPONSE, faults.lost_response_rate))
    return [FaultRule(fault, rate, on) for fault, rate in rates if rate > 0]
