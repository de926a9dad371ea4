"""Fixtures: partitions of brokers without a network, and coordinators over a log in memory."""

import pytest

from tests.support.coordinator_log import MemoryLog
from tests.support.group_coordinators import Coordinators
from tests.support.partition_harness import PartitionHarness
from tests.support.share_states import MemoryShareStates


@pytest.fixture
async def harness():
    """Return a cluster without brokers; those that run after the test are closed."""
    cluster = PartitionHarness()
    yield cluster
    await cluster.close()


@pytest.fixture
async def one(harness):
    return await harness.broker(1)


@pytest.fixture
async def pair(harness):
    return [await harness.broker(1), await harness.broker(2)]


@pytest.fixture
def log():
    return MemoryLog()


@pytest.fixture
def states():
    return MemoryShareStates()


@pytest.fixture
async def coordinators(log, states):
    """Return the group coordinators of one log; the last one is closed after the test."""
    started = Coordinators(log, states)
    yield started
    started.close()


@pytest.fixture
async def coordinator(coordinators):
    """Return the first group coordinator."""
    return await coordinators.next()
