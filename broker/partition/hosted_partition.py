"""One partition that this broker serves or will serve: its state, its last failure to open, and its
parked requests.
"""

from collections.abc import Callable
from typing import TypeAlias

from penstock.broker.partition.move_notice import MoveNotice
from penstock.broker.partition.opener import OpenPartition
from penstock.broker.partition.partition import Partition
from penstock.controller.api.load_messages import ERROR_CHARS_MAX, FailingPartition
from penstock.controller.metadata.topics import PartitionKey
from penstock.protocol.error_codes import ErrorCode

OpenCallback: TypeAlias = Callable[[Partition | ErrorCode], None]


class HostedPartition:
    """A partition that is or will be open here. `busy` is True while an operation on it is
    running.
    """

    __slots__ = (
        "_error",
        "_failing_since",
        "_parked",
        "attempts_count",
        "busy",
        "key",
        "notice",
        "open_partition",
    )

    def __init__(self, key: PartitionKey) -> None:
        self.key = key
        self.open_partition: OpenPartition | None = None
        self.busy = False
        self.attempts_count = 0
        """Number of consecutive failed attempts."""
        self._failing_since = 0.0
        self._error: Exception | None = None
        """The error of the last failed attempt. `_failing_since` is the time of the first one."""
        self.notice: MoveNotice | None = None
        self._parked: list[OpenCallback] = []

    @property
    def is_open(self) -> bool:
        return self.partition is not None

    @property
    def partition(self) -> Partition | None:
        return self.open_partition.partition if self.open_partition is not None else None

    @property
    def is_failing(self) -> bool:
        """Return True if the partition fails to open, including while the next attempt is
        running.
        """
        return self.attempts_count > 0 and not self.is_open

    @property
    def state(self) -> str:
        """Return the state, as the name of a field of `PartitionStates`."""
        if self.is_failing:
            return "failing"
        if self.busy:
            return "closing" if self.is_open else "opening"
        return "serving" if self.is_open else "awaited"

    def failed(self, error: Exception | None, now_s: float) -> None:
        """Record a failed attempt. now_s: on the same monotonic clock as in `failure`."""
        if not self.attempts_count:
            self._failing_since = now_s
        self.attempts_count += 1
        self._error = error

    def failure(self, now_s: float) -> FailingPartition:
        """Return how long the partition has failed to open, and why. Requires `is_failing`."""
        return FailingPartition(
            topic_id=self.key.topic_id,
            partition=self.key.partition,
            tries=self.attempts_count,
            for_ms=round((now_s - self._failing_since) * 1_000),
            error=f"{type(self._error).__name__}: {self._error}"[:ERROR_CHARS_MAX],
        )

    def park(self, callback: OpenCallback) -> Callable[[], None]:
        """Park the callback of a request, after those parked earlier. Return a function that
        removes it.
        """
        self._parked.append(callback)

        def cancel() -> None:
            if callback in self._parked:
                self._parked.remove(callback)

        return cancel

    def take_parked(self) -> list[OpenCallback]:
        """Remove the parked callbacks, and return them in order of arrival."""
        parked, self._parked = self._parked, []
        return parked
