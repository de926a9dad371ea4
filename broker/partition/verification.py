"""Let the first batch of a transaction in only if its coordinator knows that it writes here:
otherwise the transaction would hang, and readers of committed records would wait forever.

The leader asks the coordinator, and appends when it has answered. Meanwhile a marker may end the
transaction, or the one before; so the answer may be about what is over. A guard stands for one
question: after a marker of its producer nothing is appended under it, and the question is asked
again. Once a batch is in, its transaction is open here, and later ones need no question.
Invariant: one guard for each epoch of a producer, because only the coordinator knows which epoch is
the newest. Batches of an epoch are appended in the order in which they came, whichever question is
answered first: a newer guard takes over what waits for the one before.
Must not: ask the coordinator (`broker.handlers.verification` does).
Source: Kafka `VerificationGuard`, `VerificationStateEntry`; KIP-890.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from penstock.protocol.error_codes import ErrorCode


class Guard:
    """A question to the coordinator, from when it is asked to when its batches are appended."""

    __slots__ = (
        "adds",
        "holders_count",
        "is_answered",
        "is_stale",
        "producer_epoch",
        "producer_id",
        "waiting",
    )

    def __init__(self, producer_id: int, producer_epoch: int, *, adds: bool) -> None:
        """adds: the coordinator is to add the partition to the transaction, which is one of version
        2. Its epoch is new then, so its sequences begin at 0.
        """
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.adds = adds
        self.waiting: list[Admitted] = []
        self.is_answered = False
        """The transaction has the partition; those who hold the guard are about to append."""
        self.holders_count = 0
        self.is_stale = False
        """A marker came before the answer, which may be about the transaction that it ended."""


Admitted: TypeAlias = Callable[[Guard | ErrorCode], None]
"""Gets the guard that lets the batch in, or why the coordinator refuses it."""

UNVERIFIED: Final = Guard(-1, -1, adds=False)
"""The guard of batches that needed no question, because their transaction should be open."""
WITHOUT_ID: Final = Guard(-1, -1, adds=False)
"""The guard of requests without a transactional id: no coordinator can be asked."""


class Verifications:
    """The guards of one partition, by producer id and epoch. There are few at any time."""

    __slots__ = ("_guards",)

    def __init__(self) -> None:
        self._guards: dict[tuple[int, int], Guard] = {}

    def __len__(self) -> int:
        return len(self._guards)

    def find(self, producer_id: int, producer_epoch: int) -> Guard | None:
        guard = self._guards.get((producer_id, producer_epoch))
        return None if guard is None or guard.is_stale else guard

    def begin(self, producer_id: int, producer_epoch: int, *, adds: bool) -> Guard:
        """Return a new guard, which takes over what waits for the one before."""
        guard = Guard(producer_id, producer_epoch, adds=adds)
        before = self._guards.get((producer_id, producer_epoch))
        if before is not None:
            guard.waiting, before.waiting = before.waiting, []
        self._guards[producer_id, producer_epoch] = guard
        return guard

    def asks_again(self, guard: Guard) -> bool:
        """Return True if the caller has to ask again, because the answer may be about what is
        over.
        """
        is_stale, guard.is_stale = guard.is_stale, False
        return is_stale and self._guards.get((guard.producer_id, guard.producer_epoch)) is guard

    def answered(self, guard: Guard, code: ErrorCode) -> None:
        """Let everything in, or refuse everything, that waits for the answer."""
        guard.is_answered = code is ErrorCode.NONE
        guard.holders_count += 1
        waiting, guard.waiting = guard.waiting, []
        try:
            for admitted in waiting:
                admitted(guard if guard.is_answered else code)
        finally:
            self.release(guard)

    def release(self, guard: Guard) -> None:
        """Note that a holder has appended. Who appends later than in `Admitted` holds the guard
        until then, by `holders_count`.
        """
        guard.holders_count -= 1
        key = guard.producer_id, guard.producer_epoch
        if guard.holders_count == 0 and self._guards.get(key) is guard:
            del self._guards[key]

    def ended(self, producer_id: int) -> None:
        """Note that a marker has ended the producer's transaction."""
        for key, guard in list(self._guards.items()):
            if key[0] == producer_id:
                guard.is_stale = True
                if guard.is_answered:
                    del self._guards[key]

    def holds(self, guard: Guard, producer_id: int, producer_epoch: int) -> bool:
        """Return True if the guard lets this batch in."""
        return self.find(producer_id, producer_epoch) is guard
