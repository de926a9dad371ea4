"""Attack a broker, and measure what that costs: its memory, and the latency of another client.

The controller, the broker, the attacker and the client that produces are processes of their own.
The broker has `queued.max.request.bytes` of 512 MiB. Each attack lasts _ATTACK_S. Strangers attack
a listener with SASL, on which they never authenticate; the others a listener without.
"""

import asyncio
import contextlib
import multiprocessing
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from crc32c import crc32c

from benchmarks import clients, harness
from benchmarks.harness import Measure
from broker.wire import apis, framing
from broker.wire.codecs import CODECS
from broker.wire.gen import (
    api_versions,
    create_topics,
    describe_groups,
    heartbeat,
    metadata,
    produce,
    sasl_handshake,
)
from deploy.local.certificates import write_private
from deploy.node.lifeline import PARENT_VARIABLE
from stream.batch.compression import Compression, compress
from stream.batch.header import CRC_START, HEADER, HEADER_BYTES
from stream.batch.records import Record, encode_batch

_ATTACK_S: Final = 5
_CONNECTIONS: Final = 4
_FLOOD: Final = 500
_NAMES: Final = 49_000
_RATE_BYTES_PER_S: Final = 1e6
_QUEUED_BYTES_MAX: Final = 512 << 20
_BOMB_BYTES: Final = 64 << 20
_COMPACTED: Final = "compacted"


def attacks() -> list[Measure]:
    """Run each attack on one broker, and compare with the time before them."""
    with _system() as (broker, bootstrap, sasl_port):
        clients.create_topic(bootstrap)
        clients.create_topic(bootstrap, name=_COMPACTED, config={"cleanup.policy": "compact"})
        clients.produce_for(bootstrap, 1)
        usual_ms = harness.quantile(
            clients.produce_latencies_ms(bootstrap, _RATE_BYTES_PER_S, 2 * _ATTACK_S), 0.99
        )
        measures: list[Measure] = []
        open_port = int(bootstrap.rpartition(":")[2])
        attacks = {name: (attack, open_port) for name, attack in _ATTACKS.items()}
        attacks |= {name: (attack, sasl_port) for name, attack in _OF_STRANGERS.items()}
        for name, (attack, port) in attacks.items():
            process = multiprocessing.get_context("spawn").Process(
                target=attack, args=(port,), daemon=True
            )
            process.start()
            found_ms = clients.produce_latencies_ms(bootstrap, _RATE_BYTES_PER_S, _ATTACK_S)
            process.kill()
            process.join()
            measures.append(
                Measure(
                    f"p99 of produce during {name} / usual",
                    harness.quantile(found_ms, 0.99),
                    "ms",
                    5,
                    "lower",
                    usual_ms,
                )
            )
            measures.append(
                Measure(f"memory up to the end of {name}", _rss_mb(broker), "MB", 1_074, "lower")
            )
    return measures


def _long(api: apis.ApiSpec, version: int, request: object) -> bytes:
    encode = CODECS[api.key].encode_request
    return bytes(framing.encode_request_frame(api, version, 1, encode, request))


def _repeat(port: int, frame: bytes) -> None:
    """Send the request on a few connections, again as soon as it is answered."""

    async def one() -> None:
        while True:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while True:
                    writer.write(frame)
                    (size,) = struct.unpack(">i", await reader.readexactly(4))
                    await reader.readexactly(size)
            writer.close()

    async def every() -> None:
        await asyncio.gather(*(one() for _ in range(_CONNECTIONS)))

    asyncio.run(every())


def _names_groups(port: int) -> None:
    names = [f"g{number}" for number in range(_NAMES)]
    _repeat(port, _long(apis.DESCRIBE_GROUPS, 5, describe_groups.DescribeGroupsRequest(names)))


def _names_topics(port: int) -> None:
    topics = [metadata.MetadataRequestTopic(name=f"n{number}") for number in range(_NAMES)]
    request = metadata.MetadataRequest(topics, allow_auto_topic_creation=False)
    _repeat(port, _long(apis.METADATA, 12, request))


def _creates_topics(port: int) -> None:
    topics = [create_topics.CreatableTopic(f"a/{number}", 1, 1) for number in range(_NAMES)]
    request = create_topics.CreateTopicsRequest(topics, timeout_ms=30_000)
    _repeat(port, _long(apis.CREATE_TOPICS, 7, request))


def _declares_elements(port: int) -> None:
    """An array that declares two billion elements, and a megabyte of them."""
    head = apis.DESCRIBE_GROUPS.key.to_bytes(2, "big") + struct.pack(">hihi", 0, 1, -1, 2**31 - 1)
    body = head + b"\x00\x00" * (1 << 19)
    _repeat(port, len(body).to_bytes(4, "big") + body)


def _sends_tags(port: int) -> None:
    """A request of 49,000 tagged fields that no version has."""
    request = _long(apis.HEARTBEAT, 4, heartbeat.HeartbeatRequest("g", 1, "m"))
    count = _NAMES
    varint = bytes([count & 0x7F | 0x80, count >> 7 & 0x7F | 0x80, count >> 14])
    body = request[4:-1] + varint + b"\x63\x00" * count
    _repeat(port, len(body).to_bytes(4, "big") + body)


def _sends_bombs(port: int) -> None:
    """Batches of 64 MiB, compressed to some kilobytes, for a topic whose records are looked at."""
    records = encode_batch([Record(0, int(time.time() * 1_000), b"k", bytes(_BOMB_BYTES))])
    payload = compress(Compression.ZSTD, memoryview(records)[HEADER_BYTES:])
    batch = bytearray(records[:HEADER_BYTES]) + payload
    fields = list(HEADER.unpack_from(batch))
    fields[1], fields[5] = len(batch) - 12, int(Compression.ZSTD)
    HEADER.pack_into(batch, 0, *fields)
    fields[4] = crc32c(memoryview(batch)[CRC_START:])
    HEADER.pack_into(batch, 0, *fields)
    part = produce.PartitionProduceData(index=0, records=bytes(batch))
    topic = produce.TopicProduceData(name=_COMPACTED, partition_data=[part])
    request = produce.ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=[topic])
    _repeat(port, _long(apis.PRODUCE, 9, request))


def _asks_versions(port: int) -> None:
    """The only request that a stranger gets answered, again and again."""
    request = api_versions.ApiVersionsRequest("attacker", "1")
    _repeat(port, _long(apis.API_VERSIONS, 3, request))


def _guesses(port: int) -> None:
    """Begin to authenticate on many connections, and send no token."""
    frame = _long(apis.SASL_HANDSHAKE, 1, sasl_handshake.SaslHandshakeRequest("SCRAM-SHA-256"))
    while True:
        opened = list[socket.socket]()
        for _ in range(_FLOOD):
            with contextlib.suppress(OSError):
                opened.append(socket.create_connection(("127.0.0.1", port), 5))
                opened[-1].sendall(frame)
        for connection in opened:
            connection.close()


def _floods(port: int) -> None:
    """Open and close connections as fast as possible."""
    while True:
        opened = list[socket.socket]()
        for _ in range(_FLOOD):
            with contextlib.suppress(OSError):
                opened.append(socket.create_connection(("127.0.0.1", port), 5))
        for connection in opened:
            connection.close()


def _never_ends(port: int) -> None:
    """Declare requests of 100 MB on many connections, and send a byte at a time."""
    opened = [socket.create_connection(("127.0.0.1", port), 5) for _ in range(_FLOOD)]
    for connection in opened:
        connection.sendall((100_000_000).to_bytes(4, "big"))
    while True:
        for connection in opened:
            with contextlib.suppress(OSError):
                connection.sendall(b"\x00")
        time.sleep(0.1)


_ATTACKS: Final[dict[str, Callable[[int], None]]] = {
    "Metadata of 49,000 topics": _names_topics,
    "DescribeGroups of 49,000 groups": _names_groups,
    "CreateTopics of 49,000 bad names": _creates_topics,
    "arrays that declare 2 billion elements": _declares_elements,
    "a flood of connections": _floods,
    "500 slow senders of 100 MB": _never_ends,
    "49,000 tagged fields": _sends_tags,
    "bombs of 64 MiB": _sends_bombs,
}
_OF_STRANGERS: Final[dict[str, Callable[[int], None]]] = {
    "ApiVersions of strangers": _asks_versions,
    "strangers who begin to authenticate": _guesses,
    "500 slow strangers": _never_ends,
}


def _rss_mb(process: subprocess.Popen[bytes]) -> float:
    """Return the most memory that the process ever had."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1_024 / 1e6


@contextmanager
def _system() -> Iterator[tuple[subprocess.Popen[bytes], str, int]]:
    """Run a controller and a broker; yield the broker, its address, and its port with SASL."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        controller, broker, sasl = (harness.free_port() for _ in range(3))
        write_private(Path(directory) / "users", b"bench:bench secret\n")
        shared = {
            PARENT_VARIABLE: str(os.getpid()),
            "PENSTOCK_STORE": f"file:{directory}/store",
            "PENSTOCK_LOG_LEVEL": "error",
        }
        settings = {
            "controller": {
                "PENSTOCK_METADATA_LOG_DIR": f"{directory}/controller",
                "PENSTOCK_LISTENERS": f"CONTROLLER://127.0.0.1:{controller}",
            },
            "broker": {
                "PENSTOCK_NODE_ID": "0",
                "PENSTOCK_LISTENERS": (
                    f"PLAINTEXT://127.0.0.1:{broker},SASL_PLAINTEXT://127.0.0.1:{sasl}"
                ),
                "PENSTOCK_SASL_USERS_FILE": f"{directory}/users",
                "PENSTOCK_SASL_ENABLED_MECHANISMS": "SCRAM-SHA-256",
                "PENSTOCK_CONTROLLER_QUORUM_BOOTSTRAP_SERVERS": f"127.0.0.1:{controller}",
                "PENSTOCK_QUEUED_MAX_REQUEST_BYTES": str(_QUEUED_BYTES_MAX),
            },
        }
        processes = [
            subprocess.Popen(
                [sys.executable, "-P", "-m", "deploy.cli", role],
                env={**os.environ, **shared, **variables},
                stderr=subprocess.DEVNULL,
            )
            for role, variables in settings.items()
        ]
        try:
            _wait_for_port(broker)
            yield processes[1], f"127.0.0.1:{broker}", sasl
        finally:
            for process in reversed(processes):
                process.kill()
                process.wait()


def _wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        time.sleep(0.05)
    raise RuntimeError("the broker did not start within 30 s; run it by hand to see why")
