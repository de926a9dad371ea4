"""`penstock dev` as a process of its own, for system tests: on free ports, with short patience,
gone at the end.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from deploy.local.handle import LocalCluster

PENSTOCK = (sys.executable, "-P", "-m", "deploy.cli")


def penstock(
    cluster: LocalCluster | None, *arguments: str, given: str = ""
) -> "subprocess.CompletedProcess[str]":
    """Run one command against the cluster, as a user in a second terminal does."""
    environment = dict(os.environ)
    if cluster is not None:
        environment |= {
            "PENSTOCK_BOOTSTRAP": cluster.bootstrap,
            "PENSTOCK_STATE_FILE": str(cluster.state_path),
        }
    return subprocess.run(
        (*PENSTOCK, *arguments),
        input=given,
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=False,
    )


def asked(cluster: LocalCluster, *arguments: str) -> Any:
    """The JSON that a read command prints."""
    done = penstock(cluster, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def pids_of(cluster: LocalCluster) -> list[int]:
    """The supervisor and all that it started."""
    return [
        cluster.pid,
        *(process.pid for process in cluster.state().processes if process.pid is not None),
    ]


def is_gone(pid: int) -> bool:
    """No such process, or only its exit code is left of it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
