"""The supervisor of `penstock dev`, with programs that end in place of brokers."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.broker.main import EXIT_FENCED, EXIT_NOT_STARTED
from penstock.deploy.errors import ClusterFailed
from penstock.deploy.local.plan import ClusterPlan, ProcessPlan
from penstock.deploy.local.supervisor import Supervisor
from tests.support.ports import free_ports

ENDS_FIRST = """
import pathlib, socket, sys
code, port, file = int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3])
if not file.exists():
    file.touch()
    sys.exit(code)
with socket.create_server(("127.0.0.1", port)) as server:
    while True:
        client, _ = server.accept()
        with client:
            request = client.recv(1024)  # ApiVersions, whose response has the same correlation id
            client.sendall(bytes([0, 0, 0, 10]) + request[8:12] + bytes(6))
"""


def plan(code: int, directory: Path, *, restart: bool) -> ClusterPlan:
    (port,) = free_ports(1)
    program = ("-c", ENDS_FIRST, str(code), str(port), str(directory / "started"))
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
    """Run until the cluster is ready; return what the supervisor says."""
    said: list[str] = []
    stop = asyncio.Event()

    def ignore(_: Sequence[object]) -> None:
        pass

    supervisor = Supervisor(wanted, os.environ, None, ignore, said.append)
    await supervisor.run(stop, stop.set)
    return said


async def test_a_broker_that_is_fenced_before_the_cluster_is_ready_is_restarted(
    tmp_path: Path,
) -> None:
    (line,) = await run(plan(EXIT_FENCED, tmp_path, restart=True))
    assert "ended with exit code 3; restarting it" in line


@pytest.mark.parametrize(("code", "restart"), [(EXIT_NOT_STARTED, True), (EXIT_FENCED, False)])
async def test_other_ends_before_the_cluster_is_ready_end_it(
    tmp_path: Path, code: int, *, restart: bool
) -> None:
    with pytest.raises(ClusterFailed, match=f"exit code {code} before the cluster was ready"):
        await run(plan(code, tmp_path, restart=restart))
