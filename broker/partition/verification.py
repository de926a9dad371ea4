"""Let the first batch of a transaction in only if its coordinator knows that it writes here:
otherwise nobody would end it, and readers of committed records would wait forever.

The leader asks the coordinator, and appends when it has answered. Meanwhile a marker may end the
transaction; then the answer is about what is over. A guard stands for one question: a marker of its
producer takes it away, and without it nothing is appended. Once a batch is in, its transaction is
open here, and later ones need no question.
Invariant: one guard for each producer, that of its last question. Batches that wait for the same
answer are appended in the order in which they came.
Must not: ask anybody (`broker.handlers.verification` does).
Source: Kafka `VerificationGuard`, `VerificationStateEntry`; KIP-890.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from broker.wire.error_codes import ErrorCode

Answered: TypeAlias = Callable[[ErrorCode], None]


class Guard:
    """A question to the coordinator, from when it is asked to when its batches are appended."""

    __slots__ = ("adds", "holders_count", "is_answered", "producer_epoch", "producer_id", "waiting")

    def __init__(self, producer_id: int, producer_epoch: int, *, adds: bool) -> None:
        """adds: the coordinator is to add the partition to the transaction, which is one of version
        2. Its epoch is new then, so its sequences begin at 0.
        """
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.adds = adds
        self.waiting: list[Answered] = []
        self.is_answered = False
        """The transaction has the partition; those who hold the guard are about to append."""
        self.holders_count = 0


UNVERIFIED: Final = Guard(-1, -1, adds=False)
"""The guard of batches for which nobody was asked, because their transaction should be open."""
WITHOUT_ID: Final = Guard(-1, -1, adds=False)
"""The guard of requests without a transactional id: nobody can be asked."""


class Verifications:
    """The guards of one partition, by producer."""

    __slots__ = ("_guards",)

    def __init__(self) -> None:
        self._guards: dict[int, Guard] = {}

    def __len__(self) -> int:
        return len(self._guards)

    def find(self, producer_id: int) -> Guard | None:
        return self._guards.get(producer_id)

    def begin(self, producer_id: int, producer_epoch: int, *, adds: bool) -> Guard:
        guard = self._guards[producer_id] = Guard(producer_id, producer_epoch, adds=adds)
        return guard

    def answered(self, guard: Guard, code: ErrorCode) -> None:
        """Let everything in, or refuse everything, that waits for the answer."""
        guard.is_answered = code is ErrorCode.NONE
        guard.holders_count += 1
        try:
            for answered in guard.waiting:
                answered(code)
        finally:
            self.release(guard)

    def release(self, guard: Guard) -> None:
        """Note that a holder has appended. Who appends later than in `Answered` holds the guard
        until then, by `holders_count`.
        """
        guard.holders_count -= 1
        if guard.holders_count == 0 and self._guards.get(guard.producer_id) is guard:
            del self._guards[guard.producer_id]

    def ended(self, producer_id: int) -> None:
        """Take the guard away: a marker has ended the producer's transaction."""
        self._guards.pop(producer_id, None)

    def holds(self, guard: Guard, producer_id: int, producer_epoch: int) -> bool:
        """Return True if the guard lets this batch in."""
        return self._guards.get(producer_id) is guard and guard.producer_epoch == producer_epoch
