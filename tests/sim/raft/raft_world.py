"""Raft cores on an event heap: virtual time, slow disks, a lossy network, crashes; every step is checked.

A crash loses what the disk had not finished. Messages are dropped, doubled, delayed out of order and cut off by partitions, one-way ones
too. Invariants carry Kafka's names (its Raft simulation test). The same seed gives the same run: nothing iterates over sets.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from controller.raft.core import CoreConfig, RaftCore, Role
from controller.raft.log import RaftLog
from controller.raft.messages import NOBODY, Append, AppendReply, Base, Entry, HardState, Members, Message, VoteReply, Write

CoreType = type[RaftCore]
EVENTS_MAX = 200_000
"""A run needs some ten thousand."""


class Violation(AssertionError):
    """An invariant of Raft does not hold."""


@dataclass
class Knobs:
    """How hostile a run is; `draw` picks everything from the seed."""

    voters: int = 3
    drop: float = 0.05
    duplicate: float = 0.03
    delay_ms_max: int = 40
    fsync_ms_max: int = 30
    crash: float = 0.02
    partition: float = 0.03
    snapshot: float = 0.05
    restart_ms_max: int = 3_000
    pause: float = 0.0
    coup: float = 0.0
    """How often a new leader crashes within moments: Raft's figure 8 needs several such in a row."""
    propose: float = 0.5
    append_count_max: int = 4
    inflight_count_max: int = 3

    @staticmethod
    def draw(rng: Random) -> "Knobs":
        return Knobs(
            voters=rng.choice((3, 3, 5)),
            drop=rng.choice((0.0, 0.05, 0.2)),
            duplicate=rng.choice((0.0, 0.03, 0.1)),
            delay_ms_max=rng.choice((5, 40, 200)),
            fsync_ms_max=rng.choice((2, 30, 400)),
            crash=rng.choice((0.0, 0.02, 0.06)),
            partition=rng.choice((0.0, 0.03, 0.08)),
            snapshot=rng.choice((0.0, 0.05)),
            pause=rng.choice((0.0, 0.01)),
            coup=rng.choice((0.0, 0.0, 0.5)),
            propose=rng.choice((0.2, 0.5, 0.9)),
            append_count_max=rng.choice((1, 2, 64)),
            inflight_count_max=rng.choice((1, 2, 4)),
        )


@dataclass
class Disk:
    """What survives a crash."""

    hard: HardState
    base: Base
    entries: list[Entry] = field(default_factory=list)

    def apply(self, write: Write) -> None:
        if write.base is not None:
            self._rebase(write.base)
        for entry in write.entries:
            del self.entries[entry.index - self.base.index - 1 :]
            self.entries.append(entry)
        self.hard = write.hard or self.hard

    def _rebase(self, base: Base) -> None:
        at = base.index - self.base.index
        keeps = 0 < at <= len(self.entries) and self.entries[at - 1].term == base.term
        self.entries = self.entries[at:] if keeps else []
        self.base = base

    def holds(self, index: int, term: int) -> bool:
        at = index - self.base.index
        return at <= 0 or (at <= len(self.entries) and self.entries[at - 1].term == term)


class Node:
    def __init__(self, world: "World", node_id: int) -> None:
        self.world = world
        self.id = node_id
        self.disk = Disk(HardState(), Base(0, 0, 0, world.members))
        if world.staged is not None:
            world.staged(node_id, self.disk)
        self.incarnation = 0
        self.core: RaftCore | None = None
        self.applied = 0
        self.term_shown = 0
        self.is_loading = False
        self.paused_until_ms = 0
        self.reads: list[tuple[int, int]] = []
        self.start()

    def start(self) -> None:
        world, knobs = self.world, self.world.knobs
        self.incarnation += 1
        self.is_loading = False
        self.reads = []
        log = RaftLog(self.disk.base, self.disk.entries)
        config = CoreConfig(
            self.id, append_count_max=knobs.append_count_max, inflight_count_max=knobs.inflight_count_max, append_bytes_max=200
        )
        core = world.core_type(config, log, self.disk.hard, Random(f"{world.seed}/{self.id}/{self.incarnation}"), world.now_ms)
        world.check(core.term >= self.term_shown, f"monotonic epoch: {self.id} was in term {self.term_shown}, is in {core.term}")
        self.core = core
        self.applied = core.commit
        self.pump()

    def crash(self) -> None:
        self.core = None
        self.incarnation += 1

    def pump(self) -> None:
        """What the driver does after every input."""
        core, world = self.core, self.world
        if core is None:
            return
        write = core.take_write()
        for message in core.take_messages():
            self._show(message)
            world.send(message)
        if write is not None:
            self._write(write)
        self._check_commit(core)
        if core.needs_snapshot > core.commit and not self.is_loading and world.snapshots:
            self.is_loading = True
            world.after(world.rng.randrange(1, 300), lambda at=self.incarnation: self._load(at))
        if core.is_leader:
            world.leads(self, core.term)
            self.reads = [read for read in self.reads if not world.read_done(core, *read)]
        else:
            self.reads = []
        if core.deadline_ms is not None:
            world.wake_at(self, core.deadline_ms)

    def _write(self, write: Write) -> None:
        incarnation = self.incarnation
        done_in_ms = self.world.rng.randrange(1, self.world.knobs.fsync_ms_max + 1) if self.world.faults else 1

        def done() -> None:
            if self.world.later(self, done):
                return
            if self.incarnation == incarnation and self.core is not None:
                self.disk.apply(self.world.on_disk(write))
                self.core.persisted()
                self.pump()

        self.world.after(done_in_ms, done)

    def _show(self, message: Message) -> None:
        if isinstance(message, AppendReply) or (isinstance(message, VoteReply) and not message.pre):
            self.term_shown = max(self.term_shown, message.term)
        if isinstance(message, VoteReply) and message.granted and not message.pre:
            self.world.votes_for(self.id, message.term, message.to)

    def _check_commit(self, core: RaftCore) -> None:
        self.world.check(core.commit >= self.applied, f"monotonic high watermark: {self.id} went from {self.applied} to {core.commit}")
        for index in range(self.applied + 1, core.commit + 1):
            found = core.log.slice(index, 1, 1) if index > core.log.base.index else []
            if found:
                self.world.committed(self, core, found[0])
        self.applied = core.commit

    def _load(self, incarnation: int) -> None:
        core, world = self.core, self.world
        if self.incarnation != incarnation or core is None:
            return
        self.is_loading = False
        if core.is_leader:
            core.needs_snapshot = 0
            return
        core.installed(world.snapshots[-1])
        self.applied = max(self.applied, core.commit)
        self.pump()

    def maybe_snapshot(self) -> None:
        core, world = self.core, self.world
        if core is None or core.commit <= core.log.base.index:
            return
        index = core.commit
        term = core.log.term_at(index)
        assert term is not None
        base = Base(index, term, core.log.offset_at(index), core.log.members)
        if not world.snapshots or world.snapshots[-1].index < index:
            world.snapshots.append(base)
        core.log.compact(min(world.snapshots[-1].index, core.log.stable, core.commit))
        if self.disk.base.index < core.log.base.index:
            self.disk.apply(Write(None, core.log.base, [], [], 0))


class World:
    def __init__(
        self,
        seed: int,
        core_type: CoreType = RaftCore,
        knobs: Knobs | None = None,
        on_disk: Callable[[Write], Write] | None = None,
        staged: Callable[[int, Disk], None] | None = None,
    ) -> None:
        """on_disk: what becomes of a write. staged: fills the disks with which the voters begin."""
        self.seed = seed
        self.rng = Random(seed)
        self.knobs = knobs or Knobs.draw(self.rng)
        self.core_type = core_type
        self.on_disk = on_disk or (lambda write: write)
        self.staged = staged
        self.members = Members(tuple(range(self.knobs.voters)))
        self.now_ms = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        self._wakes: dict[int, int] = {}
        self._cut: dict[tuple[int, int], bool] = {}
        self.faults = True
        self.snapshots: list[Base] = []
        self._leaders: dict[int, tuple[int, int]] = {}
        self._votes: dict[tuple[int, int], int] = {}
        self.log: dict[int, Entry] = {}
        self.last_committed = 0
        self.proposed = 0
        self.trace = 0
        self.nodes = [Node(self, node_id) for node_id in range(self.knobs.voters)]

    # --- the machinery ---------------------------------------------------------------------------------------------------------------

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._heap, (self.now_ms + delay_ms, self._number, action))

    def wake_at(self, node: Node, at_ms: int) -> None:
        known = self._wakes.get(node.id)
        if known is not None and self.now_ms < known <= at_ms:
            return
        at_ms = max(at_ms, self.now_ms + 1)
        self._wakes[node.id] = at_ms

        def wake() -> None:
            if self.later(node, wake):
                return
            if self._wakes.get(node.id) == at_ms:
                del self._wakes[node.id]
                if node.core is not None:
                    node.core.tick(self.now_ms)
                    node.pump()

        self.after(at_ms - self.now_ms, wake)

    def send(self, message: Message) -> None:
        knobs, rng = self.knobs, self.rng
        self.trace = (self.trace * 31 + message.sender * 7 + message.to * 3 + message.term) & 0xFFFF_FFFF
        if self._cut.get((message.sender, message.to)) or (self.faults and rng.random() < knobs.drop):
            return
        copies = 2 if self.faults and rng.random() < knobs.duplicate else 1
        for _ in range(copies):
            delay_ms = rng.randrange(1, knobs.delay_ms_max + 1) if self.faults else 1
            self.after(delay_ms, lambda: self._deliver(message))

    def _deliver(self, message: Message) -> None:
        node = self.nodes[message.to]
        if self.later(node, lambda: self._deliver(message)):
            return
        if node.core is not None:
            node.core.step(message, self.now_ms)
            node.pump()

    def later(self, node: Node, action: Callable[[], None]) -> bool:
        """A paused process sees nothing; everything happens to it when it goes on."""
        if self.now_ms > node.paused_until_ms:
            return False
        self.after(node.paused_until_ms + 1 - self.now_ms, action)
        return True

    def run(self, until_ms: int) -> None:
        while self._heap and self._heap[0][0] <= until_ms:
            self.now_ms, number, action = heapq.heappop(self._heap)
            self.check(number < EVENTS_MAX, "livelock: messages go round without end")
            action()
        self.now_ms = until_ms

    def play(self, duration_ms: int = 20_000, step_ms: int = 50) -> None:
        """Faults and proposals for a while, then quiet: then everything has to come together."""
        while self.now_ms < duration_ms:
            self.run(self.now_ms + step_ms)
            self._disturb()
            self._work()
        self.quiet()

    def quiet(self, timeouts: int = 12) -> None:
        """No faults any more: liveness."""
        self.faults = False
        self._cut.clear()
        for node in self.nodes:
            node.paused_until_ms = min(node.paused_until_ms, self.now_ms)
            if node.core is None:
                node.start()
        before = self.last_committed
        for _ in range(timeouts * 10):
            self.run(self.now_ms + 200)
            self._work(always=True)
            cores = [node.core for node in self.nodes]
            if self.last_committed > before and all(core is not None and core.commit >= before for core in cores):
                return
        raise Violation(f"liveness: nothing committed in {timeouts} timeouts without faults")

    def _disturb(self) -> None:
        rng, knobs = self.rng, self.knobs
        if rng.random() < knobs.crash:
            self._crash(rng.choice(self.nodes))
        if rng.random() < knobs.partition:
            self._partition()
        if rng.random() < knobs.pause:
            rng.choice(self.nodes).paused_until_ms = self.now_ms + rng.randrange(10, 100) * 50
        if rng.random() < knobs.snapshot:
            rng.choice(self.nodes).maybe_snapshot()
        leader = next((node for node in self.nodes if node.core is not None and node.core.is_leader), None)
        if leader is not None and leader.core is not None and self.now_ms >= leader.paused_until_ms and rng.random() < 0.01:
            leader.core.transfer(rng.randrange(knobs.voters))
            leader.pump()

    def _crash(self, node: Node) -> None:
        if node.core is not None and self.faults:
            node.crash()
            self.after(self.rng.randrange(50, self.knobs.restart_ms_max), lambda: node.start() if node.core is None else None)

    def _partition(self) -> None:
        rng = self.rng
        self._cut.clear()
        if rng.random() < 0.4:
            return
        side = [rng.random() < 0.5 for _ in self.nodes]
        one_way = rng.random() < 0.2
        for a in range(len(self.nodes)):
            for b in range(len(self.nodes)):
                if side[a] != side[b] and not (one_way and side[a]):
                    self._cut[a, b] = True

    def _work(self, *, always: bool = False) -> None:
        for node in self.nodes:
            core = node.core
            if (
                core is None
                or not core.is_leader
                or self.now_ms < node.paused_until_ms
                or not (always or self.rng.random() < self.knobs.propose)
            ):
                continue
            self.proposed += 1
            core.propose([b"%d" % self.proposed] * self.rng.randrange(1, 3))
            if self.rng.random() < 0.3 and (round_number := core.read_round()) is not None:
                node.reads.append((round_number, self.last_committed - core.commit))
            node.pump()

    # --- the invariants --------------------------------------------------------------------------------------------------------------

    def check(self, holds: bool, what: str) -> None:
        if not holds:
            raise Violation(f"{what} (seed {self.seed}, at {self.now_ms} ms)")

    def leads(self, node: Node, term: int) -> None:
        if term not in self._leaders and self.faults and self.rng.random() < self.knobs.coup:
            self.after(self.rng.randrange(1, self.rng.choice((20, 300))), lambda: self._crash(node))
        known = self._leaders.setdefault(term, (node.id, node.incarnation))
        self.check(known == (node.id, node.incarnation), f"one leader per epoch: {known} and {node.id, node.incarnation} lead {term}")

    def votes_for(self, voter: int, term: int, candidate: int) -> None:
        known = self._votes.setdefault((voter, term), candidate)
        self.check(known == candidate, f"one vote per epoch: {voter} voted for {known} and {candidate} in {term}")

    def committed(self, node: Node, core: RaftCore, entry: Entry) -> None:
        known = self.log.setdefault(entry.index, entry)
        self.check(known == entry, f"committed data consistent: {entry.index} is {known.term} and, on {node.id}, {entry.term}")
        if entry.index > self.last_committed:
            holders = sum(1 for other in self.nodes if other.disk.holds(entry.index, entry.term))
            self.check(holders > len(self.nodes) // 2, f"majority reached high watermark: {entry.index} is on {holders} disks")
            self.last_committed = entry.index
            before = self.log.get(entry.index - 1)
            self.check(before is None or before.end_offset == entry.base_offset, f"offsets contiguous at {entry.index}")

    def read_done(self, core: RaftCore, round_number: int, missing: int) -> bool:
        """missing: entries committed elsewhere that this leader did not know of when it was asked."""
        if core.confirmed_round < round_number:
            return False
        self.check(missing <= 0, f"linearizable read: {missing} committed entries were not seen")
        return True


def stage_figure_8(node_id: int, disk: Disk) -> None:
    """Figure 8 (b): 0 and 1 have an entry of term 1, 4 has another one of term 2 in its place; from here chance may do the rest."""
    disk.entries = [Entry(1, 1, 0, [])]
    if node_id in {0, 1}:
        disk.entries.append(Entry(2, 1, 0, [b"x"]))
        disk.hard = HardState(1, 0)
    else:
        disk.hard = HardState(2, 4)
    if node_id == 4:
        disk.entries.append(Entry(2, 2, 0, []))


class VoteNotDurable:
    """M1 as a disk: terms and votes never reach it."""

    def __call__(self, write: Write) -> Write:
        return Write(None, write.base, write.entries, write.messages, write.last_index)


class CommitsOldTerms(RaftCore):
    """M2, Raft's figure 8: an entry of an earlier term is committed by counting."""

    def _may_commit(self, index: int) -> bool:
        return True


class AcknowledgesEarly(RaftCore):
    """M3: an append is answered before it is on the disk."""

    def _reply(self, reply: AppendReply) -> None:
        self._messages.append(reply)


class VotesForAnybody(RaftCore):
    """M4: no look at the candidate's log."""

    def _is_up_to_date(self, request: object) -> bool:
        return True


class AlwaysTruncates(RaftCore):
    """M5: an append cuts the log behind itself even where it agrees."""

    def _on_append(self, append: Append) -> None:
        if append.prev_index >= self.commit and self.log.matches(append.prev_index, append.prev_term):
            self.log.truncate(append.prev_index + 1)
        super()._on_append(append)


class CountsUnsynced(RaftCore):
    """M6: the leader counts its own log before it is on the disk."""

    def _own_match(self) -> int:
        return self.log.last_index


class ReadsStale(RaftCore):
    """M7: a read is answered without asking anybody."""

    @property
    def confirmed_round(self) -> int:
        return self._round


class VotesTwice(RaftCore):
    """M8: a vote is forgotten when the election is over but the term is the same."""

    def _reset_election_timer(self) -> None:
        super()._reset_election_timer()
        if self.role is Role.FOLLOWER:
            self.vote = NOBODY


class SnapshotWithoutTerm(RaftCore):
    """M9: a snapshot is installed with the term that the follower happens to be in."""

    def installed(self, base: Base) -> None:
        super().installed(Base(base.index, self.term, base.offset, base.members))


MUTANTS: dict[str, tuple[CoreType, Callable[[Write], Write] | None, Knobs | None]] = {
    "M1 vote not durable": (RaftCore, VoteNotDurable(), None),
    "M3 acknowledges before fsync": (AcknowledgesEarly, None, None),
    "M4 votes for anybody": (VotesForAnybody, None, None),
    "M5 always truncates": (AlwaysTruncates, None, None),
    "M6 leader counts its unsynced log": (CountsUnsynced, None, None),
    "M7 stale reads": (ReadsStale, None, Knobs(drop=0.0, duplicate=0.0, crash=0.0, partition=0.0, pause=0.02, propose=0.9)),
    "M8 votes twice": (VotesTwice, None, None),
    "M9 snapshot with a wrong term": (SnapshotWithoutTerm, None, None),
}
