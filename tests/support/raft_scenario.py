"""Run Raft transcripts: one command per line, `#` begins a comment.

Nothing happens without a command: messages wait for delivery, disks for a sync, and time for a
tick. `expect` lines fail with their line number.
"""

# Commands:
# voters N [entries-per-append K]    begin; all in term 0
# deliver [A B ...]                  deliver and sync until nothing moves; with nodes: only among
#                                    these, the rest waits
# drop A [B]                         forget what waits from A (to B)
# campaign A                         as if A's election timeout had passed and all had agreed to
#                                    a pre-vote
# crown A / elect A                  A becomes leader with the votes of all that it reaches;
#                                    crown: before it sends its first append
# pass A B                           the first message that waits from A to B arrives
# propose A TEXT / refuse A TEXT     A must accept it / must not accept it
# read A / transfer A B / tick MS / crash A / restart A
# join N                             N begins with an empty log and without members
# learn A N / promote A N / remove A N
#                                    A, the leader, proposes the change of the members
# refuse-remove A N                  A must not accept it
# cut A B ...                        cut these from the rest, until `heal`
# snapshot A / load A                A writes a snapshot to the store and forgets its log / A
#                                    installs the newest one
# no-sync A / sync A                 A's disk writes nothing / everything
# expect leader A | no-leader | term A N | commit A N | log A 1:a 1 2:b | role A ROLE
#        | first A N | needs-snapshot A | read A yes|no
#        | members A 1,2,3[/4] (learners after the slash) | member A yes|no

from collections.abc import Callable
from pathlib import Path
from random import Random

from penstock.controller.raft import membership
from penstock.controller.raft.core import RaftCore
from penstock.controller.raft.core_config import CoreConfig
from penstock.controller.raft.log import RaftLog
from penstock.controller.raft.messages import Base, Entry, HardState, Members, Message, Write

ELECTION_MS = 1_000


class Failed(AssertionError):
    """Raised if an expectation of the transcript is not met."""


class Voter:
    def __init__(self, node_id: int, members: Members) -> None:
        self.id = node_id
        self.hard = HardState()
        self.base = Base(0, 0, 0, members)
        self.entries: list[Entry] = []
        self.write: Write | None = None
        self.syncs = True
        self.core: RaftCore | None = None
        self.read_round: int | None = None

    def save(self, write: Write) -> None:
        if write.base is not None:
            self.base, self.entries = write.base, []
        for entry in write.entries:
            del self.entries[entry.index - self.base.index - 1 :]
            self.entries.append(entry)
        self.hard = write.hard or self.hard


class Scenario:
    def __init__(self, path: Path, core_type: type[RaftCore] = RaftCore) -> None:
        self._path = path
        self._core_type = core_type
        self._voters: dict[int, Voter] = {}
        self._wire: list[Message] = []
        self._now_ms = 0
        self._cut: frozenset[int] = frozenset()
        self._store: list[Base] = []
        self._append_count_max = 64

    def run(self) -> None:
        for number, line in enumerate(self._path.read_text().splitlines(), start=1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            command = {"voters": self._begin, "cut": self._cut_off}.get(words[0]) or getattr(
                self, "_" + words[0].replace("-", "_")
            )
            try:
                command(*words[1:])
            except AssertionError as error:
                raise Failed(f"{self._path.name}:{number}: {line.strip()}: {error}") from error

    # --- commands ---------------------------------------------------------------------------------

    def _begin(self, count: str, *rest: str) -> None:
        if rest:
            self._append_count_max = int(rest[1])
        members = Members(tuple(range(1, int(count) + 1)))
        for node_id in members.voters:
            self._voters[node_id] = Voter(node_id, members)
            self._restart(str(node_id))

    def _restart(self, name: str) -> None:
        voter = self._voters[int(name)]
        config = CoreConfig(
            voter.id,
            election_ms=ELECTION_MS,
            append_count_max=self._append_count_max,
            inflight_count_max=1,
        )
        voter.core = self._core_type(
            config, RaftLog(voter.base, voter.entries), voter.hard, Random(voter.id), self._now_ms
        )
        voter.write = None

    def _crash(self, name: str) -> None:
        voter = self._voters[int(name)]
        voter.core = None
        self._wire = [message for message in self._wire if message.to != voter.id]

    def _deliver(self, *names: str) -> None:
        self._deliver_while(lambda: True, *names)

    def _deliver_while(self, requested: Callable[[], bool], *names: str) -> None:
        among = {int(name) for name in names} or set(self._voters)
        for _ in range(1_000):
            self._collect()
            if not requested():
                return
            ready = [
                m for m in self._wire if m.sender in among and m.to in among and not self._is_cut(m)
            ]
            self._wire = [m for m in self._wire if m not in ready and not self._is_cut(m)]
            if not ready:
                return
            for message in ready:
                core = self._voters[message.to].core
                if core is not None:
                    core.step(message, self._now_ms)
        raise AssertionError("messages circulate forever")

    def _drop(self, sender: str, to: str = "") -> None:
        self._collect()
        self._wire = [
            m for m in self._wire if not (m.sender == int(sender) and to in {"", str(m.to)})
        ]

    def _campaign(self, name: str) -> None:
        self._core(name).campaign()

    def _elect(self, name: str) -> None:
        self._crown(name)
        self._tick("100")
        self._deliver()

    def _crown(self, name: str) -> None:
        """Elect the candidate. Time passes until all voters have given up on an earlier leader; a
        candidate with an older term retries.
        """
        core = self._core(name)
        for _ in range(3):
            self._now_ms += ELECTION_MS
            self._wire.clear()
            core.campaign()
            self._deliver_while(lambda: not core.is_leader)
            if core.is_leader:
                self._drop(name)
                return
        raise AssertionError(f"{name} is {core.role.name} in term {core.term}")

    def _pass(self, sender: str, to: str) -> None:
        self._collect()
        waiting = [m for m in self._wire if (m.sender, m.to) == (int(sender), int(to))]
        assert waiting, f"nothing waits from {sender} to {to}"
        self._wire.remove(waiting[0])
        self._core(to).step(waiting[0], self._now_ms)
        self._collect()

    def _propose(self, name: str, text: str) -> None:
        assert self._core(name).propose([text.encode()]) is not None, f"{name} takes no proposals"

    def _refuse(self, name: str, text: str) -> None:
        assert self._core(name).propose([text.encode()]) is None, f"{name} takes proposals"

    def _read(self, name: str) -> None:
        self._voters[int(name)].read_round = self._core(name).read_round()

    def _transfer(self, name: str, to: str) -> None:
        assert self._core(name).transfer(int(to))

    def _tick(self, milliseconds: str) -> None:
        self._now_ms += int(milliseconds)
        for voter in self._voters.values():
            if voter.core is not None:
                voter.core.tick(self._now_ms)

    def _join(self, name: str) -> None:
        self._voters[int(name)] = Voter(int(name), Members(()))
        self._restart(name)

    def _learn(self, name: str, node_id: str) -> None:
        self._change(name, membership.added_learner(self._core(name).log.members, int(node_id)))

    def _promote(self, name: str, node_id: str) -> None:
        self._change(name, membership.promoted(self._core(name).log.members, int(node_id)))

    def _remove(self, name: str, node_id: str) -> None:
        self._change(name, membership.removed(self._core(name).log.members, int(node_id)))

    def _refuse_remove(self, name: str, node_id: str) -> None:
        core = self._core(name)
        assert (
            core.propose_members(membership.removed(core.log.members, int(node_id))) is not None
        ), "it was taken"

    def _change(self, name: str, members: Members) -> None:
        why = self._core(name).propose_members(members)
        assert why is None, why

    def _cut_off(self, *names: str) -> None:
        self._cut = frozenset(int(name) for name in names)

    def _heal(self) -> None:
        self._cut = frozenset()

    def _snapshot(self, name: str) -> None:
        voter, core = self._voters[int(name)], self._core(name)
        term = core.log.term_at(core.commit)
        assert term is not None
        self._store.append(
            Base(
                core.commit, term, core.log.offset_at(core.commit), core.log.members_at(core.commit)
            )
        )
        core.log.compact(core.commit)
        voter.entries = voter.entries[core.commit - voter.base.index :]
        voter.base = core.log.base

    def _load(self, name: str) -> None:
        self._core(name).installed(self._store[-1])

    def _no_sync(self, name: str) -> None:
        self._voters[int(name)].syncs = False

    def _sync(self, name: str) -> None:
        self._voters[int(name)].syncs = True

    # --- expectations -----------------------------------------------------------------------------

    def _expect(self, what: str, *words: str) -> None:
        found, expected = self._look(what, *words)
        assert found == expected, f"found {found!r}, expected {expected!r}"

    def _look(self, what: str, *words: str) -> tuple[object, object]:
        leaders = [
            voter.id
            for voter in self._voters.values()
            if voter.core is not None and voter.core.is_leader
        ]
        if what == "no-leader":
            return leaders, []
        core = self._core(words[0])
        if what == "leader":
            return core.is_leader, True
        if what == "log":
            return self._shown(core), list(words[1:])
        if what == "needs-snapshot":
            return core.needs_snapshot > core.commit, True
        if what == "read":
            requested = self._voters[core.id].read_round
            return (
                "yes"
                if requested is not None and core.is_leader and core.confirmed_round >= requested
                else "no",
                words[1],
            )
        if what == "members":
            reported = [
                "".join(str(list(ids))[1:-1].split())
                for ids in (core.log.members.voters, core.log.members.learners)
            ]
            return "/".join(filter(None, reported)), words[1]
        if what == "member":
            return "yes" if core.is_member else "no", words[1]
        values = {
            "term": core.term,
            "commit": core.commit,
            "first": core.log.base.index + 1,
            "role": core.role.name,
        }
        return str(values[what]), words[1]

    def _shown(self, core: RaftCore) -> list[str]:
        entries = core.log.slice(core.log.base.index + 1, 1_000, 1 << 30)
        return [
            f"{entry.term}:{entry.records[0].decode()}" if entry.records else str(entry.term)
            for entry in entries
        ]

    # --- implementation ---------------------------------------------------------------------------

    def _core(self, name: str) -> RaftCore:
        core = self._voters[int(name)].core
        assert core is not None, f"{name} is down"
        return core

    def _is_cut(self, message: Message) -> bool:
        return (message.sender in self._cut) != (message.to in self._cut)

    def _collect(self) -> None:
        for voter in self._voters.values():
            core = voter.core
            while core is not None:
                voter.write = voter.write or core.take_write()
                self._wire += core.take_messages()
                if voter.write is None or not voter.syncs:
                    break
                voter.save(voter.write)
                voter.write = None
                core.persisted()
