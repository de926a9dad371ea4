"""A reader of the store sees the same transactions as the leader's consumers, for any layout of the
store.
"""

from random import Random

import pytest

from penstock.controller.active.manifest.changes import ManifestChanges
from penstock.controller.active.manifest.ledger import Ledger
from penstock.lake.arrow.read import read_slices
from penstock.lake.manifest.errors import OffsetsLost, OffsetsMissing
from penstock.lake.manifest.plan import OffsetRange
from penstock.lake.manifest.view import ClusterView
from penstock.protocol.error_codes import ErrorCode
from penstock.stream.format.keys import manifest_key
from penstock.stream.format.manifest.codec import Draft
from penstock.stream.format.manifest.model import LiveWal, ManifestRoot
from tests.support.partition_harness import PartitionHarness, batch, transactional


class Published(PartitionHarness):
    """A controller that publishes on demand."""

    def __init__(self):
        self.changes = ManifestChanges(everything=True)
        super().__init__()
        self.ledger, self.version = Ledger(), 0

    def apply(self, records):
        self.changes.note(records)
        super().apply(records)

    async def publish(self):
        draft = Draft(self.version + 1)
        changes, self.changes = self.changes, ManifestChanges()
        self.ledger.absorb(changes, self.image, draft.version)
        while not self.ledger.capture(self.image, 1):
            pass
        for _ in self.ledger.write(draft):
            pass
        self.version += 1
        wals = tuple(
            LiveWal(wal.writer.node_id, wal.writer.node_epoch, wal.committed)
            for wal in self.image.nodes.running_wals()
        )
        root = ManifestRoot(
            "test",
            1,
            self.version,
            self.image.end_offset,
            self.now_ms,
            wals,
            self.ledger.topic_entries(),
        )
        await self.store.put_if_absent(manifest_key("test", self.version), draft.finish(root))


@pytest.fixture
async def harness():
    harness = Published()
    await harness.leading("t", partitions=1)
    await harness.publish()
    yield harness
    await harness.close()


async def rows(harness, view, start, end):
    requested = [OffsetRange("t", 0, start, end)]
    slices = await view.plan(requested)
    aborted = await view.aborted(requested)
    found = []
    async for arrow in read_slices(harness.store, slices, ("offset", "value"), aborted):
        found += zip(
            arrow.column("offset").to_pylist(), arrow.column("value").to_pylist(), strict=True
        )
    return found


async def state(view):
    await view.refresh()
    (found,) = await view.partitions(["t"], committed=True)
    return found


async def test_a_tail_reader_stops_at_the_last_stable_offset(harness):
    (one,) = harness.brokers
    view = ClusterView(harness.store)
    await one.produce("t", batch(b"plain"))
    await one.produce("t", transactional(7, 0, b"a"))
    await one.produce("t", batch(b"behind"))
    found = await state(view)
    assert (found.end_offset, found.last_stable_offset) == (3, 1)
    assert await rows(harness, view, 0, 1) == [(0, b"plain")]
    with pytest.raises(OffsetsMissing):
        await view.aborted([OffsetRange("t", 0, 0, 2)])
    await one.mark("t", 7, commit=False)
    assert (await state(view)).last_stable_offset == 4
    assert await rows(harness, view, 0, 4) == [(0, b"plain"), (2, b"behind")]
    assert await rows(harness, view, 1, 2) == []
    assert [item.stream_id for item in await view.partitions(["t"])] == list(
        await view.aborted([OffsetRange("t", 0, 2, 3)])
    )


async def test_reads_of_trimmed_transaction_events_raise_offsets_lost(harness):
    (one,) = harness.brokers
    view = ClusterView(harness.store)
    for number in range(3):
        await one.produce("t", transactional(7, number, b"%d" % number))
        await one.mark("t", 7, commit=number == 2)
    await one.produce("t", transactional(8, 0, b"open"))
    partition = await one.opened("t")
    await one.storage.upload()
    await one.storage.trim(partition.log.data, 7)
    await one.partitions._opener.checkpoint([partition])
    await harness.publish()
    found = await state(view)
    assert (found.log_start, found.last_stable_offset) == (7, 6)
    assert found.readable_end(committed=True) == 7
    with pytest.raises(OffsetsLost):
        await view.aborted([OffsetRange("t", 0, 0, 6)])


async def test_a_reader_identifies_ranges_without_markers_and_transactions(harness):
    """Offset 1 is the marker of a transaction that wrote nothing here; 3 to 5 are an aborted
    transaction.
    """
    (one,) = harness.brokers
    view = ClusterView(harness.store)

    async def is_plain(start, end):
        await view.refresh()
        return bool(await view.plain([OffsetRange("t", 0, start, end)]))

    await one.produce("t", batch(b"plain"))
    assert await is_plain(0, 1)
    await one.mark("t", 5, commit=True)
    await one.produce("t", batch(b"behind"))
    assert (await is_plain(0, 3), await is_plain(1, 3), await is_plain(2, 3)) == (
        False,
        False,
        True,
    )
    await one.produce("t", transactional(7, 0, b"a"))
    await one.produce("t", batch(b"meanwhile"))
    assert not await is_plain(2, 4)
    assert not await is_plain(4, 5), "its marker may come"
    await one.mark("t", 8, commit=True)
    await one.mark("t", 7, commit=False)
    await one.produce("t", batch(b"last"))
    assert not await is_plain(5, 8), "of the marker while a transaction was open"
    assert await is_plain(7, 8)


@pytest.mark.parametrize("seed", range(6))
async def test_a_store_reader_and_a_consumer_read_the_same_records(harness, seed):
    rng = Random(seed)
    view, sequences, known = ClusterView(harness.store), {}, {}
    for _ in range(60):
        leader = harness.brokers[-1]
        step = rng.choices(
            ["write", "plain", "commit", "abort", "upload", "publish", "look", "move", "crash"],
            [12, 3, 4, 4, 2, 2, 4, 1, 1],
        )[0]
        pid = rng.randint(1, 4)
        if step == "write":
            sequence = sequences.get(pid, 0)
            response = await leader.produce(
                "t", transactional(pid, sequence, b"%d-%d" % (pid, sequence))
            )
            assert response.error_code == ErrorCode.NONE
            sequences[pid] = sequence + 1
        elif step == "plain":
            await leader.produce("t", batch(b"plain", b"plain"))
        elif step in {"commit", "abort"}:
            assert await leader.mark("t", pid, commit=step == "commit") == ErrorCode.NONE
        elif step == "upload":
            await leader.storage.upload()
        elif step == "publish":
            await harness.publish()
        elif step in {"move", "crash"}:
            await another_leads(harness, crash=step == "crash")
        else:
            await look(harness, view, known, rng)
    await look(harness, view, known, rng)


async def another_leads(harness, *, crash):
    (old,) = harness.brokers
    new = await harness.broker(10 + harness.uuids)
    if crash:
        await old.crash()
        await harness.fail_over(old, new)
    else:
        harness.lead("t", new)
    await new.opened("t")
    if not crash:
        await old.close()
        harness.live.discard(old.node_id)
    await harness.publish()


async def look(harness, view, known, rng):
    """Check that the rows of a range depend only on the range: read now or later, as a whole or in
    parts.
    """
    leader = harness.brokers[-1]
    found = await state(view)
    partition = await leader.opened("t")
    assert (found.end_offset, found.last_stable_offset) == (
        partition.high_watermark,
        partition.last_stable_offset,
    )
    end = found.last_stable_offset
    seen = await rows(harness, view, 0, end)
    assert [value for _, value in seen] == await leader.committed("t")
    cut = rng.randint(0, end)
    assert await rows(harness, view, 0, cut) + await rows(harness, view, cut, end) == seen
    fresh = ClusterView(harness.store)
    assert (await state(fresh)).last_stable_offset == end
    for (low, high), before in known.items():
        assert await rows(harness, fresh, low, high) == before
    if len(known) < 4:
        known[cut, end] = [row for row in seen if row[0] >= cut]
