"""One mirror between two clusters: its plan, workers and progress.

Invariant: the thread that owns a session is the only one that plans, creates topics, and copies
groups and ACLs; workers only copy records. A failure of one topic does not affect the others.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Self

from penstock.base.errors import ExpectedError
from penstock.controller.metadata.topic_configs import MIRROR_FINISHED, MIRROR_SOURCE
from penstock.deploy.admin.groups.committed import CommittedOffset, committed_offsets
from penstock.deploy.clients.acls import Acl
from penstock.deploy.mirror import acls, admin, groups
from penstock.deploy.mirror.cluster import Cluster, ClusterAddress, TopicInfo
from penstock.deploy.mirror.plan import (
    PROGRESS_PREFIX,
    MirrorContext,
    MirrorPlan,
    OffsetKind,
    Selection,
    SourceTopic,
    TargetTopic,
    TopicPlan,
    left_out_configs,
    plan_topics,
)
from penstock.deploy.mirror.progress import Progress
from penstock.deploy.mirror.same_offsets import SameOffsets
from penstock.deploy.mirror.state import UNKNOWN, PartitionState
from penstock.deploy.mirror.translated import TranslatedOffsets, load_progress
from penstock.deploy.mirror.views import MirrorView, TopicView, mirror_view, topic_view
from penstock.deploy.mirror.worker import CopyTask
from penstock.deploy.output import counted
from penstock.protocol.client.brokers import GROUP, Partition
from penstock.protocol.client.errors import KafkaFailed, Moved, Refused
from penstock.protocol.offset_specs import EARLIEST, LATEST

WORKERS: Final = 4
"""Number of threads that copy at the offsets of the source, each with one request in flight."""
_JOIN_S: Final = 40.0
_PROGRESS_CONFIGS: Final = {"cleanup.policy": "compact"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorOptions:
    """The options of a mirror. name: distinguishes mirrors of the same source with translated
    offsets; if empty, the id of the source is used. append: also copy to topics that contain
    records.
    """

    selection: Selection
    name: str = ""
    append: bool = False
    copies_acls: bool = True


@dataclass(slots=True)
class _Found:
    """The last known state of both clusters."""

    plan: MirrorPlan = field(default_factory=MirrorPlan)
    source_topics: dict[str, SourceTopic] = field(default_factory=dict[str, SourceTopic])
    target_topics: dict[str, TargetTopic] = field(default_factory=dict[str, TargetTopic])


class MirrorSession:
    """Use as a context manager, which stops the workers."""

    def __init__(
        self,
        source: ClusterAddress,
        target: ClusterAddress,
        options: MirrorOptions,
        warn: Callable[[str], None],
    ) -> None:
        """warn: called once for each warning."""
        self.source, self.target = Cluster(source), Cluster(target)
        self.options = options
        self.states: dict[Partition, PartitionState] = {}
        self._warn, self._warned = warn, set[str]()
        self._context = MirrorContext("", has_same_offsets=False)
        self._found = _Found()
        self._unknown: set[str] = set()
        self._workers: list[CopyTask] = []
        self._translating: CopyTask | None = None
        self._sink: TranslatedOffsets | None = None
        self._loaded = Progress()
        self._set_offsets: dict[str, dict[Partition, int]] = {}
        """Group offsets that this process has set at the target."""
        self._group_count = 0
        self.problem = ""
        """The current failure of this thread, or "" after a success."""
        self.only_continues = False
        """Whether to ignore topics that are not mirrored yet."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.source.reset()
        self.target.reset()

    @property
    def plan(self) -> MirrorPlan:
        return self._found.plan

    @property
    def progress_topic(self) -> str:
        return PROGRESS_PREFIX + (self.options.name or self._context.source_cluster)

    @property
    def progress(self) -> Progress:
        """Return the progress of copies with translated offsets."""
        return self._loaded if self._sink is None else self._sink.progress

    # --- what is there ----------------------------------------------------------------------------

    def look(self) -> MirrorPlan:
        """Read the state of both clusters, and make a plan without changing anything. Raises
        KafkaFailed.
        """
        return self.source.retried(self._look)

    def _look(self) -> MirrorPlan:
        source_id, source_topics = self.source.topics()
        target_id, target_topics = self.target.topics()
        if source_id == target_id:
            raise ExpectedError(
                f"source and target are the same cluster ({source_id}): specify the source "
                "with --from and the target with --bootstrap"
            )
        if not self._context.source_cluster:
            self._context = MirrorContext(
                source_id, admin.has_mirror_topics(self.target), self.options.append, self._unknown
            )
        wanted = {
            name: topic
            for name, topic in source_topics.items()
            if not topic.is_internal and self.options.selection.has_topic(name)
        }
        configs = admin.topic_configs(self.source, sorted(wanted))
        _, read_again = self.source.topics()
        found = _Found()
        found.source_topics = {
            name: SourceTopic(name, topic.topic_id, topic.partition_count, configs[name])
            for name, topic in wanted.items()
            # Configs are read by name: a topic that was recreated in between is planned in the next
            # round.
            if name in configs
            and name in read_again
            and read_again[name].topic_id == topic.topic_id
        }
        if self._sink is None and self.progress_topic in target_topics:
            self._loaded = load_progress(self.target, self.progress_topic)
        found.target_topics = self._target_topics(
            {name: target_topics[name] for name in wanted if name in target_topics}
        )
        found.plan = plan_topics(found.source_topics, found.target_topics, self._context)
        self._found = found
        return found.plan

    def _target_topics(self, topics: Mapping[str, TopicInfo]) -> dict[str, TargetTopic]:
        configs = admin.topic_configs(self.target, sorted(topics))
        progress = self.progress
        begun = {name for name in topics if progress.is_written_to(name, topics[name].topic_id)}
        doubtful = {
            name for name in configs if MIRROR_SOURCE not in configs[name] and name not in begun
        }
        ends = self.target.offsets(
            [(name, index) for name in doubtful for index in range(topics[name].partition_count)],
            LATEST,
        )
        written = {name for (name, _), end in ends.items() if end > 0}
        return {
            name: TargetTopic(
                topics[name].partition_count,
                configs[name],
                name in doubtful and name not in written,
                progress.topic_ids[name] if name in begun else "",
                name in begun and name in progress.finished,
                topics[name].topic_id,
            )
            for name in configs
        }

    # --- topics -----------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Plan, create and change topics, and assign partitions to the workers. Raises
        KafkaFailed.
        """
        self.source.retried(self._refresh)

    def _refresh(self) -> None:
        self._look()
        for name, reason in self.plan.refused.items():
            self.warn(f"topic {name!r} is not copied: {reason}")
        planned = [
            topic
            for topic in self.plan.topics
            if topic.action == "continue" or not self.only_continues
        ]
        for topic in planned:
            try:
                self._prepare(topic)
            except Moved:
                raise
            except Refused as refused:
                self.warn(f"topic {topic.name!r} is not copied: {refused}")
            else:
                self._add_states(topic)
        names = {topic.name for topic in planned}
        for key in [key for key in self.states if key[0] not in names]:
            del self.states[key]
        self._assign()

    def observe(self) -> None:
        """Determine the progress of the mirror without copying. Raises KafkaFailed."""
        self.look()
        for topic in self.plan.topics:
            if topic.action == "continue":
                self._add_states(topic)
        same = [state for state in self.states.values() if state.mode is OffsetKind.SAME]
        SameOffsets(self.target).find_positions(same)
        other = [state for state in self.states.values() if state.mode is OffsetKind.TRANSLATED]
        starts = self.source.offsets([state.key for state in other], EARLIEST)
        for state in other:
            has_begun = self.progress.has_begun(state.key[0], state.topic_id, state.target_id)
            found = self.progress.map_of(state.key).next_source if has_begun else None
            state.position = starts[state.key] if found is None else found
        for key, end in self.source_ends(committed=False).items():
            self.states[key].end = end

    def _prepare(self, topic: TopicPlan) -> None:
        source = self._found.source_topics[topic.name]
        self._warn_of_configs(left_out_configs(source.configs, self._context))
        if topic.action == "create":
            self._create(topic)
            target_id = self.target.topic_ids([topic.name]).get(topic.name, "")
            self._found.target_topics[topic.name] = TargetTopic(
                topic.partition_count, topic.configs, is_empty=True, topic_id=target_id
            )
            return
        if topic.added_partitions:
            admin.add_partitions(self.target, topic.name, topic.partition_count)
        if topic.changes:
            try:
                admin.alter_topic(self.target, topic.name, topic.changes)
            except Refused:
                self._learn(topic.configs)
                known = {
                    name: value
                    for name, value in topic.changes.items()
                    if name not in self._unknown
                }
                if known:
                    admin.alter_topic(self.target, topic.name, known)
        if topic.action == "adopt":
            self._check_adopted(topic)

    def _create(self, topic: TopicPlan) -> None:
        configs = topic.configs
        try:
            admin.create_topic(self.target, topic.name, topic.partition_count, configs)
        except Refused:
            self._learn(configs)
            configs = {name: value for name, value in configs.items() if name not in self._unknown}
            admin.create_topic(self.target, topic.name, topic.partition_count, configs)

    def _learn(self, configs: Mapping[str, str]) -> None:
        """Determine the configs that the target does not support."""
        found = admin.unknown_configs(self.target, configs) - {MIRROR_SOURCE}
        self._unknown |= found
        self._warn_of_configs(found)

    def _warn_of_configs(self, names: Iterable[str]) -> None:
        for config in sorted(names):
            self.warn(
                f"config {config} is not copied: the target does not know it, or not this way"
            )

    def _check_adopted(self, topic: TopicPlan) -> None:
        """Check that no producer wrote to the topic between the plan and its conversion to a
        mirror.
        """
        keys = [(topic.name, index) for index in range(topic.partition_count)]
        if any(self.target.offsets(keys, LATEST).values()):
            admin.alter_topic(self.target, topic.name, {MIRROR_SOURCE: None})
            raise KafkaFailed(
                f"topic {topic.name!r} received records at the target while it was converted "
                "to a mirror"
            )

    def _add_states(self, topic: TopicPlan) -> None:
        source = self._found.source_topics[topic.name]
        ids = source.topic_id, self._found.target_topics[topic.name].topic_id
        for index in range(topic.partition_count):
            key = topic.name, index
            known = self.states.get(key)
            if known is not None and (known.topic_id, known.target_id, known.mode) == (
                *ids,
                topic.mode,
            ):
                continue
            self.states[key] = PartitionState(
                key, topic.mode, self._context.mirror_source(source), *ids
            )
            for offsets in self._set_offsets.values():
                offsets.pop(key, None)

    # --- workers ----------------------------------------------------------------------------------

    def _assign(self) -> None:
        by_worker: list[list[PartitionState]] = [[] for _ in range(WORKERS)]
        translated: list[PartitionState] = []
        for key, state in self.states.items():
            if state.mode is OffsetKind.TRANSLATED:
                translated.append(state)
            else:
                at = zlib.crc32(f"{key[0]}\0{key[1]}".encode()) % WORKERS
                by_worker[at].append(state)
        if not self._workers and any(by_worker):
            self._workers = [
                CopyTask(
                    self.source.where, self.target.where, lambda target, _: SameOffsets(target)
                )
                for _ in range(WORKERS)
            ]
            for worker in self._workers:
                worker.start()
        for worker, states in zip(self._workers, by_worker, strict=False):
            worker.assign(states)
        if translated and self._translating is None:
            admin.create_topic(self.target, self.progress_topic, 1, _PROGRESS_CONFIGS)
            self._translating = CopyTask(
                self.source.where, self.target.where, self._make_translated
            )
            self._translating.start()
        if self._translating is not None:
            self._translating.assign(translated)

    def _make_translated(self, target: Cluster, source: Cluster) -> TranslatedOffsets:
        self._sink = TranslatedOffsets(target, source, self.progress_topic, self._loaded)
        return self._sink

    def stop(self) -> None:
        """Stop the workers, and wait for their in-flight requests."""
        workers = self._all_workers()
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.join(_JOIN_S)
        self._workers, self._translating = [], None

    def check_workers(self) -> None:
        """Raise the exception that ended a worker: KafkaFailed if another mirror has replaced
        it.
        """
        for worker in self._all_workers():
            if worker.crash is not None:
                raise worker.crash
            if worker.ended:
                raise KafkaFailed(f"this mirror has ended: {worker.ended}")

    def _all_workers(self) -> list[CopyTask]:
        return [*self._workers, *([self._translating] if self._translating else [])]

    # --- groups and ACLs --------------------------------------------------------------------------

    def translated(self, key: Partition, offset: int) -> int | None:
        """Return the offset at the target; None if it is not copied, or not yet."""
        state = self.states.get(key)
        if state is None:
            return None
        if state.mode is OffsetKind.TRANSLATED:
            if not self.progress.has_begun(key[0], state.topic_id, state.target_id):
                return None
            return self.progress.map_of(key).translated(offset)
        return None if state.position == UNKNOWN else min(offset, state.position)

    def sync_groups(self) -> None:
        """Set the offsets of groups at the target. Raises KafkaFailed."""
        count = 0
        for name in self.selected_groups():
            source = self._committed(name)
            if not source:
                continue
            count += 1
            own = self._set_offsets.setdefault(name, {})
            present = committed_offsets(self.target, name)
            wanted = groups.to_commit(source, present, own, self.translated)
            if not wanted:
                continue
            ids = {key[0]: self.states[key].target_id for key in wanted}
            if self.target.retried(partial(groups.commit, self.target, name, wanted, ids)):
                own |= {key: item.offset for key, item in wanted.items()}
            else:
                self.warn(
                    f"the offsets of group {name!r} are not copied while it has members at the"
                    " target"
                )
        self._group_count = count

    def _committed(self, group: str) -> dict[Partition, CommittedOffset]:
        """Return the offsets that a group has committed in the mirrored topics. Offsets of topics
        that were recreated at the source since the plan are omitted: they are read by name from the
        coordinator, whose metadata therefore contains the new id.
        """
        found = committed_offsets(self.source, group)
        found = {key: item for key, item in found.items() if key in self.states}
        if not found:
            return found
        names = {key[0] for key in found}
        ids = self.source.retried(
            lambda: self.source.topic_ids(names, self.source.coordinator(GROUP, group))
        )
        return {
            key: item for key, item in found.items() if ids.get(key[0]) == self.states[key].topic_id
        }

    def selected_groups(self) -> list[str]:
        """Return the groups of the source whose offsets are copied. Raises KafkaFailed."""
        names, silent = groups.group_names(self.source)
        for node in silent:
            self.warn(f"broker {node} of the source does not respond: its groups are not copied")
        return [name for name in names if self.options.selection.has_group(name)]

    def sync_acls(self) -> None:
        """Add the ACLs that exist only at the source. Raises KafkaFailed."""
        missing = self.missing_acls()
        if missing:
            for refused in acls.create(self.target, missing):
                self.warn(f"an ACL is not copied: {refused}")

    def missing_acls(self) -> frozenset[Acl]:
        """Return the ACLs that exist only at the source; none if ACLs are not copied. Raises
        KafkaFailed.
        """
        if not self.options.copies_acls:
            return frozenset()
        source = acls.acls_of(self.source)
        if source is None:
            self.warn("no ACLs are copied: the source has no authorizer")
            return frozenset()
        target = acls.acls_of(self.target)
        if target is None:
            if source:
                self.warn(f"{counted(len(source), 'ACL')} not copied: the target has no authorizer")
            return frozenset()
        return source - target

    # --- ends -------------------------------------------------------------------------------------

    def source_ends(self, *, committed: bool) -> dict[Partition, int]:
        """Return the log ends of the mirrored partitions at the source. committed: return their
        last stable offsets instead.
        """
        return self.source.offsets(self.states, LATEST, committed=committed)

    def has_reached(self, ends: Mapping[Partition, int]) -> bool:
        """Return whether all records before these offsets are copied. Raises KafkaFailed if a
        partition cannot be copied.
        """
        for key in ends:
            state = self.states.get(key)
            if state is not None and state.error:
                raise KafkaFailed(f"{state.name} is not copied: {state.error}")
        return all(
            self.states[key].position >= end for key, end in ends.items() if key in self.states
        )

    def mark_finished(self) -> list[str]:
        """Mark the mirror of all its topics as finished, and return them. The workers must have
        stopped. Raises KafkaFailed.
        """
        names = sorted({key[0] for key in self.states})
        modes = {key[0]: state.mode for key, state in self.states.items()}
        translated = {
            name: self._found.source_topics[name].topic_id
            for name in names
            if modes[name] is OffsetKind.TRANSLATED
        }
        if translated:
            sink = TranslatedOffsets(self.target, self.source, self.progress_topic)
            sink.start()
            sink.finish(translated)
        for name in names:
            if modes[name] is OffsetKind.SAME:
                admin.alter_topic(self.target, name, {MIRROR_FINISHED: "true"})
        return names

    def partition_count(self, name: str) -> int:
        """Return the number of partitions of a topic at the source."""
        return self._found.source_topics[name].partition_count

    # --- reports ----------------------------------------------------------------------------------

    def warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._warn(text)

    def view(self) -> MirrorView:
        by_topic: dict[str, list[PartitionState]] = {}
        for key in sorted(self.states):
            by_topic.setdefault(key[0], []).append(self.states[key])
        topics = [topic_view(name, states) for name, states in by_topic.items()]
        sources = self._found.source_topics
        topics += [
            TopicView(name, "finished", None, sources[name].partition_count, None, 0, 0)
            for name in self.plan.finished
        ]
        topics += [
            TopicView(name, "failed", None, sources[name].partition_count, None, 0, 0, reason)
            for name, reason in self.plan.refused.items()
        ]
        problem = {worker.problem for worker in self._all_workers()} | {self.problem}
        return mirror_view(
            self.source.where.bootstrap,
            self.target.where.bootstrap,
            sorted(topics, key=lambda topic: topic.topic),
            self._group_count,
            sorted(problem - {""}),
        )
