"""A server that only parses frames and responds: the upper limit for brokers.

Run `python -m benchmarks.sink PORT [KEYSTORE]`. It supports ApiVersions, Metadata with one topic of
one partition, InitProducerId and Produce, whose response is encoded once per connection. It checks
and stores nothing.
"""

import asyncio
import ssl
import struct
import sys
from typing import Final, cast

import uvloop

from penstock.broker.network.tls_channel import TlsChannel
from penstock.broker.network.wake_limit import WAKE_BYTES
from penstock.protocol import apis
from penstock.protocol.framing import decode_body, encode_response_frame, parse_header
from penstock.protocol.gen import api_versions, init_producer_id, metadata, produce

TOPIC: Final = "bench"
BUFFER_BYTES: Final = 4 << 20
_SIZE: Final = struct.Struct(">i")
_HEAD: Final = struct.Struct(">ihhi")


class SinkConnection(asyncio.BufferedProtocol):
    """Reads into one buffer that grows to the largest frame, and responds to each complete frame
    immediately.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._buffer = bytearray(BUFFER_BYTES)
        self._start = 0
        self._end = 0
        self._produce_response: bytearray | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop transports are not subclasses of asyncio.Transport.
        self._transport = cast("asyncio.Transport", transport)

    def _write(self, data: bytes) -> None:
        self._transport.write(data)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end == len(self._buffer):
            waiting = self._buffer[self._start : self._end]
            if len(waiting) >= len(self._buffer) // 2:
                self._buffer = bytearray(2 * len(self._buffer))
            self._buffer[: len(waiting)] = waiting
            self._start, self._end = 0, len(waiting)
        return memoryview(self._buffer)[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        while self._end - self._start >= 4:
            size = _SIZE.unpack_from(self._buffer, self._start)[0] + 4
            if self._end - self._start < size:
                return
            self._respond(self._start, size)
            self._start += size

    def _respond(self, start: int, size: int) -> None:
        _, key, version, correlation_id = _HEAD.unpack_from(self._buffer, start)
        if key == apis.PRODUCE.key and self._produce_response is not None:
            _SIZE.pack_into(self._produce_response, 4, correlation_id)
            self._write(bytes(self._produce_response))
            return
        frame = memoryview(bytes(self._buffer[start + 4 : start + size]))
        if key == apis.PRODUCE.key:
            self._produce_response = bytearray(self._first_produce(frame, version, correlation_id))
            self._write(bytes(self._produce_response))
        else:
            self._write(self._cold(frame, key, version, correlation_id))

    def _first_produce(self, frame: memoryview, version: int, correlation_id: int) -> bytes:
        request = decode_body(
            produce.decode_request, frame, parse_header(frame).body_offset, version
        )
        responses = [
            produce.TopicProduceResponse(
                name=topic.name,
                partition_responses=[
                    produce.PartitionProduceResponse(index=part.index)
                    for part in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
        response = produce.ProduceResponse(responses=responses)
        return bytes(
            encode_response_frame(
                apis.PRODUCE, version, correlation_id, produce.encode_response, response
            )
        )

    def _cold(self, frame: memoryview, key: int, version: int, correlation_id: int) -> bytes:
        if key == apis.API_VERSIONS.key:
            keys = [
                api_versions.ApiVersion(a.key, a.announced_min, a.max)
                for a in (
                    apis.PRODUCE,
                    apis.METADATA,
                    apis.API_VERSIONS,
                    apis.INIT_PRODUCER_ID,
                    apis.FETCH,
                )
            ]
            versions = api_versions.ApiVersionsResponse(api_keys=keys)
            return bytes(
                encode_response_frame(
                    apis.API_VERSIONS,
                    version,
                    correlation_id,
                    api_versions.encode_response,
                    versions,
                )
            )
        if key == apis.METADATA.key:
            partition = metadata.MetadataResponsePartition(
                partition_index=0, leader_id=0, leader_epoch=0, replica_nodes=[0], isr_nodes=[0]
            )
            described = metadata.MetadataResponse(
                brokers=[
                    metadata.MetadataResponseBroker(node_id=0, host="127.0.0.1", port=self._port)
                ],
                cluster_id="sink",
                controller_id=0,
                topics=[metadata.MetadataResponseTopic(name=TOPIC, partitions=[partition])],
            )
            return bytes(
                encode_response_frame(
                    apis.METADATA, version, correlation_id, metadata.encode_response, described
                )
            )
        granted = init_producer_id.InitProducerIdResponse(producer_id=1, producer_epoch=0)
        return bytes(
            encode_response_frame(
                apis.INIT_PRODUCER_ID,
                version,
                correlation_id,
                init_producer_id.encode_response,
                granted,
            )
        )


class TlsSinkConnection(SinkConnection):
    """Decrypts into the buffer."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        super().__init__(port)
        self._tls = TlsChannel(context)
        self._received = memoryview(bytearray(WAKE_BYTES))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._received

    def buffer_updated(self, nbytes: int) -> None:
        self._tls.feed(self._received[:nbytes])
        if not self._tls.is_established:
            self._tls.shake_hands()
        while self._tls.is_established and (
            count := self._tls.read_into(super().get_buffer(WAKE_BYTES))
        ):
            super().buffer_updated(count)
        self._transport.write(self._tls.outgoing())

    def _write(self, data: bytes) -> None:
        self._transport.writelines(self._tls.encrypt([data]))


async def serve(port: int, keystore: str = "") -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if keystore:
        context.load_cert_chain(keystore)
    server = await asyncio.get_running_loop().create_server(
        lambda: TlsSinkConnection(port, context) if keystore else SinkConnection(port),
        "127.0.0.1",
        port,
    )
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), *sys.argv[2:]))
