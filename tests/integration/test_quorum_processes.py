"""Three controllers and two brokers as processes: the leading controller is killed again and again under metadata and records."""

import asyncio
import signal
import threading
import time
from itertools import pairwise
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

from controller.rpc import messages as m
from controller.rpc.client import ControllerClient
from deploy.cluster.handle import LocalCluster
from deploy.cluster.state import ProcessState

KILLS = 4
GAP_S_MAX = 3.0


class Produces(threading.Thread):
    """One record each few milliseconds, acks=all; every error that a client would see is kept."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self._producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "delivery.timeout.ms": 30_000})
        self._over = threading.Event()
        self.errors: list[str] = []
        self.delivered_at: list[float] = []

    def run(self) -> None:
        while not self._over.is_set():
            self._producer.produce("t", b"x" * 100, on_delivery=self._delivered)
            self._producer.poll(0.01)
        self._producer.flush(30)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:
            self.delivered_at.append(time.monotonic())

    def end(self) -> None:
        self._over.set()
        self.join(40)


class Writes:
    """Metadata writers; what was acknowledged when."""

    def __init__(self, addresses: list[str]) -> None:
        self.client = ControllerClient(addresses)
        self.acknowledged: list[tuple[float, str]] = []
        self._over = False
        self._tasks = [asyncio.ensure_future(self._write(writer)) for writer in range(4)]

    async def _write(self, writer: int) -> None:
        number = 0
        while not self._over:
            key = f"{writer}-{number}"
            await self.client.put_key_value(m.PutKeyValue(key=key, value=b"v"))
            self.acknowledged.append((time.monotonic(), key))
            number += 1
            await asyncio.sleep(0.005)

    async def end(self) -> None:
        self._over = True
        await asyncio.gather(*self._tasks)

    async def first_after(self, moment: float) -> float:
        """Seconds from then to the next acknowledgement."""
        async with asyncio.timeout(20):
            while not self.acknowledged or self.acknowledged[-1][0] <= moment:  # noqa: ASYNC110 - another process decides when
                await asyncio.sleep(0.005)
        return next(at for at, _ in self.acknowledged if at > moment) - moment


async def leader_of(cluster: LocalCluster) -> ProcessState:
    """The controller that says that it leads."""
    async with asyncio.timeout(15):
        while True:
            for process in cluster.state().of_role("controller"):
                client = ControllerClient([f"{process.host}:{process.port}"])
                try:
                    if process.phase == "serving" and (await client.describe(timeout_s=0.5)).active:
                        return process
                except TimeoutError:
                    pass
                finally:
                    await client.close()
            await asyncio.sleep(0.05)


async def kill_leaders(cluster: LocalCluster) -> tuple[list[float], Writes]:
    """Time without commits for each kill."""
    writes = Writes(cluster.state().controller.split(","))
    gaps: list[float] = []
    for _ in range(KILLS):
        await asyncio.sleep(0.5)
        leader = await leader_of(cluster)
        killed_at = time.monotonic()
        cluster.kill([leader], signal.SIGKILL)
        gaps.append(await writes.first_after(killed_at + 0.05))
        await asyncio.to_thread(cluster.wait_for_new, [leader])
    await writes.end()
    return gaps, writes


async def missing(writes: Writes) -> list[str]:
    keys = [key for _, key in writes.acknowledged]
    found = [await writes.client.get_key_value(m.GetKeyValue(key=key)) for key in keys[-300:]]
    lost = [key for key, value in zip(keys[-300:], found, strict=True) if value.value != b"v"]
    await writes.client.close()
    return lost


def test_killed_leaders_lose_no_acknowledged_write_and_stop_no_producer(tmp_path: Path) -> None:
    arguments = ["--controllers", "3", "--brokers", "2", "--store", f"file:{tmp_path}"]
    with LocalCluster(arguments) as cluster:
        produces = Produces(cluster.bootstrap)
        produces.start()
        gaps, writes = asyncio.run(_scenario(cluster))
        produces.end()
        moments = produces.delivered_at
    pause_s = max(after - before for before, after in pairwise(moments))
    told = f"without commits: {[round(gap, 2) for gap in gaps]} s, {len(writes.acknowledged)} writes; produced {len(moments)}, "
    print(f"{told}longest pause {pause_s:.2f} s")  # noqa: T201 - figures for whoever runs it with -s
    assert max(gaps) <= GAP_S_MAX
    assert not produces.errors


async def _scenario(cluster: LocalCluster) -> tuple[list[float], Writes]:
    gaps, writes = await kill_leaders(cluster)
    assert not await missing(writes)
    return gaps, writes
