"""Parse the input lines of `penstock produce`.

Invariant: only the codecs do I/O, because they may contact a schema registry. An invalid line
raises BadRecord with its number.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.deploy.errors import UsageError, check_utf_8
from penstock.deploy.records.formats import BadRecord, RecordCodec

Headers = list[tuple[str, str | bytes | None]]
"""Headers in order, in the type that confluent-kafka expects."""


@dataclass(frozen=True, slots=True)
class NewRecord:
    """partition: -1 for any partition. timestamp_ms: since 1970; 0 for the current time."""

    key: bytes | None
    value: bytes | None
    headers: Headers = field(default_factory=list[tuple[str, str | bytes | None]])
    partition: int = -1
    timestamp_ms: int = 0


class _JsonRecord(msgspec.Struct, kw_only=True):
    """A line of `penstock consume --json`; topic and offset are ignored."""

    value: Any = None
    key: Any = None
    headers: list[tuple[str, str | None]] = []
    key_base64: bytes | None = None
    value_base64: bytes | None = None
    headers_base64: list[tuple[str, bytes | None]] | None = None
    partition: int | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LineReader:
    """Converts lines to records. key, headers, partition, timestamp_ms: defaults for records that
    do not specify them.
    """

    keys: RecordCodec
    values: RecordCodec
    separator: str = ""
    key: str | None = None
    headers: Headers = field(default_factory=list[tuple[str, str | bytes | None]])
    partition: int = -1
    timestamp_ms: int = 0
    is_json: bool = False

    def records(self, lines: Iterable[bytes]) -> Iterator[NewRecord]:
        """Yield a record for each line. Raises BadRecord."""
        for number, line in enumerate(lines, 1):
            try:
                yield self._from_json(line) if self.is_json else self._from_text(line)
            except BadRecord as error:
                raise BadRecord(f"line {number}: {error}") from None

    def _from_text(self, line: bytes) -> NewRecord:
        text = line.decode("utf-8", "surrogateescape")
        key, value = self.key, text
        if self.separator and self.separator in text:
            key, _, value = text.partition(self.separator)
        return NewRecord(
            None if key is None else self.keys.encode(key),
            self.values.encode(value),
            self.headers,
            self.partition,
            self.timestamp_ms,
        )

    def _from_json(self, line: bytes) -> NewRecord:
        try:
            found = msgspec.json.decode(line, type=_JsonRecord)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadRecord(
                f"it is not a record as `penstock consume --json` prints: {error}"
            ) from None
        key = _encoded(self.keys, found.key, found.key_base64)
        return NewRecord(
            self.keys.encode(self.key) if key is None and self.key is not None else key,
            _encoded(self.values, found.value, found.value_base64),
            [*self.headers, *(found.headers_base64 or found.headers)],
            self.partition if self.partition >= 0 or found.partition is None else found.partition,
            self.timestamp_ms or max(0, found.timestamp_ms or 0),
        )


def parse_headers(texts: Iterable[str]) -> Headers:
    """Parse NAME=VALUE; a bare NAME is a header with a null value. Raises UsageError."""
    found: Headers = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not name:
            raise UsageError(f"--header {text!r} is not allowed: NAME=VALUE")
        check_utf_8(name, "the name of --header")
        found.append((name, value.encode("utf-8", "surrogateescape") if equals else None))
    return found


def _encoded(codec: RecordCodec, value: Any, data: bytes | None) -> bytes | None:  # noqa: ANN401 - a value of JSON
    """Return a key or value. data: the bytes if they are not UTF-8 text."""
    if data is not None or value is None:
        return data
    is_text = isinstance(value, str) and not codec.is_json
    return codec.encode(value if is_text else msgspec.json.encode(value).decode())
