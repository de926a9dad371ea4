"""The delay before a controller reconnects to another one, for errors of real channels."""

import socket

from penstock.controller.api.transport import Channel, RpcFailed
from penstock.controller.raft.transport import BACKOFF_S, REFUSED_BACKOFF_S, pause_after


async def _error_of(address: str) -> BaseException:
    channel = Channel(address)
    call = channel.raft()
    try:
        await call.write(b"")
        await call.read()
    except RpcFailed as error:
        return error
    finally:
        call.cancel()
        await channel.close()
    raise AssertionError(f"{address} was reached")


async def test_unresolvable_host_name_is_looked_up_once_per_second() -> None:
    """Each lookup opens several sockets. This name never resolves, even without a network."""
    assert pause_after(await _error_of("con..troller:9093")) == REFUSED_BACKOFF_S


async def test_refused_connection_is_retried_soon() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert pause_after(await _error_of(f"127.0.0.1:{port}")) == BACKOFF_S


def test_write_timeout_is_retried_soon() -> None:
    assert pause_after(TimeoutError()) == BACKOFF_S
