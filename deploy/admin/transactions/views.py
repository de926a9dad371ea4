"""Describe transactions for the command line, and decide which ones hang.

Source: KIP-664.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.deploy.admin.reassign.plan import Key


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """One transactional id, as listed by its coordinator."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionView:
    """One transactional id, as described by its coordinator. started_ms: milliseconds since 1970;
    None if no transaction is open. partitions: the partitions that the coordinator will send a
    marker to, as TOPIC-INDEX.
    """

    transactional_id: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    started_ms: int | None
    partitions: list[str]


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is open in a partition, as described by the leader. last_timestamp_ms:
    timestamp of its newest record; -1 if unknown. coordinator_epoch: -1 if no coordinator has ended
    a transaction of this producer.
    """

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp_ms: int

    @property
    def key(self) -> Key:
        return Key(self.topic, self.partition)


def older_than(found: Iterable[OpenTransaction], age_ms: int, now_ms: int) -> list[OpenTransaction]:
    """Return the transactions whose last record is more than `age_ms` old."""
    return [item for item in found if now_ms - item.last_timestamp_ms > age_ms]


def hanging(
    candidates: Iterable[OpenTransaction],
    ids: Mapping[int, str],
    described: Mapping[str, TransactionView],
) -> list[OpenTransaction]:
    """Return the candidates that no coordinator will end, in order.

    ids: transactional ids by producer id; described: descriptions by transactional id. Both must be
    requested after the candidates.

    Invariant: a transaction hangs if it is open in a partition and its coordinator will not end it
    there. There is no I/O.
    """

    def is_driven(item: OpenTransaction) -> bool:
        view = described.get(ids.get(item.producer_id, ""))
        return view is not None and str(item.key) in view.partitions

    return [item for item in candidates if not is_driven(item)]


def still_open(
    before: Sequence[OpenTransaction], now: Iterable[OpenTransaction]
) -> list[OpenTransaction]:
    """Return the transactions in `before` that are still open, because the coordinator may have
    ended others in the meantime.
    """
    present = {(item.key, item.producer_id, item.start_offset) for item in now}
    return [item for item in before if (item.key, item.producer_id, item.start_offset) in present]
