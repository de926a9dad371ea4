"""The supervisor of `penstock dev`, with programs that exit in place of brokers."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.base.listening import EXIT_NOT_LISTENING
from penstock.broker.main import EXIT_FENCED, EXIT_NOT_STARTED
from penstock.deploy.errors import ClusterFailed, PortTaken
from penstock.deploy.local.plan import ClusterPlan, ProcessPlan
from penstock.deploy.local.supervisor import Supervisor
from tests.support.ports import free_port
from tests.support.silent_brokers import listening, responding
from tests.support.waiting import PATIENCE_S

ENDS_FIRST = """
import os, pathlib, signal, sys
code, file = int(sys.argv[1]), pathlib.Path(sys.argv[2])
if not file.exists():
    file.touch()
    sys.exit(code)
os.write(int(os.environ["PENSTOCK_READY_PIPE"]), b"some-cluster")
signal.pause()
"""


def plan(code: int, directory: Path, *, restart: bool, port: int = 0) -> ClusterPlan:
    port = port or free_port()
    program = ("-c", ENDS_FIRST, str(code), str(directory / "started"))
    broker = ProcessPlan(role="broker", node_id=0, host="127.0.0.1", port=port, arguments=program)
    return ClusterPlan(
        bootstrap=f"127.0.0.1:{port}",
        controller="",
        store_url="",
        wal_store_url="",
        restart=restart,
        processes=(broker,),
    )


async def run(wanted: ClusterPlan) -> list[str]:
    """Run until the cluster is ready; return the output of the supervisor."""
    said: list[str] = []
    stop = asyncio.Event()

    def ignore(_: Sequence[object]) -> None:
        pass

    supervisor = Supervisor(wanted, os.environ, None, ignore, said.append)
    await supervisor.run(stop, stop.set)
    assert supervisor.cluster_id == "some-cluster"
    return said


async def test_a_broker_that_is_fenced_before_the_cluster_is_ready_is_restarted(
    tmp_path: Path,
) -> None:
    (line,) = await run(plan(EXIT_FENCED, tmp_path, restart=True))
    assert "ended with exit code 3; restarting it" in line


@pytest.mark.parametrize(("code", "restart"), [(EXIT_NOT_STARTED, True), (EXIT_FENCED, False)])
async def test_other_exits_before_the_cluster_is_ready_stop_it(
    tmp_path: Path, code: int, *, restart: bool
) -> None:
    with pytest.raises(ClusterFailed, match=f"exit code {code} before the cluster was ready"):
        await run(plan(code, tmp_path, restart=restart))


async def test_another_broker_on_the_port_is_not_mistaken_for_the_broker_of_the_cluster(
    tmp_path: Path,
) -> None:
    """The cluster's broker exits because it cannot listen."""
    with responding() as address:
        wanted = plan(
            EXIT_NOT_LISTENING, tmp_path, restart=True, port=int(address.rpartition(":")[2])
        )
        with pytest.raises(PortTaken, match=f"port {wanted.processes[0].port} .* --port"):
            await run(wanted)


def test_a_controller_whose_port_is_in_use_exits_with_its_own_code(tmp_path: Path) -> None:
    """The exit code lets the supervisor report that the port is in use."""
    with listening() as (address, _):
        command = (sys.executable, "-P", "-m", "penstock.deploy.cli", "controller")
        flags = ("--listeners", address, "--metadata-log-dir", str(tmp_path / "log"))
        ended = subprocess.run(
            (*command, *flags, "--store", f"file:{tmp_path / 'store'}"),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert ended.returncode == EXIT_NOT_LISTENING
    assert f"error: cannot listen on {address}" in ended.stderr
    assert "Traceback" not in ended.stderr
