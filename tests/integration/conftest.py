"""Fixtures of several test modules."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.cluster import Cluster
from tests.support.marked_cluster import marked_cluster
from tests.support.secure_cluster import SecureFiles


@pytest.fixture
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with marked_cluster(request, tmp_path) as cluster:
        yield cluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Cluster]:
    """One cluster for tests of a module that do not affect each other. They need
    `@pytest.mark.asyncio(loop_scope="module")`.
    """
    async with marked_cluster(request, tmp_path_factory.mktemp("shared")) as cluster:
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
