"""Export to tables in S3 with Glue as the catalog, both served by moto over HTTP.

Concurrent runs are not tested here, because moto's Glue does not compare versions.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from penstock.lake.table.compact import compact
from penstock.lake.table.model import Maintained, Retention
from penstock.lake.table.query import query
from penstock.lake.table.warehouse import Warehouse
from tests.support.table_log import Log
from tests.support.table_runs import Run


@dataclass
class S3Run(Run):
    endpoint: str = ""

    @property
    def warehouse(self) -> Warehouse:
        location = f"s3://tables/wh?endpoint={self.endpoint}&access_key=a&secret_key=b"
        if self.kind == "parquet":
            return Warehouse(kind=self.kind, location=location)
        return Warehouse(
            kind=self.kind,
            location=location,
            catalog_type="glue",
            catalog_properties={"glue.endpoint": self.endpoint},
        )


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    client = boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="a",
        aws_secret_access_key="b",
    )
    client.create_bucket(Bucket="tables")
    client.close()
    yield url
    server.stop()


@pytest.mark.parametrize("kind", ["iceberg", "parquet"])
def test_tables_in_s3_contain_all_records(log: Log, endpoint: str, kind: str) -> None:
    run = S3Run(log, Path("nowhere"), kind, endpoint=endpoint)
    assert len(run.all()) > 2
    run.check()
    assert run.state_offsets() == run.ends()
    compact(run.warehouse.existing("t"), run.engine)
    rows, at_ms = run.rows(), time.time_ns() // 1_000_000 + 3 * 86_400_000
    removed = run.warehouse.existing("t").maintain(Retention(3_600_000, 172_800_000), at_ms)
    assert removed.files > 2
    assert run.warehouse.existing("t").maintain(Retention(1, 1), at_ms) == Maintained()
    assert run.rows() == rows
    assert query(run.warehouse, "SELECT count(*) AS c FROM t").to_pylist() == [
        {"c": len(run.rows())}
    ]
