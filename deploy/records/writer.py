"""Print records on stdout: values, JSON lines, or formatted with a template.

Invariant: files and pipes receive the bytes of a record unchanged. On a terminal, non-printable
characters in keys, values and headers are escaped, except for line breaks and tabs.
"""

import sys
from base64 import b64encode
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO, Final

from penstock.base.printable import printable
from penstock.deploy.output import json_line
from penstock.deploy.records.displayed_record import ShownRecord
from penstock.deploy.records.formats import BadRecord, RecordCodec, TextCodec
from penstock.deploy.records.template import parse_template
from penstock.protocol.registry.wire_format import value_header

_LAYOUT: Final = "\n\t"


class RecordWriter:
    """Writes records to stdout one by one."""

    def __init__(
        self,
        keys: RecordCodec,
        values: RecordCodec,
        *,
        template: str = "",
        as_json: bool = False,
        raw: bool = False,
        key: bytes | None = None,
        out: BinaryIO | None = None,
    ) -> None:
        """key: write only records with this key; None for all. raw: write bytes unchanged even to a
        terminal. Raises UsageError for an invalid template.
        """
        self._keys, self._values, self._as_json, self._key = keys, values, as_json, key
        self._template = parse_template(template) if template else None
        self._out = out or sys.stdout.buffer
        self._escapes = not (raw or as_json) and self._out.isatty()
        self._is_plain = isinstance(values, TextCodec) and not (as_json or template)

    def write(
        self,
        place: tuple[str, int, int],
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[tuple[str, bytes | None]],
    ) -> bool:
        """Write a record; return False if it has another key. place: topic, partition, offset.

        Raises BadRecord, which identifies the record.
        """
        if self._key is not None and key != self._key:
            return False
        if self._is_plain:
            data = value or b""
            self._out.write((self._text(data).encode() if self._escapes else data) + b"\n")
            return True
        topic, partition, offset = place
        headers = list(headers)
        record = ShownRecord(
            topic,
            partition,
            offset,
            timestamp_ms,
            self._decoded("key", self._keys, key, place),
            self._decoded("value", self._values, value, place, value_header(headers)),
            [
                (self._shown(name), None if data is None else self._text(data))
                for name, data in headers
            ],
            -1 if key is None else len(key),
            -1 if value is None else len(value),
            self._not_text(key, value, headers) if self._as_json else {},
        )
        if self._template is not None:
            self._out.write(self._template(record).encode("utf-8", "surrogateescape"))
        elif self._as_json:
            self._out.write(record.json_line() + b"\n")
        else:
            self._out.write((record.value or "").encode() + b"\n")
        return True

    def flush(self) -> None:
        self._out.flush()

    def _decoded(
        self,
        what: str,
        codec: RecordCodec,
        data: bytes | None,
        place: tuple[str, int, int],
        header: bytes | None = None,
    ) -> object:
        if data is None:
            return None
        if isinstance(codec, TextCodec):
            return self._text(data)
        try:
            value = codec.decode(data, header)
        except BadRecord as error:
            topic, partition, offset = place
            raise BadRecord(
                f"the {what} at offset {offset} of {topic}-{partition} cannot be displayed: {error}"
            ) from None
        if not codec.is_json:
            return self._shown(value)
        return value if self._as_json else json_line(value)

    def _text(self, data: bytes) -> str:
        """Return bytes as text. A template writes bytes that are not UTF-8 unchanged."""
        if self._escapes or self._as_json:
            return self._shown(_TEXT.decode(data))
        return data.decode("utf-8", "surrogateescape")

    def _not_text(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
    ) -> dict[str, Any]:
        """Return additional JSON fields for parts that are not UTF-8, so that `penstock produce
        --json` writes the same bytes.
        """
        found: dict[str, Any] = {}
        for name, codec, data in (("key", self._keys, key), ("value", self._values, value)):
            if data is not None and isinstance(codec, TextCodec) and not _is_utf_8(data):
                found[f"{name}_base64"] = b64encode(data).decode()
        if not all(_is_utf_8(data) for _, data in headers if data is not None):
            found["headers_base64"] = [
                (name, None if data is None else b64encode(data).decode()) for name, data in headers
            ]
        return found

    def _shown(self, text: str) -> str:
        return printable(text, kept=_LAYOUT) if self._escapes else text


def _is_utf_8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


_TEXT = TextCodec()
