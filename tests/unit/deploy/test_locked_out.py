"""Commands that are rejected by all controllers fail at once, not after their timeout."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.deploy.clients import controller_faults, controllers
from penstock.deploy.clients.controllers import response_of, unless_locked_out
from penstock.deploy.errors import NoController
from penstock.protocol import framing
from penstock.protocol.gen import api_versions
from tests.sim.loop import VirtualLoop
from tests.support.stream_server import Serve, StreamServer
from tests.support.waiting import PATIENCE_S


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(controllers, "LOCKED_OUT_S", 0.2)
    monkeypatch.setattr(controllers, "_LOOK_S", 0.01)
    return cast("Any", SimpleNamespace(is_locked_out=True, problem="c:1: it refuses this"))


@pytest.fixture
async def closing() -> AsyncGenerator[str]:
    """Yield the address of a server that closes all connections, as a controller with TLS does."""

    async def close(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        pass

    server = StreamServer(close)
    server.open()
    yield f"127.0.0.1:{server.port}"
    server.close()


async def test_a_rejected_command_fails_with_the_reason(client: Any, closing: str) -> None:
    endless = asyncio.Event()
    with pytest.raises(NoController, match=f"no controller responds at {closing}: c:1: it refuses"):
        await response_of(client, closing, 10.0, endless.wait())


def test_a_command_continues_after_brief_rejections(client: Any) -> None:
    """This happens while a controller restarts."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(reject_briefly(client))


async def reject_briefly(client: Any) -> None:
    async def work() -> str:
        for is_locked_out in (True, False) * 20:
            client.is_locked_out = is_locked_out
            await asyncio.sleep(0.02)
        return "done"

    assert await unless_locked_out(client, work()) == "done"


async def test_the_error_contains_the_silent_controller_and_the_timeout(
    client: Any, closing: str
) -> None:
    client.is_locked_out, client.problem = False, ""

    async def work() -> None:
        raise TimeoutError

    with pytest.raises(NoController, match=f"no controller responds at {closing} within 7 s$"):
        await response_of(client, closing, 7.0, work())


async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Respond to ApiVersions of version 0, and close gRPC connections."""
    size = int.from_bytes(await reader.readexactly(framing.SIZE_BYTES))
    if size > 1 << 20:
        return
    header = framing.parse_header(memoryview(await reader.readexactly(size)))
    writer.write(
        framing.encode_response_frame(
            header.api,
            header.api_version,
            header.correlation_id,
            header.api.codec.encode_response,
            api_versions.ApiVersionsResponse(),
        )
    )


async def web_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.mark.parametrize(
    ("serve", "fault"),
    [
        (silent, "it accepts connections but does not respond"),
        (broker, "it is the address of a broker, for Kafka clients, not of a controller"),
        (web_server, "it is the address of another service, not of a controller"),
        (None, "it refuses connections: no process listens there"),
    ],
)
async def test_a_command_checks_the_address_before_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, serve: Serve | None, fault: str
) -> None:
    monkeypatch.setattr(controllers, "FIRST_RESPONSE_S", 0.0)
    monkeypatch.setattr(controller_faults, "PROBE_S", 0.2 if serve is silent else PATIENCE_S)
    monkeypatch.setenv("PENSTOCK_STATE_FILE", str(tmp_path / "none"))
    server = StreamServer(serve or silent)
    address = f"127.0.0.1:{server.open()}"
    if serve is None:
        server.close()
    waiting = cast("Any", SimpleNamespace(is_locked_out=False, problem="", addresses=[address]))
    try:
        with pytest.raises(NoController) as failed:
            await response_of(waiting, address, 600.0, asyncio.Event().wait())
    finally:
        server.close()
    assert str(failed.value).startswith(f"no controller responds at {address}: {fault}")
    assert str(failed.value).endswith(
        "; use --controller HOST:PORT with the address of a controller"
    )


async def test_other_addresses_may_still_respond(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controllers, "FIRST_RESPONSE_S", 0.0)
    server = StreamServer(settings)
    addresses = ["127.0.0.1:1", f"127.0.0.1:{server.open()}"]
    waiting = cast("Any", SimpleNamespace(is_locked_out=False, problem="", addresses=addresses))

    async def work() -> str:
        await asyncio.sleep(0.5)
        return "done"

    try:
        assert await unless_locked_out(waiting, work()) == "done"
    finally:
        server.close()


async def settings(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
    await reader.read()
