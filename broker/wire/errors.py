"""What can be wrong with bytes on the wire, split by whose fault it is.

`WireError` means the peer broke the protocol: log it and close the connection, nothing on it can be
trusted any more. `UnencodableValue` means we tried to send something that the protocol cannot
carry: a bug of ours, never the peer's.
Must not: map to Kafka error codes (most of these cannot be answered, the frame is not understood).

Source: the local/remote split of h11.
"""


class WireError(Exception):
    """The peer sent bytes that are not the Kafka protocol (remote fault). Base of everything a
    decoder may raise.
    """


class Truncated(WireError):
    """A value runs past the end of the frame that carries it."""

    def __init__(self, needed_bytes: int, left_bytes: int) -> None:
        super().__init__(
            f"a value needs {needed_bytes} bytes but {left_bytes} are left in the frame"
        )
        self.needed_bytes = needed_bytes
        self.left_bytes = left_bytes


class InvalidLength(WireError):
    """A declared length or count is negative, null where null is not allowed, or larger than the
    frame can hold.
    """

    def __init__(self, what: str, declared: int, allowed: int) -> None:
        super().__init__(f"{what} declares {declared}, allowed here are 0 to {allowed}")
        self.what = what
        self.declared = declared
        self.allowed = allowed


class InvalidVarint(WireError):
    """A variable-length integer is longer than five bytes or does not fit in 32 bits."""


class InvalidText(WireError):
    """A string is not UTF-8."""


class TrailingBytes(WireError):
    """The message ended before its frame: the peer uses another version than the header says."""

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


class UnsupportedApi(WireError):
    """The API key is unknown, or the version is not served. As in Kafka, the connection is
    closed.
    """

    def __init__(self, api_key: int, api_version: int) -> None:
        super().__init__(
            f"API key {api_key} version {api_version} is not served here; ask with ApiVersions"
            " first"
        )
        self.api_key = api_key
        self.api_version = api_version


class UnencodableValue(Exception):
    """The protocol cannot carry the value that was to be sent. This is a bug of the sender."""
