"""Log in to Apache Iceberg's REST catalog and use vended store credentials, also with catalogs that
are down, refuse requests, or are different servers.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import boto3
import pytest
from moto.server import ThreadedMotoServer
from pyiceberg.catalog import load_catalog

from penstock.lake.table.catalog import TIMEOUT
from penstock.lake.table.errors import CatalogUnavailable, InvalidTable, TableError, WarehouseFailed
from penstock.lake.table.warehouse import Warehouse
from tests.support.child_process import killed_at_end
from tests.support.http_gateway import Asked, Fate, HttpGateway, http_gateway
from tests.support.ports import free_port
from tests.support.rest_catalog import RestCatalog
from tests.support.table_log import SCHEMA, Log
from tests.support.table_runs import RestRun, Run
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
CREDENTIAL = "penstock:secret"
TOKEN = "client-credentials-token:sub=penstock"
VENDED = {"s3.access-key-id": "VENDED", "s3.secret-access-key": "vended-secret"}


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[RestCatalog]:
    """Run a catalog that requires a token."""
    catalog = RestCatalog(tmp_path / "warehouse", properties={"credential": CREDENTIAL})
    with catalog.running():
        yield catalog


@pytest.mark.parametrize("properties", [{"credential": CREDENTIAL}, {"token": TOKEN}])
def test_export_logs_in_to_the_catalog(
    log: Log, tmp_path: Path, guarded: RestCatalog, properties: dict[str, str]
) -> None:
    """Every request except token requests contains the token. Tasks get files without the login."""
    with http_gateway(guarded.url) as gateway:
        run = RestRun(log, tmp_path / "warehouse", "iceberg", url=gateway.url)
        run.properties = properties
        run.all()
        run.check()
        requested = [one for one in gateway.requested if not one.path.endswith("/oauth/tokens")]
        assert {one.authorization for one in requested} == {f"Bearer {TOKEN}"}
        assert (len(requested) < len(gateway.requested)) == ("credential" in properties)
        table = run.warehouse.existing("t")
        table.state()
        place = table.place()
        assert not {"auth.manager", "credential", "token"} & place.properties.keys()
        assert b"client-credentials" not in pickle.dumps(place)
        assert [row for file in table.files() for row in place.read(file).to_pylist()]


def test_login_is_read_from_the_environment(
    log: Log, tmp_path: Path, guarded: RestCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__PENSTOCK__CREDENTIAL", CREDENTIAL)
    run = RestRun(log, tmp_path / "warehouse", "iceberg", url=guarded.url)
    run.all()
    run.check()


@pytest.mark.parametrize("properties", [{}, {"credential": "penstock:wrong"}, {"token": "wrong"}])
def test_refused_login_is_explained(
    tmp_path: Path, guarded: RestCatalog, properties: dict[str, str]
) -> None:
    warehouse = Warehouse(
        kind="iceberg",
        location=str(tmp_path),
        catalog_uri=guarded.url,
        catalog_properties=properties,
    )
    with pytest.raises(InvalidTable) as raised:
        warehouse.tables()
    shown = str(raised.value)
    assert shown.startswith(f"the catalog at {guarded.url} denies access: ")
    assert "PYICEBERG_CATALOG__PENSTOCK__CREDENTIAL=ID:SECRET or PYICEBERG_CATALOG__" in shown
    assert len(shown) < 600
    assert "secret" not in shown.lower().replace("id:secret", "").replace("wrong secret", "")


def test_existing_namespace_is_not_created(
    run_behind: RestRun, catalog: RestCatalog, gateway: HttpGateway
) -> None:
    """A writer may lack the right to create namespaces."""

    def refuse(requested: Asked) -> Fate:
        is_creation = (requested.method, requested.path) == ("POST", "/v1/namespaces")
        return Fate.REFUSED if is_creation else Fate.FORWARDED

    gateway.decide = refuse
    with pytest.raises(InvalidTable, match=r"table default\.t cannot be created: .* denies access"):
        run_behind.all()
    with load_catalog("other", type="rest", uri=catalog.url) as other:
        other.create_namespace("default")
    run_behind.all()
    run_behind.check()


def test_refused_commit_is_not_retried(run_behind: RestRun, gateway: HttpGateway) -> None:
    assert run_behind.sync().run_batch() is not None
    begun = len(gateway.requested)
    gateway.decide = lambda requested: Fate.REFUSED if requested.is_commit("t") else Fate.FORWARDED
    with pytest.raises(InvalidTable, match="denies access: Gateway: not allowed"):
        run_behind.all()
    assert sum(requested.is_commit("t") for requested in gateway.requested[begun:]) == 1


@pytest.fixture
def run_behind(log: Log, tmp_path: Path, gateway: HttpGateway) -> RestRun:
    return RestRun(log, tmp_path / "warehouse", "iceberg", url=gateway.url)


@pytest.mark.parametrize(
    ("uri", "properties", "shown"),
    [
        ("", {}, "--catalog-type rest needs --catalog-uri (PENSTOCK_CATALOG_URI)"),
        ("lake:8181", {}, "--catalog-uri 'lake:8181': use the address of a REST catalog"),
        ("http://u:pw@lake.invalid", {}, "the catalog at http://lake.invalid does not respond: "),
        (
            "http://lake",
            {TIMEOUT: "soon"},
            f"{TIMEOUT}=soon: use a positive number of seconds",
        ),
    ],
)
def test_wrong_address_is_explained(
    tmp_path: Path, uri: str, properties: dict[str, str], shown: str
) -> None:
    warehouse = Warehouse(
        kind="iceberg",
        location=str(tmp_path),
        catalog_type="rest",
        catalog_uri=uri,
        catalog_properties=properties,
    )
    with pytest.raises(TableError) as raised:
        warehouse.tables()
    assert shown in str(raised.value)


def test_server_that_is_no_catalog_is_reported(tmp_path: Path, catalog: RestCatalog) -> None:
    """Covers a wrong path of the catalog, and a server that serves other content on every path."""

    class Page(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>Welcome</html>")

        def log_message(self, *_: object) -> None:
            """Suppress the log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_address[1]}"
            responses = f"{url} does not respond like an Iceberg REST catalog: check --catalog-uri"
            with pytest.raises(InvalidTable, match=responses):
                Warehouse(kind="iceberg", location=str(tmp_path), catalog_uri=url).tables()
        finally:
            server.shutdown()
            thread.join()
    url = f"{catalog.url}/nowhere"
    refused = f"{url} rejects the request: .*No route for request.*; check --catalog-uri"
    with pytest.raises(InvalidTable, match=refused):
        Warehouse(kind="iceberg", location=str(tmp_path), catalog_uri=url).tables()


def test_unreachable_catalog_ends_an_export_with_one_line(log: Log, tmp_path: Path) -> None:
    """Runs the command with the catalog, while it stops, and without it."""
    catalog = RestCatalog(tmp_path / "warehouse")
    schema = tmp_path / "schema.json"
    schema.write_bytes(SCHEMA)
    command = [
        sys.executable,
        "-m",
        "penstock.deploy.cli",
        "table",
        "sync",
        "t",
        "--store",
        log.store_url,
    ]
    command += ["--format", "json", "--schema", str(schema), "--interval", "0.1", "--json"]
    command += ["--warehouse", str(tmp_path / "warehouse"), "--catalog-type", "rest"]
    command += ["--catalog-uri", catalog.url]
    shown = f"error: the catalog at {catalog.url} does not respond: "
    options = {"cwd": ROOT, "env": os.environ | {"PYTHONPATH": str(ROOT)}, "text": True}
    with ExitStack() as running:
        with catalog.running():
            process = running.enter_context(
                killed_at_end(
                    subprocess.Popen(
                        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
                    )
                )
            )
            assert process.stdout is not None
            assert '"batch_id":1,' in process.stdout.readline()
        _, stopped = process.communicate(timeout=PATIENCE_S)
    without = subprocess.run(
        command, capture_output=True, timeout=PATIENCE_S, check=False, **options
    )
    for code, error in ((process.returncode, stopped), (without.returncode, without.stderr)):
        assert code == 1
        assert error.strip().splitlines()[-1].startswith(shown)
        assert error.strip().endswith("check --catalog-uri, and that its server is running")
        assert "Traceback" not in error
    with catalog.running():
        run = RestRun(log, tmp_path / "warehouse", "iceberg", url=catalog.url)
        run.all()
        run.check()


@dataclass
class VendedRun(Run):
    """A run in S3 with credentials from the catalog."""

    url: str = ""
    endpoint: str = ""

    @property
    def warehouse(self) -> Warehouse:
        return Warehouse(
            kind=self.kind,
            location=f"s3://tables/wh?endpoint={self.endpoint}&access_key=none&secret_key=none",
            catalog_type="rest",
            catalog_uri=self.url,
        )


@pytest.fixture
def store_gateway() -> Iterator[HttpGateway]:
    """Run a gateway in front of an S3 server with a bucket."""
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    store = boto3.client(
        "s3",
        endpoint_url=f"http://{host}:{port}",
        region_name="us-east-1",
        aws_access_key_id="a",
        aws_secret_access_key="b",
    )
    store.create_bucket(Bucket="tables")
    store.close()
    try:
        with http_gateway(f"http://{host}:{port}") as gateway:
            yield gateway
    finally:
        server.stop()


@pytest.fixture
def vended(
    log: Log, tmp_path: Path, store_gateway: HttpGateway, monkeypatch: pytest.MonkeyPatch
) -> Iterator[VendedRun]:
    """Return a run on a catalog that vends credentials."""
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    served = {
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "s3.endpoint": store_gateway.target,
        "s3.path-style-access": "true",
        "client.region": "us-east-1",
        "include-credentials": "true",
    }
    catalog = RestCatalog(
        tmp_path / "catalog", warehouse="s3://tables/served", properties=served | VENDED
    )
    with catalog.running():
        yield VendedRun(log, tmp_path, "iceberg", url=catalog.url, endpoint=store_gateway.url)


def test_files_are_written_and_read_with_vended_credentials(
    vended: VendedRun, store_gateway: HttpGateway
) -> None:
    vended.all()
    vended.check()
    requested = store_gateway.requested
    assert {one.authorization.partition("Credential=")[2][:7] for one in requested} == {"VENDED/"}
    written = [one.path for one in requested if one.method in {"PUT", "POST"}]
    assert written
    assert all(path.startswith("/tables/served/") for path in written)


def test_store_that_refuses_the_files_is_reported(
    vended: VendedRun, store_gateway: HttpGateway
) -> None:
    assert vended.sync().run_batch() is not None
    store_gateway.decide = lambda requested: (
        Fate.REFUSED if "/data/" in requested.path else Fate.FORWARDED
    )
    with pytest.raises(WarehouseFailed, match=r"failed at s3://tables/served/default/t.*/data/"):
        vended.all()
    store_gateway.decide = lambda _: Fate.FORWARDED
    vended.all()
    vended.check()


def test_error_of_the_catalog_itself_is_reported(run_behind: RestRun, gateway: HttpGateway) -> None:
    gateway.decide = lambda _: Fate.UNAVAILABLE
    with pytest.raises(CatalogUnavailable, match="failed: Gateway: try again; see the log of its"):
        run_behind.all()


def test_catalog_that_is_down_is_retried_briefly(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    warehouse = Warehouse(kind="iceberg", location=str(tmp_path), catalog_uri=url)
    with pytest.raises(
        CatalogUnavailable, match=r"does not respond: .* refused; check --catalog-ur"
    ):
        warehouse.tables()
