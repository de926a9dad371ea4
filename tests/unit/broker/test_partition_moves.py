"""Planned moves over real storage: requests that arrive early wait at the target, no record is lost
or duplicated, and the steps are logged.
"""

import asyncio

from penstock.broker.partition import refused_batches as refused
from penstock.broker.partition.partition import Partition
from penstock.controller.api import messages as m
from penstock.controller.managers import reassign
from penstock.controller.metadata.topics import is_moving
from penstock.protocol.error_codes import ErrorCode
from tests.support.partition_harness import batch, idempotent


async def test_a_move_keeps_records_and_producers_and_logs_its_steps(harness, pair):
    one, two = pair
    harness.topic("t")
    await one.opened("t")
    assert (await one.produce("t", batch(b"a"))).base_offset == 0
    harness.move("t", 2)
    refused = await one.produce("t", batch(b"b"))
    assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (refused.current_leader.leader_id, refused.current_leader.leader_epoch) == (2, 1)
    assert (await two.produce("t", batch(b"b"))).base_offset == 1
    assert await two.values("t") == [b"a", b"b"]
    record = harness.record("t")
    assert (record.leader, record.leader_epoch, record.replicas, record.move.leader_epoch) == (
        2,
        1,
        (2,),
        1,
    )
    gave_up, took = one.reported[-1], two.reported[-1]
    assert (gave_up.leader_epoch, gave_up.gave_up, sorted(gave_up.steps)) == (
        0,
        True,
        ["commit", "flush", "persist"],
    )
    assert (took.leader_epoch, took.gave_up, sorted(took.steps)) == (1, False, ["open", "restore"])


async def test_a_move_is_announced_in_acknowledgements_before_requests_are_rejected(harness):
    one, two = await harness.broker(1, notice_ms=60_000), await harness.broker(2)
    harness.topic("t", partitions=2)
    for index in range(2):
        if harness.record("t", index).leader != 1:
            harness.lead("t", one, index)
        await one.opened("t", index)
        assert (await one.produce("t", batch(b"a"), index)).current_leader is None
        harness.move("t", 2, index=index)
    ahead = two.start_produce({("t", 0): batch(b"z")})
    reported = await one.produce("t", batch(b"b"), 0)
    epoch = harness.record("t", 0).leader_epoch + 1
    assert (reported.error_code, reported.base_offset) == (0, 1)
    assert (reported.current_leader.leader_id, reported.current_leader.leader_epoch) == (2, epoch)
    assert (await one.produce("t", batch(b"c"), 1)).error_code == 0
    assert (await ahead)["t", 0].base_offset == 2, "it waited for everything that the source took"
    assert harness.record("t", 0).leader == 2
    assert (await one.produce("t", batch(b"d"), 0)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await two.values("t", 0) == [b"a", b"b", b"z"]


async def test_an_announced_move_ends_with_the_leadership(harness):
    one, two = await harness.broker(1, notice_ms=60_000), await harness.broker(2)
    harness.topic("t")
    if harness.record("t").leader != 1:
        harness.lead("t", one)
    await one.opened("t")
    await one.produce("t", batch(b"a"))
    harness.move("t", 2)
    assert isinstance(one.partitions.get("t", 0), Partition)
    harness.fence(one)
    await harness.recover(one, two)
    assert (await one.produce("t", batch(b"c"))).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await two.opened("t")
    assert await two.values("t") == [b"a"]
    await one.crash()


async def test_requests_that_arrive_before_the_move_wait_at_the_target_in_order(harness, pair):
    one, two = pair
    harness.topic("t")
    await one.opened("t")
    harness.move("t", 2)
    sent = [two.start_produce({("t", 0): batch(b"%d" % at)}) for at in range(5)]
    responses = [(await response)["t", 0] for response in sent]
    assert [response.base_offset for response in responses] == list(range(5))


async def test_batches_after_a_rejected_one_are_rejected_until_it_is_retried(harness, pair):
    """The first request times out before the partition opens, the others do not. The gap was caused
    by this broker and is no data loss.
    """
    one, two = pair
    harness.topic("t")
    await one.opened("t")
    assert (await one.produce("t", idempotent(0, b"0"))).base_offset == 0
    await one.crash()
    harness.fence(one)
    impatient = two.start_produce({("t", 0): idempotent(1, b"1")}, timeout_ms=0)
    assert (await impatient)["t", 0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    behind = [
        two.start_produce({("t", 0): records})
        for records in (idempotent(2, b"2"), idempotent(3, b"3"))
    ]
    newcomer = two.start_produce({("t", 0): idempotent(1, b"x", pid=43)}, timeout_ms=0)
    assert (await newcomer)["t", 0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await harness.recover(one, two)
    assert [(await response)["t", 0].error_code for response in behind] == [
        ErrorCode.NOT_LEADER_OR_FOLLOWER
    ] * 2
    assert (
        await two.produce("t", idempotent(2, b"y", pid=43))
    ).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER, "it is new here"
    assert (await two.produce("t", idempotent(5, b"5", pid=44))).base_offset == 1, (
        "also new, but nothing was refused"
    )
    responses = [await two.produce("t", idempotent(at, b"%d" % at)) for at in (1, 2, 3)]
    assert [response.base_offset for response in responses] == [2, 3, 4]
    assert (
        await two.produce("t", idempotent(5, b"5"))
    ).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "a gap that does not exist"


async def test_batches_for_an_unknown_topic_id_are_retried_in_order(harness, one):
    """The producer learns about the topic before this broker does."""
    topic_id = harness.new_uuid()
    early = await one.produce(topic_id, idempotent(0, b"0"), version=13)
    assert early.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    harness.new_uuid = lambda: topic_id
    harness.topic("t")
    await one.opened("t")
    behind = await one.produce(topic_id, idempotent(1, b"1"), version=13)
    assert behind.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    responses = [
        await one.produce(topic_id, idempotent(at, b"%d" % at), version=13) for at in (0, 1)
    ]
    assert [response.base_offset for response in responses] == [0, 1]


async def test_a_batch_is_out_of_order_if_the_one_before_it_is_never_retried(
    harness, pair, monkeypatch
):
    one, two = pair
    harness.topic("t")
    await one.opened("t")
    assert (await one.produce("t", idempotent(0, b"0"))).base_offset == 0
    assert (
        await two.produce("t", idempotent(1, b"1"))
    ).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    harness.move("t", 2)
    await two.opened("t")
    assert (
        await two.produce("t", idempotent(2, b"2"))
    ).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    harness.now_ms += 3_600_000
    again = await two.produce("t", idempotent(2, b"2"))
    assert again.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER, (
        "the wall clock was set, no time has passed"
    )
    monkeypatch.setattr(refused, "_RETENTION_MS", -1)
    assert (
        await two.produce("t", idempotent(2, b"2"))
    ).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_a_broker_unsure_of_its_leadership_never_returns_out_of_order(harness, one):
    """The missing batches may be in the log of the next leader. librdkafka would start a new epoch
    and write the batch twice.
    """
    harness.topic("t")
    assert (await one.produce("t", idempotent(0, b"0"))).base_offset == 0
    one.is_unsure = True
    refused = [await one.produce("t", idempotent(at, b"%d" % at)) for at in (2, 3)]
    assert [response.error_code for response in refused] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
    assert (await one.produce("t", idempotent(0, b"0"))).base_offset == 0, "a repetition"
    assert (await one.produce("t", idempotent(1, b"1"))).base_offset == 1, (
        "in line: the WAL protects it"
    )
    one.is_unsure = False
    assert [(await one.produce("t", idempotent(at, b"%d" % at))).base_offset for at in (2, 3)] == [
        2,
        3,
    ]
    assert (
        await one.produce("t", idempotent(9, b"9"))
    ).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_requests_at_a_former_move_target_are_redirected(harness):
    one, two, three = [await harness.broker(number) for number in (1, 2, 3)]
    harness.topic("t")
    await one.opened("t")
    harness.move("t", 2)
    assert two.partitions.get("t", 0) is ErrorCode.LEADER_NOT_AVAILABLE
    waiting = two.start_produce({("t", 0): batch(b"a")})
    harness.move("t", 3)
    response = (await waiting)["t", 0]
    assert response.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert response.current_leader.leader_id == 3
    assert (await three.produce("t", batch(b"a"))).base_offset == 0
    assert two.partitions.get("t", 0) is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_dead_leader_is_replaced_at_once_and_requests_wait_for_the_recovery(harness):
    one, two, three = [await harness.broker(number) for number in (1, 2, 3)]
    harness.topic("t")
    leader, next_leader, other = (
        next(broker for broker in (one, two, three) if broker.node_id == node_id)
        for node_id in harness.record("t").replicas
    )
    await leader.opened("t")
    assert (await leader.produce("t", batch(b"a"))).base_offset == 0
    await leader.crash()
    harness.fence(leader)
    sent_on = await other.produce("t", batch(b"b"))
    assert sent_on.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (sent_on.current_leader.leader_id, sent_on.current_leader.leader_epoch) == (
        next_leader.node_id,
        1,
    )
    waiting = [next_leader.start_produce({("t", 0): batch(b"%d" % at)}) for at in range(3)]
    await asyncio.sleep(0)
    assert not any(response.done() for response in waiting)
    await harness.recover(leader, other)
    assert [(await response)["t", 0].base_offset for response in waiting] == [1, 2, 3]
    assert (harness.record("t").leader, harness.record("t").leader_epoch) == (
        next_leader.node_id,
        1,
    )
    assert await next_leader.values("t") == [b"a", b"0", b"1", b"2"]


async def test_requests_waiting_at_a_former_next_leader_are_redirected(harness, pair):
    one, two = pair
    harness.topic("t")
    leader, next_leader = (one, two) if harness.record("t").replicas[0] == 1 else (two, one)
    await leader.opened("t")
    await leader.crash()
    harness.fence(leader)
    waiting = next_leader.start_produce({("t", 0): batch(b"a")})
    back = await harness.broker(leader.node_id)
    response = (await waiting)["t", 0]
    assert response.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert response.current_leader.leader_id == back.node_id
    early = back.start_produce({("t", 0): batch(b"a")})
    await harness.recover(leader, next_leader)
    assert (await early)["t", 0].base_offset == 0


async def test_a_partition_stays_at_its_source_if_the_move_is_cancelled(harness, pair):
    one, _ = pair
    harness.topic("t")
    await one.opened("t")
    await one.produce("t", batch(b"a"))
    harness.move("t", 2)
    harness.move("t")
    assert is_moving(harness.record("t"))
    assert (await one.produce("t", batch(b"b"))).base_offset == 1
    assert harness.record("t").leader_epoch == 1
    assert await one.values("t") == [b"a", b"b"]


async def test_each_batch_is_stored_once_in_a_partition_moved_repeatedly_under_load(harness, pair):
    one, two = pair
    harness.topic("t")
    brokers = {1: one, 2: two}

    async def send(at):
        """Send the same batch, as an idempotent client does, until a broker accepts it."""
        while True:
            for broker in brokers.values():
                records = batch(b"%d" % at, producer_id=7, producer_epoch=0, base_sequence=at)
                response = await broker.produce("t", records, timeout_ms=200)
                if response.error_code in (0, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    return

    for at in range(60):
        sending = asyncio.ensure_future(send(at))
        if at % 6 == 3:
            await asyncio.sleep(0)
            harness.move("t", 1 + at // 6 % 2)
        await sending
    leader = brokers[harness.record("t").leader]
    await leader.opened("t")
    assert await leader.values("t") == [b"%d" % at for at in range(60)]


async def test_many_partitions_are_drained_in_batches(harness, pair):
    one, two = pair
    harness.live.discard(2)
    harness.topic("t", partitions=40)
    harness.live.add(2)
    for index in range(40):
        await one.opened("t", index)
    remaining = 1
    while remaining:
        request = m.DrainBroker(node_id=1, node_epoch=one.node_epoch, partitions_max=15)
        result = reassign.drain_broker(
            harness.image, request, harness.now_ms, live=harness.live, timeout_ms=10_000
        )
        remaining = harness.run(result).remaining
        await one.partitions.settled()
    assert len(one.partitions) == 0
    for index in range(40):
        await two.opened("t", index)
    assert not harness.image.streams.opened_by(one.me)
