"""Export every topic that declares a table, in one process with a bounded number of threads.

Invariants: a turn of a topic is a batch of `TableSync`, so a runner may end at any point, and other
runners may export the same topics. A turn that fails delays only its topic. Threads share no state
with the main thread, which receives their results and errors through a queue.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from random import Random
from threading import Event, Thread
from typing import Final, Protocol

import msgspec

from penstock.base.clock import wall_ms
from penstock.base.errors import StreamError
from penstock.base.log import get_logger
from penstock.base.version import VERSION
from penstock.lake.arrow.background import background
from penstock.lake.arrow.cluster import StoreCluster
from penstock.lake.manifest.table_status import (
    RunnerState,
    RunnerStatus,
    TopicStatus,
    read_statuses,
    write_status,
)
from penstock.lake.table.declared import DeclaredTable, declared_tables
from penstock.lake.table.errors import EngineLost
from penstock.lake.table.schedule import Exported, Failed, Schedule
from penstock.objectstore.errors import ObjectStoreError

_log = get_logger(__name__)

STATUS_S_MIN: Final = 5.0
STATUS_S_MAX: Final = 30.0
EXPORTS_KEPT_MAX: Final = 200
"""Maximum number of exports that are kept open for their next turn, each with connections to the
catalog. Additional exports are opened anew for each turn.
"""
_STATUS_DEADLINE_S: Final = 30.0
_WAIT_S_MAX: Final = 1.0
_STORE_ERRORS: Final = (StreamError, ObjectStoreError, OSError)
"""Errors of reading the cluster or writing the status, including timeouts. The runner retries after
them.
"""


class TopicExport(Protocol):
    """The export of one table. Only one thread uses it at a time."""

    def turn(self) -> Exported:
        """Write one batch if there are new records. May raise any exception."""
        ...


OpenExport = Callable[[DeclaredTable], TopicExport]
"""Creates the export of a table. May raise any exception."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerEvent:
    """An event to report: a topic was added, removed, committed, failed or recovered. An event
    without a topic: the runner failed to discover topics, or recovered.
    """

    kind: str
    topic: str = ""
    table: str = ""
    rows: int = 0
    rejected: int = 0
    skipped: int = 0
    remaining: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerOptions:
    name: str = "default"
    workers: int = 4
    once: bool = False
    stop_s: float = 30.0
    """How long batches may continue after a stop request."""

    discovery_s: float = 5.0
    """Time between two discoveries of the topics in the cluster."""


@dataclass(frozen=True, slots=True)
class _Turn:
    table: DeclaredTable
    result: Exported | Failed
    export: TopicExport | None
    """Reused by the next turn; None after a failure, because its state is then unknown."""


class TableRunner:
    """Runs the exports of a cluster. `stop` ends the run after the batches in progress."""

    def __init__(
        self,
        cluster: StoreCluster,
        open_export: OpenExport,
        options: RunnerOptions | None = None,
        on_event: Callable[[RunnerEvent], None] = lambda _: None,
    ) -> None:
        self._cluster = cluster
        self._open_export = open_export
        self._options = options or RunnerOptions()
        self._on_event = on_event
        self._schedule = Schedule(Random())  # noqa: S311 - jitter
        self._stop = Event()
        self._done: SimpleQueue[_Turn | None] = SimpleQueue()
        self._exports: dict[DeclaredTable, TopicExport] = {}
        self._failing: dict[str, str] = {}
        self._running = 0
        self._lost: EngineLost | None = None
        self._cluster_id = ""
        self._known: Mapping[str, TopicStatus] = {}
        self._discover_at_s = float("-inf")
        self._wrote_at_s = float("-inf")
        self._wrote: RunnerStatus | None = None
        now_ms = wall_ms()
        status = RunnerStatus(
            runner=self._options.name, version=VERSION, started_ms=now_ms, updated_ms=now_ms
        )
        self.state = RunnerState(status, time.monotonic())

    def stop(self) -> None:
        """End the run soon. May be called by other threads and by signal handlers."""
        self._stop.set()
        self._done.put(None)

    def run(self) -> RunnerStatus:
        """Run until `stop`; with `once`, run until every table is complete or has failed. Return
        the last status. Raise EngineLost, because no further batch can succeed in this process.
        """
        stop_at_s = float("inf")
        while True:
            now_s = time.monotonic()
            self.state.turned_at_s = now_s
            if self._stop.is_set():
                stop_at_s = min(stop_at_s, now_s + self._options.stop_s)
                if not self._running or now_s >= stop_at_s:
                    break
            else:
                if now_s >= self._discover_at_s:
                    self._discover(now_s)
                if self._is_finished():
                    break
                for table in self._schedule.due(now_s, self._options.workers - self._running):
                    self._start(table)
            self._publish(now_s)
            self._take_results(now_s)
        self._publish(time.monotonic(), is_last=True)
        if self._lost is not None:
            raise self._lost
        return self.state.status

    def _is_finished(self) -> bool:
        if not self._options.once or self._running:
            return False
        return bool(self.state.status.error) or self._schedule.is_settled

    def _discover(self, now_s: float) -> None:
        self._discover_at_s = now_s + self._options.discovery_s
        try:
            root = self._cluster.newest_root()
            if not self._cluster_id:
                self._known = self._earlier_status(root.cluster_id)
            self._cluster_id = root.cluster_id
            tables = declared_tables(root.topics)
        except _STORE_ERRORS as error:
            if self._set_error(str(error) or type(error).__name__):
                _log.warning("tables_not_discovered", error=str(error))
            return
        self._set_error("")
        added, removed = self._schedule.declare(tables, now_s, wall_ms(), self._known)
        self._known = {}
        for table in removed:
            self._exports.pop(table, None)
            self._failing.pop(table.topic, None)
            if table.topic not in tables:
                self._on_event(RunnerEvent(kind="removed", topic=table.topic, table=table.table))
        for table in added:
            self._on_event(RunnerEvent(kind="added", topic=table.topic, table=table.table))
        self.state.is_started = True

    def _earlier_status(self, cluster_id: str) -> dict[str, TopicStatus]:
        """Return the topic statuses of an earlier runner with this name, or an empty dict if they
        cannot be read.
        """

        async def read() -> list[RunnerStatus]:
            return await read_statuses(await self._cluster.store(), cluster_id)

        try:
            found = background().run(read(), _STATUS_DEADLINE_S)
        except _STORE_ERRORS as error:
            _log.warning("table_status_not_read", error=str(error))
            return {}
        mine = [status for status in found if status.runner == self._options.name]
        if any(not status.is_stale(wall_ms()) for status in mine):
            _log.warning(
                "table_runner_name_in_use",
                name=self._options.name,
                advice="give each runner its own --name, unless this one was just killed",
            )
        return {topic.topic: topic for status in mine for topic in status.topics}

    def _set_error(self, error: str) -> bool:
        """Set the error of the topic discovery, and return whether it has changed."""
        before = self.state.status.error
        if error == before:
            return False
        self._update(error=error)
        self._on_event(RunnerEvent(kind="failed" if error else "recovered", error=error))
        return True

    def _start(self, table: DeclaredTable) -> None:
        self._running += 1
        kept = self._exports.pop(table, None)

        def work() -> None:
            try:
                export = self._open_export(table) if kept is None else kept
                turn = _Turn(table, export.turn(), export)
            except EngineLost as error:
                self._lost = error
                self._stop.set()
                turn = _Turn(table, Failed(_described(error)), None)
            except BaseException as error:  # noqa: BLE001 - also a panic of Rust: a turn must end
                turn = _Turn(table, Failed(_described(error)), None)
            self._done.put(turn)

        Thread(target=work, name=f"table-{table.topic}", daemon=True).start()

    def _take_results(self, now_s: float) -> None:
        """Wait for a result or the next turn, and process all available results."""
        due_s = self._schedule.next_due_s()
        wait_s = _WAIT_S_MAX
        may_start = self._running < self._options.workers and not self._stop.is_set()
        if due_s is not None and may_start:
            wait_s = min(wait_s, max(0.0, due_s - now_s))
        try:
            turn = self._done.get(timeout=wait_s)
        except Empty:
            return
        while True:
            if turn is not None:
                self._running -= 1
                self._take(turn)
            try:
                turn = self._done.get_nowait()
            except Empty:
                return

    def _take(self, turn: _Turn) -> None:
        table, result = turn.table, turn.result
        if not self._schedule.finish(table, result, time.monotonic(), wall_ms()):
            return
        if turn.export is not None:
            self._exports[table] = turn.export
            if len(self._exports) > EXPORTS_KEPT_MAX:
                del self._exports[next(iter(self._exports))]
        self._update()  # so that the status includes the reported events
        before = self._failing.pop(table.topic, "")
        if isinstance(result, Failed):
            self._failing[table.topic] = result.error
            if result.error != before:
                _log.warning("table_export_failed", topic=table.topic, error=result.error)
                self._on_event(
                    RunnerEvent(
                        kind="failed", topic=table.topic, table=table.table, error=result.error
                    )
                )
            return
        if before:
            self._on_event(RunnerEvent(kind="recovered", topic=table.topic, table=table.table))
        if result.committed:
            self._on_event(
                RunnerEvent(
                    kind="committed",
                    topic=table.topic,
                    table=table.table,
                    rows=result.rows,
                    rejected=result.rejected,
                    skipped=result.skipped,
                    remaining=result.remaining,
                )
            )

    def _update(self, *, error: str | None = None, stopped: bool = False) -> None:
        before = self.state.status
        self.state.status = msgspec.structs.replace(
            before,
            updated_ms=wall_ms(),
            stopped=stopped,
            error=before.error if error is None else error,
            topics=self._schedule.statuses(time.monotonic()),
        )

    def _publish(self, now_s: float, *, is_last: bool = False) -> None:
        """Update the status, and write it to the store if it has changed or is old."""
        self._update(stopped=is_last)
        status = self.state.status
        age_s = now_s - self._wrote_at_s
        is_due = age_s >= STATUS_S_MAX or (
            age_s >= STATUS_S_MIN and _facts(status) != _facts(self._wrote)
        )
        if not self._cluster_id or not (is_due or is_last):
            return
        self._wrote_at_s, self._wrote = now_s, status

        async def write() -> None:
            await write_status(await self._cluster.store(), self._cluster_id, status)

        try:
            background().run(write(), _STATUS_DEADLINE_S)
        except _STORE_ERRORS as error:
            if not self.state.status_error:
                _log.warning("table_status_not_written", error=str(error))
            self.state.status_error = str(error) or type(error).__name__
        else:
            self.state.status_error = ""


def _facts(status: RunnerStatus | None) -> list[tuple[object, ...]]:
    """Return the parts of the status that change with events, not with time."""
    if status is None:
        return []
    return [
        (status.error,),
        *(
            (topic.topic, topic.table, topic.state, topic.commit_ms, topic.complete_ms, topic.error)
            for topic in status.topics
        ),
    ]


def _described(error: BaseException) -> str:
    """Return the message of an error. Errors whose message contains a remedy are not logged as
    well.
    """
    if isinstance(error, StreamError | ObjectStoreError) and str(error):
        return str(error)
    _log.warning("table_export_error", exc_info=error)
    return f"{type(error).__name__}: {error}"
