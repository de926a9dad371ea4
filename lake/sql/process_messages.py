"""The messages between a program and the process that runs its statement.

Invariant: responses are decoded without pickle, because the process handles untrusted values.
Frames consist of a length and msgpack.
"""

from importlib import import_module
from typing import Final, Literal

import msgspec
from msgspec import Struct

from penstock.lake.sql.errors import SqlError
from penstock.lake.sql.session import SessionOptions

LENGTH_BYTES: Final = 4
_OURS: Final = "penstock."
_Plain = str | int | float | None


class RunStatement(Struct, frozen=True):
    """The request. seconds: time after which the kernel kills the process. bytes_max: maximum size
    of the rows.
    """

    store: str
    query: str
    options: SessionOptions
    max_rows: int | None
    seconds: float | None
    bytes_max: int | None


class RaisedError(Struct, frozen=True):
    """An exception: its class, its text, and its attributes with plain values."""

    module: str
    name: str
    text: str
    attributes: dict[str, _Plain]

    @classmethod
    def of(cls, error: BaseException) -> "RaisedError":
        plain: dict[str, _Plain] = {
            name: value
            for name, value in vars(error).items()
            if value is None or isinstance(value, str | int | float)
        }
        return cls(type(error).__module__, type(error).__qualname__, str(error), plain)

    def rebuilt(self) -> Exception:
        """Return the exception, or a SqlError if its class is not defined by Penstock."""
        if self.module == "builtins" or self.module.startswith(_OURS):
            found: object = getattr(import_module(self.module), self.name, None)
            if isinstance(found, type) and issubclass(found, Exception):
                error = found.__new__(found, self.text)
                error.args = (self.text,)
                vars(error).update(self.attributes)
                return error
        return SqlError(f"{self.name}: {self.text}")


class ResultFrame(Struct, frozen=True, omit_defaults=True):
    """A part of the result. data: a schema, or an Arrow IPC stream with one batch. warnings: about
    the records read so far. The last frame is an error or the end.
    """

    kind: Literal["schema", "rows", "end", "error"]
    data: bytes = b""
    warnings: list[str] = []
    is_truncated: bool = False
    error: RaisedError | None = None


encode: Final = msgspec.msgpack.Encoder().encode
decode_request: Final = msgspec.msgpack.Decoder(RunStatement).decode
decode_frame: Final = msgspec.msgpack.Decoder(ResultFrame).decode


def framed(message: RunStatement | ResultFrame) -> bytes:
    data = encode(message)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data
