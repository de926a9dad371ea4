"""Read the metrics of a table runner."""

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import Final

from penstock.base.health import Health
from penstock.deploy.node.health import Route
from penstock.deploy.node.metrics import table as t
from penstock.deploy.node.metrics.exposition import Exposition, Reading
from penstock.deploy.table_runner.health import RunnerHealth
from penstock.lake.manifest.table_status import FAILING, RunnerState, TopicStatus

TOPICS_MAX: Final = 1_000
"""Maximum number of topics with their own metrics; the topics with the largest lags are chosen."""


def _read(state: RunnerState) -> Iterator[Reading]:
    status = state.status
    yield t.TABLES_TOPICS, (), len(status.topics)
    yield t.TABLES_DISCOVERY_FAILING, (), float(bool(status.error))
    yield t.TABLES_STATUS_FAILING, (), float(bool(state.status_error))
    shown = sorted(status.topics, key=lambda topic: -topic.lag_ms)[:TOPICS_MAX]
    for topic in shown:
        yield from _of_topic(topic)


def _of_topic(topic: TopicStatus) -> Iterator[Reading]:
    labels = (topic.topic,)
    yield t.TABLES_LAG_SECONDS, labels, topic.lag_ms / 1_000
    yield t.TABLES_LAG_RECORDS, labels, topic.lag_records
    yield t.TABLES_FAILING, labels, float(topic.state == FAILING)
    yield t.TABLES_COMMIT_TIME, labels, topic.commit_ms / 1_000
    yield t.TABLES_COMMITS, labels, topic.commits
    yield t.TABLES_ROWS, labels, topic.rows
    yield t.TABLES_REJECTED, labels, topic.rejected
    yield t.TABLES_SKIPPED, labels, topic.skipped


def metrics_of(health: Health) -> AbstractAsyncContextManager[dict[str, Route]]:
    """Serve the metrics for `deploy.node.health.serve_at`."""
    assert isinstance(health, RunnerHealth), health
    return Exposition("table-runner", lambda: _read(health.state)).serve()
