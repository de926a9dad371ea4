"""The blocking and the asyncio protocol client, with misbehaving brokers."""

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from penstock.deploy.clients.security import PLAINTEXT
from penstock.protocol import apis
from penstock.protocol.client.async_connection import AsyncConnection
from penstock.protocol.client.brokers import GROUP, Brokers, Partition
from penstock.protocol.client.connection import Connection, wait_at_most
from penstock.protocol.client.errors import KafkaFailed, Moved, NoBroker, NoResponse, Refused
from penstock.protocol.codecs import CODECS
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.errors import UnexpectedResponse
from penstock.protocol.framing import encode_response_frame, parse_header
from penstock.protocol.gen import api_versions, find_coordinator, list_offsets, metadata
from tests.support.stream_server import StreamServer
from tests.support.waiting import until

Respond = Callable[[Any], Any]
"""Returns the response message to a request header; None for no response. Messages of other types
replace the response to ApiVersions.
"""


@asynccontextmanager
async def broker(respond: Respond, *, late_by: int = 0) -> AsyncGenerator[StreamServer]:
    """Run a broker.

    late_by: each response is the one to an earlier request, this many requests ago.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while prefix := await reader.read(4):
            header = parse_header(await reader.readexactly(struct.unpack(">i", prefix)[0]))
            message = respond(header)
            if message is None:
                await reader.read()
                return
            is_greeting = header.api is apis.API_VERSIONS
            if is_greeting and not isinstance(message, api_versions.ApiVersionsResponse):
                message = api_versions.ApiVersionsResponse()
            codec = CODECS[header.api.key]
            correlation_id = header.correlation_id - late_by
            version = header.api_version
            frame = encode_response_frame(
                header.api, version, correlation_id, codec.encode_response, message
            )
            writer.write(frame)

    server = StreamServer(serve)
    server.open()
    try:
        yield server
    finally:
        server.close()


def address(server: StreamServer) -> str:
    return f"127.0.0.1:{server.port}"


def cluster(server: StreamServer) -> metadata.MetadataResponse:
    node = metadata.MetadataResponseBroker(7, "127.0.0.1", server.port)
    return metadata.MetadataResponse(brokers=[node])


def greet(bootstrap: str, version: int = 0) -> None:
    with Connection(bootstrap, PLAINTEXT) as connection:
        connection.send_request(
            apis.API_VERSIONS,
            api_versions.ApiVersionsRequest(),
            api_versions.ApiVersionsResponse,
            5,
            version=version,
        )


async def test_neither_client_accepts_the_response_to_another_request() -> None:
    async with broker(lambda _: api_versions.ApiVersionsResponse(), late_by=1) as server:
        with pytest.raises(NoResponse, match="correlation id 0, not 1"):
            await asyncio.to_thread(greet, address(server))
        connection = await AsyncConnection.open("127.0.0.1", server.port)
        with pytest.raises(UnexpectedResponse):
            await connection.greet()
        connection.abort()


async def test_end_offsets_are_returned_for_partitions_whose_leaders_respond() -> None:
    requested: list[Any] = []

    def respond(header: Any) -> Any:
        if header.api is apis.LIST_OFFSETS:
            return list_offsets.ListOffsetsResponse(
                topics=[
                    list_offsets.ListOffsetsTopicResponse(
                        "t",
                        [
                            list_offsets.ListOffsetsPartitionResponse(0, offset=5),
                            list_offsets.ListOffsetsPartitionResponse(
                                1, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER
                            ),
                        ],
                    )
                ]
            )
        leaders = enumerate((7, 7, 8, 9, -1))
        return metadata.MetadataResponse(
            brokers=[
                metadata.MetadataResponseBroker(node, "127.0.0.1", port)
                for node, port in ((7, good.port), (8, silent.port), (9, closed))
            ],
            topics=[
                metadata.MetadataResponseTopic(
                    name="t",
                    partitions=[
                        metadata.MetadataResponsePartition(partition_index=index, leader_id=leader)
                        for index, leader in leaders
                    ],
                )
            ],
        )

    def send_request(skipped: tuple[int, ...]) -> tuple[dict[Partition, int], list[int]]:
        wait_at_most(0.2)
        with Brokers(address(good), PLAINTEXT, skipped=skipped) as brokers:
            keys = [("t", index) for index in range(5)]
            return brokers.known_ends(keys), brokers.nodes()

    async with broker(lambda _: None) as server:
        closed = server.port
    async with broker(requested.append) as silent, broker(respond) as good:
        assert await asyncio.to_thread(send_request, (8,)) == ({("t", 0): 5}, [7, 9])
        assert not requested
        assert await asyncio.to_thread(send_request, ()) == ({("t", 0): 5}, [7, 8, 9])
        assert requested


async def test_a_silent_broker_may_be_replaced_or_respond_later() -> None:
    def respond(_: Any) -> Any:
        return metadata.MetadataResponse(
            brokers=[
                metadata.MetadataResponseBroker(node, "127.0.0.1", port)
                for node, port in ((8, silent.port), (9, closed))
            ]
        )

    def send_request(node: int) -> None:
        wait_at_most(0.2)
        with Brokers(address(good), PLAINTEXT) as brokers:
            brokers.retried(
                lambda: brokers.send_request(
                    apis.FIND_COORDINATOR,
                    find_coordinator.FindCoordinatorRequest(key="g"),
                    find_coordinator.FindCoordinatorResponse,
                    node=node,
                )
            )

    async with broker(lambda _: None) as server:
        closed = server.port
    async with broker(lambda _: None) as silent, broker(respond) as good:
        for node, text in (
            (8, r"broker 8 does not respond at .*: it accepts connections but sent no response"),
            (9, r"broker 9 does not respond at 127.0.0.1:\d+$"),
        ):
            with pytest.raises(NoResponse, match=text) as gone:
                await asyncio.to_thread(send_request, node)
            assert isinstance(gone.value, Moved)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ErrorCode.NOT_COORDINATOR, None),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, None),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, Refused),
    ],
)
async def test_a_lookup_is_repeated_only_while_another_broker_may_be_responsible(
    code: ErrorCode, error: type[KafkaFailed] | None
) -> None:
    codes = [code, ErrorCode.NONE]

    def respond(header: Any) -> Any:
        if header.api is apis.API_VERSIONS:
            return api_versions.ApiVersionsResponse()
        assert header.api is apis.FIND_COORDINATOR
        return find_coordinator.FindCoordinatorResponse(error_code=codes.pop(0), node_id=7)

    async with broker(respond) as server:

        def find() -> int:
            with Brokers(address(server), PLAINTEXT) as brokers:
                return brokers.retried(lambda: brokers.coordinator(GROUP, "g"), pause_s=0)

        if error is None:
            assert await asyncio.to_thread(find) == 7
        else:
            with pytest.raises(error, match="group 'g' has no coordinator"):
                await asyncio.to_thread(find)
            assert codes == [ErrorCode.NONE]


async def test_the_highest_common_version_is_used() -> None:
    served = [api_versions.ApiVersion(apis.METADATA.key, 0, 8)]

    def respond(header: Any) -> Any:
        if header.api is apis.API_VERSIONS:
            return api_versions.ApiVersionsResponse(api_keys=served)
        assert header.api_version == 8
        return cluster(server)

    async with broker(respond) as server:

        def send_request() -> None:
            with Brokers(address(server), PLAINTEXT, negotiates=True) as brokers:
                assert brokers.nodes() == [7]
                with pytest.raises(KafkaFailed, match="FindCoordinator up to version -1"):
                    brokers.coordinator(GROUP, "g")

        await asyncio.to_thread(send_request)


async def test_a_closed_port_is_not_a_broker() -> None:
    async with broker(lambda _: None) as server:
        closed = address(server)
    with pytest.raises(NoBroker, match=f"no broker responds at {closed}"):
        await asyncio.to_thread(greet, closed)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_reset_connection_counts_as_closed(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def reset(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    async def run() -> None:
        server = await asyncio.start_server(reset, "127.0.0.1", 0)
        try:
            connection = await AsyncConnection.open(*server.sockets[0].getsockname())
            await until(lambda: connection.has_ended)
            for _ in range(2):
                with pytest.raises(ConnectionError):
                    await connection.greet()
        finally:
            server.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


async def test_the_error_of_a_port_that_closes_connections_suggests_tls() -> None:
    async def close(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])

    server = StreamServer(close)
    server.open()
    closing = address(server)
    try:
        for bootstrap in (closing, f"{closing},{closing}"):
            with pytest.raises(KafkaFailed, match="closes connections without TLS"):
                await asyncio.to_thread(greet, bootstrap)
        async with broker(lambda _: api_versions.ApiVersionsResponse()) as good:
            await asyncio.to_thread(greet, f"{closing},{address(good)}")
    finally:
        server.close()
