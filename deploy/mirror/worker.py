"""Copy partitions by repeatedly fetching and appending. Each worker is a thread with its own
connections.

Invariant: the progress of a partition is read from the target before the first fetch, and again
after every failure. A worker may therefore stop at any point.
"""

import threading
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Final, Protocol

from penstock.base.backoff import Backoff
from penstock.deploy.mirror.cluster import Cluster, ClusterAddress
from penstock.deploy.mirror.source import Copy, fetched
from penstock.deploy.mirror.state import UNKNOWN, Ended, PartitionState
from penstock.protocol.client.errors import KafkaFailed, Moved, Refused
from penstock.protocol.error_codes import ErrorCode, known_code

WAIT_MS: Final = 250
"""How long a fetch waits for records, divided by the number of leaders of the source."""
_IDLE_S: Final = 0.1
_DENIED: Final = frozenset(
    {
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
"""Errors after which a request is not retried."""
_TEND_S: Final = 5.0


class TargetWriter(Protocol):
    """The interface of the target for workers. Every method raises KafkaFailed."""

    def start(self) -> None:
        """Start, or restart after a failure."""
        ...

    def find_positions(self, states: Sequence[PartitionState]) -> None: ...

    def append(self, copies: Sequence[Copy]) -> None: ...

    def tend(self, states: Sequence[PartitionState]) -> None:
        """Run periodic tasks."""
        ...


MakeWriter = Callable[[Cluster, Cluster], TargetWriter]
"""Creates a writer for a target and a source."""


class CopyTask:
    """Copies its partitions until it is stopped."""

    def __init__(
        self, source: ClusterAddress, target: ClusterAddress, make_sink: MakeWriter
    ) -> None:
        self.problem = ""
        """The reason why the last attempt failed, while it is being retried."""
        self.ended = ""
        """The reason why this worker has stopped; empty while it copies."""
        self.crash: BaseException | None = None
        self._source, self._target, self._make_sink = source, target, make_sink
        self._states: Sequence[PartitionState] = ()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._tended_at = 0.0
        self._turn = 0

    def start(self) -> None:
        self._thread.start()

    def assign(self, states: Sequence[PartitionState]) -> None:
        """Copy these partitions from the next round on."""
        self._states = tuple(states)

    def stop(self) -> None:
        """Make the worker stop after the current round."""
        self._stopped.set()

    def join(self, timeout_s: float) -> None:
        """Wait until the worker has ended."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            with Cluster(self._source) as source, Cluster(self._target) as target:
                self._copy_until_stopped(source, target)
        except Ended as ended:
            self.ended = str(ended)
        except BaseException as crash:  # noqa: BLE001 - the thread that reports raises it
            self.crash = crash

    def _copy_until_stopped(self, source: Cluster, target: Cluster) -> None:
        sink = self._make_sink(target, source)
        is_started = False
        backoff = _backoff()
        while not self._stopped.is_set():
            try:
                if not is_started:
                    sink.start()
                    is_started = True
                self._round(source, sink)
            except KafkaFailed as error:
                if isinstance(error, Refused) and known_code(error.code) in _DENIED:
                    raise
                self.problem, is_started = str(error), False
                for state in self._states:
                    state.position = UNKNOWN
                if not isinstance(error, Moved):
                    source.reset()
                    target.reset()
                self._stopped.wait(backoff.next_s())
            else:
                self.problem, backoff = "", _backoff()

    def _round(self, source: Cluster, sink: TargetWriter) -> None:
        states = {state.key: state for state in self._states if not state.error}
        if not states:
            self._stopped.wait(_IDLE_S)
            return
        unknown = [state for state in states.values() if state.position == UNKNOWN]
        if unknown:
            sink.find_positions(unknown)
        leaders = source.by_leader(states)
        for leader, led in leaders.items():
            # The first partition of a request may fill the response, so the order rotates.
            self._turn += 1
            turn = self._turn % len(led)
            requested = [states[key] for key in led[turn:] + led[:turn]]
            copies = fetched(source, leader, requested, WAIT_MS // len(leaders))
            if copies:
                sink.append(copies)
        if time.monotonic() - self._tended_at > _TEND_S:
            self._tended_at = time.monotonic()
            known = [state for state in states.values() if state.position != UNKNOWN]
            sink.tend([state for state in known if not state.error])


def _backoff() -> Backoff:
    return Backoff(100, 5_000, Random())  # noqa: S311 - pauses need no secrets
