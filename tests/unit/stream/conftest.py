"""Fixtures for tests with several nodes on one store."""

from collections.abc import AsyncIterator

import pytest

from tests.support.stream_metadata import MemoryController
from tests.support.stream_storage import Node


@pytest.fixture
def controller() -> MemoryController:
    """Return a controller with the streams 1 to 5."""
    made = MemoryController()
    for stream_id in range(1, 6):
        made.create_stream(stream_id)
    return made


@pytest.fixture
async def nodes() -> AsyncIterator[list[Node]]:
    """Return a list; the nodes in it are stopped after the test."""
    made: list[Node] = []
    yield made
    for node in made:
        await node.storage.abandon()
