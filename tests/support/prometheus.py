"""Run Prometheus on a free port, with the chart's rules and its data in a test directory."""

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

import pytest
import yaml

from tests.support.missing import missing
from tests.support.ports import free_port
from tests.support.promql import CHART
from tests.support.waiting import PATIENCE_S

PROGRAMS: Final = Path(__file__).parents[2] / "build" / "prometheus"
RULES: Final = CHART / "rules" / "penstock.yaml"
START_S: Final = float(PATIENCE_S)
SCRAPE_S: Final = 1


def program(name: str) -> Path:
    """Return the path of `prometheus` or `promtool`. If it has not been compiled, skip the test, or
    fail it in CI.
    """
    found = PROGRAMS / name
    if not found.exists():
        missing(f"{name} is missing: make monitoring compiles it")
    return found


class Prometheus:
    """Scrapes nodes every second. `targets`: the port of `/metrics` of each, by "broker 0" or
    "controller 0". Use it in a `with` block.
    """

    def __init__(
        self, directory: Path, targets: Mapping[str, int], otlp: Mapping[str, Any] | None = None
    ) -> None:
        """otlp: additional configuration for pushed metrics; with None, pushed metrics are not
        accepted.
        """
        self._directory = directory
        self._otlp = otlp
        self._targets = targets
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        config = self._directory / "prometheus.yml"
        config.write_text(yaml.safe_dump(self._config()))
        command = (
            *(program("prometheus"), f"--config.file={config}"),
            f"--storage.tsdb.path={self._directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
            *(() if self._otlp is None else ("--web.enable-otlp-receiver",)),
        )
        with (self._directory / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                pytest.fail(f"Prometheus is not ready:\n{(self._directory / 'log').read_text()}")
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _config(self) -> dict[str, Any]:
        """Return the example configuration of deploy/image/compose with these targets; the labels
        are those of the chart's ServiceMonitor.
        """
        return {
            "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [
                {
                    "job_name": "penstock",
                    "static_configs": [
                        {
                            "targets": [f"127.0.0.1:{port}"],
                            "labels": {
                                "app_kubernetes_io_component": name.split()[0],
                                "namespace": "streams",
                                "pod": f"penstock-{name.replace(' ', '-')}",
                            },
                        }
                        for name, port in self._targets.items()
                    ],
                }
            ],
            **(self._otlp or {}),
        }

    @property
    def otlp_url(self) -> str:
        return f"http://127.0.0.1:{self._port}/api/v1/otlp/v1/metrics"

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self._port}/-/ready", timeout=PATIENCE_S
            ):
                return True
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError:
            return False

    def get(self, path: str, **parameters: str) -> Any:
        """Call the API and return the data of the response. Raises AssertionError with
        the error.
        """
        query = urllib.parse.urlencode(parameters)
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{query}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as refused:
            with refused:
                raise AssertionError(f"{parameters}: {refused.read().decode()}") from None

    def query(self, expression: str) -> list[Any]:
        """Return the current series of an expression."""
        found: list[Any] = self.get("query", query=expression)["result"]
        return found

    def alerts(self) -> dict[str, str]:
        """Return the state of each alert that is pending or firing."""
        return {it["labels"]["alertname"]: it["state"] for it in self.get("alerts")["alerts"]}
