"""An Iceberg REST catalog over HTTP: the routes that writers use, over pyiceberg's SQL catalog. It
can lose answers.

Source: Apache Iceberg, `open-api/rest-catalog-open-api.yaml`.
"""

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import CommitTableRequest
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

_STATUS: dict[type[Exception], int] = {
    NoSuchNamespaceError: 404, NoSuchTableError: 404,
    CommitFailedException: 409, NamespaceAlreadyExistsError: 409, TableAlreadyExistsError: 409,
}  # fmt: skip
_TABLE = re.compile(r"/v1/namespaces/([^/]+)/tables/([^/]+)")
_TABLES = re.compile(r"/v1/namespaces/([^/]+)/tables")
_NAMESPACE = re.compile(r"/v1/namespaces/([^/]+)")


class Lost(Enum):
    """What happens to the answer of a completed commit."""

    NOTHING = 0
    GATEWAY_TIMEOUT = 1
    CONNECTION = 2


class RestCatalog:
    """The server. url: its address. lose: called with the table's name after each commit."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._catalog = SqlCatalog(
            "rest", uri=f"sqlite:///{directory / 'rest.db'}", warehouse=directory.resolve().as_uri()
        )
        self._lock = threading.Lock()
        self.lose: Callable[[str], Lost] = lambda _: Lost.NOTHING
        self.url = ""

    def close(self) -> None:
        self._catalog.close()

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any, Lost]:
        try:
            with self._lock:
                return self._answer(method, path, body)
        except tuple(_STATUS) as error:
            message = {
                "message": str(error),
                "type": type(error).__name__,
                "code": _STATUS[type(error)],
            }
            return _STATUS[type(error)], {"error": message}, Lost.NOTHING

    def _answer(self, method: str, path: str, body: bytes) -> tuple[int, Any, Lost]:
        if path == "/v1/config":
            return 200, {"defaults": {}, "overrides": {}}, Lost.NOTHING
        if path == "/v1/namespaces":
            if method == "GET":
                return (
                    200,
                    {"namespaces": [list(name) for name in self._catalog.list_namespaces()]},
                    Lost.NOTHING,
                )
            asked = json.loads(body)
            self._catalog.create_namespace(tuple(asked["namespace"]), asked.get("properties", {}))
            return 200, {"namespace": asked["namespace"], "properties": {}}, Lost.NOTHING
        if found := _TABLE.fullmatch(path):
            return self._of_table(method, found.groups(), body)
        if found := _TABLES.fullmatch(path):
            return self._of_tables(method, found[1], body)
        found = _NAMESPACE.fullmatch(path)
        assert found is not None, f"{method} {path}"
        return (
            200,
            {
                "namespace": [found[1]],
                "properties": self._catalog.load_namespace_properties(found[1]),
            },
            Lost.NOTHING,
        )

    def _of_tables(self, method: str, namespace: str, body: bytes) -> tuple[int, Any, Lost]:
        if method == "GET":
            names = [
                {"namespace": [namespace], "name": name[-1]}
                for name in self._catalog.list_tables(namespace)
            ]
            return 200, {"identifiers": names}, Lost.NOTHING
        left_out = dict.fromkeys(("location", "partition-spec", "write-order"))
        asked = CreateTableRequest.model_validate(left_out | json.loads(body))
        assert asked.stage_create, "tables are made in a transaction"
        if self._catalog.table_exists((namespace, asked.name)):
            raise TableAlreadyExistsError(asked.name)
        staged = self._catalog._create_staged_table(
            (namespace, asked.name),
            asked.table_schema,
            asked.location,
            asked.partition_spec or UNPARTITIONED_PARTITION_SPEC,
            asked.write_order or UNSORTED_SORT_ORDER,
            asked.properties,
        )
        return 200, _loaded(staged.metadata_location, staged.metadata), Lost.NOTHING

    def _of_table(
        self, method: str, identifier: tuple[Any, ...], body: bytes
    ) -> tuple[int, Any, Lost]:
        if method in {"GET", "HEAD"}:
            table = self._catalog.load_table(identifier)
            return 200, _loaded(table.metadata_location, table.metadata), Lost.NOTHING
        asked = CommitTableRequest.model_validate_json(body)
        named: Any = SimpleNamespace(name=lambda: identifier)
        done = self._catalog.commit_table(named, asked.requirements, asked.updates)
        return 200, _loaded(done.metadata_location, done.metadata), self.lose(identifier[-1])


def _loaded(location: str, metadata: Any) -> Any:
    return {
        "metadata-location": location,
        "metadata": json.loads(metadata.model_dump_json()),
        "config": {},
    }


@contextmanager
def rest_catalog(directory: Path) -> Iterator[RestCatalog]:
    catalog = RestCatalog(directory)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, answer, lost = catalog.answer(self.command, self.path.partition("?")[0], body)
            if lost is Lost.CONNECTION:
                self.close_connection = True
                self.connection.close()
                return
            if lost is Lost.GATEWAY_TIMEOUT:
                status, answer = (
                    504,
                    {
                        "error": {
                            "message": "no answer in time",
                            "type": "GatewayTimeout",
                            "code": 504,
                        }
                    },
                )
            data = b"" if self.command == "HEAD" else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_HEAD = do_DELETE = _do

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    catalog.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield catalog
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        catalog.close()
