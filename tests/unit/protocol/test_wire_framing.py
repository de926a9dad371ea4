"""Request and response headers in every version, and requests with unknown versions."""

import pytest

from penstock.protocol.apis import API_VERSIONS, FETCH, HEARTBEAT, METADATA, PRODUCE
from penstock.protocol.errors import FrameTooLarge, Truncated, UnsupportedApi
from penstock.protocol.framing import (
    decode_body,
    encode_request_frame,
    encode_response_frame,
    frame_size_bytes,
    parse_header,
    parse_response_header,
)
from penstock.protocol.gen import api_versions, heartbeat, metadata


@pytest.mark.parametrize("version", [0, 8, 9, 13])
def test_requests_survive_a_round_trip(version: int) -> None:
    message = metadata.MetadataRequest([metadata.MetadataRequestTopic(name="t")])
    frame = encode_request_frame(
        METADATA, version, 7, metadata.encode_request, message, client_id="me"
    )
    assert frame_size_bytes(frame) == len(frame) - 4
    header = parse_header(frame[4:])
    assert (header.api, header.api_version, header.correlation_id, header.client_id) == (
        METADATA,
        version,
        7,
        "me",
    )
    assert header.is_supported
    assert (
        decode_body(metadata.decode_request, frame[4:], header.body_offset, version).topics[0].name
        == "t"
    )


@pytest.mark.parametrize("version", [0, 3, 4])
def test_responses_survive_a_round_trip(version: int) -> None:
    message = heartbeat.HeartbeatResponse(error_code=27)
    frame = encode_response_frame(HEARTBEAT, version, -5, heartbeat.encode_response, message)
    assert frame_size_bytes(frame) == len(frame) - 4
    correlation_id, offset = parse_response_header(HEARTBEAT, version, frame[4:])
    assert correlation_id == -5
    assert decode_body(heartbeat.decode_response, frame[4:], offset, version) == message


def test_the_client_id_is_a_non_compact_string_in_the_flexible_header() -> None:
    frame = encode_request_frame(
        API_VERSIONS,
        3,
        1,
        api_versions.encode_request,
        api_versions.ApiVersionsRequest("lib", "1"),
        client_id="me",
    )
    assert frame[4:].hex(" ") == "00 12 00 03 00 00 00 01 00 02 6d 65 00 04 6c 69 62 02 31 00"


def test_the_response_to_api_versions_has_header_v0_in_every_version() -> None:
    for version in range(5):
        message = api_versions.ApiVersionsResponse(api_keys=[api_versions.ApiVersion(18, 0, 4)])
        frame = encode_response_frame(
            API_VERSIONS, version, 9, api_versions.encode_response, message
        )
        assert parse_response_header(API_VERSIONS, version, frame[4:]) == (9, 4)
        assert decode_body(api_versions.decode_response, frame[4:], 4, version) == message


def test_api_versions_with_an_unknown_version_is_served() -> None:
    """The body format is unknown, so no byte after the client id is read."""
    header = parse_header(bytes.fromhex("0012 0063 0000002a 0002 6d65 ffffffffffffff"))
    assert not header.is_supported
    assert (header.api, header.api_version, header.correlation_id, header.client_id) == (
        API_VERSIONS,
        99,
        42,
        "me",
    )
    response = encode_response_frame(
        API_VERSIONS,
        0,
        header.correlation_id,
        api_versions.encode_response,
        api_versions.ApiVersionsResponse(
            error_code=35, api_keys=[api_versions.ApiVersion(18, 0, 4)]
        ),
    )
    assert response.hex(" ") == "00 00 00 10 00 00 00 2a 00 23 00 00 00 01 00 12 00 00 00 04"


@pytest.mark.parametrize(
    ("api_key", "version"), [(0, 2), (0, 14), (1, 3), (1, 19), (4, 0), (-1, 0), (3, -1)]
)
def test_other_apis_and_versions_that_are_not_in_the_table_are_rejected(
    api_key: int, version: int
) -> None:
    frame = (
        api_key.to_bytes(2, "big", signed=True)
        + version.to_bytes(2, "big", signed=True)
        + bytes(4)
        + b"\xff\xff"
    )
    with pytest.raises(UnsupportedApi) as caught:
        parse_header(frame)
    assert (caught.value.api_key, caught.value.api_version) == (api_key, version)


def test_header_tags_are_skipped() -> None:
    header = parse_header(bytes.fromhex("0003 0009 00000001 ffff 01 00 02 aabb"))
    assert header.client_id is None
    assert header.body_offset == 15


def test_sizes_are_checked_before_allocation() -> None:
    assert frame_size_bytes(b"\x00\x00\x00\x10", max_bytes=16) == 16
    with pytest.raises(FrameTooLarge):
        frame_size_bytes(b"\x00\x00\x00\x11", max_bytes=16)
    with pytest.raises(FrameTooLarge):
        frame_size_bytes(b"\xff\xff\xff\xff")
    with pytest.raises(FrameTooLarge):
        frame_size_bytes(b"GET ")


def test_truncated_headers_are_rejected_and_bytes_after_the_body_ignored() -> None:
    with pytest.raises(Truncated):
        parse_header(b"\x00\x03\x00")
    assert decode_body(heartbeat.decode_response, b"\x00\x07\x00\x00\x00", 0, 0).error_code == 7


def test_which_versions_are_flexible() -> None:
    assert [PRODUCE.is_flexible(8), PRODUCE.is_flexible(9)] == [False, True]
    assert [FETCH.is_flexible(11), FETCH.is_flexible(12)] == [False, True]


def test_null_is_encoded_as_empty_in_versions_without_null() -> None:
    message = metadata.MetadataRequest(topics=None)
    v0 = encode_request_frame(METADATA, 0, 0, metadata.encode_request, message)
    v1 = encode_request_frame(METADATA, 1, 0, metadata.encode_request, message)
    assert v0[-4:] == bytes(4)
    assert v1[-4:] == b"\xff" * 4
