"""The wall clock of the active controller is changed by hours, and no duration is affected."""

from pathlib import Path

import pytest

from penstock.base.clock import steady
from penstock.base.ids import (
    Millis,
    NodeId,
    Offset,
    StreamId,
)
from penstock.controller.active.writer import Runtime
from penstock.controller.api import messages as m
from penstock.controller.metadata.objects import ObjectPhase
from penstock.stream.errors import ObjectNotPrepared
from penstock.stream.ports import (
    CommitObjects,
    NewObject,
    ObjectRole,
    OpenStream,
    PreparedObject,
    StreamRange,
)
from tests.support.controller_cluster import Broker, Cluster
from tests.support.waiting import until

HOUR_MS = 3_600_000


class SteppingCluster(Cluster):
    def __init__(self, directory: Path, **settings: object) -> None:
        super().__init__(directory, **settings)
        self.wall_ms = 1_700_000_000_000
        self.server._now_ms = lambda: Millis(self.wall_ms)

    async def rounds(self, name: str, count: int) -> None:
        """Wait for this many rounds of a periodic controller task."""
        done = 0
        real = Runtime.submit

        async def submit(
            runtime: Runtime, requested: str, *args: object, **options: object
        ) -> object:
            nonlocal done
            reply = await real(runtime, requested, *args, **options)
            done += requested == name
            return reply

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Runtime, "submit", submit)
            await until(lambda: done >= count)


async def stream_of(broker: Broker) -> OpenStream:
    await broker.client.create_topics(m.CreateTopics(topics=[m.NewTopic(name="t")]))
    found = broker.image.topics.by_name("t")
    assert found is not None
    opening = [
        OpenStream(stream_id, found.partitions[0].leader_epoch)
        for stream_id in found.partitions[0].stream_ids
    ]
    await broker.metadata.open_streams(opening)
    return next(item for item in opening if item.stream_id == found.partitions[0].data_stream_id)


def written(target: PreparedObject, stream_id: StreamId) -> CommitObjects:
    held = StreamRange(stream_id, Offset(0), Offset(5), 5, 100, Millis(1))
    return CommitObjects(
        objects=(NewObject(target.object_id, target.key, ObjectRole.STREAM, 100, (held,)),)
    )


@pytest.mark.parametrize("step_ms", [2 * HOUR_MS, -2 * HOUR_MS])
async def test_prepared_objects_survive_a_wall_clock_change(tmp_path: Path, step_ms: int) -> None:
    cluster = SteppingCluster(tmp_path / "controller")
    await cluster.start()
    try:
        broker = await cluster.broker()
        stream = await stream_of(broker)
        target = (await broker.metadata.prepare_objects(1))[0]
        cluster.wall_ms += step_ms
        await cluster.rounds("ExpirePrepared", 3)
        await broker.metadata.commit(written(target, stream.stream_id))
        state = broker.image.objects.get(target.object_id)
        assert state is not None
        assert state.phase == ObjectPhase.COMMITTED
    finally:
        await cluster.stop()


async def test_committing_an_object_that_is_not_prepared_is_an_error(tmp_path: Path) -> None:
    cluster = SteppingCluster(tmp_path / "controller")
    await cluster.start()
    try:
        broker = await cluster.broker()
        stream = await stream_of(broker)
        target = (await broker.metadata.prepare_objects(1))[0]
        with pytest.raises(ObjectNotPrepared, match="prepare it again"):
            await broker.metadata.commit(
                written(PreparedObject(target.object_id, target.key + "x"), stream.stream_id)
            )
    finally:
        await cluster.stop()


@pytest.mark.parametrize("step_ms", [2 * HOUR_MS, -2 * HOUR_MS])
async def test_the_source_of_a_move_has_its_full_timeout_despite_wall_clock_changes(
    tmp_path: Path, step_ms: int
) -> None:
    """The source is not fenced early, and a hung source is not kept for hours."""
    timeout_ms = 60_000 if step_ms > 0 else 200
    cluster = SteppingCluster(tmp_path / "controller", move_timeout_ms=timeout_ms)
    await cluster.start()
    try:
        source = await cluster.broker()
        await stream_of(source)
        other = await cluster.broker()
        requested = m.PartitionTarget(topic="t", partition=0, replicas=[NodeId(other.node.node_id)])
        await other.client.alter_reassignments(m.AlterReassignments(partitions=[requested]))
        cluster.wall_ms += step_ms
        if step_ms > 0:
            await cluster.rounds("FenceOverdue", 3)
            assert other.image.nodes.is_alive(source.node)
        else:
            await until(lambda: not other.image.nodes.is_alive(source.node))
    finally:
        await cluster.stop()


def test_the_steady_clock_ignores_wall_clock_changes() -> None:
    wall_ms, now_s = 1_000_000, 5.0
    clock = steady(lambda: Millis(wall_ms), lambda: now_s)
    wall_ms += HOUR_MS
    assert clock() == 1_000_000
    now_s += 1.5
    assert clock() == 1_001_500
