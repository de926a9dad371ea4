"""Format values for pages: numbers with units, times, record keys and values.

Invariant: pure. Unknown values are dashes, never zeros. Results are plain text, which templates
escape.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from penstock.deploy.output import counted, size

UNKNOWN: Final = "–"  # noqa: RUF001 - a dash as wide as a number
SHOWN_BYTES_MAX: Final = 16 << 10
"""Maximum size of the displayed part of a key or value."""
JSON_CHARS_MAX: Final = 64 << 10
"""Maximum length of indented JSON. JSON that would be longer with indentation is displayed
unchanged.
"""
HEX_BYTES_MAX: Final = 1 << 10
LINE_CHARS_MAX: Final = 200
_HEX_COLUMNS: Final = 16
_SCHEMA_HEADER_BYTES: Final = 5


def number(value: float | None, digits: int = 0) -> str:
    return UNKNOWN if value is None else f"{value:,.{digits}f}"


def bytes_text(value: int | None) -> str:
    return UNKNOWN if value is None else size(value)


def rate(value: float | None) -> str:
    """Format bytes per second."""
    return UNKNOWN if value is None else f"{size(round(value))}/s"


def milliseconds(value: float | None) -> str:
    """Format a duration: 0.4 ms, 12 ms, 3.4 s."""
    if value is None:
        return UNKNOWN
    if value >= 10_000:
        return f"{value / 1_000:,.1f} s"
    return f"{value:,.1f} ms" if value < 10 else f"{value:,.0f} ms"


def usd(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"${value:,.2f}" if value >= 0.005 or value == 0 else f"${value:.4f}"


def moment(value_ms: int | None) -> str:
    """Format milliseconds since 1970 as a time in UTC."""
    if value_ms is None or value_ms < 0:
        return UNKNOWN
    try:
        found = datetime.fromtimestamp(value_ms / 1_000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{value_ms} ms"
    return f"{found:%Y-%m-%d %H:%M:%S}.{value_ms % 1_000:03d} UTC"


def age(value_ms: float | None) -> str:
    """Format an approximate age."""
    if value_ms is None or value_ms < 0:
        return UNKNOWN
    seconds = value_ms / 1_000
    for limit, unit, each in ((120, "s", 1), (7_200, "min", 60), (172_800, "h", 3_600)):
        if seconds < limit:
            return f"{seconds / each:,.0f} {unit}"
    return f"{seconds / 86_400:,.0f} d"


@dataclass(frozen=True, slots=True)
class BytesView:
    """A key or value for a page. kind: "null", "empty", "json", "avro", "protobuf", "text" or
    "hex". note: additional information, such as its schema or the reason why it was not decoded.
    """

    kind: str
    text: str
    size_bytes: int
    is_cut: bool = False
    note: str = ""

    @property
    def line(self) -> str:
        """Return the beginning of the text, on one line."""
        if self.kind in ("null", "empty"):
            return f"({self.kind})"
        if self.kind == "hex":
            return self.text.partition("  ")[2][: _HEX_COLUMNS * 3].strip()
        return " ".join(self.text[: 2 * LINE_CHARS_MAX].split())[:LINE_CHARS_MAX]


def shown_bytes(data: bytes | None) -> BytesView:
    """Show bytes as indented JSON, text or hexadecimal."""
    if data is None:
        return BytesView("null", "null", 0)
    if not data:
        return BytesView("empty", "", 0)
    part = data[:SHOWN_BYTES_MAX]
    is_cut = len(part) < len(data)
    text = _text_of(part, is_cut=is_cut)
    if text is None:
        shown = data[:HEX_BYTES_MAX]
        return BytesView("hex", hex_dump(shown), len(data), len(shown) < len(data), _note(data))
    if not is_cut and text[0] in '{["':
        try:
            indented = msgspec.json.format(text, indent=2)
        except (msgspec.DecodeError, RecursionError):
            indented = ""
        if 0 < len(indented) <= JSON_CHARS_MAX:
            return BytesView("json", indented, len(data))
    return BytesView("text", text, len(data), is_cut)


def hex_dump(data: bytes) -> str:
    """Return lines of offset, hexadecimal and ASCII."""
    lines: list[str] = []
    for at in range(0, len(data), _HEX_COLUMNS):
        row = data[at : at + _HEX_COLUMNS]
        printable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:06x}  {row.hex(' '):<{_HEX_COLUMNS * 3}} {printable}")
    return "\n".join(lines)


def _text_of(data: bytes, *, is_cut: bool) -> str | None:
    """Return the bytes as text, or None. is_cut: whether the bytes were truncated, so that the last
    character may be incomplete.
    """
    for shorter in range(4 if is_cut else 1):
        try:
            text = data[: len(data) - shorter].decode()
        except UnicodeDecodeError:
            continue
        return text if all(char.isprintable() or char in "\t\n\r" for char in text) else None
    return None


def _note(data: bytes) -> str:
    """Return the schema id if the bytes look like a schema registry's wire format."""
    if data[0] == 0 and len(data) > _SCHEMA_HEADER_BYTES:
        return f"may begin with schema id {int.from_bytes(data[1:5])}"
    return ""


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "number": number,
    "bytes": bytes_text,
    "counted": counted,
    "rate": rate,
    "ms": milliseconds,
    "usd": usd,
    "moment": moment,
    "age": age,
}
"""Names in templates."""
