"""The cluster of a test, with the settings of its `cluster` mark."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import create_topic
from tests.support.cluster import Cluster


@asynccontextmanager
async def marked_cluster(
    request: pytest.FixtureRequest, directory: Path, **defaults: Any
) -> AsyncIterator[Cluster]:
    """Start a cluster. The keyword arguments of the mark are those of Cluster, and `topics`: topics
    to create, with their partition counts.
    """
    mark = request.node.get_closest_marker("cluster")
    settings = defaults | (mark.kwargs if mark else {})
    topics = settings.pop("topics", {})
    async with Cluster(directory / "cluster", **settings) as cluster:
        for topic, count in topics.items():
            await asyncio.to_thread(create_topic, cluster.bootstrap, topic, count)
            for index in range(count):
                await cluster.until_served(topic, index)
        yield cluster
