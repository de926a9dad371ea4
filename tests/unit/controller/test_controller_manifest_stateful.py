"""Random requests to all managers, with occasional manifests: a reader's plan equals the image at
the time of the manifest.
"""

import asyncio
from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import rule, run_state_machine_as_test

from penstock.base.ids import Millis
from penstock.controller.active.manifest import ledger as ledger_module
from penstock.controller.active.manifest.changes import ManifestChanges
from penstock.controller.active.manifest.ledger import Ledger
from penstock.controller.api.messages import AlterConfigs, ConfigChange
from penstock.controller.managers.configs import alter_configs
from penstock.controller.metadata.configs import TOPIC_RESOURCE
from penstock.lake.manifest import view as view_module
from penstock.lake.manifest.errors import OffsetsLost, OffsetsMissing, UnknownPartition
from penstock.lake.manifest.plan import OffsetRange
from penstock.lake.manifest.view import ClusterView
from penstock.objectstore.memory import MemoryStore
from penstock.stream.format.keys import manifest_key
from penstock.stream.format.manifest.codec import Draft
from penstock.stream.format.manifest.model import LiveWal, ManifestRoot
from tests.unit.controller.test_controller_managers_stateful import Managers

SMALL = {
    "PAGE_ENTRIES_MAX": 4,
    "INLINE_ENTRIES_MAX": 2,
    "VERSIONS_MAX": 4,
    "PARTITIONS_PER_SHARD": 2,
}
"""Small limits, so that a few commits create pages, shards and versions that need to be
cleaned up.
"""


class Published(Managers):
    """A controller that publishes in steps, with requests between them."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.store = MemoryStore()
        self.epoch, self.version = 1, 0
        self.view: ClusterView | None = None
        self.expected: dict[str, Any] = {}
        self.expected_configs: dict[str, dict[str, str]] = {}
        self._begin()
        apply = self.cluster.apply

        def noting(records: Any) -> None:
            apply(records)
            self.changes.note(records)

        self.cluster.apply = noting

    def _begin(self) -> None:
        self.ledger, self.changes, self.draft = (
            Ledger(),
            ManifestChanges(everything=True),
            Draft(self.version + 1),
        )

    def teardown(self) -> None:
        super().teardown()
        self.publish_a_step(10_000)
        self.loop.close()

    def a_snapshot_is_an_equal_image(self) -> None:
        """Skip this check: the tests of managers run it, and here it would take most of
        the time.
        """

    @rule()
    def another_controller_leads(self) -> None:
        self.epoch += 1
        self._begin()

    @rule(name=st.sampled_from("abc"), value=st.sampled_from(["compact", "delete", None]))
    def configure(self, name: str, value: str | None) -> None:
        change = ConfigChange(
            resource_type=TOPIC_RESOURCE, resource_name=name, name="cleanup.policy", value=value
        )
        request = AlterConfigs(changes=[change])
        self.submit(alter_configs(self.image, request))

    @rule(entries_max=st.sampled_from([1, 3, 1_000, 1_000]))
    def publish_a_step(self, entries_max: int) -> None:
        changes, self.changes = self.changes, ManifestChanges()
        self.ledger.absorb(changes, self.image, self.draft.version)
        whole = self.ledger.capture(self.image, entries_max)
        for _ in self.ledger.write(self.draft):
            pass
        if not whole or not self.ledger.changed:
            return
        self.ledger.changed = False
        self.version = self.draft.version
        wals = tuple(
            LiveWal(wal.writer.node_id, wal.writer.node_epoch, wal.committed)
            for wal in self.image.nodes.running_wals()
        )
        topics = self.ledger.topic_entries()
        root = ManifestRoot(
            "test", self.epoch, self.version, self.image.end_offset, Millis(1), wals, topics
        )
        self.loop.run_until_complete(self._store(self.draft.finish(root)))
        self.draft = Draft(self.version + 1)
        self.expected = {
            topic.name: [self._said_of(partition) for partition in topic.partitions]
            for topic in self.image.topics
        }
        self.expected_configs = {
            topic.name: dict(self.image.configs.topic(topic.name)) for topic in self.image.topics
        } | {
            topic.full_name: dict(topic.configs)
            for topic in self.image.frozen_topics
            if not topic.is_deleted
        }
        self.view = self.view or ClusterView(self.store)
        self.check(self.view)
        self.check(ClusterView(self.store, "test"))

    async def _store(self, chunks: list[bytes]) -> None:
        await self.store.put_if_absent(manifest_key("test", self.version), chunks)
        kept = {
            manifest_key("test", version) for version in (*self.ledger.versions(), self.version)
        }
        assert len(kept) <= SMALL["VERSIONS_MAX"] + 1
        await self.store.delete(
            [info.key async for info in self.store.list("manifest/") if info.key not in kept]
        )

    def _said_of(self, partition: Any) -> tuple[Any, ...]:
        stream = self.image.streams.get(partition.data_stream_id)
        ranges = [
            (
                self.image.objects.get(entry.object_id).key,
                max(entry.start_offset, stream.start_offset),
                entry.end_offset,
                entry.start_offset >= stream.start_offset
                and (entry.size_bytes, entry.record_count),
            )
            for entry in stream.entries
        ]
        return stream.stream_id, partition.leader, stream.start_offset, stream.end_offset, ranges

    def check(self, view: ClusterView) -> None:
        self.loop.run_until_complete(self._check(view))

    async def _check(self, view: ClusterView) -> None:
        root = await view.refresh()
        assert root.moment == (max(root.controller_epoch, 1), self.version)
        assert [topic.name for topic in view.topics()] == sorted(self.expected)
        assert {topic.name: topic.configs for topic in root.topics} == self.expected_configs
        for name, partitions in self.expected.items():
            states = await view.partitions([name])
            assert [(s.stream_id, s.leader, s.log_start, s.committed_end) for s in states] == [
                said[:4] for said in partitions
            ]
            requested = [
                OffsetRange(name, number, said[2], said[3])
                for number, said in enumerate(partitions)
            ]
            slices = await view.plan(requested)
            for number, (_, _, start, end, ranges) in enumerate(partitions):
                mine = [item for item in slices if item.partition == number]
                assert [(item.key, item.start_offset, item.end_offset) for item in mine] == [
                    found[:3] for found in ranges
                ]
                assert all(
                    whole in (False, (s.size_bytes, s.record_count))
                    for s, (*_, whole) in zip(mine, ranges, strict=True)
                )
                await self._check_parts(view, name, number, start, end)

    async def _check_parts(
        self, view: ClusterView, name: str, partition: int, start: int, end: int
    ) -> None:
        middle = (start + end) // 2
        for low, high in ((start, middle), (middle, end)):
            position = low
            for item in await view.plan([OffsetRange(name, partition, low, high)]):
                assert (item.start_offset, item.end_offset > position) == (position, True)
                position = item.end_offset
            assert position == max(low, high) or low >= high
        with pytest.raises(OffsetsMissing):
            await view.plan([OffsetRange(name, partition, start, max(start, end) + 1)])
        if start:
            with pytest.raises(OffsetsLost):
                await view.plan([OffsetRange(name, partition, start - 1, max(start, end) + 1)])
        with pytest.raises(UnknownPartition):
            await view.plan([OffsetRange(name, 1_000, 0, 1)])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SMALL.items():
        monkeypatch.setattr(ledger_module, name, value)
    monkeypatch.setattr(view_module, "PARTITIONS_PER_SHARD", SMALL["PARTITIONS_PER_SHARD"])
    monkeypatch.setattr(view_module, "PAGE_CACHE_ENTRIES_MAX", 10)


@pytest.mark.usefixtures("small")
def test_a_manifest_equals_the_image() -> None:
    """Few steps of any type in any order; failures are minimized."""
    run_state_machine_as_test(
        Published,
        settings=settings(
            max_examples=15,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(8))
def test_long_logs_grow_and_are_rewritten_between_publications(seed: int) -> None:
    """Many steps, mostly commits, so that there are pages of all ages and versions to be cleaned
    up.
    """
    rng = Random(seed)
    published = Published()
    published.two_brokers_and_a_topic()

    def number() -> int:
        return rng.randrange(1 << 30)

    def commit() -> None:
        numbers = [number() for _ in range(rng.randint(1, 3))]
        published.commit(
            numbers, rng.random() < 0.3, 0, rng.randint(0, 6), rng.random() < 0.03, None
        )

    def compact() -> None:
        if any(len(stream.entries) > 1 for stream in published.image.streams):
            published.compact(number(), rng.randint(0, 12), rng.randint(1, 6), 0)

    def topic() -> None:
        if rng.random() < 0.5:
            published.create(rng.choice("abc"), rng.randint(1, 5))
        elif rng.random() < 0.3:
            published.delete(rng.choice("bc"), rng.choice((0, 5_000_000)))

    def failover() -> None:
        published.die(number() * 3)
        published.register(rng.randint(1, 4))
        published.cluster.tick()
        for wal in [
            wal for wal in published.image.nodes.running_wals() if wal.recoverer.node_id >= 0
        ]:
            published.cluster.recover(
                wal.recoverer,
                wal.writer,
                end=max(wal.committed, published.slots.get(wal.writer, 0)) + 1,
            )
        published.open_all(0)

    def configure() -> None:
        published.configure(rng.choice("abc"), rng.choice(["compact", "delete", None]))

    def trim() -> None:
        for topic in published.image.topics:
            for partition in topic.partitions:
                stream = published.image.streams.get(partition.data_stream_id)
                if stream.opened and rng.random() < 0.2:
                    by = rng.randint(0, max(2, (stream.end_offset - stream.start_offset) // 3))
                    published.cluster.trim(
                        stream.owner, stream.stream_id, stream.epoch, stream.start_offset + by
                    )

    steps = {
        commit: 60, compact: 8, topic: 1, published.tick: 2, trim: 1, failover: 1, configure: 3,
        (lambda: published.time(rng.choice([1, 1_000, 4_000_000]))): 1,
        (lambda: published.publish_a_step(rng.choice([1, 5, 1_000, 1_000]))): 12,
    }  # fmt: skip
    for step in rng.choices(list(steps), list(steps.values()), k=600):
        step()
    published.another_controller_leads()
    published.publish_a_step(10_000)
    published.teardown()
