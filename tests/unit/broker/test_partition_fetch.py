"""Consumer fetches: long polls, limits, epochs, offsets and timestamps."""

import asyncio
from uuid import UUID

import pytest

from penstock.broker.handlers.fetch import fetch_call
from penstock.broker.partition.byte_limiter import ByteLimiter
from penstock.objectstore.errors import ObjectNotFound
from penstock.protocol.error_codes import ErrorCode
from penstock.stream.cache import log_cache
from tests.support.partition_harness import NOW, batch, records_of
from tests.support.waiting import PATIENCE_S


@pytest.fixture
async def one(harness):
    return await harness.leading("t", partitions=3)


LONG_MS = 10 * PATIENCE_S * 1_000


def parked(broker, requested, **options):
    return asyncio.ensure_future(
        broker.fetch_all(requested, max_wait_ms=options.pop("max_wait_ms", LONG_MS), **options)
    )


async def turns(count=5):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_waiting_fetch_returns_the_next_record_of_any_of_its_partitions(one):
    poll = parked(one, [("t", 0, 0), ("t", 1, 0)])
    await turns()
    assert not poll.done()
    await one.produce("t", batch(b"a"), index=1)
    response = await poll
    assert [len(partition.records) > 0 for partition in response.responses[0].partitions] == [
        False,
        True,
    ]
    assert response.responses[0].partitions[0].records is not None


async def test_a_fetch_waits_for_min_bytes(one):
    size = len(batch(b"a"))
    poll = parked(one, [("t", 0, 0), ("t", 1, 0)], min_bytes=2 * size + 1)
    await one.produce("t", batch(b"a"))
    await one.produce("t", batch(b"a"), index=1)
    await turns()
    assert not poll.done()
    await one.produce("t", batch(b"a"))
    assert sum(len(p.records) for p in (await poll).responses[0].partitions) == 3 * size


async def test_without_new_records_a_fetch_waits_for_exactly_max_wait(one):
    loop = asyncio.get_running_loop()
    started = loop.time()
    found = await one.fetch("t", max_wait_ms=60)
    assert loop.time() - started >= 0.059
    assert (found.error, found.values, found.raw.records) == (0, [], b"")


async def test_an_error_in_one_partition_is_reported_at_once(one):
    response = await one.fetch_all([("t", 0, 0), ("t", 7, 0)], max_wait_ms=30_000)
    assert [p.error_code for p in response.responses[0].partitions] == [
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


async def test_losing_the_leadership_completes_waiting_fetches(one):
    poll = parked(one, [("t", 0, 0)])
    await turns()
    one.harness.lead("t", None)
    assert (await poll).responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def while_its_task_is_due(one, happens):
    """Fetch, run something before the fetch task starts, and return the response. A wake-up lost at
    that point would delay the response to max_wait.
    """
    async with asyncio.timeout(PATIENCE_S):
        response = await one.fetch_all([("t", 0, 0)], max_wait_ms=300_000, meanwhile=happens)
    return response.responses[0].partitions[0]


async def test_a_record_that_arrives_between_lookup_and_wait_completes_the_fetch(one):
    async def produce():
        await one.produce("t", batch(b"a"))

    assert len((await while_its_task_is_due(one, produce)).records) == len(batch(b"a"))


async def test_losing_leadership_between_lookup_and_wait_completes_the_fetch(one):
    async def go():
        one.harness.lead("t", None)
        await turns()

    found = await while_its_task_is_due(one, go)
    assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_losing_the_session_between_lookup_and_wait_completes_the_fetch(one):
    async def end():
        one.writable = False
        one.partitions.wake_readers()

    found = await while_its_task_is_due(one, end)
    assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_fetch_waits_for_a_partition_that_is_opening(one):
    one.harness.refusing_opens = 1
    one.harness.topic("new")
    poll = parked(one, [("new", 0, 0)])
    await one.produce("new", batch(b"a"))
    assert len((await poll).responses[0].partitions[0].records) > 0


async def test_offsets_outside_the_log_are_rejected(one):
    await one.produce("t", batch(b"a", b"b"))
    assert (await one.fetch("t", offset=3)).error == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (await one.fetch("t", offset=-1)).error == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (await one.fetch("t", offset=2)).error == 0
    partition = await one.opened("t")
    await one.storage.trim(partition.log.data, 1)
    found = await one.fetch("t", offset=0)
    assert (found.error, found.log_start) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


async def test_undurable_records_are_not_returned(one):
    one.storage.stop_acknowledging()
    pending = one.start_produce({("t", 0): batch(b"a", b"b")})
    await turns(20)
    found = await one.fetch("t", offset=1)
    assert (found.error, found.values, found.high_watermark) == (0, [], 0)
    one.storage.resume_acknowledging()
    await pending


async def test_the_first_batch_is_returned_whatever_its_size(one):
    size = len(batch(b"v" * 1000))
    for index in range(3):
        for _ in range(3):
            await one.produce("t", batch(b"v" * 1000), index=index)

    async def sizes(**options):
        requested = [
            ("t", index, 0, {"partition_max_bytes": options.pop("each", 1 << 20)})
            for index in range(3)
        ]
        response = await one.fetch_all(requested, **options)
        return sorted(len(p.records) // size for p in response.responses[0].partitions)

    assert await sizes(max_bytes=1) == [0, 0, 1]
    assert await sizes(max_bytes=0) == [0, 0, 1]
    assert await sizes(max_bytes=size * 4) == [0, 1, 3]
    assert await sizes() == [3, 3, 3]
    found = await one.fetch_all(
        [("t", index, 0, {"partition_max_bytes": 10}) for index in range(3)]
    )
    assert sorted(len(p.records) // size for p in found.responses[0].partitions) == [0, 0, 1]


async def test_partitions_take_turns_if_the_limit_is_too_low_for_all(one):
    for index in range(3):
        await one.produce("t", batch(b"v" * 1000), index=index)
    served = set()
    for _ in range(3):
        response = await one.fetch_all([("t", index, 0) for index in range(3)], max_bytes=10)
        served |= {p.partition_index for p in response.responses[0].partitions if p.records}
    assert served == {0, 1, 2}


async def test_the_number_of_batches_in_a_response_is_limited(one, monkeypatch):
    """This also applies if the client asks for more bytes than these batches have."""
    for module in (fetch_call, log_cache):
        monkeypatch.setattr(module, "READ_ENTRIES_MAX", 3)
    for number in range(4):
        for index in range(2):
            await one.produce("t", batch(b"%d" % number), index=index)
    position, responses = [0, 0], []
    while position != [4, 4]:
        requested = [("t", index, position[index]) for index in range(2)]
        min_bytes = 1 if responses else 10_000
        response = await one.fetch_all(requested, min_bytes=min_bytes, max_wait_ms=300_000)
        found = [len(records_of(p)) for p in response.responses[0].partitions]
        position = [at + count for at, count in zip(position, found, strict=True)]
        responses.append(sum(found))
    assert responses[0] == 3
    assert max(responses) < 2 * 3
    assert sum(responses) == 8


async def test_leader_epochs_are_validated(one):
    await one.produce("t", batch(b"a"))
    partition = await one.harness.hand_over("t", one)
    assert partition.leader_epoch == 1

    async def error(epoch):
        response = await one.fetch_all([("t", 0, 0, {"current_leader_epoch": epoch})])
        found = response.responses[0].partitions[0]
        offsets = found.high_watermark, found.last_stable_offset, found.log_start_offset
        assert (min(offsets) < 0) == (max(offsets) < 0) == (found.error_code != 0)
        return found.error_code

    assert await error(0) == ErrorCode.FENCED_LEADER_EPOCH
    assert await error(1) == 0
    assert await error(2) == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert (
        (await one.epoch_end("t", 0)).leader_epoch,
        (await one.epoch_end("t", 0)).end_offset,
    ) == (0, 1)
    await one.produce("t", batch(b"b", b"c"))
    ends = [await one.epoch_end("t", epoch) for epoch in (0, 1, 2)]
    assert [(end.leader_epoch, end.end_offset) for end in ends] == [(0, 1), (1, 3), (-1, -1)]
    assert (await one.epoch_end("t", 0, leader_epoch=0)).error_code == ErrorCode.FENCED_LEADER_EPOCH


async def test_topics_can_be_fetched_by_id(one):
    await one.produce("t", batch(b"a"))
    topic_id = one.image.topics.by_name("t").topic_id
    known = await one.fetch(topic_id, version=13)
    assert known.values == [b"a"]
    assert (await one.fetch(UUID(int=99), version=16)).error == ErrorCode.UNKNOWN_TOPIC_ID


async def test_a_waiting_fetch_by_id_returns_nothing_from_a_recreated_topic(one):
    await one.produce("t", batch(b"old"))
    old = one.image.topics.by_name("t").topic_id
    waiting = asyncio.ensure_future(one.fetch(old, 1, version=13, max_wait_ms=60_000))
    await turns()
    harness = one.harness
    with harness.at_once():
        harness.delete("t")
        harness.topic("t")
    assert (await waiting).error == ErrorCode.UNKNOWN_TOPIC_ID


async def test_read_committed_gets_a_list_of_aborted_transactions(one):
    await one.produce("t", batch(b"a"))
    found = await one.fetch("t", isolation_level=1)
    assert (found.values, found.raw.aborted_transactions, found.raw.last_stable_offset) == (
        [b"a"],
        [],
        1,
    )
    assert (await one.fetch("t")).raw.aborted_transactions is None


async def test_the_current_leader_is_returned_in_versions_that_have_the_field(one):
    two = await one.harness.broker(2)
    await one.harness.hand_over("t", two)
    produced = await one.produce("t", batch(b"a"), version=11)
    assert (produced.error_code, produced.current_leader.leader_id) == (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        2,
    )
    response = await one.fetch_all([(one.image.topics.by_name("t").topic_id, 0, 0)], version=16)
    assert response.responses[0].partitions[0].current_leader.leader_id == 2
    assert [endpoint.node_id for endpoint in response.node_endpoints] == [2]


async def test_cold_data_is_read_from_the_store(one):
    for at in range(5):
        await one.produce("t", batch(b"%d" % at))
        await one.produce("t", batch(b"%d" % at), index=1)
    two = await one.harness.broker(2)
    for index in (0, 1):
        await one.harness.hand_over("t", two, index)
    assert await two.values("t") == [b"%d" % at for at in range(5)]
    response = await two.fetch_all([("t", 0, 3), ("t", 1, 1)], max_wait_ms=30_000, max_bytes=10)
    assert sorted(len(p.records) > 0 for p in response.responses[0].partitions) == [False, True]


async def test_a_continuing_consumer_gets_prefetched_records_without_a_task(one, monkeypatch):
    """The fetch does not wait for more records, even if it asks for more bytes."""
    for at in range(60):
        await one.produce("t", batch(b"%02d" % at))
    two = await one.harness.broker(2)
    await one.harness.hand_over("t", two)
    cold_count = 0
    real = two.storage.reader.read

    async def counted(*args):
        nonlocal cold_count
        cold_count += 1
        return await real(*args)

    monkeypatch.setattr(two.storage.reader, "read", counted)
    each = {"partition_max_bytes": 3 * len(batch(b"00"))}
    values, fetches_count = [], 0
    while len(values) < 60:
        fetching = two.fetch_all(
            [("t", 0, len(values), each)], max_wait_ms=LONG_MS, min_bytes=1 << 20, isolation_level=1
        )
        (found,) = (await asyncio.wait_for(fetching, PATIENCE_S)).responses[0].partitions
        values += [record.value for record in records_of(found)]
        fetches_count += 1
        await turns(20)
    assert values == [b"%02d" % at for at in range(60)]
    assert 20 <= fetches_count <= 22, "less where the next object is on its way"
    assert 0 < cold_count < fetches_count


async def test_a_topic_that_is_deleted_during_a_cold_read_is_not_out_of_range(one, monkeypatch):
    """The position of the consumer was valid, so it must not be reset."""
    await one.produce("t", batch(b"a"))
    two = await one.harness.broker(2)
    await one.harness.hand_over("t", two)
    real = two.harness.store.get_range

    async def deleted_meanwhile(key, start, length):
        monkeypatch.setattr(two.harness.store, "get_range", real)
        two.harness.delete("t")
        raise ObjectNotFound(key)

    monkeypatch.setattr(two.harness.store, "get_range", deleted_meanwhile)
    found = await two.fetch("t", 0)
    assert found.error == ErrorCode.KAFKA_STORAGE_ERROR


async def test_an_unreadable_partition_is_a_retriable_error_only_for_itself(one):
    await one.produce("t", batch(b"a"))
    await one.produce("t", batch(b"b"), index=1)
    two = await one.harness.broker(2)
    await one.harness.hand_over("t", two)
    await one.harness.hand_over("t", two, 1)
    await two.produce("t", batch(b"c"), index=1)
    await one.harness.store.delete([info.key async for info in one.harness.store.list("")])
    response = await two.fetch_all([("t", 0, 0), ("t", 1, 1)], version=12)
    assert [p.error_code for p in response.responses[0].partitions] == [
        ErrorCode.KAFKA_STORAGE_ERROR,
        0,
    ]
    assert len(response.responses[0].partitions[1].records) > 0
    await two.partitions.close()
    await two.storage.abandon()


async def test_list_offsets_by_timestamp(one):
    for at in range(4):
        await one.produce("t", batch(b"a", b"b", timestamp=NOW + at * 100))

    async def offset(timestamp):
        found = await one.list_offsets("t", timestamp)
        assert found.error_code == 0
        return found.offset, found.timestamp

    assert await offset(-1) == (8, -1)
    assert await offset(-2) == (0, -1)
    assert await offset(-3) == (6, NOW + 300)
    assert await offset(NOW - 5) == (0, NOW)
    assert await offset(NOW + 101) == (4, NOW + 200)
    assert await offset(NOW + 301) == (-1, -1)
    assert (await one.list_offsets("t", NOW)).leader_epoch == 0
    two = await one.harness.broker(2)
    await one.harness.hand_over("t", two)
    cold = [
        (found.offset, found.timestamp)
        for found in [await two.list_offsets("t", t) for t in (-3, NOW + 101)]
    ]
    assert cold == [(6, NOW + 300), (4, NOW + 200)]
    assert (await one.list_offsets("t", -1)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_the_maximum_timestamp_is_that_of_a_durable_record(one):
    """Earlier versions returned no record while a newer one was being written to the store."""
    await one.produce("t", batch(b"a", timestamp=NOW))
    await one.produce("t", batch(b"b", timestamp=NOW - 100))
    one.storage.stop_acknowledging()
    pending = one.start_produce({("t", 0): batch(b"c", timestamp=NOW + 500)})
    await turns(20)
    found = await one.list_offsets("t", -3)
    assert (found.error_code, found.offset, found.timestamp) == (0, 0, NOW)
    one.storage.resume_acknowledging()
    await pending
    assert (await one.list_offsets("t", -3)).offset == 2


async def test_an_empty_log_has_no_offset_for_any_timestamp(one):
    assert (await one.list_offsets("t", -3)).offset == -1
    assert (await one.list_offsets("t", NOW)).offset == -1
    assert (await one.list_offsets("t", -1)).offset == 0


async def test_a_byte_limiter_grants_in_order_and_survives_cancelled_waiters():
    limiter, order = ByteLimiter(100), []
    release = asyncio.Event()

    async def hold(name, size):
        async with limiter.hold(size):
            order.append(name)
            await release.wait()

    tasks = [
        asyncio.ensure_future(hold(name, size)) for name, size in (("a", 80), ("b", 500), ("c", 10))
    ]
    await turns()
    assert order == ["a"]
    tasks[1].cancel()
    await turns()
    assert order == ["a", "c"]
    release.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    async with limiter.hold(100):
        pass


# --- without a session, or unsure of leadership ---------------------------------------------------


async def test_without_a_session_a_fetch_returns_no_records(one):
    await one.produce("t", batch(b"a", b"b"))
    one.writable = False
    found = await one.fetch("t")
    assert (found.error, found.values, found.high_watermark) == (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        [],
        -1,
    )
    for timestamp in (-1, -2, -3, NOW):
        assert (
            await one.list_offsets("t", timestamp)
        ).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await one.epoch_end("t", 0)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    one.writable = True
    assert (await one.fetch("t")).values == [b"a", b"b"]


async def test_an_offset_beyond_a_stale_log_end_is_not_out_of_range(one):
    """The new leader has records at this offset, and a consumer that gets OFFSET_OUT_OF_RANGE
    resets its position.
    """
    await one.produce("t", batch(b"a"))
    assert (await one.fetch("t", 5)).error == ErrorCode.OFFSET_OUT_OF_RANGE
    one.writable = False
    assert (await one.fetch("t", 5)).error == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_waiting_fetch_completes_when_the_session_ends(one):
    poll = parked(one, [("t", 0, 0)])
    await turns()
    one.writable = False
    one.partitions.wake_readers()
    assert (await poll).responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_fetch_checks_the_session_after_the_process_was_suspended(one):
    """No task could complete it earlier: its wait ends at the same moment as the session."""
    poll = parked(one, [("t", 0, 0)], max_wait_ms=1_000)
    await turns()
    one.writable = False
    assert (await poll).responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_cold_read_that_outlives_the_session_returns_nothing(one, monkeypatch):
    await one.produce("t", batch(b"a"))
    partition = one.partitions.get("t", 0)

    async def read(*_args, **_options):
        one.writable = False
        await asyncio.sleep(0)
        return [batch(b"a")]

    monkeypatch.setattr(type(partition), "read_cached", lambda *_args, **_options: None)
    monkeypatch.setattr(type(partition), "read", read)
    found = await one.fetch("t", max_wait_ms=1_000)
    assert (found.error, found.values, found.high_watermark) == (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        [],
        -1,
    )


async def test_a_lookup_that_outlives_the_session_returns_nothing(one, monkeypatch):
    await one.produce("t", batch(b"a"))

    async def look_up(*_args):
        one.writable = False
        await asyncio.sleep(0)
        return (0, NOW)

    monkeypatch.setattr(type(one.storage), "offset_for_timestamp", look_up)
    found = await one.list_offsets("t", NOW)
    assert (found.error_code, found.offset) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


async def test_records_but_no_log_ends_are_returned_while_the_controller_is_down(one):
    """The controller's address refuses connections, so it is most likely down. Records never
    change, but log ends do.
    """
    await one.produce("t", batch(b"a"))
    one.is_unsure = True
    assert (await one.fetch("t")).values == [b"a"]
    assert (await one.fetch("t", 5)).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await one.list_offsets("t", -1)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await one.epoch_end("t", 0)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
