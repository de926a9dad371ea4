"""Run S3 servers on free ports, with their files in a directory of the test: those of
`tools/ensure-s3-servers.sh`, and the one of `penstock dev`, moto, which keeps everything in
memory.
"""

import itertools
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import boto3
import pytest

from penstock.objectstore.config import S3Config
from tests.support.missing import missing
from tests.support.ports import free_ports

SERVERS: Final = Path(__file__).parents[2] / "build" / "s3-servers"
NAMES: Final = ("moto", "versitygw", pytest.param("minio", marks=pytest.mark.long))
"""MinIO alone is long: the others run in `make test`."""
ACCESS_KEY: Final = "local"
SECRET_KEY: Final = "local-secret"
START_S: Final = 60

_bucket_numbers = itertools.count()


@dataclass(frozen=True)
class S3Server:
    """A running server."""

    name: str
    endpoint: str

    def new_bucket(self) -> S3Config:
        """Create an empty bucket and return its config."""
        bucket = f"bucket-{next(_bucket_numbers)}"
        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        )
        client.create_bucket(Bucket=bucket)
        client.close()
        return S3Config(
            bucket=bucket,
            endpoint=self.endpoint,
            region="us-east-1",
            path_style=True,
            access_key=ACCESS_KEY,
            secret_key=SECRET_KEY,
        )

    def new_url(self) -> str:
        """Create an empty bucket and return its store URL."""
        bucket = self.new_bucket().bucket
        keys = f"access_key={ACCESS_KEY}&secret_key={SECRET_KEY}"
        return f"s3://{bucket}?endpoint={self.endpoint}&{keys}"


@contextmanager
def s3_server(name: str, directory: Path) -> Iterator[S3Server]:
    """Run moto, versitygw or minio. Skips where it is not compiled; in CI that fails."""
    (port,) = free_ports(1)
    files, log = directory / "files", directory / "log"
    files.mkdir()
    keys = {
        "ROOT_ACCESS_KEY": ACCESS_KEY,
        "ROOT_SECRET_KEY": SECRET_KEY,
        "MINIO_ROOT_USER": ACCESS_KEY,
        "MINIO_ROOT_PASSWORD": SECRET_KEY,
        "MINIO_BROWSER": "off",
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            _command(name, port, files), env=os.environ | keys, stdout=output, stderr=output
        )
    try:
        endpoint = f"http://127.0.0.1:{port}"
        _wait_for(endpoint, process, log)
        yield S3Server(name, endpoint)
    finally:
        process.kill()
        process.wait()


def _command(name: str, port: int, files: Path) -> list[str]:
    if name == "moto":
        module = ("-m", "penstock.deploy.local.moto_store")
        return [sys.executable, *module, "--bucket", "first", "--port", str(port)]
    program = SERVERS / name
    if not program.exists():
        missing(f"{name} is not compiled: tools/ensure-s3-servers.sh {name}")
    address = f"127.0.0.1:{port}"
    arguments = {
        "versitygw": ("--quiet", "--port", address, "posix", str(files)),
        "minio": ("server", "--quiet", "--address", address, str(files)),
    }
    return [str(program), *arguments[name]]


def _wait_for(endpoint: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait until the server answers with anything but 503."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(endpoint, timeout=5).close()
        except urllib.error.HTTPError as answer:
            answer.close()
            if answer.code != 503:
                return
        except OSError:
            pass
        else:
            return
        time.sleep(0.05)
    raise AssertionError(f"{endpoint} did not answer within {START_S} s: {log.read_text()}")
