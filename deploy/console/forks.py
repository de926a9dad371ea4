"""Plan and create a fork: a topic that begins with the records of another one.

Does not render pages. The methods block.
"""

from dataclasses import dataclass

from penstock.deploy.admin.snapshots import find_snapshot
from penstock.deploy.clients.forks import FORK_SOURCE
from penstock.deploy.clients.kafka import Kafka
from penstock.deploy.errors import UsageError
from penstock.stream.format.manifest.model import in_snapshot

FORK_TIME = "penstock.fork.timestamp.ms"


@dataclass(frozen=True, slots=True)
class ForkOptions:
    """The source of a fork. snapshot: fork the topic as in this snapshot; empty for the current
    topic. at_ms: include only older records; None for all.
    """

    source: str
    name: str
    snapshot: str = ""
    at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ForkPlan:
    """The planned contents of a fork: (partition, first offset, end). A fork ends at a batch
    boundary, so it may contain a few records fewer.
    """

    partitions: list[tuple[int, int, int]]

    @property
    def offsets(self) -> int:
        return sum(max(0, end - start) for _, start, end in self.partitions)


def plan_fork(bootstrap: str, wanted: ForkOptions) -> ForkPlan:
    """Return the current contents of the planned fork. Raises UsageError, KafkaFailed."""
    if not wanted.name:
        raise UsageError("the fork needs a name")
    if wanted.snapshot and wanted.at_ms is not None:
        raise UsageError("choose either a time or a snapshot")
    kafka = Kafka(bootstrap)
    if wanted.name in {topic.name for topic in kafka.topics()}:
        raise UsageError(f"topic {wanted.name!r} exists; choose another name")
    if wanted.snapshot:
        (frozen,) = find_snapshot(bootstrap, wanted.snapshot, [wanted.source])
        return ForkPlan(
            [(at, part.start_offset, part.end_offset) for at, part in enumerate(frozen.partitions)]
        )
    indexes = [part.partition for part in kafka.topic(wanted.source).partitions]
    bounds = kafka.offsets(wanted.source, indexes)
    ends = {index: end for index, (_, end) in bounds.items()}
    if wanted.at_ms is not None:
        ends = kafka.offsets_for_time(wanted.source, ends, wanted.at_ms)
    return ForkPlan([(index, bounds[index][0], ends[index]) for index in indexes])


def make_fork(bootstrap: str, wanted: ForkOptions) -> None:
    """Create the topic. Raises KafkaFailed."""
    source = in_snapshot(wanted.source, wanted.snapshot) if wanted.snapshot else wanted.source
    configs = {FORK_SOURCE: source}
    if wanted.at_ms is not None:
        configs[FORK_TIME] = str(wanted.at_ms)
    Kafka(bootstrap).create_topic(wanted.name, -1, -1, configs)
