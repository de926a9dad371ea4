"""Fixtures of several test modules."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.marked_cluster import marked_cluster
from tests.support.secure_cluster import SecureFiles


@pytest.fixture
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with marked_cluster(request, tmp_path) as cluster:
        yield cluster


@pytest.fixture
def files(tmp_path: Path) -> SecureFiles:
    return SecureFiles(tmp_path / "security")


@pytest.fixture
def logs_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the loggers of this process. Otherwise a command binds all of them to its own stderr,
    which is closed at its end.
    """
    monkeypatch.setattr("penstock.deploy.node.logs.to_stderr", lambda _level: None)
