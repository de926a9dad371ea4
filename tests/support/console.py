"""Run `penstock console` as a process, and communicate with it as a browser does."""

import http.client
import json
import os
import re
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import urlencode, urlsplit

from tests.support.child_process import killed_at_end
from tests.support.waiting import PATIENCE_S, wait_until

_STOP_S = PATIENCE_S
_PAGE_S = PATIENCE_S
_RESPONSE_S = PATIENCE_S
"""A machine with a load of 20 may need 30 s for one SQL statement."""


class Response(NamedTuple):
    """headers: by lower-case name."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def words(self) -> str:
        """Return the text between the tags."""
        return " ".join(unescape(re.sub(r"<[^>]+>", " ", self.text)).split())

    @property
    def csrf(self) -> str:
        """Return the token of the page's forms."""
        found = re.search(r'name="csrf" value="([^"]+)"', self.text)
        assert found is not None, self.words
        return found[1]


class Visitor:
    """A browser without scripts: it keeps cookies and does not follow redirects."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.cookies: dict[str, str] = {}

    def get(self, path: str, **headers: str) -> Response:
        """Return a page. For a slow page, repeat the request as the skeleton does."""
        return wait_until(lambda: self._whole(path, headers), _PAGE_S)

    def first(self, path: str) -> Response:
        """Return the console's first response, which may be a skeleton."""
        return self._send_request("GET", path, b"", {})

    def _whole(self, path: str, headers: Mapping[str, str]) -> Response | None:
        found = self._send_request("GET", path, b"", headers)
        return None if "data-pending" in found.text else found

    def begin_post(self, path: str, fields: Mapping[str, str]) -> http.client.HTTPConnection:
        """Send a form, and return the connection without waiting for the response."""
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.netloc, timeout=_RESPONSE_S)
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        body, origin = urlencode(fields), self.url.removesuffix(parts.path)
        connection.request("POST", parts.path + path, body, {"Cookie": cookies, "Origin": origin})
        return connection

    def post(self, path: str, fields: Mapping[str, str], **headers: str) -> Response:
        """Send a form, as from a page of the console."""
        given = {
            "Origin": self.url.removesuffix(urlsplit(self.url).path),
            "Content-Type": "application/x-www-form-urlencoded",
            **headers,
        }
        return self._send_request("POST", path, urlencode(fields).encode(), given)

    def _send_request(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> Response:
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.netloc, timeout=_RESPONSE_S)
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        try:
            connection.request(method, parts.path + path, body, {"Cookie": cookies, **headers})
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        for line in response.headers.get_all("Set-Cookie", []):
            name, _, value = line.partition(";")[0].partition("=")
            self.cookies[name] = value.strip('"')
        found = {name.lower(): value for name, value in response.getheaders()}
        return Response(response.status, found, text)


class ConsoleProcess:
    """`penstock console` on a free port. Use as a context manager."""

    def __init__(self, state_path: Path, *arguments: str, errors: Path | None = None) -> None:
        """errors: a file for its stderr."""
        self._errors = errors
        self._arguments = ("--state-file", str(state_path), "--port", "0", *arguments)
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        command = (sys.executable, "-P", "-m", "penstock.deploy.cli", "console", *self._arguments)
        with open(self._errors or os.devnull, "w") as errors:
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=None if self._errors is None else errors,
                text=True,
                env=os.environ,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line.startswith("console="):
            self.__exit__()
            raise AssertionError(line)
        self.url = line.removeprefix("console=")
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        with killed_at_end(self._process):
            self._process.terminate()
            self._process.wait(_STOP_S)


@contextmanager
def without_packages(directory: Path) -> Generator[None]:
    """Make processes started in the block unable to import the packages that read records and run
    SQL.

    directory: an empty directory.
    """
    names = ("numpy", "pyarrow", "duckdb")
    program = f"import sys\nsys.modules.update(dict.fromkeys({names}))\n"
    (directory / "sitecustomize.py").write_text(program)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(directory)
    try:
        yield
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before


def produce(bootstrap: str, topic: str, values: list[object], key: str = "") -> None:
    """Write records: bytes unchanged, other values as JSON."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap})
    for value in values:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        producer.produce(topic, data, key=key or None)
    assert producer.flush(PATIENCE_S) == 0
