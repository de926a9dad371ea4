"""Consumers of one tail on real sockets share log lookups, and each gets every record once."""

import asyncio
from typing import Any

import pytest

from penstock.broker.handlers.fetch.fetch_call import FetchCall
from penstock.protocol import apis
from penstock.protocol.batch.header import iter_headers
from penstock.protocol.framing import encode_request_frame, parse_response_header
from penstock.protocol.gen import fetch as wire_fetch
from penstock.protocol.primitives import Reader
from tests.support.clients import produce
from tests.support.cluster import Cluster
from tests.support.waiting import PATIENCE_S, until

TOPIC = "orders"
VERSION = 12
CONSUMERS = 8
ROUNDS = 10
TEST_S = PATIENCE_S

pytestmark = pytest.mark.cluster(topics={TOPIC: 1})


class TailReader:
    """Follows the tail on a raw socket. `offsets`: those of all batches, in order of arrival."""

    def __init__(self, number: int) -> None:
        self.offsets: list[tuple[int, int]] = []
        self.end = 0
        self._correlation_id = number * 1_000_000

    async def run(self, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while True:
                await self._read_once(reader, writer)
        finally:
            writer.close()

    async def _read_once(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._correlation_id += 1
        requested = wire_fetch.FetchPartition(
            partition=0, fetch_offset=self.end, partition_max_bytes=1 << 20
        )
        request = wire_fetch.FetchRequest(
            max_wait_ms=TEST_S * 1_000,
            min_bytes=1,
            max_bytes=1 << 20,
            session_epoch=-1,
            topics=[wire_fetch.FetchTopic(topic=TOPIC, partitions=[requested])],
        )
        writer.write(
            encode_request_frame(
                apis.FETCH, VERSION, self._correlation_id, wire_fetch.encode_request, request
            )
        )
        frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        correlation_id, at = parse_response_header(apis.FETCH, VERSION, frame)
        assert correlation_id == self._correlation_id
        response = wire_fetch.decode_response(Reader(frame, at), VERSION)
        partition = response.responses[0].partitions[0]
        assert partition.error_code == 0
        for _, header in iter_headers(partition.records or b""):
            self.offsets.append((header.base_offset, header.next_offset))
            self.end = header.next_offset


async def until_all_are_at(end: int, readers: list[TailReader]) -> None:
    await until(lambda: all(reader.end == end for reader in readers))


async def test_consumers_of_one_tail_share_lookups_and_get_every_record_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks_count, real = 0, FetchCall.evaluate

    def evaluate(call: Any) -> None:
        nonlocal looks_count
        looks_count += 1
        real(call)

    monkeypatch.setattr(FetchCall, "evaluate", evaluate)
    broker = cluster.broker
    readers = [TailReader(number) for number in range(CONSUMERS)]
    runs = [asyncio.create_task(reader.run(broker.server.port)) for reader in readers]

    async with asyncio.timeout(TEST_S):
        for number in range(ROUNDS):
            await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, [b"%d" % number], [0])
            alive = [reader for reader, run in zip(readers, runs, strict=True) if not run.done()]
            await until_all_are_at(number + 1, alive)
            # Cancel one of them while it waits. It often has the pending lookup that the others
            # share.
            runs[number % 4].cancel()
            await asyncio.wait([runs[number % 4]])
    survivors = readers[4:]
    expected = [(number, number + 1) for number in range(ROUNDS)]
    assert all(reader.offsets == expected for reader in survivors)
    responses_count = sum(len(reader.offsets) for reader in readers)
    # Without sharing, each fetch would do one lookup before its wait and one after it.
    assert looks_count < 2 * responses_count
    for run in runs:
        run.cancel()
    ended = await asyncio.gather(*runs, return_exceptions=True)
    assert all(isinstance(error, asyncio.CancelledError) for error in ended)
