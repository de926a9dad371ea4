"""Start a moto server for the module's tests of the S3 store, with a bucket per test."""

import itertools
import threading
import urllib.request
from collections.abc import Callable, Iterator

import pytest
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer

from penstock.objectstore.config import S3Config
from tests.support.s3_express_server import REGION, ZONE, Bucket, Server


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    """Start moto with a lock.

    moto 5.2.5 checks If-None-Match and If-Match and writes in two steps, so without the lock,
    several of the concurrent large PUTs succeed.
    """
    lock = threading.Lock()
    put_object = S3Response.put_object

    def put_object_alone(self: S3Response) -> object:
        with lock:
            return put_object(self)

    S3Response.put_object = put_object_alone
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()
    S3Response.put_object = put_object


_bucket_numbers = itertools.count()


@pytest.fixture
def new_bucket(moto_endpoint: str) -> Callable[[], S3Config]:
    """Create a bucket with a plain PUT and the credentials below, and return its config."""

    def make() -> S3Config:
        bucket = f"bucket-{next(_bucket_numbers)}"
        credential = (
            "AWS4-HMAC-SHA256 Credential=local/20260101/us-east-1/s3/aws4_request,"
            " SignedHeaders=host, Signature=0"
        )
        request = urllib.request.Request(
            f"{moto_endpoint}/{bucket}", method="PUT", headers={"Authorization": credential}
        )
        with urllib.request.urlopen(request) as response:
            assert response.status == 200
        return S3Config(
            bucket=bucket,
            endpoint=moto_endpoint,
            region="us-east-1",
            path_style=True,
            access_key="local",
            secret_key="local",
        )

    return make


@pytest.fixture(scope="session")
def s3_express(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(0, tmp_path_factory.mktemp("s3-express"), {"local": "local"})
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def new_directory_bucket(
    s3_express: Server, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], S3Config]:
    """Create an S3 Express One Zone bucket, and return its config."""
    for name, value in s3_express.environ.items():
        monkeypatch.setenv(name, value)

    def make() -> S3Config:
        bucket = f"bucket-{next(_bucket_numbers)}--{ZONE}--x-s3"
        s3_express.buckets[bucket] = Bucket()
        return S3Config(bucket=bucket, region=REGION, access_key="local", secret_key="local")

    return make
