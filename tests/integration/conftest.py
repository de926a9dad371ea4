"""The cluster of most integration tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.marked_cluster import marked_cluster


@pytest.fixture
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with marked_cluster(request, tmp_path) as cluster:
        yield cluster
