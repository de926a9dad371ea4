"""The thread for long requests pauses after each step, even if the step failed."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker.network.request import LongResponse
from penstock.broker.requests import long_requests
from penstock.broker.requests.long_requests import LongRequests

WORK_S = 0.25


class Machine:
    """The `time` module of a thread that gets half of a CPU. `sleep` returns at once."""

    def __init__(self) -> None:
        self.busy_s = self.now_s = 0.0
        self.rests_s: list[float] = []

    def thread_time(self) -> float:
        return self.busy_s

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, rest_s: float) -> None:
        self.rests_s.append(rest_s)
        self.now_s += rest_s

    def work(self) -> bytearray:
        self.busy_s += WORK_S
        self.now_s += 2 * WORK_S
        return bytearray()

    def fail(self) -> bytearray:
        self.work()
        raise ValueError("wrong")


async def test_the_thread_pauses_as_long_as_it_worked(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    monkeypatch.setattr(long_requests, "time", machine)
    requests, ctx = LongRequests(), SimpleNamespace(quota=None)

    async def encode(work: Callable[[], bytearray]) -> Any:
        return await requests.encoded(ctx, LongResponse(work))  # type: ignore[arg-type]

    try:
        await encode(machine.work)
        await encode(machine.work)
        with pytest.raises(ValueError, match="wrong"):
            await encode(machine.fail)
        await encode(machine.work)
        machine.now_s += 10.0
        await encode(machine.work)
    finally:
        requests.close()
    assert machine.rests_s == [0.0, WORK_S, WORK_S, WORK_S, 0.0]
