"""Run `penstock dev` as a process for system tests, on free ports and with short timeouts."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.deploy.local.handle import LocalCluster
from tests.support.cli import run_here
from tests.support.waiting import PATIENCE_S

PENSTOCK = (sys.executable, "-P", "-m", "penstock.deploy.cli")
PATIENT = "broker.session.timeout.ms=30s"
"""A setting with which brokers keep their session although their process stalls for some seconds,
which happens on busy machines. The session of a killed broker ends with its connection.
"""


class DevCluster(LocalCluster):
    """`penstock dev` with brokers that keep their session, unless the arguments set its timeout."""

    def __init__(self, arguments: Sequence[str] = ()) -> None:
        super().__init__(("--set", PATIENT, *arguments))

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """Stop the cluster as Ctrl-C does, and return its exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(PATIENCE_S)


def on_files(directory: Path, *arguments: str) -> DevCluster:
    """Return a cluster on a directory, for tests that are not about S3: without moto, it uses a
    third less CPU to start, and far less CPU to store records.
    """
    store = f"file:{directory}/store"
    return DevCluster(["--store", store, "--no-console", "--log-level", "error", *arguments])


def penstock(
    cluster: LocalCluster | None, *arguments: str, given: str = ""
) -> "subprocess.CompletedProcess[str]":
    """Run one command against the cluster, as a user in a second terminal does."""
    environment = os.environ | ({} if cluster is None else _variables(cluster))
    return subprocess.run(
        (*PENSTOCK, *arguments),
        input=given,
        capture_output=True,
        text=True,
        env=environment,
        timeout=PATIENCE_S,
        check=False,
    )


def started(cluster: LocalCluster, *arguments: str) -> "subprocess.Popen[str]":
    """Start one command against the cluster, with pipes."""
    return subprocess.Popen(
        (*PENSTOCK, *arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | _variables(cluster),
    )


def _variables(cluster: LocalCluster) -> dict[str, str]:
    return {
        "PENSTOCK_BOOTSTRAP": cluster.bootstrap,
        "PENSTOCK_STATE_FILE": str(cluster.state_path),
    }


def run_with(cluster: LocalCluster, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run one command against the cluster in this process."""
    return run_here(*arguments, **_variables(cluster))


def requested(cluster: LocalCluster, *arguments: str) -> Any:
    """Return the JSON output of a read command that runs in this process, because some tests repeat
    it.
    """
    done = run_with(cluster, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def pids_of(cluster: LocalCluster) -> list[int]:
    """Return the process ids of the supervisor and of all processes that it started."""
    return [
        cluster.pid,
        *(process.pid for process in cluster.state().processes if process.pid is not None),
    ]


def is_gone(pid: int) -> bool:
    """Return whether the process does not exist, or has exited and was not reaped yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
