"""A cluster as `penstock dev` plans it, over files. Each node is a process that serves `/metrics`
on a known port.

    with MeteredCluster(tmp_path, brokers=2, controllers=3) as cluster:
        cluster.scrape("broker 0")["penstock_wal_written_bytes_total"]
"""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from penstock.deploy.local.plan import ClusterOptions, Ports, plan_cluster
from penstock.deploy.local.security import SecurityFiles, make
from tests.support.dev_cluster import PATIENT
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S

READY_S = PATIENCE_S
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class MeteredCluster:
    def __init__(
        self,
        directory: Path,
        *,
        brokers: int,
        controllers: int,
        secure: bool = False,
        settings: Sequence[str] = (),
    ) -> None:
        """secure: whether clients need TLS and SCRAM, and nodes TLS among themselves, as in
        `penstock dev --secure`. settings: KEY=VALUE, for the roles that have the setting.
        """
        options = ClusterOptions(
            brokers=brokers,
            controllers=controllers,
            store=f"file:{directory}/store",
            log_level="warning",
            secure=secure,
            settings=(PATIENT, *settings),
        )
        ports = Ports(
            tuple(free_port() for _ in range(brokers)),
            tuple(free_port() for _ in range(controllers)),
            0,
        )
        self.security = SecurityFiles(directory / "security")
        """The certificate and user files of a secure cluster."""
        self._plan = plan_cluster(
            options, ports, str(directory / "controllers"), self.security if secure else None
        )
        if secure:
            self.admin = make(self.security.directory, ("127.0.0.1",), self._plan.bootstrap)
        self._log = directory / "log"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.arguments: tuple[str, ...] = ()
        """Additional flags of every node."""
        self.ports: dict[str, int] = {}
        """Ports of `/metrics`, by "broker 0" or "controller 0"."""

    @property
    def bootstrap(self) -> str:
        return self._plan.bootstrap

    @property
    def controller(self) -> str:
        return self._plan.controller

    def __enter__(self) -> Self:
        try:
            for process in self._plan.processes:
                port = self.ports[process.name] = free_port()
                command = (
                    sys.executable,
                    "-P",
                    *process.arguments,
                    "--health-listener",
                    f"127.0.0.1:{port}",
                    *self.arguments,
                )
                with self._log.open("ab") as log:
                    self._processes[process.name] = subprocess.Popen(
                        command, stdout=log, stderr=log, env={**os.environ, **process.environment}
                    )
            for name in self.ports:
                self.until(lambda name=name: self.is_ready(name), f"{name} is ready")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def pid(self, name: str) -> int:
        return self._processes[name].pid

    def kill(self, name: str) -> None:
        self._processes[name].kill()
        self._processes[name].wait()

    def is_ready(self, name: str) -> bool:
        assert self._processes[name].poll() is None, (
            f"{name} ended:\n{self._log.read_text()[-2_000:]}"
        )
        try:
            return bool(self._get(name, "/readyz"))
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError:
            return False

    def families(self, name: str) -> list[Metric]:
        return list(text_string_to_metric_families(self._get(name, "/metrics")))

    def scrape(self, name: str) -> Samples:
        """Return every sample by its name and labels."""
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families(name)
            for sample in family.samples
        }

    def until(self, reached: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + READY_S
        while not reached():
            assert time.monotonic() < deadline, (
                f"not within {READY_S:.0f} s: {what}\n{self._log.read_text()[-2_000:]}"
            )
            time.sleep(0.05)

    def _get(self, name: str, path: str) -> str:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.ports[name]}{path}", timeout=PATIENCE_S
        ) as response:
            return str(response.read().decode())


def value(samples: Samples, metric: str, labels: Mapping[str, str] | None = None) -> float:
    """Return the sum of the samples with these labels; 0 if there are none."""
    requested = set((labels or {}).items())
    return sum(
        found for (name, has), found in samples.items() if name == metric and requested <= has
    )
