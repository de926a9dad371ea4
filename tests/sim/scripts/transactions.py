"""Scripts about transactions and their coordinators."""

import asyncio
from contextlib import suppress

from penstock.broker.coordination.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from tests.sim.checkers import Part
from tests.sim.connections import NoResponse
from tests.sim.directed import Script, in_cluster
from tests.sim.directed_clients import Group, Producer

PART: Part = ("t", 0)


async def repeat_an_end(script: Script) -> None:
    """Repeat an EndTxn request of version 5, as after a lost response."""
    await script.create("t")
    producer = Producer(script, version=2)
    await producer.begin()
    for is_commit in (True, False):
        await producer.write(PART, (b"k", b"v"))
        coordinator = await producer.coordinator()
        ending = producer.ending(commit=is_commit)
        await producer.end(commit=is_commit)
        response = await script.send_request(coordinator, *ending)
        code, given = (
            ErrorCode(response.error_code),
            (response.producer_id, response.producer_epoch),
        )
        assert (code, given) == (ErrorCode.NONE, (producer.producer_id, producer.epoch)), (
            f"a repeated end gets {code.name} and {given}"
        )


async def end_after_a_new_instance(script: Script) -> None:
    """Let a fenced producer commit with EndTxn version 5 after its successor has committed."""
    await script.create("t")
    old, new = Producer(script), Producer(script)
    await old.begin()
    await old.write(PART, (b"k", b"old"))
    await old.end(commit=True)
    coordinator = await old.coordinator()
    await new.begin()
    await new.write(PART, (b"k", b"new"))
    await new.end(commit=True)
    response = await script.send_request(coordinator, *old.ending(commit=True, version=2))
    code = ErrorCode(response.error_code)
    assert code in {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH}, (
        f"a fenced producer commits and gets {code.name}"
    )


async def deliver_an_offset_late(script: Script) -> None:
    """Deliver the offset of an aborted transaction on an old connection, while the next transaction
    of the epoch is open.
    """
    await script.create("t")
    producer, group = Producer(script), Group(script)
    await producer.begin()
    old = await group.connect()
    await producer.stage(group, PART, 1)
    late = producer.staging(group, PART, 1)
    await producer.end(commit=False)
    await producer.stage(group, PART, 2)
    with suppress(NoResponse):
        await old.send_request(*late, 10.0)
    await producer.end(commit=True)
    offset = await group.committed(PART)
    assert offset == 2, f"the offset of the aborted transaction, {offset}, is committed"


async def read_offsets_at_an_old_coordinator(script: Script) -> None:
    """Fetch a committed offset from a coordinator that is cut off from the controllers, after its
    successor has committed another one.
    """
    await script.create(OFFSETS_TOPIC, (1,), cleanup_policy="compact")
    await script.create("t", (2,))
    group = Group(script)
    await group.commit(PART, 1)
    old = await group.coordinator()
    with script.isolated(1):
        await script.until_led((OFFSETS_TOPIC, 0), 2)
        await group.commit(PART, 2)
        found = await group.committed(PART, at=old)
    assert isinstance(found, ErrorCode), f"the old coordinator returns the offset {found}"


async def create_led_apart(script: Script) -> None:
    """Let broker 1 coordinate transactions, and broker 2 lead a partition."""
    await script.create(TRANSACTIONS_TOPIC, (1,), cleanup_policy="compact")
    await script.create("t", (2,))


async def crash_while_a_decision_is_stored(script: Script) -> None:
    """Crash the coordinator while it stores the decision to commit, which never arrives."""
    await create_led_apart(script)
    producer = Producer(script)
    await producer.begin()
    await producer.write(PART, (b"k", b"v"))
    script.hold(1)
    with suppress(NoResponse):
        await script.world.connect(script.broker(1)).send_request(
            *producer.ending(commit=True), 1.0
        )
        raise AssertionError("the decision is acknowledged before it is durable")
    await script.restart(1)
    await producer.end(commit=False)
    found = await script.values(PART, committed=True)
    assert not found, f"after the abort, readers get {found}"


async def crash_before_the_markers_are_sent(script: Script) -> None:
    """Restart the coordinator after a decision whose markers could not reach the leader."""
    await create_led_apart(script)
    producer = Producer(script)
    await producer.begin(timeout_ms=2_000)
    await producer.write(PART, (b"k", b"v"))
    with script.cut(1, 2):
        await producer.end(commit=True)
        await asyncio.sleep(5.0)  # longer than the transaction timeout
        await script.restart(1)
    await check_committed(script)


async def crash_the_leader_before_its_marker_is_stored(script: Script) -> None:
    """Crash coordinator and leader while the marker is being stored, which never arrives."""
    await create_led_apart(script)
    producer = Producer(script)
    await producer.begin()
    await producer.write(PART, (b"k", b"v"))
    held = script.hold(2)
    await producer.end(commit=True)
    await script.until(lambda: held.count)
    await asyncio.sleep(1.0)
    script.kill(2)
    await script.restart(1)
    await script.restart(2)
    await check_committed(script)


async def check_committed(script: Script) -> None:
    """Wait for the record of the only transaction, whose commit was acknowledged."""
    found: dict[bytes, bytes | None] = {}
    for _ in range(20):
        found = await script.values(PART, committed=True)
        if found == {b"k": b"v"}:
            return
        await asyncio.sleep(0.5)
    raise AssertionError(f"a transaction was committed, readers get {found}")


async def end_after_a_restart(script: Script) -> None:
    """Commit a transaction that began before the coordinator restarted, after other
    transactions.
    """
    await create_led_apart(script)
    producer = Producer(script)
    await producer.begin()
    for is_commit in (False, True, False):
        await producer.write(PART, (b"k", b"w"))
        await producer.end(commit=is_commit)
    await producer.write(PART, (b"k", b"v"))
    await script.upload(1)  # the next coordinator reads its log in one piece
    await script.restart(1)
    await producer.end(commit=True)
    await check_committed(script)


async def begin_twice(script: Script) -> None:
    await script.create("t")
    old, new = Producer(script), Producer(script)
    await old.begin()
    await new.begin()
    epochs = old.epoch, new.epoch
    assert epochs[0] < epochs[1], f"the producers have the epochs {epochs}"


async def write_after_a_timeout(script: Script) -> None:
    """Let a producer write after the coordinator has aborted its transaction because of
    a timeout.
    """
    await script.create("t")
    producer = Producer(script, version=2)
    await producer.begin(timeout_ms=1_000)
    await producer.write(PART, (b"k", b"1"))
    await asyncio.sleep(5.0)
    request = producer.request(PART, (b"k", b"2"))
    response = await script.send_request(script.broker(1), apis.PRODUCE, 12, request)
    code = ErrorCode(response.responses[0].partition_responses[0].error_code)
    assert code is not ErrorCode.NONE, "a fenced producer writes"


async def write_late_after_an_end(script: Script) -> None:
    """Deliver a batch of a transaction after its end has started the next epoch."""
    await script.create("t")
    producer = Producer(script, version=2)
    await producer.begin()
    await producer.write(PART, (b"k", b"1"))
    late = producer.request(PART, (b"k", b"2"))
    before = producer.producer_id, producer.epoch + 1
    await producer.end(commit=True)
    assert (producer.producer_id, producer.epoch) == before
    response = await script.send_request(script.broker(1), apis.PRODUCE, 12, late)
    code = ErrorCode(response.responses[0].partition_responses[0].error_code)
    assert code is not ErrorCode.NONE, "a batch of the transaction is appended after its end"


async def write_while_the_coordinator_is_unknown(script: Script) -> None:
    """Write in a new transaction to a leader that cannot reach the coordinator."""
    await create_led_apart(script)
    producer = Producer(script, version=2)
    await producer.begin()
    with script.cut(2, 1), suppress(NoResponse):
        request = producer.request(PART, (b"k", b"v"))
        response = await script.world.connect(script.broker(2)).send_request(
            apis.PRODUCE, 12, request, 2.0
        )
        code = ErrorCode(response.responses[0].partition_responses[0].error_code)
        assert code is not ErrorCode.NONE, "a batch is appended that the coordinator does not list"


async def read_an_offset_of_an_open_transaction(script: Script) -> None:
    await script.create("t")
    producer, group = Producer(script), Group(script)
    await producer.begin()
    await producer.stage(group, PART, 1)
    found = await group.committed(PART, at=await group.coordinator())
    assert found == -1, f"the offset {found} of an open transaction is committed"


async def commit_at_two_leaders(script: Script) -> None:
    await script.create(TRANSACTIONS_TOPIC, (1,), cleanup_policy="compact")
    await script.create("t", (2, 1))
    producer = Producer(script)
    await producer.begin()
    await producer.write(PART, (b"k", b"v"))
    await producer.write(("t", 1), (b"k", b"v"))
    await producer.end(commit=True)
    await check_committed(script)


@in_cluster(brokers=3)
async def commit_while_the_leader_changes(script: Script) -> None:
    """Commit through a coordinator that has not learned yet that another broker leads the
    partition.
    """
    await script.create(TRANSACTIONS_TOPIC, (1,), cleanup_policy="compact")
    await script.create("t", (2,))
    producer = Producer(script)
    await producer.begin()
    await producer.write(PART, (b"k", b"v"))
    coordinator = script.broker(1)
    with script.isolated(1):
        await script.move(PART, 3)
        await script.send_request(coordinator, *producer.ending(commit=True))
        await asyncio.sleep(1.0)
    await check_committed(script)


async def reopen_with_an_open_transaction(script: Script) -> None:
    """Restart the leader of a partition with an open transaction, from a checkpoint."""
    await script.create("t")
    producer = Producer(script)
    await producer.begin()
    await producer.write(PART, (b"k", b"v"))
    await script.checkpoint(PART)
    await script.restart(1)
    found = await script.values(PART, committed=True)
    assert not found, f"readers get {found} of an open transaction"
    await producer.end(commit=True)
    await check_committed(script)


async def append_in_front_of_a_marker(script: Script) -> None:
    """Read while a record before a marker is durable and the marker is not."""
    await create_led_apart(script)
    producer = Producer(script)
    await producer.begin()
    await producer.write(PART, (b"k", b"v"))
    held = script.hold(2)
    writing = script.producing(script.broker(2), PART, script.batch((b"l", b"plain")))
    await script.until(lambda: held.count == 1)
    await producer.end(commit=True)
    await script.until(lambda: held.count == 2)
    held.release(1)
    await writing
    found = await script.values(PART, committed=True)
    assert not found, f"readers get {found} before the marker is durable"
