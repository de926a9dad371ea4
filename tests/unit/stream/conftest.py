"""Fixtures for tests with several nodes on one store."""

from collections.abc import AsyncIterator

import pytest

from tests.support.stream_storage import Nodes


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    """Return a cluster whose nodes are stopped after the test."""
    made = Nodes()
    yield made
    await made.abandon()
