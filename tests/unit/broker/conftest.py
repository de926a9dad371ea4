"""Fixtures: partitions of brokers without a network."""

import pytest

from tests.support.partition_harness import PartitionHarness


@pytest.fixture
def harness():
    return PartitionHarness()


@pytest.fixture
async def one(harness):
    """Return broker 1; it is closed after the test."""
    broker = await harness.broker(1)
    yield broker
    await broker.close()
