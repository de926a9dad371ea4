"""Run each server once for all tests. MinIO alone is marked long: versitygw runs in `make test`."""

from collections.abc import Iterator

import pytest

from tests.support.s3_servers import S3Server, s3_server


@pytest.fixture(
    scope="session", params=["versitygw", pytest.param("minio", marks=pytest.mark.long)]
)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[S3Server]:
    with s3_server(request.param, tmp_path_factory.mktemp(request.param)) as server:
        yield server
