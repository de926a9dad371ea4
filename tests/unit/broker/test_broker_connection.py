"""The sans-I/O part of a connection: frames do not depend on how the bytes are split, and responses
keep the order of the requests.
"""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.network.connection import FrameReader, ResponseOrder
from penstock.protocol.errors import FrameTooLarge

BYTES_MAX = 1_000_000


def feed(reader: FrameReader, data: bytes, cuts: list[int]) -> list[bytes]:
    """Feed `data` to the reader in pieces whose sizes cycle through `cuts`."""
    frames: list[bytes] = []
    at = 0
    turn = 0
    while at < len(data):
        buffer = reader.get_buffer()
        count = min(len(buffer), cuts[turn % len(cuts)], len(data) - at)
        buffer[:count] = data[at : at + count]
        frames += [bytes(frame) for frame in reader.received(count)]
        at += count
        turn += 1
    return frames


def prefixed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


@given(
    st.lists(st.integers(0, 300), max_size=12),
    st.lists(st.integers(1, 400), min_size=1, max_size=6),
    st.integers(8, 64),
)
def test_frames_do_not_depend_on_how_the_bytes_are_split(
    sizes: list[int], cuts: list[int], shared_bytes: int
) -> None:
    payloads = [random.Random(size).randbytes(size) for size in sizes]
    reader = FrameReader(memoryview(bytearray(shared_bytes)), BYTES_MAX)
    assert feed(reader, b"".join(map(prefixed, payloads)), cuts) == payloads
    assert not reader.is_mid_frame
    assert reader.buffered_bytes == 0


def test_the_buffer_of_a_large_frame_grows_with_received_bytes() -> None:
    reader = FrameReader(memoryview(bytearray(64 * 1024)), 100 * 1024 * 1024)
    prefix = (100 * 1024 * 1024).to_bytes(4, "big") + b"x"
    assert feed(reader, prefix, [100]) == []
    assert reader.buffered_bytes <= 64 * 1024
    received = 1
    for _ in range(40):
        count = len(reader.get_buffer())
        reader.received(count)
        received += count
        assert reader.buffered_bytes <= max(64 * 1024, 4 * received)
        if received >= 8 * 1024 * 1024:
            break


def test_large_frame_arrives_whole() -> None:
    payload = random.Random(1).randbytes(900_000)
    reader = FrameReader(memoryview(bytearray(64 * 1024)), BYTES_MAX)
    assert feed(reader, prefixed(payload) + prefixed(b"after"), [50_000]) == [payload, b"after"]


@pytest.mark.parametrize(
    "prefix",
    [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", (BYTES_MAX + 1).to_bytes(4, "big"), b"GET "],
)
def test_invalid_sizes_are_rejected_before_anything_is_buffered(prefix: bytes) -> None:
    reader = FrameReader(memoryview(bytearray(64)), BYTES_MAX)
    with pytest.raises(FrameTooLarge):
        feed(reader, prefix + b"rest", [8])
    assert reader.buffered_bytes == 0


def test_frames_are_writable_and_share_no_memory() -> None:
    shared = memoryview(bytearray(64))
    reader = FrameReader(shared, BYTES_MAX)
    buffer = reader.get_buffer()
    buffer[:14] = prefixed(b"abc") + prefixed(b"def")
    first, second = reader.received(14)
    shared[:] = bytes(64)
    first[0:1] = b"X"
    assert (bytes(first), bytes(second)) == (b"Xbc", b"def")


@given(st.permutations(range(8)), st.sets(st.integers(0, 7)))
def test_responses_are_sent_in_the_order_of_requests(
    completion: list[int], silent: set[int]
) -> None:
    order = ResponseOrder()
    slots = [order.open(10) for _ in range(8)]
    sent: list[bytes] = []
    for done, index in enumerate(completion, 1):
        sent += map(
            bytes,
            order.fill(slots[index], () if index in silent else (b"a%d" % index, b"b%d" % index)),
        )
        assert order.request_bytes == 10 * (8 - done)
        assert order.held_bytes == 4 * sum(
            1 for slot in completion[:done] if slot not in silent
        ) - sum(map(len, sent))
    assert sent == [
        part
        for index in range(8)
        if index not in silent
        for part in (b"a%d" % index, b"b%d" % index)
    ]
    assert len(order) == 0
    assert order.held_bytes == 0


def test_a_second_response_to_a_request_fails_an_assertion() -> None:
    order = ResponseOrder()
    slot = order.open(1)
    order.fill(slot, (b"x",))
    with pytest.raises(AssertionError):
        order.fill(slot, (b"y",))
