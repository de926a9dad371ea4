"""Decode hostile bytes: the codecs raise only `WireError`, and do so before they allocate memory
for the lengths that the bytes declare.
"""

import contextlib
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.protocol.apis import APIS, PRODUCE, ApiSpec
from penstock.protocol.codecs import CODECS
from penstock.protocol.errors import InvalidLength, UnsupportedApi, WireError
from penstock.protocol.framing import decode_body, parse_header
from penstock.protocol.gen import fetch, metadata, produce
from penstock.protocol.primitives import MAX_ELEMENTS_COUNT, Reader, Writer
from penstock.protocol.produce import decode_produce_request, read_produce_request
from penstock.protocol.request_limits import elements_max
from tests.property.test_wire_strategies import messages

ALL = [pytest.param(api, id=api.name) for api in APIS.values()]
SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""Examples per API. `make fuzz` mutates frames and responses for longer."""


def _try(api: ApiSpec, direction: str, version: int, body: bytes) -> None:
    codec = CODECS[api.key]._asdict()
    elements = elements_max(api.key) if direction == "request" else MAX_ELEMENTS_COUNT
    with contextlib.suppress(WireError):
        decode_body(codec[f"decode_{direction}"], body, 0, version, elements)
    if api is PRODUCE and direction == "request":
        with contextlib.suppress(WireError):
            decode_produce_request(memoryview(body), 0, version)


@pytest.mark.parametrize("api", ALL)
@SETTINGS
@given(data=st.data(), body=st.binary(max_size=200))
def test_random_bytes_raise_only_wire_errors(
    api: ApiSpec, data: st.DataObject, body: bytes
) -> None:
    version = data.draw(st.integers(api.served_min, api.max))
    _try(api, data.draw(st.sampled_from(["request", "response"])), version, body)


@pytest.mark.parametrize("api", ALL)
@SETTINGS
@given(data=st.data())
def test_mutated_messages_raise_only_wire_errors(api: ApiSpec, data: st.DataObject) -> None:
    version = data.draw(st.integers(api.served_min, api.max))
    direction = data.draw(st.sampled_from(["request", "response"]))
    writer = Writer()
    CODECS[api.key]._asdict()[f"encode_{direction}"](
        writer, data.draw(messages(api, direction, version)), version
    )
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(len(writer) - 1, 0)))
        kind = data.draw(st.sampled_from(["set", "insert", "delete", "cut"]))
        value = data.draw(st.sampled_from([0x00, 0x01, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
        if kind == "set" and writer:
            writer[at] = value
        elif kind == "insert":
            writer[at:at] = bytes([value] * data.draw(st.integers(1, 5)))
        elif kind == "delete":
            del writer[at : at + 1]
        else:
            del writer[at:]
    _try(api, direction, version, bytes(writer))


@given(frame=st.binary(max_size=60))
def test_random_headers_raise_only_wire_errors(frame: bytes) -> None:
    with contextlib.suppress(WireError):
        parse_header(frame)


def test_bytes_that_abort_kio_are_rejected_at_once() -> None:
    body = bytes.fromhex("00ffff00007530ffffffff0f")
    with pytest.raises(InvalidLength):
        decode_produce_request(memoryview(body), 0, 9)
    with pytest.raises(InvalidLength):
        decode_body(produce.decode_request, body, 0, 9)


@pytest.mark.parametrize(
    ("decode", "version", "body"),
    [
        pytest.param(produce.decode_request, 3, "ffff ffff 00007530 7fffffff", id="legacy array"),
        pytest.param(produce.decode_request, 3, "ffff ffff 00007530 80000000", id="negative array"),
        pytest.param(
            produce.decode_request,
            9,
            "00 ffff 00007530 02 02 61 02 00000000 ffffffff0f",
            id="compact records",
        ),
        pytest.param(
            produce.decode_request,
            3,
            "ffff ffff 00007530 00000001 0001 61 00000001 00000000 7fffffff",
            id="records",
        ),
        pytest.param(produce.decode_request, 9, "ffffffff0f", id="compact string"),
        pytest.param(produce.decode_request, 3, "7fff", id="legacy string"),
        pytest.param(produce.decode_request, 3, "8000", id="negative string"),
        pytest.param(
            produce.decode_request, 9, "00 ffff 00007530 01 ffffffff0f", id="number of tags"
        ),
        pytest.param(
            produce.decode_request, 9, "00 ffff 00007530 01 01 05 ffffffff0f", id="size of a tag"
        ),
        pytest.param(produce.decode_request, 9, "ffffffffff01", id="varint of six bytes"),
        pytest.param(produce.decode_request, 9, "ffffffff7f", id="varint of 35 bits"),
        pytest.param(
            metadata.decode_response,
            9,
            "00000000 01 00 00000001 02 0000 0261 00 02 0000 00000000 00000001 00000001 ffffffff0f",
            id="ints",
        ),
        pytest.param(
            fetch.decode_request,
            12,
            "00" * 17 + "00000000" + "01 01 01 01 00 00",
            id="tag shorter than its value",
        ),
    ],
)
def test_hostile_lengths_are_rejected_without_allocation(
    decode: Callable[[Reader, int], object], version: int, body: str
) -> None:
    with pytest.raises(WireError):
        decode_body(decode, bytes.fromhex(body), 0, version)


def test_a_frame_with_too_many_elements_is_rejected() -> None:
    """A well-formed frame with one minimal topic more than the limit is rejected before any topic
    is decoded.
    """
    elements = elements_max(PRODUCE.key)
    count = elements + 1
    body = Writer(bytes.fromhex("00 ffff 00007530"))
    body.length(count, flexible=True)
    body += bytes.fromhex("01 01 00") * count + b"\x00"
    tracemalloc.start()
    try:
        with pytest.raises(InvalidLength, match="array"):
            read_produce_request(Reader(body, 0, elements), 9)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1_000_000


def test_the_element_limit_applies_to_all_arrays_of_a_frame_together() -> None:
    body = Writer()
    half = MAX_ELEMENTS_COUNT // 2 + 1
    for _ in range(2):
        body.i32s(range(half), flexible=True)
    reader = Reader(body)
    assert len(reader.i32s(flexible=True)) == half
    with pytest.raises(InvalidLength):
        reader.i32s(flexible=True)


def test_unknown_api_keys_are_rejected() -> None:
    with pytest.raises(UnsupportedApi):
        parse_header(bytes.fromhex("03e7 0000 00000001 ffff"))
