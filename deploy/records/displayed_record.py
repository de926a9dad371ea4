"""A record as displayed by commands.

JSON contains escapes for non-printable characters, as in all output of commands.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.deploy.output import json_text


@dataclass(frozen=True, slots=True)
class ShownRecord:
    """key, value: strings or JSON values, depending on their formats; None for null. value_bytes,
    key_bytes: lengths, -1 for null. timestamp_ms: since 1970, -1 if there is none.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: Any
    value: Any
    headers: list[tuple[str, str | None]]
    key_bytes: int
    value_bytes: int
    not_text: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Additional JSON fields in Base64, for parts that are not UTF-8: key_base64, value_base64, and
    headers_base64 with all headers.
    """

    @property
    def key_text(self) -> str:
        return _text(self.key)

    @property
    def value_text(self) -> str:
        return _text(self.value)

    def json_line(self) -> bytes:
        """Return one JSON object without a line break."""
        return _json(
            {
                "topic": self.topic,
                "partition": self.partition,
                "offset": self.offset,
                "timestamp_ms": self.timestamp_ms,
                "key": self.key,
                "value": self.value,
                "headers": self.headers,
                **self.not_text,
            }
        ).encode()


def _text(value: Any) -> str:  # noqa: ANN401 - a value of JSON
    if value is None:
        return ""
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:  # noqa: ANN401 - a value of JSON
    return json_text(msgspec.json.encode(value).decode())
