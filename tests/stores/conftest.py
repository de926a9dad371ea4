"""Run each server once for all tests."""

from collections.abc import Iterator

import pytest

from tests.support.s3_servers import NAMES, S3Server, s3_server


@pytest.fixture(scope="session", params=NAMES)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[S3Server]:
    with s3_server(request.param, tmp_path_factory.mktemp(request.param)) as server:
        yield server
