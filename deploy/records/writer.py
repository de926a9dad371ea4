"""Print records on stdout: as values, JSON lines or by a template."""

import sys
from collections.abc import Iterable
from typing import BinaryIO

from deploy.records.formats import BadRecord, RecordCodec, TextCodec
from deploy.records.shown import ShownRecord
from deploy.records.template import parse_template


class RecordWriter:
    """Writes one record after the other."""

    def __init__(
        self,
        keys: RecordCodec,
        values: RecordCodec,
        *,
        template: str = "",
        as_json: bool = False,
        key: bytes | None = None,
        out: BinaryIO | None = None,
    ) -> None:
        """key: the only one whose records are written, or None. Raises UsageError for a bad
        template.
        """
        self._keys, self._values, self._as_json, self._key = keys, values, as_json, key
        self._template = parse_template(template) if template else None
        self._is_raw = isinstance(values, TextCodec) and not (as_json or template)
        self._out = out or sys.stdout.buffer

    def write(
        self,
        place: tuple[str, int, int],
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[tuple[str, bytes | None]],
    ) -> bool:
        """Write a record; return False if it has another key. place: topic, partition, offset.

        Raises BadRecord, naming the record.
        """
        if self._key is not None and key != self._key:
            return False
        if self._is_raw:
            self._out.write((value or b"") + b"\n")
            return True
        topic, partition, offset = place
        record = ShownRecord(
            topic,
            partition,
            offset,
            timestamp_ms,
            self._decoded("key", self._keys, key, place),
            self._decoded("value", self._values, value, place),
            [(name, None if data is None else _TEXT.decode(data)) for name, data in headers],
            -1 if key is None else len(key),
            -1 if value is None else len(value),
        )
        if self._template is not None:
            self._out.write(self._template(record).encode())
        elif self._as_json:
            self._out.write(record.json_line() + b"\n")
        else:
            self._out.write(record.value_text.encode() + b"\n")
        return True

    def flush(self) -> None:
        self._out.flush()

    def _decoded(
        self, what: str, codec: RecordCodec, data: bytes | None, place: tuple[str, int, int]
    ) -> object:
        try:
            return None if data is None else codec.decode(data)
        except BadRecord as error:
            topic, partition, offset = place
            raise BadRecord(
                f"the {what} at offset {offset} of {topic}-{partition} cannot be shown: {error}"
            ) from None


_TEXT = TextCodec()
