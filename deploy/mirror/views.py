"""Views of `penstock mirror`. Field names are stable: programs read them as JSON."""

from dataclasses import dataclass, field

from penstock.deploy.admin.groups.lags import sum_of
from penstock.deploy.mirror.plan import OffsetKind, TopicPlan
from penstock.deploy.mirror.state import PartitionState


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic. state: copying, in step, finished or failed. lag: offsets left to copy, None if
    unknown. records, bytes: number and size of those that this process has copied.
    """

    topic: str
    state: str
    mode: OffsetKind | None
    partitions: int
    lag: int | None
    records: int
    bytes: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class MirrorView:
    """The state of a mirror. problem: the current failures; the failed operations are retried."""

    source: str
    target: str
    lag: int | None
    records: int
    bytes: int
    groups: int
    topics: list[TopicView] = field(default_factory=list[TopicView])
    problem: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class PlanView:
    """A preview: topics to create or continue, rejected topics with the reason, groups whose
    offsets are copied, and ACLs to add.
    """

    topics: list[TopicPlan]
    refused: dict[str, str]
    finished: list[str]
    groups: list[str]
    acls: list[str]


def topic_view(name: str, states: list[PartitionState]) -> TopicView:
    """Return the view of a mirrored topic."""
    lag = sum_of([state.lag for state in states])
    errors = [f"{state.name}: {state.error}" for state in states if state.error]
    word = "failed" if errors else "in step" if lag == 0 else "copying"
    return TopicView(
        name,
        word,
        states[0].mode,
        len(states),
        lag,
        sum(state.records for state in states),
        sum(state.size_bytes for state in states),
        "; ".join(errors) or None,
    )


def mirror_view(
    source: str, target: str, topics: list[TopicView], groups: int, problem: list[str]
) -> MirrorView:
    lags = [topic.lag for topic in topics if topic.state not in {"finished", "failed"}]
    return MirrorView(
        source,
        target,
        sum_of(lags),
        sum(topic.records for topic in topics),
        sum(topic.bytes for topic in topics),
        groups,
        topics,
        problem,
    )
