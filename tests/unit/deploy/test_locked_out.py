"""Commands that all controllers refuse say so at once, and not when their time is over."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.deploy.clients import controllers
from penstock.deploy.clients.controllers import answer_of, unless_locked_out
from penstock.deploy.errors import NoController


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(controllers, "LOCKED_OUT_S", 0.2)
    monkeypatch.setattr(controllers, "_LOOK_S", 0.01)
    return cast("Any", SimpleNamespace(is_locked_out=True, problem="c:1: it refuses this"))


async def test_a_command_that_is_locked_out_ends_with_the_reason(client: Any) -> None:
    endless = asyncio.Event()
    with pytest.raises(NoController, match="no controller answers at c:1: c:1: it refuses this"):
        await answer_of(client, "c:1", 10.0, endless.wait())


async def test_a_moment_of_refusals_does_not_end_it(client: Any) -> None:
    """As while a controller starts again."""

    async def work() -> str:
        for is_locked_out in (True, False) * 20:
            client.is_locked_out = is_locked_out
            await asyncio.sleep(0.02)
        return "done"

    assert await unless_locked_out(client, work()) == "done"


async def test_a_controller_that_does_not_respond_is_named_with_the_time(client: Any) -> None:
    client.is_locked_out, client.problem = False, ""

    async def work() -> None:
        raise TimeoutError

    with pytest.raises(NoController, match=r"no controller answers at c:1 within 7 s$"):
        await answer_of(client, "c:1", 7.0, work())
