"""Admit the first batch of a transaction only if its coordinator has added this partition
(KIP-890). Otherwise, the transaction could hang, and committed reads would wait forever.

`broker.handlers.verification` sends the request to the coordinator.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from penstock.protocol.error_codes import ErrorCode


class Guard:
    """One verification, from the request to the coordinator until its batches are appended.

    If a marker ends the transaction in the meantime, the response is outdated. After a marker of
    its producer, nothing is appended under the guard, and the request is repeated. Later batches of
    an open transaction need no verification.
    """

    __slots__ = (
        "adds",
        "holders_count",
        "is_stale",
        "is_verified",
        "producer_epoch",
        "producer_id",
        "waiting",
    )

    def __init__(self, producer_id: int, producer_epoch: int, *, adds: bool) -> None:
        """adds: whether the coordinator adds the partition to a transaction of version 2. Such a
        transaction uses a new epoch, so its sequences start at 0.
        """
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.adds = adds
        self.waiting: list[Admitted] = []
        self.is_verified = False
        """Whether the transaction includes the partition. The holders of the guard are then about
        to append.
        """
        self.holders_count = 0
        self.is_stale = False
        """Whether a marker arrived before the response, which may therefore refer to the ended
        transaction.
        """


Admitted: TypeAlias = Callable[[Guard | ErrorCode], None]
"""Called with the guard under which the batch may be appended, or with the coordinator's error."""

UNVERIFIED: Final = Guard(-1, -1, adds=False)
"""The guard of batches that need no verification, because their transaction should already be
open.
"""
WITHOUT_ID: Final = Guard(-1, -1, adds=False)
"""The guard of requests without a transactional id, which have no coordinator to query."""


class Verifications:
    """The guards of one partition, by producer id and epoch, because only the coordinator knows
    which epoch is the newest. A guard exists until its last batch is appended or rejected.
    """

    __slots__ = ("_guards",)

    def __init__(self) -> None:
        self._guards: dict[tuple[int, int], Guard] = {}

    def __len__(self) -> int:
        return len(self._guards)

    def find(self, producer_id: int, producer_epoch: int) -> Guard | None:
        guard = self._guards.get((producer_id, producer_epoch))
        return None if guard is None or guard.is_stale else guard

    def begin(self, producer_id: int, producer_epoch: int, *, adds: bool) -> Guard:
        """Return a new guard. It takes over the waiting batches of the previous one, so that
        batches of an epoch keep their order.
        """
        guard = Guard(producer_id, producer_epoch, adds=adds)
        before = self._guards.get((producer_id, producer_epoch))
        if before is not None:
            guard.waiting, before.waiting = before.waiting, []
        self._guards[producer_id, producer_epoch] = guard
        return guard

    def must_verify_again(self, guard: Guard) -> bool:
        """Return True if the caller must repeat the request, because the response may be
        outdated.
        """
        is_stale, guard.is_stale = guard.is_stale, False
        return is_stale and self._guards.get((guard.producer_id, guard.producer_epoch)) is guard

    def resolve(self, guard: Guard, code: ErrorCode) -> None:
        """Admit or reject all batches that wait for the response."""
        guard.is_verified = code is ErrorCode.NONE
        guard.holders_count += 1
        waiting, guard.waiting = guard.waiting, []
        try:
            for admitted in waiting:
                admitted(guard if guard.is_verified else code)
        finally:
            self.release(guard)

    def release(self, guard: Guard) -> None:
        """Record that a holder has appended. A holder that appends after `Admitted` has returned
        must increment `holders_count` to keep the guard until then.
        """
        guard.holders_count -= 1
        key = guard.producer_id, guard.producer_epoch
        if guard.holders_count == 0 and self._guards.get(key) is guard:
            del self._guards[key]

    def ended(self, producer_id: int) -> None:
        """Record that a marker has ended the producer's transaction."""
        for key, guard in list(self._guards.items()):
            if key[0] == producer_id:
                guard.is_stale = True
                if guard.is_verified:
                    del self._guards[key]

    def holds(self, guard: Guard, producer_id: int, producer_epoch: int) -> bool:
        """Return True if this batch may be appended under the guard."""
        return self.find(producer_id, producer_epoch) is guard
