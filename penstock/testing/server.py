"""The process of a test cluster: `python -m penstock.testing.server OPTIONS DIRECTORY`.

Commands arrive on stdin, and stdout contains only responses. The cluster does not run in a thread
of pytest, because tests may patch `time`, fork, hold the GIL or measure coverage. The process exits
when stdin is closed and deletes the directory. This module must not import pytest.
"""

import asyncio
import gc
import os
import shutil
import sys
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final, TextIO

# Garbage collection during imports takes a tenth of the time and finds nothing.
gc.disable()

import msgspec  # noqa: E402

from penstock.base.errors import ExpectedError  # noqa: E402
from penstock.deploy.errors import PortTaken  # noqa: E402
from penstock.deploy.node import logs  # noqa: E402
from penstock.testing.control import LINE_BYTES_MAX, AnyCommand, CommandResponse, Started  # noqa: E402
from penstock.testing.options import Options  # noqa: E402

if TYPE_CHECKING:
    from penstock.testing.nodes import Nodes

_TRIES_MAX: Final = 5
_RPC_FAILED: Final = "the request to the cluster failed"


def main() -> None:
    options = msgspec.json.decode(sys.argv[1], type=Options)
    # Output of libraries must not mix with the responses.
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    logs.configure(options.log_level)
    import uvloop

    directory = Path(sys.argv[2])
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(options, directory, output))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _serve(options: Options, directory: Path, output: TextIO) -> None:
    try:
        nodes, ports, client_properties = await _start(options, directory)
    except ExpectedError as error:
        _write_line(output, Started(error=str(error)))
        return
    from penstock.base.collector import tune_collector

    gc.enable()
    tune_collector()
    _write_line(output, Started(ports=ports, client_properties=client_properties))
    commands = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(commands), sys.stdin
    )
    while line := await commands.readline():
        _write_line(output, await _respond(nodes, line))
    # All data is in memory and no longer needed, so an orderly shutdown is unnecessary.
    shutil.rmtree(directory, ignore_errors=True)
    os._exit(0)


async def _start(options: Options, directory: Path) -> "tuple[Nodes, list[int], str]":
    """Return the nodes, the ports of the brokers and the file for clients."""
    from penstock.broker.network.server import PortTaken as ListenerPortTaken
    from penstock.deploy.local.plan import ClusterOptions
    from penstock.deploy.local.ports import find_ports
    from penstock.deploy.local.security import SecurityFiles, make
    from penstock.testing.nodes import HOST, Nodes

    files = SecurityFiles(directory / "security") if options.secure else None
    tries = 1 if options.port else _TRIES_MAX
    for number in range(tries):
        try:
            ports = find_ports(
                ClusterOptions(brokers=options.brokers, port=options.port, store="memory"),
                Random(),  # noqa: S311
            ).brokers
            if files is not None:
                bootstrap = ",".join(f"{HOST}:{port}" for port in ports)
                make(files.directory, ["localhost", HOST], bootstrap)
            nodes = Nodes(options, directory / str(number), ports, files)
            await nodes.start()
        except (PortTaken, ListenerPortTaken) as error:
            if number == tries - 1:
                raise PortTaken(HOST, error.port, "--penstock-port") from None
        else:
            return nodes, list(ports), str(files.client_properties) if files else ""
    raise AssertionError("unreachable")


async def _respond(nodes: "Nodes", line: bytes) -> CommandResponse:
    from penstock.controller.api.errors import ControllerError
    from penstock.testing.nodes import Refused

    try:
        return await _do(nodes, msgspec.json.decode(line, type=AnyCommand))
    except msgspec.ValidationError as error:
        return CommandResponse(error=f"an argument has the wrong type: {error}")
    except Refused as error:
        return CommandResponse(error=str(error))
    except (ControllerError, TimeoutError) as error:
        return CommandResponse(error=f"{_RPC_FAILED}: {error!r}")


async def _do(nodes: "Nodes", command: AnyCommand) -> CommandResponse:
    from penstock.testing import control

    match command:
        case control.Begin():
            await nodes.begin()
        case control.End():
            return CommandResponse(groups=await nodes.end())
        case control.KillBroker():
            await nodes.kill(command.node_id)
        case control.RestartBroker():
            await nodes.restart(command.node_id)
        case control.AwaitTopic():
            await nodes.await_topic(command.topic, command.timeout_ms / 1_000)
        case control.AddFaults():
            nodes.add_faults(command)
        case control.RemoveFaults():
            return CommandResponse(injected=nodes.remove_faults(command.number))
    return CommandResponse()


def _write_line(output: TextIO, message: msgspec.Struct) -> None:
    output.write(msgspec.json.encode(message).decode() + "\n")
    output.flush()


if __name__ == "__main__":
    main()
