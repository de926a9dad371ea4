"""Scripts about external jobs that rewrite ranges."""

from penstock.deploy.cli.compact_job import ControllerRewrites
from penstock.lake.rewrite.job import RewriteTask, rewrite
from penstock.lake.rewrite.run import Exchange
from penstock.stream.compaction.plan import Compaction
from tests.sim.directed import Script
from tests.sim.limits import PREPARED_TTL_MS
from tests.sim.scripts.topics import PART


async def rewrite_ranges_twice(script: Script) -> None:
    """Two jobs rewrite the same ranges, and both commit."""
    await script.create("t")
    for value in (b"1", b"2"):
        await script.write(PART, (b"k", value))
        await script.upload(1)
    await script.world.admin.run(lambda: _rewrite_twice(script))
    found = [record.value for record in await script.read(PART)]
    assert found == [b"1", b"2"], f"the log has {found}"


async def _rewrite_twice(script: Script) -> None:
    world = script.world
    stream_id = script.topic("t").partitions[0].data_stream_id
    sources = tuple(world.metadata.image.find_ranges(stream_id, 0, 2, 2))
    metadata = ControllerRewrites(world.admin.client)
    conflicts = list[bool]()
    exchanges = list[Exchange]()
    now_ms = world.now_ms()
    for target in await metadata.prepare(2, PREPARED_TTL_MS):
        task = RewriteTask(0, Compaction(sources), target, now_ms, now_ms + PREPARED_TTL_MS)
        result = await rewrite(script.broker(1).raw_store, task, world.now_ms)
        assert result.new is not None, result.detail
        exchanges.append(Exchange(result.new, sources))
    for exchange in exchanges:
        conflicts += map(bool, await metadata.commit(stream_id, [exchange]))
    assert conflicts == [False, True], f"the conflicts are {conflicts}"
