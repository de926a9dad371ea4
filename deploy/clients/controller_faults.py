"""Determine why no controller responds at an address: nothing or another service listens there.

Limit: PROBE_S for each step.
"""

import asyncio
import socket
from collections.abc import Sequence
from typing import Final

from penstock.deploy.clients import state_file
from penstock.deploy.clients.ping import is_serving

PROBE_S: Final = 1.0
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of every HTTP/2 connection, and thus of gRPC. Source: RFC 9113, section 3.4."""
_FRAME_BYTES: Final = 9
_SETTINGS: Final = 4
_TLS: Final = (b"\x15", b"\x16")


async def faults_of(addresses: Sequence[str]) -> dict[str, str]:
    """Return the fault by address, without addresses whose fault is unknown."""
    found = await asyncio.gather(*map(fault_of, addresses))
    return {address: fault for address, fault in zip(addresses, found, strict=True) if fault}


async def fault_of(address: str) -> str:
    """Return the problem at the address of a controller, or "" if it is unknown."""
    host, _, port = address.strip().rpartition(":")
    if not (host and port.isdecimal()):
        return f"it is not HOST:PORT, as in {host or address}:9093"
    host = host.strip("[]")
    is_broker, fault = await asyncio.gather(
        is_serving(host, int(port)), _fault_of_port(host, int(port))
    )
    if is_broker:
        return "it is the address of a broker, for Kafka clients, not of a controller"
    return fault


async def _fault_of_port(host: str, port: int) -> str:
    try:
        async with asyncio.timeout(PROBE_S):
            reader, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return f"no connection within {PROBE_S:g} s"
    except socket.gaierror:
        return f"the host name {host!r} cannot be resolved"
    except ConnectionRefusedError:
        return "it refuses connections: no process listens there"
    except OSError:
        return ""
    try:
        async with asyncio.timeout(PROBE_S):
            writer.write(_PREFACE)
            frame = await reader.readexactly(_FRAME_BYTES)
    except TimeoutError:
        return (
            "it accepts connections but does not respond, as a hung controller or another service"
        )
    except (OSError, EOFError):
        return ""
    finally:
        writer.transport.abort()
    if frame[3] == _SETTINGS or frame.startswith(_TLS):
        return ""
    return "it is the address of another service, not of a controller"


def advice(controller: str) -> str:
    """Return a sentence with the address to use if no controller responds at the given one."""
    state = state_file.of_user()
    if state is None:
        return "use --controller HOST:PORT with the address of a controller"
    if state.controller != controller:
        return f"for the running `penstock dev`, use --controller {state.controller}"
    return "`penstock dev` runs, but its controller does not respond: see its output"
