"""Fixtures: partitions of brokers without a network, and coordinators over a log in memory."""

import pytest

from tests.support.coordinator_log import MemoryLog
from tests.support.group_coordinators import Coordinators
from tests.support.partition_harness import PartitionHarness
from tests.support.share_states import MemoryShareStates


@pytest.fixture
def harness():
    return PartitionHarness()


@pytest.fixture
async def one(harness):
    """Return broker 1; it is closed after the test."""
    broker = await harness.broker(1)
    yield broker
    await broker.close()


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
