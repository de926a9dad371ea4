"""A record as displayed by commands.

JSON contains escapes for non-printable characters, as in all output of commands.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.deploy.output import json_line


@dataclass(frozen=True, slots=True)
class ShownRecord:
    """key, value: text, or JSON values for `json_line`; None for null. value_bytes, key_bytes:
    lengths, -1 for null. timestamp_ms: since 1970, -1 if there is none.
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

    def json_line(self) -> bytes:
        """Return one JSON object without a line break."""
        return json_line(
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
