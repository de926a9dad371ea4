"""Decide which topics a mirror creates, changes and copies.

Invariant: the mirror never writes to a target topic with records of other producers, unless
`append` is set. Pure.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from penstock.base.regular_expressions import RegexInvalid, compiled
from penstock.controller.metadata.topic_configs import FORK_SOURCE, MIRROR_FINISHED, MIRROR_SOURCE
from penstock.deploy.errors import UsageError
from penstock.deploy.output import counted

PROGRESS_PREFIX: Final = "penstock-mirror-"
"""Prefix of the topics in which mirrors store their progress."""
_INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
_TIMESTAMP_TYPE: Final = "message.timestamp.type"
_OWN: Final = frozenset({FORK_SOURCE, MIRROR_SOURCE, MIRROR_FINISHED})
_OWN_PREFIX: Final = "penstock."
_OF_BROKERS: Final = frozenset(
    {"leader.replication.throttled.replicas", "follower.replication.throttled.replicas"}
)
"""Configs that contain ids of source brokers, which have no meaning at the target."""


class OffsetKind(StrEnum):
    """The kind of offsets at the target. same: those of the source. translated: different offsets
    with an exact mapping.
    """

    SAME = "same"
    TRANSLATED = "translated"


@dataclass(frozen=True, slots=True)
class Selection:
    """A name filter: the whole name must match, and must not match `exclude`. Patterns are RE2
    regular expressions; an empty `exclude` matches nothing.
    """

    topics: str = ".*"
    exclude: str = ""
    groups: str = ".*"

    def check(self) -> None:
        """Raises UsageError."""
        for option, text in (
            ("--topics", self.topics),
            ("--exclude", self.exclude),
            ("--groups", self.groups),
        ):
            try:
                compiled(text)
            except RegexInvalid as error:
                raise UsageError(
                    f"{option} {text!r} is not an RE2 regular expression: {error}"
                ) from None

    def has_topic(self, name: str) -> bool:
        if name in _INTERNAL or name.startswith(PROGRESS_PREFIX):
            return False
        if self.exclude and compiled(self.exclude).fullmatch(name):
            return False
        return compiled(self.topics).fullmatch(name) is not None

    def has_group(self, name: str) -> bool:
        return compiled(self.groups).fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """A topic of the source. configs: those that are set explicitly."""

    name: str
    topic_id: str
    partition_count: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TargetTopic:
    """A topic of the target. is_empty: whether no record was ever appended. mirrored_id: the source
    topic whose records this mirror has copied with translated offsets; empty if none. topic_id: its
    id at the target, as `TopicInfo.topic_id`.
    """

    partition_count: int
    configs: Mapping[str, str]
    is_empty: bool
    mirrored_id: str = ""
    is_finished: bool = False
    topic_id: str = ""


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """The plan for one topic. action: create the topic, adopt or begin an empty one, append to one
    with records, or continue. changes: configs to set, None to reset.
    """

    name: str
    action: str
    mode: OffsetKind
    partition_count: int
    added_partitions: int = 0
    configs: dict[str, str] = field(default_factory=dict[str, str])
    changes: dict[str, str | None] = field(default_factory=dict[str, "str | None"])


@dataclass(slots=True)
class MirrorPlan:
    """The plan. refused: topics that are not copied, with the reason. finished: topics whose mirror
    has ended.
    """

    topics: list[TopicPlan] = field(default_factory=list[TopicPlan])
    refused: dict[str, str] = field(default_factory=dict[str, str])
    finished: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class MirrorContext:
    """The context of a plan. has_same_offsets: whether the target can append at specified offsets,
    as Penstock can. append: whether the mirror may write to topics with other records. unknown:
    configs that the target has rejected.
    """

    source_cluster: str
    has_same_offsets: bool
    append: bool = False
    unknown: Collection[str] = frozenset()

    def mirror_source(self, topic: SourceTopic) -> str:
        """Return the value of `penstock.mirror.source`."""
        return f"{self.source_cluster}/{topic.topic_id or topic.name}"


def plan_topics(
    source: Mapping[str, SourceTopic], target: Mapping[str, TargetTopic], context: MirrorContext
) -> MirrorPlan:
    """Return the plan for each topic of the source, by name."""
    plan = MirrorPlan()
    for name in sorted(source):
        _plan_topic(plan, source[name], target.get(name), context)
    return plan


def _plan_topic(
    plan: MirrorPlan, topic: SourceTopic, known: TargetTopic | None, context: MirrorContext
) -> None:
    wanted = context.mirror_source(topic)
    configs = copied_configs(topic.configs, context)
    if known is None:
        mode = OffsetKind.SAME if context.has_same_offsets else OffsetKind.TRANSLATED
        if mode is OffsetKind.SAME:
            configs[MIRROR_SOURCE] = wanted
        plan.topics.append(
            TopicPlan(topic.name, "create", mode, topic.partition_count, configs=configs)
        )
        return
    mirrored = known.configs.get(MIRROR_SOURCE, "")
    if known.is_finished or (mirrored == wanted and known.configs.get(MIRROR_FINISHED) == "true"):
        plan.finished.append(topic.name)
        return
    if known.partition_count > topic.partition_count:
        plan.refused[topic.name] = (
            f"the target has {counted(known.partition_count, 'partition')}, the source"
            f" {topic.partition_count}: delete or rename the topic at the target"
        )
        return
    relation = _relation(known, mirrored, wanted, topic, context)
    if isinstance(relation, str):
        plan.refused[topic.name] = relation
        return
    action, mode = relation
    changes = config_changes(configs, known.configs, resets=mode is OffsetKind.SAME)
    if action == "adopt":
        changes[MIRROR_SOURCE] = wanted
    added = topic.partition_count - known.partition_count
    plan.topics.append(
        TopicPlan(topic.name, action, mode, topic.partition_count, added, configs, changes)
    )


def _relation(
    known: TargetTopic, mirrored: str, wanted: str, topic: SourceTopic, context: MirrorContext
) -> tuple[str, OffsetKind] | str:
    """Return the action and the kind of offsets for an existing topic, or the reason why it is not
    copied.
    """
    if mirrored == wanted:
        return "continue", OffsetKind.SAME
    if mirrored and known.configs.get(MIRROR_FINISHED) != "true":
        return (
            f"it is a mirror of {mirrored}, and the source is {wanted} now (another cluster, or the"
            " topic was created again): finish or delete the topic at the target"
        )
    if known.mirrored_id:
        if known.mirrored_id == topic.topic_id:
            return "continue", OffsetKind.TRANSLATED
        return "the topic was created again at the source: delete the topic at the target"
    if known.is_empty:
        if context.has_same_offsets:
            return "adopt", OffsetKind.SAME
        return "begin", OffsetKind.TRANSLATED
    if context.append:
        return "append", OffsetKind.TRANSLATED
    return (
        "the topic has records at the target: delete or rename it there, or use --append to add"
        " the records after them, with translated offsets"
    )


def copied_configs(configs: Mapping[str, str], context: MirrorContext) -> dict[str, str]:
    """Return the configs to set at the target. The target must not replace timestamps while records
    are copied.
    """
    left_out = _OWN | _OF_BROKERS | set(context.unknown)
    if not context.has_same_offsets:
        left_out |= {_TIMESTAMP_TYPE}
    return {name: value for name, value in configs.items() if name not in left_out}


def left_out_configs(configs: Mapping[str, str], context: MirrorContext) -> set[str]:
    """Return the configs that are not copied, which are reported to users."""
    return set(configs) - set(copied_configs(configs, context)) - _OWN - _OF_BROKERS


def config_changes(
    wanted: Mapping[str, str], present: Mapping[str, str], *, resets: bool
) -> dict[str, str | None]:
    """Return the configs to set. resets: whether to reset configs that are not set at the
    source.
    """
    changes: dict[str, str | None] = {
        name: value for name, value in wanted.items() if present.get(name) != value
    }
    if resets:
        changes |= {
            name: None
            for name in present
            if name not in wanted and not name.startswith(_OWN_PREFIX)
        }
    return changes
