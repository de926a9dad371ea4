"""The controller as a process, and a broker's follower as a process paused by SIGSTOP, which no
simulation can replace.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from penstock.controller.api.client import ControllerClient
from penstock.controller.api.follower import MetadataFollower
from penstock.controller.api.messages import PutKeyValue
from tests.support.controller_cluster import Cluster
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.system

FOLLOWER = """
import asyncio, sys
from uuid import uuid4
from penstock.controller.api.client import ControllerClient
from penstock.controller.api.follower import MetadataFollower
from penstock.controller.api.messages import RegisterBroker
from penstock.controller.metadata.features import SUPPORTED
from penstock.stream.ports import BrokerIncarnation

async def main():
    client = ControllerClient([sys.argv[1]])
    registered = await client.register_broker(
        RegisterBroker(node_id=-1, incarnation_id=uuid4(), host="", port=9092, machine_host="h",
                       features=SUPPORTED))
    incarnation = BrokerIncarnation(registered.node_id, registered.node_epoch)
    follower = MetadataFollower(client, incarnation, heartbeat_interval_s=0.05)
    await follower.start()
    woke = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, woke.set)
    print("started", registered.node_id, registered.node_epoch, follower.can_write(), flush=True)
    await woke.wait()
    print("woke", follower.can_write(), flush=True)
    asyncio.get_running_loop().remove_reader(sys.stdin)
    await follower.failed
    print("fenced", follower.fenced, follower.can_write(), flush=True)

asyncio.run(main())
"""

CONTROLLER = """
import sys
from pathlib import Path
from penstock.controller.config import ControllerConfig
from penstock.controller.main import run
config = ControllerConfig(data_dir=Path(sys.argv[1]), listeners=("127.0.0.1:" + sys.argv[2],))
sys.exit(run(config, "memory:"))
"""


async def lines_of(process: asyncio.subprocess.Process) -> list[str]:
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        return (await process.stdout.readline()).decode().split()


async def test_a_paused_broker_is_fenced_and_notices_it_when_it_resumes(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path, session_timeout_ms=6_000)
    await cluster.start()
    other = await cluster.broker()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        FOLLOWER,
        cluster.server.address,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        words = await _skip_logs(process, "started")
        node_id = int(words[1])
        assert words[3] == "True"
        process.send_signal(signal.SIGSTOP)

        def is_fenced() -> bool:
            node = next((node for node in other.image.nodes if node.node_id == node_id), None)
            return node is not None and node.fenced

        await until(is_fenced)
        await until(other.follower.can_write)
        assert process.stdin is not None
        process.stdin.write(b"\n")
        await process.stdin.drain()
        process.send_signal(signal.SIGCONT)
        assert await _skip_logs(process, "woke") == ["woke", "False"]
        assert await _skip_logs(process, "fenced") == ["fenced", "True", "False"]
    finally:
        process.kill()
        await process.wait()
        await cluster.stop()


async def test_the_process_starts_serves_and_stops_on_sigterm(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        CONTROLLER,
        str(tmp_path),
        "0",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "NO_COLOR": "1"},
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(PATIENCE_S):
            while "controller_started" not in (line := (await process.stderr.readline()).decode()):
                assert line, "it ended"
        address = next(word for word in line.split() if word.startswith("address=")).partition("=")[
            2
        ]
        client = ControllerClient([address])
        assert (await client.describe()).active
        await client.close()
        process.terminate()
        async with asyncio.timeout(PATIENCE_S):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _skip_logs(process: asyncio.subprocess.Process, word: str) -> list[str]:
    while (words := await lines_of(process))[:1] != [word]:
        assert words, "it ended"
    return words


async def test_acknowledged_records_survive_sigkill(tmp_path: Path) -> None:
    port = free_port()
    client = ControllerClient([f"127.0.0.1:{port}"])
    acknowledged: set[str] = set()
    killed = asyncio.Event()

    async def put(name: str) -> None:
        number = 0
        while not killed.is_set():
            key = f"{name}-{number}"
            await client.put_key_value(PutKeyValue(key=key, value=b"v"), timeout_s=PATIENCE_S)
            acknowledged.add(key)
            number += 1

    process = await _controller(tmp_path, port)
    writers = [asyncio.create_task(put(name)) for name in "abcd"]
    follower = MetadataFollower(client)
    try:
        await follower.start(PATIENCE_S)
        for _ in range(3):
            before = len(acknowledged)
            await until(lambda before=before: len(acknowledged) > before + 50)
            process.kill()
            await process.wait()
            process = await _controller(tmp_path, port)
        killed.set()
        await asyncio.gather(*writers)
        committed = (await client.describe()).committed_offset
        await follower.reached(committed, asyncio.get_running_loop().time() + PATIENCE_S)
        assert {key for key, _ in follower.image.kv.items()} == acknowledged
        fresh = MetadataFollower(client)
        await fresh.start(PATIENCE_S)
        assert fresh.image == follower.image
        await fresh.stop()
    finally:
        killed.set()
        await follower.stop()
        process.kill()
        await process.wait()
        await asyncio.gather(*writers, return_exceptions=True)
        await client.close()


async def _controller(directory: Path, port: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", CONTROLLER, str(directory), str(port),
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
