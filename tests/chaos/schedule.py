"""Draw an endless series of fault waves, with targets and durations. Pure.

The same seed yields the same waves. Each wave ends (`Wave.length_s`), and a node gets at most one
process fault per wave. The target "leader" is resolved when the fault starts.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Final

CONTROLLERS: Final = ("controller 0", "controller 1", "controller 2")
BROKERS: Final = ("broker 0", "broker 1", "broker 2")
LEADER: Final = "leader"
"""The controller that is leader when the fault starts."""

CLIENTS: Final = "clients"
ALL: Final = "all"


class Kind(StrEnum):
    KILL = "kill -9"
    PAUSE = "pause"
    TERMINATE = "terminate"
    CUT = "cut one way"
    HOLD = "hold connections"
    ISOLATE = "isolate"
    RESET = "reset connections"
    SLOW_LINK = "slow link"
    STORE_SLOW_DOWN = "store: 503"
    STORE_LATENCY = "store: latency"
    STORE_CUT_REQUEST = "store: cut request"
    STORE_CUT_RESPONSE = "store: cut response"
    STORE_LOSE_RESPONSE = "store: lose response"
    STORE_HOLE = "store: black hole"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault.

    whom: names of nodes; for a cut or a hold (from, to). after_s: time from the start of the wave.
    chance: share of requests that a store fault affects. late: stopped bytes arrive at the end of
    the fault, instead of being lost with their connection.
    """

    kind: Kind
    whom: tuple[str, ...]
    after_s: float
    for_s: float
    chance: float = 1.0
    delay_ms: float = 0.0
    late: bool = False

    def __str__(self) -> str:
        whom = (
            " to ".join(self.whom) if self.kind in (Kind.CUT, Kind.HOLD) else ", ".join(self.whom)
        )
        more = [f"{self.chance:.0%} of requests"] if self.chance < 1 else []
        more += [f"{self.delay_ms:.0f} ms"] if self.delay_ms else []
        more += ["arrives late"] if self.late else []
        return f"{self.kind}: {whom}, {self.for_s:.1f} s" + (
            f" ({', '.join(more)})" if more else ""
        )


@dataclass(frozen=True, slots=True)
class Wave:
    """Overlapping faults. `quiet_s` is the minimum quiet time after them."""

    number: int
    faults: tuple[Fault, ...]
    quiet_s: float

    @property
    def length_s(self) -> float:
        return max(fault.after_s + fault.for_s for fault in self.faults)


def waves(seed: int, *, client_holds: bool = False) -> Iterator[Wave]:
    """Yield waves endlessly. client_holds: most faults hold what clients send, so that their
    requests arrive late.
    """
    rng = Random(f"chaos/{seed}")
    makers, weights = _MAKERS, _WEIGHTS
    if client_holds:
        makers, weights = (*makers, _hold_clients), (*weights, 4 * sum(weights))
    number = 0
    while True:
        number += 1
        draft = _Draft(rng)
        for _ in range(rng.choices((1, 2, 3), (3, 4, 2))[0]):
            rng.choices(makers, weights)[0](draft)
        if draft.faults:
            yield Wave(
                number,
                tuple(sorted(draft.faults, key=lambda fault: fault.after_s)),
                rng.uniform(1.0, 4.0),
            )


@dataclass(slots=True)
class _Draft:
    rng: Random
    faults: list[Fault] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)

    def begin_s(self) -> float:
        return 0.0 if not self.faults else self.rng.uniform(0.0, 3.0)

    def add_process_fault(self, kind: Kind, whom: tuple[str, ...], for_s: float) -> None:
        """Add the fault unless one of its nodes already has a process fault: a dead process cannot
        be paused. The leader may be any controller.
        """
        claimed = (
            set(CONTROLLERS) | {LEADER} if LEADER in whom else set(whom) | ({LEADER} & self.taken)
        )
        if self.taken & claimed or (LEADER in self.taken and set(whom) & set(CONTROLLERS)):
            return
        self.taken |= set(whom)
        self.faults.append(Fault(kind, whom, self.begin_s(), for_s))

    def some_controller(self) -> str:
        return self.rng.choice((LEADER, LEADER, LEADER, *CONTROLLERS))


def _kill(draft: _Draft) -> None:
    rng = draft.rng
    whom = rng.choices(
        (
            (rng.choice(BROKERS),),
            (draft.some_controller(),),
            tuple(rng.sample(BROKERS, 2)),
            BROKERS,
            CONTROLLERS,
            (*BROKERS, *CONTROLLERS),
        ),
        (8, 5, 2, 2, 2, 1),
    )[0]
    draft.add_process_fault(Kind.KILL, whom, rng.choice((0.0, 0.5, rng.uniform(1.0, 4.0))))


def _pause(draft: _Draft) -> None:
    """Pause for less or more than the session (3 s) and election (0.6 s) timeouts."""
    rng = draft.rng
    if rng.random() < 0.6:
        draft.add_process_fault(
            Kind.PAUSE,
            (rng.choice(BROKERS),),
            rng.choice((rng.uniform(0.5, 2.5), rng.uniform(4.0, 9.0))),
        )
    else:
        draft.add_process_fault(
            Kind.PAUSE,
            (draft.some_controller(),),
            rng.choice((rng.uniform(0.3, 1.0), rng.uniform(1.0, 6.0))),
        )


def _terminate(draft: _Draft) -> None:
    rng = draft.rng
    whom = draft.some_controller() if rng.random() < 0.25 else rng.choice(BROKERS)
    draft.add_process_fault(Kind.TERMINATE, (whom,), rng.uniform(0.0, 2.0))


def _cut(draft: _Draft) -> None:
    rng = draft.rng
    pair = [
        (rng.choice(BROKERS), draft.some_controller()),
        tuple(rng.sample(CONTROLLERS, 2)),
        (CLIENTS, rng.choice(BROKERS)),
        tuple(rng.sample(BROKERS, 2)),
    ][rng.choices((0, 1, 2, 3), (4, 3, 3, 2))[0]]
    ends = pair if rng.random() < 0.5 else (pair[1], pair[0])
    draft.faults.append(
        Fault(Kind.CUT, ends, draft.begin_s(), rng.uniform(1.0, 8.0), late=rng.random() < 0.5)
    )


def _hold(draft: _Draft) -> None:
    """Hold for longer than senders wait for a response (coordinators 5 s, clients up to 5 s), so
    that they retry on newer connections.

    Brokers reject late client requests of group members and producers, except for two kinds that
    they execute as Kafka does: an InitProducerId without a producer id fences the current producer,
    and a batch without a producer id is stored again, because neither request identifies its
    attempt.
    """
    rng = draft.rng
    pair = [
        tuple(rng.sample(BROKERS, 2)),
        (rng.choice(BROKERS), draft.some_controller()),
        tuple(rng.sample(CONTROLLERS, 2)),
        (CLIENTS, rng.choice(BROKERS)),
    ][rng.choices((0, 1, 2, 3), (5, 2, 2, 6))[0]]
    requests_share = 0.75 if CLIENTS in pair else 0.5  # held broker responses are simply lost
    ends = pair if rng.random() < requests_share else (pair[1], pair[0])
    draft.faults.append(Fault(Kind.HOLD, ends, draft.begin_s(), rng.uniform(6.0, 10.0), late=True))


def _hold_clients(draft: _Draft) -> None:
    rng = draft.rng
    ends = CLIENTS, rng.choice(BROKERS)
    draft.faults.append(Fault(Kind.HOLD, ends, draft.begin_s(), rng.uniform(6.0, 10.0), late=True))


def _isolate(draft: _Draft) -> None:
    """Cut all connections between a node and the other controllers, but not those to the store, the
    brokers and the clients. Some cuts last longer than a session (3 s), a move and a lease (3 s)
    together.
    """
    rng = draft.rng
    whom = draft.some_controller() if rng.random() < 0.5 else rng.choice(BROKERS)
    for_s = rng.choice((rng.uniform(1.0, 8.0), rng.uniform(8.0, 12.0)))
    draft.faults.append(
        Fault(Kind.ISOLATE, (whom,), draft.begin_s(), for_s, late=rng.random() < 0.5)
    )


def _reset(draft: _Draft) -> None:
    rng = draft.rng
    whom = draft.some_controller() if rng.random() < 0.4 else rng.choice(BROKERS)
    draft.faults.append(Fault(Kind.RESET, (whom,), draft.begin_s(), 0.0))


def _slow_link(draft: _Draft) -> None:
    rng = draft.rng
    whom = rng.choice((*BROKERS, *CONTROLLERS))
    draft.faults.append(
        Fault(
            Kind.SLOW_LINK,
            (whom,),
            draft.begin_s(),
            rng.uniform(2.0, 8.0),
            delay_ms=rng.uniform(10, 150),
        )
    )


def _store(draft: _Draft) -> None:
    rng = draft.rng
    kind = rng.choice([kind for kind in Kind if kind.startswith("store")])
    whom = ALL if rng.random() < 0.4 else rng.choice((*BROKERS, *BROKERS, LEADER))
    is_hole = kind is Kind.STORE_HOLE
    draft.faults.append(
        Fault(
            kind,
            (whom,),
            draft.begin_s(),
            rng.uniform(1.0, 7.0) if is_hole else rng.uniform(2.0, 8.0),
            chance=1.0 if is_hole or kind is Kind.STORE_LATENCY else rng.choice((0.2, 0.5, 0.8)),
            delay_ms=rng.uniform(50, 400) if kind is Kind.STORE_LATENCY else 0.0,
            late=is_hole and rng.random() < 0.6,
        )
    )


_MAKERS: Final[tuple[Callable[[_Draft], None], ...]] = (
    _kill,
    _pause,
    _terminate,
    _cut,
    _hold,
    _isolate,
    _reset,
    _slow_link,
    _store,
)
_WEIGHTS: Final[tuple[int, ...]] = (6, 5, 2, 4, 5, 2, 2, 1, 7)
