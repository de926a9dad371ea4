"""Plan which partitions should move to another broker, and why: a pure function of brokers,
partitions and measured rates. The goals are, in order: network in, network out, number of leaders.
A goal starts when a broker deviates from the mean by more than `trigger`, and ends when all brokers
are within `aim`. The gap between the two keeps noise from moving partitions back and forth.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import ceil, floor
from typing import Final, NamedTuple

from penstock.base.ids import NodeId
from penstock.controller.api.load_messages import BrokerLoad, Load, ProposedMove

BROKERS_LOOKED_AT: Final = 8
"""Number of most loaded and of least loaded brokers to compare, which results in at most 64 pairs
per move.
"""
GAIN_MIN: Final = 1e-4
"""Minimum gain of a move, as a fraction of the mean.

A smaller gain does not justify a leader change.
"""
_ROUNDING: Final = 1e-9


class Goal(IntEnum):
    NETWORK_IN = 0
    NETWORK_OUT = 1
    LEADERS = 2


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a plan.

    `trigger` and `aim` are fractions of the mean. A byte goal is inactive while the total of all
    brokers is less than `bytes_min` per second. The limit is not per broker: moves for other goals
    could then switch a goal on and off, and planning would not terminate.
    """

    trigger: float = 0.25
    aim: float = 0.10
    bytes_min: int = 256 << 10
    moves_max: int = 100


class BrokerSlot(NamedTuple):
    """One broker. `note` is the reason why it is not eligible, or empty if it is."""

    node_id: NodeId
    note: str = ""

    @property
    def eligible(self) -> bool:
        return not self.note


class PartitionSlot(NamedTuple):
    """One partition. `leader` is the current leader or, during a move, the future one; -1 for
    none.
    """

    topic: str
    partition: int
    leader: NodeId
    load: Load
    movable: bool


class Plan(NamedTuple):
    moves: list[ProposedMove]
    before: list[BrokerLoad]
    after: list[BrokerLoad]


def plan(
    brokers: Sequence[BrokerSlot], partitions: Sequence[PartitionSlot], limits: Limits
) -> Plan:
    planning = Planning(brokers, partitions, limits)
    for _ in planning.steps():
        pass
    return planning.result()


def usage(brokers: Sequence[BrokerSlot], partitions: Sequence[PartitionSlot]) -> list[BrokerLoad]:
    """Return the total load of the partitions led by each broker."""
    sums = {broker.node_id: [0, 0, 0, 0] for broker in brokers}
    for slot in partitions:
        total = sums.get(slot.leader)
        if total is not None:
            total[0] += slot.load.bytes_in
            total[1] += slot.load.bytes_out
            total[2] += slot.load.requests
            total[3] += 1
    return [
        BrokerLoad(node_id=node_id, load=Load(*total[:3]), leaders=total[3], note=note)
        for (node_id, note), total in zip(brokers, sums.values(), strict=True)
    ]


class _Part(NamedTuple):
    slot: PartitionSlot
    weights: tuple[int, int, int]


class _Band:
    """The target range of one goal, which is the same for all brokers."""

    def __init__(self, goal: Goal, values: Sequence[int], limits: Limits) -> None:
        self.goal = goal
        self.mean = mean = sum(values) / len(values)
        self.low, self.high = mean * (1 - limits.aim), mean * (1 + limits.aim)
        if goal is Goal.LEADERS:
            self.low, self.high = floor(self.low), ceil(self.high)
        self._trigger = mean * limits.trigger
        self.is_active = mean > 0 and (goal is Goal.LEADERS or sum(values) >= limits.bytes_min)

    def is_left(self, values: Sequence[int]) -> bool:
        """Return True if any broker deviates so far from the mean that the goal must be pursued."""
        if self.goal is Goal.LEADERS and max(values) - min(values) < 2:
            return False
        return any(
            abs(value - self.mean) > self._trigger and self.excess(value) > 0 for value in values
        )

    def excess(self, value: float) -> float:
        return max(0.0, self.low - value, value - self.high)

    def gain(
        self, releasing: Sequence[int], taking: Sequence[int], weights: Sequence[int]
    ) -> float:
        """Return how much closer a move brings the source and the target to the range; negative if
        it moves them away from the range.

        `releasing` and `taking` are the values of the source and the target, by goal. `weights` are
        the values of the moved partition.
        """
        source, target, weight = releasing[self.goal], taking[self.goal], weights[self.goal]
        return (
            self.excess(source)
            + self.excess(target)
            - self.excess(source - weight)
            - self.excess(target + weight)
        )

    def worsens(
        self, releasing: Sequence[int], taking: Sequence[int], weights: Sequence[int]
    ) -> bool:
        return self.gain(releasing, taking, weights) < -_ROUNDING * self.mean


class Planning:
    """A plan in progress. `steps` yields after each examined pair of brokers.

    Each move strictly improves its goal and does not worsen an earlier goal, so planning
    terminates. A partition moves at most once. Ineligible brokers are neither sources nor targets.
    The same input results in the same moves, in the same order.
    """

    def __init__(
        self, brokers: Sequence[BrokerSlot], partitions: Sequence[PartitionSlot], limits: Limits
    ) -> None:
        self._brokers = brokers
        self._partitions = partitions
        self._before = before = usage(brokers, partitions)
        self._found: list[ProposedMove] = []
        self._moves_max = limits.moves_max
        eligible = {broker.node_id for broker in brokers if broker.eligible}
        self._values = {
            b.node_id: [b.load.bytes_in, b.load.bytes_out, b.leaders]
            for b in before
            if b.node_id in eligible
        }
        self._parts: dict[NodeId, list[_Part]] = {node_id: [] for node_id in self._values}
        for slot in sorted(partitions, key=lambda slot: (slot.topic, slot.partition)):
            if slot.movable and slot.leader in self._parts:
                self._parts[slot.leader].append(
                    _Part(slot, (slot.load.bytes_in, slot.load.bytes_out, 1))
                )
        self._bands = (
            [_Band(goal, self._of(goal), limits) for goal in Goal] if len(self._values) > 1 else []
        )

    def steps(self) -> Iterator[None]:
        for band in self._bands:
            if not band.is_active or not band.is_left(self._of(band.goal)):
                continue
            is_moving_on = True
            while is_moving_on and len(self._found) < self._moves_max:
                is_moving_on = False
                for source, target in self._pairs(band.goal):
                    is_moving_on = self._move_best(band, source, target)
                    yield
                    if is_moving_on:
                        break

    def result(self) -> Plan:
        targets = {(move.topic, move.partition): move.target for move in self._found}
        moved = [
            slot._replace(leader=targets.get((slot.topic, slot.partition), slot.leader))
            for slot in self._partitions
        ]
        return Plan(self._found, self._before, usage(self._brokers, moved))

    def _of(self, goal: Goal) -> list[int]:
        return [values[goal] for values in self._values.values()]

    def _pairs(self, goal: Goal) -> Iterator[tuple[NodeId, NodeId]]:
        """Yield (source, target) pairs, starting with the most loaded sources and the least loaded
        targets.
        """
        order = sorted(self._values, key=lambda node_id: (-self._values[node_id][goal], node_id))
        for source in order[:BROKERS_LOOKED_AT]:
            for target in reversed(order[-BROKERS_LOOKED_AT:]):
                if self._values[source][goal] > self._values[target][goal]:
                    yield source, target

    def _move_best(self, band: _Band, source: NodeId, target: NodeId) -> bool:
        """Move one partition from `source` to `target`. Return False if no move helps."""
        releasing, taking = self._values[source][band.goal], self._values[target][band.goal]
        if band.excess(releasing) <= 0 and band.excess(taking) <= 0:
            return False
        part = self._best_part(band, source, target)
        if part is None:
            return False
        self._move(band, part, source, target)
        return True

    def _best_part(self, band: _Band, source: NodeId, target: NodeId) -> _Part | None:
        """Return the partition whose move improves this goal most without worsening an earlier
        goal.

        Ties are broken by later goals, then by topic and partition.
        """
        releasing, taking = self._values[source], self._values[target]
        earlier = [other for other in self._bands[: band.goal] if other.is_active]
        later = [other for other in self._bands[band.goal + 1 :] if other.is_active]
        gain_min = GAIN_MIN * band.mean
        best: tuple[float, float] | None = None
        best_part: _Part | None = None
        for part in self._parts[source]:
            gain = band.gain(releasing, taking, part.weights)
            if gain < gain_min or (best is not None and gain < best[0]):
                continue
            if any(other.worsens(releasing, taking, part.weights) for other in earlier):
                continue
            later_gain = sum(
                other.gain(releasing, taking, part.weights) / other.mean for other in later
            )
            if best is None or (gain, later_gain) > best:
                best, best_part = (gain, later_gain), part
        return best_part

    def _move(self, band: _Band, part: _Part, source: NodeId, target: NodeId) -> None:
        slot = part.slot
        self._found.append(
            ProposedMove(
                topic=slot.topic,
                partition=slot.partition,
                source=source,
                target=target,
                load=slot.load,
                reason=_reason(
                    band,
                    source,
                    self._values[source][band.goal],
                    target,
                    self._values[target][band.goal],
                ),
            )
        )
        self._parts[source].remove(part)
        for goal in Goal:
            self._values[source][goal] -= part.weights[goal]
            self._values[target][goal] += part.weights[goal]


def _reason(band: _Band, source: NodeId, releasing: int, target: NodeId, taking: int) -> str:
    name, shown = _WORDS[band.goal]
    return (
        f"{name}: broker {source} has {shown(releasing)}, {releasing / band.mean:.2f} x the mean of"
        f" {shown(band.mean)}; broker {target} has {shown(taking)}, {taking / band.mean:.2f} x"
    )


def _rate(value: float) -> str:
    return f"{value / 1e6:,.2f} MB/s" if value >= 1e5 else f"{value / 1e3:,.1f} kB/s"


def _count(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")


_WORDS: Final[dict[Goal, tuple[str, Callable[[float], str]]]] = {
    Goal.NETWORK_IN: ("network in", _rate),
    Goal.NETWORK_OUT: ("network out", _rate),
    Goal.LEADERS: ("leaders", _count),
}
