"""Frames and headers: parse request headers, and encode whole frames.

A frame consists of an int32 size and that many bytes: a header and a body. `client_id` stays a
legacy string in the flexible header (KIP-482). The ApiVersions response always has header v0
(KIP-511), because clients read it before the supported versions are negotiated.
"""

import struct
from collections.abc import Callable
from typing import Final, TypeVar

from msgspec import Struct

from penstock.base.buffers import Buffer
from penstock.protocol.apis import API_VERSIONS, APIS, ApiSpec
from penstock.protocol.errors import (
    FrameTooLarge,
    Truncated,
    UnencodableValue,
    UnexpectedResponse,
    UnsupportedApi,
)
from penstock.protocol.primitives import (
    ELEMENTS_AT_ONCE_MAX,
    MAX_ELEMENTS_COUNT,
    REQUEST_ELEMENTS_MAX,
    Reader,
    Writer,
)

SIZE_BYTES: Final = 4
MAX_FRAME_BYTES: Final = 100 * 1024 * 1024
"""Maximum size of a frame: Kafka's default of socket.request.max.bytes."""

_SIZE: Final = struct.Struct(">i")
_REQUEST: Final = struct.Struct(">hhi")
_REQUEST_HEAD: Final = struct.Struct(">hhih")
"""The fixed part of a request header, including the size of the client id."""
_SIZE_AND_CORRELATION: Final = struct.Struct(">ii")

Message = TypeVar("Message")


class RequestHeader(Struct, gc=False):
    """The header of a request. The body begins at `body_offset` of the frame, which excludes the
    size prefix.
    """

    api: ApiSpec
    api_version: int
    correlation_id: int
    client_id: str | None
    body_offset: int
    is_supported: bool


def frame_size_bytes(prefix: Buffer, max_bytes: int = MAX_FRAME_BYTES) -> int:
    """Return the size in the first four bytes of `prefix`. Raises FrameTooLarge above the limit;
    the caller must then close the connection without allocating memory.
    """
    (size_bytes,) = _SIZE.unpack_from(prefix)
    if not 0 <= size_bytes <= max_bytes:
        raise FrameTooLarge(size_bytes, max_bytes)
    return int(size_bytes)


def parse_header(frame: Buffer) -> RequestHeader:
    """Read the header of a frame (without its size prefix). Raises `UnsupportedApi`, after which
    the connection is closed, as in Kafka.

    Only ApiVersions is accepted in unknown versions, with `is_supported` false: the response
    contains error 35, encoded as v0, and the request body is not read.
    """
    try:
        api_key, version, correlation_id, client_id_bytes = _REQUEST_HEAD.unpack_from(frame)
    except struct.error:
        raise Truncated(_REQUEST_HEAD.size, len(frame)) from None
    api = APIS.get(api_key)
    if api is None:
        raise UnsupportedApi(api_key, version)
    is_supported = api.serves(version)
    if not is_supported and api is not API_VERSIONS:
        raise UnsupportedApi(api_key, version)
    client_id, at = _client_id(frame, client_id_bytes)
    if is_supported and api.is_flexible(version):
        if at < len(frame) and frame[at] == 0:
            at += 1
        else:
            reader = Reader(frame, at, ELEMENTS_AT_ONCE_MAX)
            reader.skip_tags()
            at = reader.pos
    return RequestHeader(api, version, correlation_id, client_id, at, is_supported)


def _client_id(frame: Buffer, size_bytes: int) -> tuple[str | None, int]:
    """Return the client id and the position after it. A `Reader`, which takes twice as long, is
    used only for null and for errors.
    """
    stop = _REQUEST_HEAD.size + size_bytes
    if 0 <= size_bytes <= len(frame) - _REQUEST_HEAD.size:
        try:
            return str(frame[_REQUEST_HEAD.size : stop], "utf-8"), stop
        except UnicodeDecodeError:
            pass
    reader = Reader(frame, _REQUEST.size)
    return reader.nullable_string(flexible=False), reader.pos


def decode_body(
    decode: Callable[[Reader, int], Message],
    frame: Buffer,
    body_offset: int,
    version: int,
    elements_max: int = REQUEST_ELEMENTS_MAX,
) -> Message:
    """Decode a body with a function of `protocol.gen`. Trailing bytes are ignored, as in Kafka.
    elements_max: for requests, the limit of the API (`protocol.request_limits`); for responses,
    `MAX_ELEMENTS_COUNT`.

    librdkafka relies on this: its Metadata request for all topics (v9 and later) ends with three
    extra bytes.
    """
    return decode(Reader(frame, body_offset, elements_max), version)


def encode_response_frame(
    api: ApiSpec,
    version: int,
    correlation_id: int,
    encode: Callable[[Writer, Message, int], None],
    message: Message,
) -> Writer:
    """Encode a complete response, including the size prefix. For an ApiVersions
    request of an unknown version, pass version 0.
    """
    writer = Writer(8)
    if api.is_flexible(version) and api.key != API_VERSIONS.key:
        writer.append(0)
    _encode(encode, writer, message, version)
    _SIZE_AND_CORRELATION.pack_into(writer, 0, len(writer) - SIZE_BYTES, correlation_id)
    return writer


def encode_request_frame(
    api: ApiSpec,
    version: int,
    correlation_id: int,
    encode: Callable[[Writer, Message, int], None],
    message: Message,
    *,
    client_id: str | None = None,
) -> Writer:
    """Encode a complete request, including the size prefix."""
    writer = Writer(SIZE_BYTES)
    writer += _REQUEST.pack(api.key, version, correlation_id)
    writer.nullable_string(client_id, flexible=False)
    if api.is_flexible(version):
        writer.append(0)
    _encode(encode, writer, message, version)
    _SIZE.pack_into(writer, 0, len(writer) - SIZE_BYTES)
    return writer


def parse_response_header(api: ApiSpec, version: int, frame: Buffer) -> tuple[int, int]:
    """Parse a response in a client. Returns (correlation id, offset of the body) of a frame without
    its size prefix.
    """
    reader = Reader(frame)
    correlation_id = reader.i32()
    if api.is_flexible(version) and api.key != API_VERSIONS.key:
        reader.skip_tags()
    return correlation_id, reader.pos


def decode_response(
    api: ApiSpec,
    version: int,
    correlation_id: int,
    frame: Buffer,
) -> object:
    """Decode the response to a request from a frame without its size prefix. Raises WireError,
    including for the response to another request.
    """
    found, body_offset = parse_response_header(api, version, frame)
    if found != correlation_id:
        raise UnexpectedResponse(found, correlation_id)
    return decode_body(api.codec.decode_response, frame, body_offset, version, MAX_ELEMENTS_COUNT)


def _encode(
    encode: Callable[[Writer, Message, int], None], writer: Writer, message: Message, version: int
) -> None:
    try:
        encode(writer, message, version)
    except struct.error as error:
        raise UnencodableValue(
            f"{type(message).__name__} v{version} contains a number out of range: {error}"
        ) from error
