"""Run each server once for all tests."""

from collections.abc import Iterator

import pytest

from tests.support.store_servers import NAMES, StoreServer, store_server


@pytest.fixture(scope="session", params=NAMES)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StoreServer]:
    with store_server(request.param, tmp_path_factory.mktemp(request.param)) as server:
        yield server
