"""Share one log among the tests of this directory, which only read it."""

import asyncio

import pytest

from tests.support.table_log import Log, write_log


@pytest.fixture(scope="session")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    return asyncio.run(write_log(tmp_path_factory.mktemp("log")))
