"""Property tests of the balancing planner.

For any brokers and loads, planning terminates, never makes the balance worse, and moves only
movable partitions between eligible brokers.
"""

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock.base.ids import NodeId
from penstock.controller.active.balance.plan import BrokerSlot, Goal, Limits, PartitionSlot, plan
from penstock.controller.api.load_messages import BrokerLoad, Load

MB = 1_000_000
LIMITS = Limits()
PROFILE = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)

rates = st.one_of(st.just(0), st.integers(0, 20 * MB), st.integers(0, 1_000))
loads = st.builds(Load, rates, rates, st.integers(0, 1_000))


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[BrokerSlot], list[PartitionSlot]]:
    count = draw(st.integers(1, 6))
    notes = draw(
        st.lists(st.sampled_from(["", "", "", "", "slow"]), min_size=count, max_size=count)
    )
    brokers = [BrokerSlot(NodeId(node_id), note) for node_id, note in enumerate(notes)]
    leaders = st.integers(-1, count - 1)
    rows = draw(
        st.lists(st.tuples(leaders, loads, st.sampled_from([True, True, True, False])), max_size=40)
    )
    return brokers, [
        PartitionSlot("t", index, NodeId(leader), load, movable)
        for index, (leader, load, movable) in enumerate(rows)
    ]


def values(brokers: list[BrokerLoad], goal: Goal) -> list[int]:
    return [(b.load.bytes_in, b.load.bytes_out, b.leaders)[goal] for b in brokers if not b.note]


def excess(brokers: list[BrokerLoad], goal: Goal) -> float:
    """Return the total load by which the brokers are outside the target band."""
    found = values(brokers, goal)
    if (
        not found
        or not (mean := sum(found) / len(found))
        or (goal is not Goal.LEADERS and sum(found) < LIMITS.bytes_min)
    ):
        return 0.0
    low, high = mean * (1 - LIMITS.aim), mean * (1 + LIMITS.aim)
    if goal is Goal.LEADERS:
        low, high = low // 1, -(-high // 1)
    return sum(max(0.0, low - value, value - high) for value in found) / mean


@PROFILE
@given(clusters())
def test_a_plan_never_makes_the_balance_worse(
    cluster: tuple[list[BrokerSlot], list[PartitionSlot]],
) -> None:
    found = plan(*cluster, LIMITS)
    before, after = ([excess(side, goal) for goal in Goal] for side in (found.before, found.after))
    changed = next((goal for goal in Goal if abs(before[goal] - after[goal]) > 1e-6), None)
    assert changed is None or after[changed] < before[changed], (
        "the first goal whose balance changed must improve"
    )
    assert changed is not None or not found.moves
    assert sum(b.load.bytes_in for b in found.before) == sum(b.load.bytes_in for b in found.after)


@PROFILE
@given(clusters())
def test_only_movable_partitions_move_between_eligible_brokers(
    cluster: tuple[list[BrokerSlot], list[PartitionSlot]],
) -> None:
    brokers, partitions = cluster
    found = plan(brokers, partitions, LIMITS)
    well = {broker.node_id for broker in brokers if broker.eligible}
    by_name = {(slot.topic, slot.partition): slot for slot in partitions}
    for move in found.moves:
        slot = by_name[move.topic, move.partition]
        assert slot.movable
        assert slot.leader == move.source != move.target
        assert {move.source, move.target} <= well
        assert f"broker {move.source} has" in move.reason
    assert (
        len({(move.topic, move.partition) for move in found.moves})
        == len(found.moves)
        <= LIMITS.moves_max
    )


@PROFILE
@given(clusters())
def test_input_order_is_irrelevant_and_repeated_planning_terminates(
    cluster: tuple[list[BrokerSlot], list[PartitionSlot]],
) -> None:
    brokers, partitions = cluster
    assert plan(brokers, partitions[::-1], LIMITS).moves == plan(brokers, partitions, LIMITS).moves
    seen: set[tuple[NodeId, ...]] = set()
    for _ in range(60):
        state = tuple(slot.leader for slot in partitions)
        assert state not in seen, "planning came back to an earlier state"
        seen.add(state)
        moves = plan(brokers, partitions, LIMITS).moves
        if not moves:
            return
        targets = {move.partition: move.target for move in moves}
        partitions = [
            slot._replace(leader=targets.get(slot.partition, slot.leader)) for slot in partitions
        ]
    raise AssertionError("planning did not end within 60 rounds")


@PROFILE
@given(
    st.integers(2, 6),
    st.integers(1, 20),
    st.integers(100_000, 5 * MB),
    st.randoms(use_true_random=False),
)
def test_load_noise_of_ten_percent_moves_nothing(brokers: int, each: int, rate: int, rng) -> None:
    slots = [BrokerSlot(NodeId(node_id)) for node_id in range(brokers)]
    partitions = [
        PartitionSlot(
            "t", index, NodeId(index % brokers), Load(int(rate * rng.uniform(0.9, 1.1)), 0, 1), True
        )
        for index in range(brokers * each)
    ]
    assert plan(slots, partitions, LIMITS).moves == []


@PROFILE
@given(st.integers(2, 6), st.integers(2, 20), st.integers(100_000, 5 * MB))
def test_a_new_broker_gets_its_share_of_even_loads(brokers: int, each: int, rate: int) -> None:
    slots = [BrokerSlot(NodeId(node_id)) for node_id in range(brokers + 1)]
    count = brokers * each
    partitions = [
        PartitionSlot("t", index, NodeId(index % brokers), Load(rate, rate, 1), True)
        for index in range(count)
    ]
    after = plan(slots, partitions, LIMITS).after[-1].leaders
    share = count / (brokers + 1)
    assert share * 0.9 - 1 <= after <= share * 1.1 + 1
