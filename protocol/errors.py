"""Wire errors, split by the side that caused them, like h11's local and remote errors.

`WireError`: the peer violated the protocol; the connection is closed. `UnencodableValue`: the
broker tried to send something that the protocol cannot represent, which is a bug.
"""


class WireError(Exception):
    """The peer sent bytes that are not the Kafka protocol. Base class of all decoder errors."""


class Truncated(WireError):
    """A value extends beyond the end of its frame."""

    def __init__(self, needed_bytes: int, left_bytes: int) -> None:
        super().__init__(
            f"a value needs {needed_bytes} bytes, but only {left_bytes} are left in the frame"
        )
        self.needed_bytes = needed_bytes
        self.left_bytes = left_bytes


class InvalidLength(WireError):
    """A declared length or count is negative, is null where null is not allowed, or is larger than
    the frame allows.
    """

    def __init__(self, what: str, declared: int, allowed: int) -> None:
        super().__init__(f"{what} declares {declared}, allowed here are 0 to {allowed}")
        self.what = what
        self.declared = declared
        self.allowed = allowed


class TooManyElements(InvalidLength):
    """A declared count is larger than the reader allows, although it would fit into the frame."""


class RequestTooLong(WireError):
    """A request has more elements than `protocol.request_limits` allows for its API."""

    def __init__(self, api: str, what: str, count: int, allowed: int) -> None:
        super().__init__(
            f"a request of {api} has {count} {what} or more, allowed are {allowed}; make several"
            " requests"
        )


class InvalidVarint(WireError):
    """A variable-length integer is longer than five bytes or does not fit in 32 bits."""


class InvalidText(WireError):
    """A string is not UTF-8."""


class TrailingBytes(WireError):
    """The message ended before its frame, because the peer uses a different version than the header
    declares.
    """

    def __init__(self, left_bytes: int) -> None:
        super().__init__(f"{left_bytes} bytes are left in the frame after the message")
        self.left_bytes = left_bytes


class FrameTooLarge(WireError):
    """The size prefix of a frame is negative or above the limit of the listener."""

    def __init__(self, declared_bytes: int, max_bytes: int) -> None:
        super().__init__(
            f"a frame of {declared_bytes} bytes was announced, allowed are 0 to {max_bytes}"
        )
        self.declared_bytes = declared_bytes
        self.max_bytes = max_bytes


class UnexpectedResponse(WireError):
    """The response does not belong to the last request."""

    def __init__(self, correlation_id: int, expected: int) -> None:
        super().__init__(f"the response has correlation id {correlation_id}, not {expected}")


class UnsupportedApi(WireError):
    """The API key is unknown, or the version is not supported. The connection is closed, as in
    Kafka.
    """

    def __init__(self, api_key: int, api_version: int) -> None:
        super().__init__(
            f"API key {api_key} version {api_version} is not served here; request ApiVersions first"
        )
        self.api_key = api_key
        self.api_version = api_version


class UnencodableValue(Exception):
    """The protocol cannot represent the value to send. This is a bug in the sender."""
