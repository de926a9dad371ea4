"""Scripts about transactions and their coordinators."""

from contextlib import suppress

from penstock.broker.coordination.internal_topics import OFFSETS_TOPIC
from penstock.protocol.error_codes import ErrorCode
from tests.sim.checkers import Part
from tests.sim.connections import Unanswered
from tests.sim.directed import Script
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
        answer = await script.ask(coordinator, *ending)
        code, given = ErrorCode(answer.error_code), (answer.producer_id, answer.producer_epoch)
        assert (code, given) == (ErrorCode.NONE, (producer.producer_id, producer.epoch)), (
            f"a repeated end gets {code.name} and {given}"
        )


async def end_after_a_new_instance(script: Script) -> None:
    """Let a fenced producer commit by EndTxn of version 5 after its successor has committed."""
    await script.create("t")
    old, new = Producer(script), Producer(script)
    await old.begin()
    await old.write(PART, (b"k", b"old"))
    await old.end(commit=True)
    coordinator = await old.coordinator()
    await new.begin()
    await new.write(PART, (b"k", b"new"))
    await new.end(commit=True)
    answer = await script.ask(coordinator, *old.ending(commit=True, version=2))
    code = ErrorCode(answer.error_code)
    assert code in {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH}, (
        f"a fenced producer commits and gets {code.name}"
    )


async def deliver_an_offset_late(script: Script) -> None:
    """Deliver the offset of a transaction that was aborted on an old connection, while the next
    transaction of the epoch is open.
    """
    await script.create("t")
    producer, group = Producer(script), Group(script)
    await producer.begin()
    old = await group.connect()
    await producer.stage(group, PART, 1)
    late = producer.staging(group, PART, 1)
    await producer.end(commit=False)
    await producer.stage(group, PART, 2)
    with suppress(Unanswered):
        await old.ask(*late, 10.0)
    await producer.end(commit=True)
    offset = await group.committed(PART)
    assert offset == 2, f"the offset of the aborted transaction, {offset}, is committed"


async def read_offsets_at_an_old_coordinator(script: Script) -> None:
    """Read a committed offset at a coordinator that is cut off from the controllers, after its
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
