"""The status that a table runner writes to the store of the cluster, for the console, the doctor
and the command line.

Each runner overwrites one object, so readers need neither the catalog nor the runner. No data
depends on the status, because the table itself stores its offsets.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.base.log import get_logger
from penstock.base.table_configs import is_enabled
from penstock.objectstore.errors import ObjectNotFound
from penstock.objectstore.ports import ObjectStore
from penstock.stream.format.keys import table_status_key, table_status_prefix
from penstock.stream.format.manifest.model import split_name

RUNNERS_MAX: Final = 100
"""Maximum number of statuses that are read, newest first. Statuses of renamed runners are never
deleted.
"""

_LISTED_MAX: Final = 1_000

STALE_MS: Final = 120_000
"""A runner writes its status at least every 30 s. A runner with an older status than this is
considered stopped.
"""

WAITING: Final = "waiting"
UP_TO_DATE: Final = "up to date"
BEHIND: Final = "behind"
FAILING: Final = "failing"
NOT_RUNNING: Final = "not running"

_log = get_logger(__name__)


class TopicStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The export of one topic. Counts cover the time since the runner started; a time is 0 if the
    event has not happened. `lag_ms`: time since the table contained all records, based on
    `complete_ms`, or on `since_ms` if that is 0.
    """

    topic: str
    topic_id: str
    table: str
    format: str
    state: str
    commit_interval_ms: int
    lag_records: int = 0
    lag_ms: int = 0
    since_ms: int = 0
    """The time when a runner first found the topic."""
    complete_ms: int = 0
    """All records up to this time are in the table."""
    commit_ms: int = 0
    commits: int = 0
    rows: int = 0
    rejected: int = 0
    skipped: int = 0
    failures: int = 0
    """Number of consecutive failures."""
    error: str = ""
    error_ms: int = 0


class RunnerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of one runner. `error`: the reason why topics could not be discovered."""

    runner: str
    version: str
    started_ms: int
    updated_ms: int
    stopped: bool = False
    error: str = ""
    topics: tuple[TopicStatus, ...] = ()

    def is_stale(self, now_ms: int) -> bool:
        return self.stopped or now_ms - self.updated_ms > STALE_MS


@dataclass(slots=True)
class RunnerState:
    """State that other threads may read: attributes are replaced, never mutated."""

    status: RunnerStatus
    turned_at_s: float
    """The time when the main thread of the runner was last active."""

    is_started: bool = False
    status_error: str = ""


class ExportView(msgspec.Struct, frozen=True, kw_only=True):
    """The export of one topic for display. `runner` is empty if no runner has exported the topic;
    a time is negative if it is unknown.
    """

    topic: str
    table: str = ""
    format: str = ""
    state: str = NOT_RUNNING
    runner: str = ""
    updated_ms: int = -1
    lag_ms: int = 0
    lag_records: int = 0
    commit_ms: int = -1
    commit_interval_ms: int = 0
    rows: int = 0
    rejected: int = 0
    skipped: int = 0
    error: str = ""


def declares_table(name: str, configs: Mapping[str, str], *, is_internal: bool) -> bool:
    """Return whether a topic is exported. Internal topics and snapshots are not."""
    return is_enabled(configs) and not is_internal and not split_name(name)[1]


async def write_status(store: ObjectStore, cluster_id: str, status: RunnerStatus) -> None:
    """Overwrite the status of this runner. Raise ObjectStoreError."""
    await store.put(table_status_key(cluster_id, status.runner), msgspec.json.encode(status))


async def read_statuses(store: ObjectStore, cluster_id: str) -> list[RunnerStatus]:
    """Return the statuses of all runners, newest first. Raise ObjectStoreError."""
    found: list[RunnerStatus] = []
    listed = [info async for info in store.list(table_status_prefix(cluster_id), limit=_LISTED_MAX)]
    for info in sorted(listed, key=lambda info: -info.modified_ms)[:RUNNERS_MAX]:
        try:
            found.append(msgspec.json.decode(await store.get(info.key), type=RunnerStatus))
        except ObjectNotFound:
            continue
        except msgspec.DecodeError as error:
            _log.warning("table_status_unreadable", key=info.key, error=str(error))
    return sorted(found, key=lambda status: -status.updated_ms)


def exports_of(
    enabled: Mapping[str, str], statuses: Iterable[RunnerStatus], now_ms: int
) -> list[ExportView]:
    """Return the exports of the topics that are enabled, given with their ids. If several runners
    export a topic, the newest status counts.
    """
    newest: dict[tuple[str, str], tuple[RunnerStatus, TopicStatus]] = {}
    for runner in sorted(
        statuses, key=lambda status: (status.is_stale(now_ms), -status.updated_ms)
    ):
        for topic in runner.topics:
            newest.setdefault((topic.topic, topic.topic_id), (runner, topic))
    found: list[ExportView] = []
    for name, topic_id in sorted(enabled.items()):
        known = newest.get((name, topic_id))
        found.append(ExportView(topic=name) if known is None else _view(*known, now_ms))
    return found


def _view(runner: RunnerStatus, topic: TopicStatus, now_ms: int) -> ExportView:
    return ExportView(
        topic=topic.topic,
        table=topic.table,
        format=topic.format,
        state=NOT_RUNNING if runner.is_stale(now_ms) else topic.state,
        runner=runner.runner,
        updated_ms=runner.updated_ms,
        lag_ms=topic.lag_ms + max(0, now_ms - runner.updated_ms),
        lag_records=topic.lag_records,
        commit_ms=topic.commit_ms or -1,
        commit_interval_ms=topic.commit_interval_ms,
        rows=topic.rows,
        rejected=topic.rejected,
        skipped=topic.skipped,
        error=topic.error,
    )
