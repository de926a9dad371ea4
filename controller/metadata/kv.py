"""The small key/value store of the cluster. The manager enforces its limits."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.controller.metadata.records import KeyValueRecord


@dataclass(slots=True)
class KeyValueImage:
    _values: dict[str, bytes] = field(default_factory=dict[str, bytes])

    def get(self, key: str) -> bytes | None:
        return self._values.get(key)

    def __len__(self) -> int:
        return len(self._values)

    def items(self) -> Iterator[tuple[str, bytes]]:
        return iter(self._values.items())

    def set(self, record: KeyValueRecord) -> None:
        if record.value is None:
            self._values.pop(record.key, None)
        else:
            self._values[record.key] = record.value
