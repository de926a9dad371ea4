"""How soon a controller dials another one again, by the errors of real channels."""

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


async def test_a_name_without_address_is_looked_up_once_a_second() -> None:
    """Each look-up opens several sockets. This name has no address, even without a network."""
    assert pause_after(await _error_of("con..troller:9093")) == REFUSED_BACKOFF_S


async def test_a_controller_that_does_not_listen_yet_is_dialed_soon() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert pause_after(await _error_of(f"127.0.0.1:{port}")) == BACKOFF_S


def test_a_write_that_takes_too_long_is_repeated_soon() -> None:
    assert pause_after(TimeoutError()) == BACKOFF_S
