"""Raft cores on an event heap: virtual time, slow disks, a lossy network and crashes.

Every step is checked. Leaders add, promote and remove voters at random; a controller whose disk is
lost returns with a new id. Nothing iterates over sets, so the seed determines a run.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from penstock.controller.raft import membership
from penstock.controller.raft.core import RaftCore
from penstock.controller.raft.core_config import CoreConfig
from penstock.controller.raft.log import RaftLog
from penstock.controller.raft.messages import (
    AppendReply,
    Base,
    Endpoint,
    Entry,
    HardState,
    Members,
    Message,
    VoteReply,
    Write,
)
from tests.sim.raft.checks import Checks, Violation

CoreType = type[RaftCore]
EVENTS_MAX = 200_000
"""Limit of steps; a run takes about ten thousand."""

JOINERS = 2


@dataclass
class Knobs:
    """How hostile a run is; `draw` takes all values from the seed."""

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
    """How often a new leader crashes immediately: Raft's figure 8 needs several such crashes in a
    row.
    """
    propose: float = 0.5
    append_count_max: int = 4
    inflight_count_max: int = 3
    change: float = 0.0
    """How often a leader tries to change the quorum."""
    disk_loss: float = 0.0
    slow_disk: int = -1
    """The node with a slow disk; -1: none."""
    slow_fsync_ms: tuple[int, int] = (80, 200)

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
            change=rng.choice((0.0, 0.05, 0.3)),
            disk_loss=rng.choice((0.0, 0.02)),
            slow_disk=rng.choice((-1, -1, 0)),
        )


@dataclass
class Disk:
    """The data that survives a crash."""

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
        self.disk = Disk(
            HardState(),
            Base(0, 0, 0, world.members if node_id in world.members.voters else Members(())),
        )
        self.disks = 1
        self.lost: dict[str, Disk] = {}
        if world.staged is not None and node_id in world.members.voters:
            world.staged(node_id, self.disk)
        self.incarnation = 0
        self.core: RaftCore | None = None
        self.applied = 0
        self.term_shown = 0
        self.is_loading = False
        self.paused_until_ms = 0
        self.reads: list[tuple[int, int]] = []
        self.start()

    @property
    def directory(self) -> str:
        return f"{self.id}.{self.disks}"

    @property
    def members(self) -> Members:
        """Return the members according to the log in memory, or on the disk if there is none."""
        if self.core is not None:
            return self.core.log.members
        named = [entry.members for entry in self.disk.entries if entry.members is not None]
        return named[-1] if named else self.disk.base.members

    def held(self, directory: str, index: int, term: int) -> bool:
        """Return whether the disk has or had the entry. Acknowledgments count even if the disk was
        lost before they arrived.
        """
        disk = self.disk if directory == self.directory else self.lost.get(directory)
        return disk is not None and disk.holds(index, term)

    def lose_disk(self) -> None:
        """Lose the disk. Another controller returns under the same id; like a real one it starts
        with a snapshot if there is one.
        """
        self.crash()
        self.lost[self.directory] = self.disk
        self.disks += 1
        base = self.world.snapshots[-1] if self.world.snapshots else Base(0, 0, 0, Members(()))
        self.disk = Disk(HardState(base.term), base)
        self.applied = self.term_shown = 0

    def start(self) -> None:
        world, knobs = self.world, self.world.knobs
        self.incarnation += 1
        self.is_loading = False
        self.reads = []
        log = RaftLog(self.disk.base, self.disk.entries)
        config = CoreConfig(
            self.id,
            append_count_max=knobs.append_count_max,
            inflight_count_max=knobs.inflight_count_max,
            append_bytes_max=200,
            directory=self.directory,
        )
        core = world.core_type(
            config,
            log,
            self.disk.hard,
            Random(f"{world.seed}/{self.id}/{self.incarnation}"),
            world.now_ms,
        )
        is_monotonic = core.term >= self.term_shown
        world.checks.check(
            is_monotonic,
            f"monotonic epoch: {self.id} was in term {self.term_shown}, is in {core.term}",
        )
        self.core = core
        self.applied = core.commit
        self.pump()

    def crash(self) -> None:
        self.core = None
        self.incarnation += 1

    def pump(self) -> None:
        """Process the output of a core, as the driver does after every input."""
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
            world.leads(self, core)
            self.reads = [read for read in self.reads if not world.checks.read_done(core, *read)]
        else:
            self.reads = []
        if core.deadline_ms is not None:
            world.wake_at(self, core.deadline_ms)

    def _write(self, write: Write) -> None:
        incarnation, knobs = self.incarnation, self.world.knobs
        span_ms = knobs.slow_fsync_ms if knobs.slow_disk == self.id else (1, knobs.fsync_ms_max)
        done_in_ms = (
            self.world.rng.randrange(span_ms[0], span_ms[1] + 1) if self.world.faults else 1
        )

        def done() -> None:
            if self.world.later(self, done):
                return
            if self.incarnation == incarnation and self.core is not None:
                self.disk.apply(self.world.on_disk(write))
                self.core.persisted(done_in_ms * 1_000)
                self.pump()

        self.world.after(done_in_ms, done)

    def _show(self, message: Message) -> None:
        if isinstance(message, AppendReply) or (isinstance(message, VoteReply) and not message.pre):
            self.term_shown = max(self.term_shown, message.term)
        if isinstance(message, VoteReply) and message.granted and not message.pre:
            self.world.checks.votes_for(self.id, self.directory, message.term, message.to)

    def _check_commit(self, core: RaftCore) -> None:
        self.world.checks.check(
            core.commit >= self.applied,
            f"monotonic high watermark: {self.id} went from {self.applied} to {core.commit}",
        )
        for index in range(self.applied + 1, core.commit + 1):
            found = core.log.slice(index, 1, 1) if index > core.log.base.index else []
            if found:
                self.world.checks.committed(self.id, core, found[0], self.world.nodes)
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
        base = Base(index, term, core.log.offset_at(index), core.log.members_at(index))
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
        *,
        hears_impostors: bool = False,
    ) -> None:
        """on_disk: changes each write. staged: fills the disks with which the voters start.
        hears_impostors: a planted bug.
        """
        self.seed = seed
        self.rng = Random(seed)
        self.knobs = knobs or Knobs.draw(self.rng)
        self.core_type = core_type
        self.on_disk = on_disk or (lambda write: write)
        self.staged = staged
        voters = range(self.knobs.voters)
        self.members = Members(
            tuple(voters), (), tuple(Endpoint(voter, "", f"{voter}.1") for voter in voters)
        )
        self.hears_impostors = hears_impostors
        self.checks = Checks(self)
        self.now_ms = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        self._wakes: dict[int, int] = {}
        self._cut: dict[tuple[int, int], bool] = {}
        self.faults = True
        self.snapshots: list[Base] = []
        self.proposed = 0
        self.trace = 0
        self.nodes: list[Node] = []
        self.nodes += [
            Node(self, node_id)
            for node_id in range(self.knobs.voters + (JOINERS if self.knobs.change else 0))
        ]

    @property
    def last_committed(self) -> int:
        return self.checks.last_committed

    def leads(self, node: Node, core: RaftCore) -> None:
        if (
            self.checks.leads(node.id, node.incarnation, core)
            and self.faults
            and self.rng.random() < self.knobs.coup
        ):
            self.after(self.rng.randrange(1, self.rng.choice((20, 300))), lambda: self._crash(node))

    # --- the machinery ----------------------------------------------------------------------------

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
        self.trace = (
            self.trace * 31 + message.sender * 7 + message.to * 3 + message.term
        ) & 0xFFFF_FFFF
        if self._cut.get((message.sender, message.to)) or (
            self.faults and rng.random() < knobs.drop
        ):
            return
        sender = self.nodes[message.sender] if message.sender < len(self.nodes) else None
        if sender is None or message.to >= len(self.nodes):
            return  # while the first ones start
        members = sender.members
        call = (sender.directory, members.version, members.endpoint(message.to).directory)
        copies = 2 if self.faults and rng.random() < knobs.duplicate else 1
        for _ in range(copies):
            delay_ms = rng.randrange(1, knobs.delay_ms_max + 1) if self.faults else 1
            self.after(delay_ms, lambda: self._deliver(message, call))

    def _deliver(self, message: Message, call: tuple[str, int, str]) -> None:
        """call: the sender's disk, the version of its members, and the disk that it expects, as at
        the start of a stream.
        """
        node = self.nodes[message.to]
        if self.later(node, lambda: self._deliver(message, call)):
            return
        directory, version, requested = call
        if (
            not membership.is_intended_receiver(
                node.members, Endpoint(node.id, "", node.directory), requested, version
            )
            and not self.hears_impostors
        ):
            return
        if (
            membership.is_impostor(node.members, message.sender, directory, version)
            and not self.hears_impostors
        ):
            return
        if node.core is not None:
            node.core.step(message, self.now_ms)
            node.pump()

    def later(self, node: Node, action: Callable[[], None]) -> bool:
        """Delay the action while the node is paused. Return whether it is."""
        if self.now_ms > node.paused_until_ms:
            return False
        self.after(node.paused_until_ms + 1 - self.now_ms, action)
        return True

    def run(self, until_ms: int) -> None:
        while self._heap and self._heap[0][0] <= until_ms:
            self.now_ms, number, action = heapq.heappop(self._heap)
            self.checks.check(number < EVENTS_MAX, "livelock: messages go round without end")
            action()
        self.now_ms = until_ms

    def play(self, duration_ms: int = 20_000, step_ms: int = 50) -> None:
        """Run faults and proposals for a while, then a quiet period in which the quorum must
        settle.
        """
        while self.now_ms < duration_ms:
            self.run(self.now_ms + step_ms)
            self._disturb()
            self._work()
        self.quiet()

    def quiet(self, timeouts: int = 12) -> None:
        """Run without faults and check liveness."""
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
            self._replace_lost()
            if self.last_committed > before and not self._lost() and self._is_settled(before):
                return
        raise Violation(
            f"liveness: nothing committed, or no agreement about members, in {timeouts} timeouts"
            f" (seed {self.seed})"
        )

    def _is_settled(self, index: int) -> bool:
        """Return whether every member has the committed entries and the same members."""
        members = self.checks.members
        cores = [self.nodes[member].core for member in members.everyone]
        return all(
            core is not None and core.commit >= index and core.log.members == members
            for core in cores
        )

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
        leader = next(
            (node for node in self.nodes if node.core is not None and node.core.is_leader), None
        )
        if (
            leader is not None
            and leader.core is not None
            and self.now_ms >= leader.paused_until_ms
            and rng.random() < 0.01
        ):
            leader.core.transfer(rng.choice(leader.core.log.members.voters))
            leader.pump()
        for node in self.nodes if knobs.change else ():
            if rng.random() < knobs.change and self.now_ms >= node.paused_until_ms:
                self._change(node)
        if knobs.change and rng.random() < knobs.disk_loss:
            self._lose_a_disk()

    # --- quorum changes ---------------------------------------------------------------------------

    def _change(self, node: Node) -> None:
        """Request a change from a leader, sensible or not, as an administrator may."""
        core, rng = node.core, self.rng
        if core is None or not core.is_leader:
            return
        members = core.log.members
        what = rng.randrange(4)
        if what == 0:
            strangers = [other for other in self.nodes if other.id not in members.everyone]
            changed = self._welcomed(members, rng.choice(strangers)) if strangers else members
        elif what == 1 and members.learners:
            changed = membership.promoted(members, rng.choice(members.learners))
        else:
            gone = rng.choice(members.everyone)
            changed = (
                members
                if self._lost() and gone not in self._lost()
                else membership.removed(members, gone)
            )
        self._propose_members(node, core, changed)

    def _welcomed(self, members: Members, node: Node) -> Members:
        return membership.added_learner(members, node.id, "", node.directory)

    def _propose_members(self, node: Node, core: RaftCore, members: Members) -> None:
        core.propose_members(members)
        node.pump()

    def _lost(self) -> list[int]:
        """Return the members whose disk differs from the one in the quorum's configuration."""
        members = self.checks.members
        return [
            member
            for member in members.everyone
            if members.endpoint(member).directory != self.nodes[member].directory
        ]

    def _lose_a_disk(self) -> None:
        """Lose a disk, but only if the quorum is complete and agrees: it survives one loss at a
        time, until that is repaired.

        A controller that is not a member (anymore) may lose everything at any time.
        """
        node, members = self.rng.choice(self.nodes), self.checks.members
        is_outside = node.id not in members.everyone and all(
            node.id not in other.members.everyone for other in self.nodes if other is not node
        )
        is_whole = not self._lost() and all(
            other.members.version <= members.version for other in self.nodes
        )
        if is_outside or (is_whole and len(members.voters) > 2):
            node.lose_disk()
            self.after(
                self.rng.randrange(50, self.knobs.restart_ms_max),
                lambda: node.start() if node.core is None else None,
            )

    def _replace_lost(self) -> None:
        """Replace a lost disk as an administrator does: remove its controller, and add
        the new one.
        """
        for node in self.nodes:
            core = node.core
            if core is None or not core.is_ready_to_serve:
                continue
            members = core.log.members
            lost = [
                member
                for member in members.everyone
                if members.endpoint(member).directory != self.nodes[member].directory
            ]
            if lost:
                self._propose_members(node, core, membership.removed(members, lost[0]))

    def _crash(self, node: Node) -> None:
        if node.core is not None and self.faults:
            node.crash()
            self.after(
                self.rng.randrange(50, self.knobs.restart_ms_max),
                lambda: node.start() if node.core is None else None,
            )

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
