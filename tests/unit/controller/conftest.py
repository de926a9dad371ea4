"""Fixtures: a quorum of three controllers."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.controller_quorum import Quorum


@pytest.fixture
async def quorum(tmp_path: Path) -> AsyncIterator[Quorum]:
    started = Quorum(tmp_path)
    try:
        await started.start()
        yield started
    finally:
        await started.stop()
