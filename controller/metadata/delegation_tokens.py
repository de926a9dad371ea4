"""The delegation tokens of the cluster by id. They contain no secrets: brokers derive a token's
secret from its id and a key that only brokers have (KIP-48, KIP-900).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.controller.metadata.records import DelegationTokenRecord, DelegationTokenRemoved


@dataclass(slots=True)
class DelegationTokensImage:
    _tokens: dict[str, DelegationTokenRecord] = field(
        default_factory=dict[str, DelegationTokenRecord]
    )

    def get(self, token_id: str) -> DelegationTokenRecord | None:
        return self._tokens.get(token_id)

    def __len__(self) -> int:
        return len(self._tokens)

    def __iter__(self) -> Iterator[DelegationTokenRecord]:
        """Yield the tokens, oldest first."""
        yield from self._tokens.values()

    def set(self, record: DelegationTokenRecord) -> None:
        self._tokens[record.token_id] = record

    def remove(self, record: DelegationTokenRemoved) -> None:
        self._tokens.pop(record.token_id, None)
