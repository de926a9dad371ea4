"""Planted bugs: each is a small, plausible mistake in the real code. If the simulator does not find
one, it does not test that rule.

A mutant replaces one function or method during a run. Must never be imported by the product.
"""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import penstock.broker.partition.log as partition_log
import penstock.controller.managers.commits as commits
import penstock.controller.managers.log_replacement as replacement
from penstock.base.ids import WalSequence
from penstock.broker.partition.append import PartitionAppend
from penstock.broker.partition.partition import Partition
from penstock.broker.partition.producer_state import ProducerState
from penstock.broker.partition.refused_batches import RefusedBatches
from penstock.controller.active.janitor import Janitor
from penstock.controller.active.writer import Runtime
from penstock.controller.raft.core import RaftCore
from penstock.controller.raft.journal import Journal
from penstock.controller.raft.replicated_log import RaftQuorum
from penstock.controller.standby import Standby
from penstock.objectstore.errors import PreconditionFailed
from penstock.stream.errors import WalFenced
from penstock.stream.format.keys import wal_prefix
from penstock.stream.ports import IN_STORE, BrokerIncarnation
from penstock.stream.recovery.recoverer import WalWalker
from penstock.stream.storage import Storage
from penstock.stream.upload.uploader import Uploader
from penstock.stream.wal.core import WalCore
from penstock.stream.wal.slot_writer import SlotWriter
from penstock.stream.wal.slots import SlotTable
from tests.sim.acl_mutants import ACL_MUTANTS
from tests.sim.clock_mutants import CLOCK_MUTANTS
from tests.sim.compacted_mutants import COMPACTED_MUTANTS
from tests.sim.consumer_group_mutants import CONSUMER_GROUP_MUTANTS
from tests.sim.damage_mutants import DAMAGE_MUTANTS
from tests.sim.drained_wal_store_mutants import DRAINED_WAL_STORE_MUTANTS
from tests.sim.fork_mutants import FORK_MUTANTS
from tests.sim.group_mutants import GROUP_MUTANTS
from tests.sim.late_admin_mutants import LATE_ADMIN_MUTANTS
from tests.sim.late_mutants import LATE_MUTANTS
from tests.sim.late_request_mutants import LATE_REQUEST_MUTANTS
from tests.sim.leak_mutants import LEAK_MUTANTS
from tests.sim.load_mutants import LOAD_MUTANTS
from tests.sim.log_start_mutants import LOG_START_MUTANTS
from tests.sim.lost_slot_mutants import LOST_SLOT_MUTANTS
from tests.sim.lost_transaction_mutants import LOST_TRANSACTION_MUTANTS
from tests.sim.lost_wal_store_mutants import LOST_WAL_STORE_MUTANTS
from tests.sim.offset_mutants import OFFSET_MUTANTS
from tests.sim.producer_mutants import PRODUCER_MUTANTS
from tests.sim.rack_mutants import RACK_MUTANTS
from tests.sim.read_ahead_mutants import READ_AHEAD_MUTANTS
from tests.sim.recovery_mutants import RECOVERY_MUTANTS
from tests.sim.rollback_mutants import ROLLBACK_MUTANTS
from tests.sim.share_consumer_mutants import SHARE_CONSUMER_MUTANTS
from tests.sim.share_mutants import SHARE_GROUP_MUTANTS, SHARE_MUTANTS
from tests.sim.streams_mutants import STREAMS_MUTANTS
from tests.sim.topic_mutants import TOPIC_MUTANTS
from tests.sim.transaction_mutants import TRANSACTION_MUTANTS
from tests.sim.wal_rewrite_mutants import WAL_REWRITE_MUTANTS
from tests.sim.wal_store_mutants import WAL_STORE_MUTANTS

Patch = tuple[Any, str, Any]
_ABSENT = object()


def _ack_before_durable() -> list[Patch]:
    real = SlotWriter.write

    async def write(self: SlotWriter, key: str, sequence: WalSequence, built: Any) -> None:
        task = asyncio.ensure_future(real(self, key, sequence, built))
        self._tries.add(task)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.sleep(0)

    return [(SlotWriter, "write", write)]


def _ack_out_of_order() -> list[Patch]:
    def put_succeeded(self: Any, sequence: WalSequence, now: float) -> list[Any]:
        bulk = next(bulk for bulk in self._started if bulk.sequence == sequence)
        self._started.remove(bulk)
        self._in_flight_count -= 1
        self._unacknowledged_bytes -= bulk.size_bytes
        return [bulk]

    def add(self: SlotTable, sequence: WalSequence, key: str, size_bytes: int, ranges: Any) -> None:
        last = self._slots[-1].sequence if self._slots else sequence - 1
        real_add(self, WalSequence(last + 1), key, size_bytes, ranges)

    real_add = SlotTable.add
    return [(WalCore, "put_succeeded", put_succeeded), (SlotTable, "add", add)]


def _own_object_taken_for_a_fence() -> list[Patch]:
    async def attempt(self: SlotWriter, key: str, sequence: WalSequence, built: Any) -> None:
        try:
            await self._store.put_if_absent(key, built.chunks)
        except PreconditionFailed:
            raise WalFenced(sequence, "whatever is there") from None

    return [(SlotWriter, "_try", attempt)]


def _any_412_is_success() -> list[Patch]:
    async def attempt(self: SlotWriter, key: str, sequence: WalSequence, built: Any) -> None:
        try:
            await self._store.put_if_absent(key, built.chunks)
        except PreconditionFailed:
            return

    return [(SlotWriter, "_try", attempt)]


def _recovery_without_fence() -> list[Patch]:
    async def fence(_: Any, __: BrokerIncarnation, ___: WalSequence) -> bool:
        return True

    return [(WalWalker, "_fence", fence)]


def _recovery_skips_a_slot() -> list[Patch]:
    real = WalWalker.slots

    async def slots(self: Any) -> Any:
        number = 0
        async for found in real(self):
            number += 1
            if number % 5:
                yield found

    return [(WalWalker, "slots", slots)]


def _recovery_stops_early() -> list[Patch]:
    """A 412 on the fence counts as another recoverer's fence, although the writer's last PUT
    arrived in between.
    """
    real = WalWalker._fence

    async def fence(self: Any, recoverer: BrokerIncarnation, sequence: WalSequence) -> bool:
        await real(self, recoverer, sequence)
        return True

    return [(WalWalker, "_fence", fence)]


def _wal_deleted_before_the_commit() -> list[Patch]:
    real = Uploader._upload

    async def upload(self: Uploader, block: Any) -> Any:
        uploaded = await real(self, block)
        storage = self._on_committed.__self__
        slots = [slot for slot in storage._slots._slots if slot.sequence < block.end_sequence]
        await self._store.delete([slot.key for slot in slots if not slot.in_place])
        return uploaded

    return [(Uploader, "_upload", upload)]


def _commits_out_of_order() -> list[Patch]:
    real = Uploader._process
    return [(Uploader, "_process", lambda self, block, _before: real(self, block, None))]


def _zombie_may_commit() -> list[Patch]:
    def check_node(image: Any, node: Any) -> Any:
        return image.nodes.get(node.node_id)

    return [
        (commits, "check_node", check_node),
        (commits, "check_owner", lambda _stream, _node: None),
    ]


def _zombie_may_close() -> list[Patch]:
    real = commits._Commit._close

    def close(self: Any, item: Any) -> None:
        stream = self._image.streams.get(item.stream_id)
        if stream is None or not stream.opened or stream.epoch < item.epoch:
            real(self, item)
        elif item.stream_id not in self._closed:
            self._closed.add(item.stream_id)
            end = max(self._changes.end_of(stream), stream.start_offset)
            self._changes.records.append(commits.StreamClosed(item.stream_id, stream.epoch, end))

    return [
        (commits, "check_node", lambda image, node: image.nodes.get(node.node_id)),
        (commits._Commit, "_close", close),
    ]


def _unclean_open_without_scan() -> list[Patch]:
    async def scan(*_: Any) -> None:
        pass

    return [(partition_log, "_scan", scan)]


def _producers_not_restored() -> list[Patch]:
    return [(ProducerState, "restore", lambda _self, _snapshot: None)]


def _duplicate_acknowledged_at_once() -> list[Patch]:
    def await_repetition(
        _: PartitionAppend, partition: Partition, known: Any, _batch: Any, outcome: Any
    ) -> None:
        outcome.base_offset = known.base_offset
        outcome.end_offset = known.end_offset
        outcome.log_start_offset = partition.log_start_offset

    return [(PartitionAppend, "_await_repetition", await_repetition)]


def _sequences_not_checked() -> list[Patch]:
    return [(ProducerState, "check", lambda *_, **__: None)]


def _readers_not_told_of_transactions() -> list[Patch]:
    real = partition_log.PartitionLog.assign_offsets
    return [(partition_log.PartitionLog, "assign_offsets", lambda *args: real(*args)[:1])]


def _open_transactions_not_restored() -> list[Patch]:
    return [(ProducerState, "open_transactions", lambda _: [])]


def _slots_in_place_deleted_by_their_writer() -> list[Patch]:
    def commit(self: SlotTable, end: WalSequence, _is_object: Any) -> list[str]:
        keys: list[str] = []
        while self._slots and self._slots[0].sequence < end:
            keys.append(self._slots.popleft().key)
        return keys

    return [(SlotTable, "commit", commit)]


def _watermark_moves_at_append() -> list[Patch]:
    return [(Partition, "high_watermark", property(lambda self: self.log_end_offset))]


def _closed_at_the_appended_end() -> list[Patch]:
    """The close does not wait for appends in flight: it uses the durable end at its start."""

    async def flush(_: Storage) -> None:
        await asyncio.sleep(0)

    return [(Storage, "flush", flush)]


def _acknowledges_after_a_fence() -> list[Patch]:
    """A writer that encounters a fence continues as if nothing had happened."""

    async def attempt(self: SlotWriter, key: str, sequence: WalSequence, built: Any) -> None:
        try:
            await real(self, key, sequence, built)
        except WalFenced:
            return

    real = SlotWriter._try
    return [(SlotWriter, "_try", attempt)]


def _vote_not_durable() -> list[Patch]:
    real = Journal.append
    return [(Journal, "append", lambda self, _hard, base, entries: real(self, None, base, entries))]


def _journal_not_synced() -> list[Patch]:
    def write(self: Any, frame: bytes) -> None:
        self._file.append(frame)

    return [(Journal, "_write", write)]


def _leader_counts_its_unsynced_log() -> list[Patch]:
    def take_write(self: Any) -> Any:
        write = real(self)
        if write is not None:
            self.log.persisted(write.last_index)
        return write

    real = RaftCore.take_write
    return [(RaftCore, "take_write", take_write)]


def _commit_acknowledged_before_the_quorum() -> list[Patch]:
    async def propose(self: Any, epoch: Any, records: Any) -> Any:
        pending = asyncio.ensure_future(real(self, epoch, records))
        pending.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.sleep(0.001)
        if pending.done():
            return pending.result()
        return self._proposed[-1].end_offset

    real = RaftQuorum.propose
    return [(RaftQuorum, "propose", propose)]


def _old_leader_serves_reads() -> list[Patch]:
    async def confirm(_: Any, __: Any) -> None:
        await asyncio.sleep(0)

    return [(RaftQuorum, "confirm", confirm)]


def _uncommitted_records_are_served() -> list[Patch]:
    """The log end counts as the committed end."""

    def read(self: Any, offset: Any, max_bytes: int) -> Any:
        core = self.core
        committed, core.commit = core.commit, core.log.last_index
        self._committed = core.log.end_offset
        try:
            return real(self, offset, max_bytes)
        finally:
            core.commit = committed

    real = RaftQuorum.read
    return [
        (RaftQuorum, "read", read),
        (RaftQuorum, "committed_offset", property(lambda self: self.core.log.end_offset)),
    ]


def _image_not_rebuilt_after_leading() -> list[Patch]:
    async def rebuild(self: Standby) -> None:
        await asyncio.sleep(0)
        self._is_handed_over = False

    return [(Standby, "rebuild", rebuild)]


def _snapshot_of_what_is_not_committed() -> list[Patch]:
    async def with_committed_image(self: Runtime, look: Any) -> Any:
        return look(self._image)

    return [(Runtime, "with_committed_image", with_committed_image)]


def _wal_trimmed_by_list() -> list[Patch]:
    async def clean(self: Janitor, wal: Any) -> int:
        keys = [info.key async for info in self._store.list(wal_prefix(wal.writer, IN_STORE))]
        await self._store.delete(keys)
        return len(keys)

    return [(Janitor, "_clean_wal", clean)]


def _sources_not_compared() -> list[Patch]:
    """Ranges that a broker has compacted in the meantime are removed a second time."""
    return [(replacement, "_check_source", lambda stream, source: None)]


def _refused_batches_not_remembered() -> list[Patch]:
    """A batch after a refused one is judged alone: as a gap, or as the first batch of an unknown
    producer.
    """
    return [(RefusedBatches, "reason_to_wait", lambda *_: None)]


MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "ack_before_durable": _ack_before_durable,
    "ack_out_of_order": _ack_out_of_order,
    "own_object_taken_for_a_fence": _own_object_taken_for_a_fence,
    "any_412_is_success": _any_412_is_success,
    "acknowledges_after_a_fence": _acknowledges_after_a_fence,
    "recovery_without_fence": _recovery_without_fence,
    "recovery_skips_a_slot": _recovery_skips_a_slot,
    "recovery_stops_early": _recovery_stops_early,
    "wal_deleted_before_the_commit": _wal_deleted_before_the_commit,
    "commits_out_of_order": _commits_out_of_order,
    "zombie_may_commit": _zombie_may_commit,
    "zombie_may_close": _zombie_may_close,
    "closed_without_flush": _closed_at_the_appended_end,
    "unclean_open_without_scan": _unclean_open_without_scan,
    "producers_not_restored": _producers_not_restored,
    "duplicate_acknowledged_at_once": _duplicate_acknowledged_at_once,
    "readers_not_told_of_transactions": _readers_not_told_of_transactions,
    "open_transactions_not_restored": _open_transactions_not_restored,
    "sequences_not_checked": _sequences_not_checked,
    "slots_in_place_deleted_by_their_writer": _slots_in_place_deleted_by_their_writer,
    "watermark_moves_at_append": _watermark_moves_at_append,
    "wal_trimmed_by_list": _wal_trimmed_by_list,
    "vote_not_durable": _vote_not_durable,
    "journal_not_synced": _journal_not_synced,
    "leader_counts_its_unsynced_log": _leader_counts_its_unsynced_log,
    "commit_acknowledged_before_the_quorum": _commit_acknowledged_before_the_quorum,
    "old_leader_serves_reads": _old_leader_serves_reads,
    "uncommitted_records_are_served": _uncommitted_records_are_served,
    "image_not_rebuilt_after_leading": _image_not_rebuilt_after_leading,
    "snapshot_of_what_is_not_committed": _snapshot_of_what_is_not_committed,
    "sources_not_compared": _sources_not_compared,
    "refused_batches_not_remembered": _refused_batches_not_remembered,
} | RECOVERY_MUTANTS
MUTANTS |= (
    TRANSACTION_MUTANTS
    | CONSUMER_GROUP_MUTANTS
    | SHARE_GROUP_MUTANTS
    | SHARE_MUTANTS
    | SHARE_CONSUMER_MUTANTS
    | STREAMS_MUTANTS
    | GROUP_MUTANTS
    | OFFSET_MUTANTS
    | DAMAGE_MUTANTS
    | READ_AHEAD_MUTANTS
    | CLOCK_MUTANTS
    | LATE_MUTANTS
)
MUTANTS |= RACK_MUTANTS | ROLLBACK_MUTANTS | LOST_SLOT_MUTANTS | TOPIC_MUTANTS | LOAD_MUTANTS
MUTANTS |= LOG_START_MUTANTS | COMPACTED_MUTANTS | FORK_MUTANTS | LEAK_MUTANTS | ACL_MUTANTS
MUTANTS |= LATE_ADMIN_MUTANTS | PRODUCER_MUTANTS | LATE_REQUEST_MUTANTS | WAL_STORE_MUTANTS
MUTANTS |= LOST_TRANSACTION_MUTANTS
MUTANTS |= LOST_WAL_STORE_MUTANTS | DRAINED_WAL_STORE_MUTANTS | WAL_REWRITE_MUTANTS


def _check_fits(target: Any, attribute: str, patch: Any) -> None:
    """Check that a patch accepts the arguments of its target. Otherwise a TypeError would be found
    instead of the bug.
    """
    real = getattr(target, attribute, None)
    if not (inspect.isfunction(real) and inspect.isfunction(patch)):
        return
    parameters = inspect.signature(real).parameters.values()
    positional = [item for item in parameters if item.kind is item.POSITIONAL_OR_KEYWORD]
    named = {item.name: None for item in parameters if item.kind is item.KEYWORD_ONLY}
    try:
        inspect.signature(patch).bind(*positional, **named)
    except TypeError as error:
        raise AssertionError(
            f"the patch does not fit {target}.{attribute}{inspect.signature(real)}: {error}"
        ) from None


@contextmanager
def planted(name: str) -> Iterator[None]:
    with patched(MUTANTS[name]()):
        yield


@contextmanager
def patched(patches: list[Patch]) -> Iterator[None]:
    for target, attribute, patch in patches:
        is_there = hasattr(target, attribute) or isinstance(patch, property)
        assert is_there, f"{target} has no {attribute}: was it renamed?"
        _check_fits(target, attribute, patch)
    originals = [target.__dict__.get(attribute, _ABSENT) for target, attribute, _ in patches]
    for target, attribute, value in patches:
        setattr(target, attribute, value)
    try:
        yield
    finally:
        for (target, attribute, _), original in zip(patches, originals, strict=True):
            if original is _ABSENT:
                delattr(target, attribute)
            else:
                setattr(target, attribute, original)
