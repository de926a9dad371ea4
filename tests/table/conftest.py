"""One log shared by the tests of this directory, which only read it, and REST catalogs."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.http_gateway import HttpGateway, http_gateway
from tests.support.rest_catalog import RestCatalog
from tests.support.table_log import Log, write_log


@pytest.fixture(scope="session")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    return asyncio.run(write_log(tmp_path_factory.mktemp("log")))


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[RestCatalog]:
    """Run a REST catalog whose tables are in `warehouse`."""
    catalog = RestCatalog(tmp_path / "warehouse")
    with catalog.running():
        yield catalog


@pytest.fixture
def gateway(catalog: RestCatalog) -> Iterator[HttpGateway]:
    """Run a gateway in front of the catalog."""
    with http_gateway(catalog.url) as gateway:
        yield gateway
