"""Run object stores on free ports, with their files in a directory of the test: the S3 servers of
`tools/ensure-s3-servers.sh`; moto, the server of `penstock dev`; the stand-ins for Google Cloud
Storage (`gcs_server`) and S3 Express One Zone (`s3_express_server`); Azurite; and, without a
server, a directory or memory.
"""

import base64
import hmac
import itertools
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager
from email.utils import formatdate
from importlib.metadata import version
from pathlib import Path
from typing import Final

import boto3
import pytest

from penstock.objectstore.azure import AzureStore
from penstock.objectstore.azure_credentials import AZURITE_KEY
from penstock.objectstore.config import (
    AzureConfig,
    DirectoryConfig,
    GcsConfig,
    MemoryConfig,
    RemoteConfig,
    S3Config,
)
from penstock.objectstore.gcs import GcsStore
from penstock.objectstore.ports import ObjectStore
from penstock.objectstore.s3 import S3Store
from penstock.objectstore.s3_express import S3ExpressStore
from penstock.objectstore.url import open_store, parse_store_url
from tests.support.missing import missing
from tests.support.npm import NODE, package
from tests.support.ports import free_ports
from tests.support.s3_express_server import CA_NAME, REGION, ZONE
from tests.support.waiting import PATIENCE_S

SERVERS: Final = Path(__file__).parents[2] / "build" / "s3-servers"
COMPILED: Final = ("versitygw", "minio", "seaweedfs")
S3_NAMES: Final = (
    "moto",
    "versitygw",
    pytest.param("minio", marks=pytest.mark.long),
    pytest.param("seaweedfs", marks=pytest.mark.long),
)
CLOUDS: Final = ("gcs", "azurite")
LOCAL: Final = ("file", "memory")
S3_EXPRESS: Final = "s3express"
NAMES: Final = (
    *S3_NAMES,
    *CLOUDS,
    S3_EXPRESS,
    *(pytest.param(name, marks=pytest.mark.long) for name in LOCAL),
)
"""The contract tests of MinIO and SeaweedFS take long, and stores without a server have theirs in
the unit tests.
"""
WAL_PAIRS: Final = ("azurite+versitygw", "versitygw+gcs", "gcs+azurite", f"moto+{S3_EXPRESS}")
"""Different types of stores for data and WALs."""
ACCESS_KEY: Final = "local"
SECRET_KEY: Final = "local-secret"
START_S: Final = PATIENCE_S
_AZURITE: Final = "3.35.0"
NOT_RUN: Final = {
    "fake-gcs-server": ("1.56.1", "responds with 400 invalid uploadType to a PUT of the XML API"),
}
"""Servers that cannot run Penstock: version and reason."""
_AZURITE_ACCOUNT: Final = "devstoreaccount1"
_SEAWEEDFS: Final = (
    "-ip=127.0.0.1",
    "-ip.bind=127.0.0.1",
    "-webdav=false",
    "-admin.ui=false",
    "-master.telemetry=false",
    "-s3.port.iceberg=0",
    "-s3.port.lance=0",
    "-s3.autoCreateBucket=false",
    "-s3.allowBackslashInKey=true",
    "-volume.max=2000",  # creating a bucket takes several requests
    "-admin.port.legacy=0",
)
_SEAWEEDFS_PORTS: Final = (
    "admin.port",
    "admin.port.grpc",
    "s3.port.grpc",
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
)
_NO_HEADERS: Final = "\n" * 12
"""The string to sign of a request has a line for each of twelve headers."""

_bucket_numbers = itertools.count()


def version_of(name: str) -> str:
    """Return the version of one of NAMES, or of a pair; "" for servers in this repository."""
    if "+" in name:
        return "+".join(filter(None, map(version_of, name.split("+"))))
    if name in COMPILED:
        file = SERVERS / f"{name}.version"
        return _day(file.read_text().strip().rpartition("@")[2]) if file.exists() else ""
    return {"moto": version("moto"), "azurite": _AZURITE}.get(name, "")


def _day(tag: str) -> str:
    """Return the day of a version without a tag: v0.0.0-YYYYMMDDhhmmss-HASH."""
    found = re.fullmatch(r"v0\.0\.0-(\d{4})(\d\d)(\d\d)\d{6}-.*", tag)
    return "-".join(found.groups()) if found else tag


class StoreServer(ABC):
    """A running server."""

    def __init__(self, name: str, endpoint: str) -> None:
        self.name = name
        self.endpoint = endpoint

    @abstractmethod
    def new_store(self) -> ObjectStore:
        """Create an empty bucket, and open it without retries."""

    @abstractmethod
    def new_url(self) -> str:
        """Create an empty bucket and return its store URL."""

    def new_config(self) -> RemoteConfig:
        """Create an empty bucket and return its config. Skips the test if there are no buckets."""
        config = parse_store_url(self.new_url())
        if isinstance(config, DirectoryConfig | MemoryConfig):
            pytest.skip("this store has neither keys nor buckets")
        return config


class S3Server(StoreServer):
    """A server with the API of S3."""

    def new_store(self) -> ObjectStore:
        return S3Store(self.new_bucket())

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
        bucket = self.new_bucket().bucket
        keys = f"access_key={ACCESS_KEY}&secret_key={SECRET_KEY}"
        return f"s3://{bucket}?endpoint={self.endpoint}&{keys}"


class GcsServer(StoreServer):
    """The stand-in for Google Cloud Storage."""

    def new_store(self) -> ObjectStore:
        return GcsStore(GcsConfig(bucket=self._new_bucket(), endpoint=self.endpoint))

    def new_url(self) -> str:
        return f"gs://{self._new_bucket()}?endpoint={self.endpoint}"

    def _new_bucket(self) -> str:
        bucket = f"bucket-{next(_bucket_numbers)}"
        request = urllib.request.Request(
            f"{self.endpoint}/storage/v1/b?project=test", json.dumps({"name": bucket}).encode()
        )
        urllib.request.urlopen(request, timeout=START_S).close()
        return bucket


class AzureServer(StoreServer):
    """Azurite, Microsoft's emulator for Azure Blob Storage."""

    def new_store(self) -> ObjectStore:
        account, container = _AZURITE_ACCOUNT, self._new_container()
        return AzureStore(AzureConfig(account=account, container=container, endpoint=self.endpoint))

    def new_url(self) -> str:
        return f"az://{_AZURITE_ACCOUNT}/{self._new_container()}?endpoint={self.endpoint}"

    def _new_container(self) -> str:
        container = f"bucket-{next(_bucket_numbers)}"
        path = f"/{_AZURITE_ACCOUNT}/{container}"
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        signed = "".join(f"{name}:{value}\n" for name, value in headers.items())
        text = f"PUT{_NO_HEADERS}{signed}/{_AZURITE_ACCOUNT}{path}\nrestype:container"
        mac = hmac.digest(base64.b64decode(AZURITE_KEY), text.encode(), "sha256")
        headers["Authorization"] = f"SharedKey {_AZURITE_ACCOUNT}:{base64.b64encode(mac).decode()}"
        request = urllib.request.Request(
            f"{self.endpoint}{path}?restype=container", method="PUT", headers=headers
        )
        urllib.request.urlopen(request, timeout=START_S).close()
        return container


class S3ExpressServer(StoreServer):
    """The stand-in for S3 Express One Zone: an HTTPS proxy set by environment variables, so that
    errors contain the name of the service.
    """

    def __init__(self, name: str, address: str) -> None:
        super().__init__(name, "Amazon S3")
        self._address = address

    def new_store(self) -> ObjectStore:
        config = self.new_config()
        assert isinstance(config, S3Config)
        return S3ExpressStore(config)

    def new_url(self) -> str:
        bucket = f"bucket-{next(_bucket_numbers)}--{ZONE}--x-s3"
        request = urllib.request.Request(f"{self._address}/{bucket}", b"", method="PUT")
        urllib.request.urlopen(request, timeout=START_S).close()
        keys = f"access_key={ACCESS_KEY}&secret_key={SECRET_KEY}"
        return f"s3://{bucket}?region={REGION}&{keys}"


class LocalStore(StoreServer):
    """A new directory or memory; no server. endpoint: the parent of the directories."""

    def new_store(self) -> ObjectStore:
        return open_store(self.new_url())

    def new_url(self) -> str:
        if self.name == "memory":
            return "memory:"
        return f"file:{self.endpoint}/bucket-{next(_bucket_numbers)}"


_KINDS: Final[dict[str, type[StoreServer]]] = {
    "gcs": GcsServer,
    "azurite": AzureServer,
    S3_EXPRESS: S3ExpressServer,
}


@contextmanager
def s3_server(name: str, directory: Path) -> Generator[S3Server]:
    """Run moto, versitygw, minio or seaweedfs. Skips the test if it has not been compiled, and
    fails it in CI.
    """
    with store_server(name, directory) as server:
        assert isinstance(server, S3Server)
        yield server


@contextmanager
def store_server(name: str, directory: Path) -> Generator[StoreServer]:
    """Run one of NAMES. Skips the test if it has not been compiled, and fails it in CI."""
    if name in LOCAL:
        yield LocalStore(name, str(directory))
        return
    port, *more_ports = free_ports(1 + len(_SEAWEEDFS_PORTS))
    files, log = directory / "files", directory / "log"
    files.mkdir()
    keys = {
        "ROOT_ACCESS_KEY": ACCESS_KEY,
        "ROOT_SECRET_KEY": SECRET_KEY,
        "MINIO_ROOT_USER": ACCESS_KEY,
        "MINIO_ROOT_PASSWORD": SECRET_KEY,
        "MINIO_BROWSER": "off",
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            _command(name, port, files, more_ports),
            env=os.environ | keys,
            stdout=output,
            stderr=output,
            cwd=Path(__file__).parents[2],
        )
    try:
        endpoint = f"http://127.0.0.1:{port}"
        _wait_for(endpoint, process, log)
        with pytest.MonkeyPatch.context() as patch:
            if name == S3_EXPRESS:
                patch.setenv("HTTPS_PROXY", endpoint)
                patch.setenv("AWS_CA_BUNDLE", str(files / CA_NAME))
            yield _KINDS.get(name, S3Server)(name, endpoint)
    finally:
        process.kill()
        process.wait()


def _command(name: str, port: int, files: Path, more_ports: list[int]) -> list[str]:
    if name == "moto":
        module = ("-m", "penstock.deploy.local.moto_store")
        return [sys.executable, *module, "--bucket", "first", "--port", str(port)]
    if name == "gcs":
        return [sys.executable, "-m", "tests.support.gcs_server", "--port", str(port)]
    if name == S3_EXPRESS:
        keys = ("--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY)
        module = ("-m", "tests.support.s3_express_server")
        return [sys.executable, *module, "--port", str(port), "--directory", str(files), *keys]
    if name == "azurite":
        program = package("azurite", _AZURITE) / "dist" / "src" / "blob" / "main.js"
        flags = ("--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry")
        return [str(NODE), str(program), "--blobPort", str(port), *flags]
    program = SERVERS / name
    if not program.exists():
        missing(f"{name} is not compiled: tools/ensure-s3-servers.sh {name}")
    address = f"127.0.0.1:{port}"
    others = (f"-{at}={number}" for at, number in zip(_SEAWEEDFS_PORTS, more_ports, strict=True))
    arguments = {
        "versitygw": ("--quiet", "--port", address, "posix", str(files)),
        "minio": ("server", "--quiet", "--address", address, str(files)),
        "seaweedfs": ("mini", *_SEAWEEDFS, f"-dir={files}", f"-s3.port={port}", *others),
    }
    return [str(program), *arguments[name]]


def _wait_for(endpoint: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait until the server responds with anything but 503."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(endpoint, timeout=PATIENCE_S).close()
        except urllib.error.HTTPError as response:
            response.close()
            if response.code != 503:
                return
        except OSError:
            pass
        else:
            return
        time.sleep(0.05)
    raise AssertionError(f"{endpoint} did not respond within {START_S} s: {log.read_text()}")
