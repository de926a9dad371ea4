"""Encode a record as `penstock consume --json` prints it."""

from collections.abc import Iterable

import msgspec


def encode_record_line(
    *,
    topic: str | None,
    partition: int | None,
    offset: int | None,
    timestamp_ms: int,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[str, bytes | None]],
) -> bytes:
    """Return one JSON object without a line break. Bytes that are not UTF-8 are escaped."""
    return msgspec.json.encode(
        {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "timestamp_ms": timestamp_ms,
            "key": _text(key),
            "value": _text(value),
            "headers": [[name, _text(data)] for name, data in headers],
        }
    )


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "backslashreplace")
