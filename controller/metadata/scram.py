"""SCRAM credentials by user and mechanism. The manager enforces their limits."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.base.scram import CredentialShape, ScramCredential, ScramMechanism, shape_of
from penstock.controller.metadata.records import ScramCredentialRecord, ScramCredentialRemoved


@dataclass(slots=True)
class ScramImage:
    _credentials: dict[str, dict[int, ScramCredential]] = field(
        default_factory=dict[str, dict[int, ScramCredential]]
    )

    shapes: Counter[CredentialShape] = field(default_factory=Counter[CredentialShape])
    """Number of users with a credential of each shape."""
    strongest_shapes: Counter[CredentialShape] = field(default_factory=Counter[CredentialShape])
    """Number of users by the shape of their credential with the strongest mechanism."""

    def get(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        return self._credentials.get(user, {}).get(mechanism)

    def of(self, user: str) -> dict[int, ScramCredential]:
        """Return the credentials of one user by mechanism. Empty if there are none."""
        return self._credentials.get(user, {})

    def users(self) -> list[str]:
        return list(self._credentials)

    def __len__(self) -> int:
        """Return the number of users."""
        return len(self._credentials)

    def records(self) -> Iterator[ScramCredentialRecord]:
        """Yield one record per credential."""
        for user, credentials in self._credentials.items():
            for mechanism, credential in credentials.items():
                yield ScramCredentialRecord(user, mechanism, *credential)

    def set(self, record: ScramCredentialRecord) -> None:
        self._count(record.user, -1)
        self._credentials.setdefault(record.user, {})[record.mechanism] = ScramCredential(
            record.salt, record.stored_key, record.server_key, record.iterations
        )
        self._count(record.user, 1)

    def remove(self, record: ScramCredentialRemoved) -> None:
        self._count(record.user, -1)
        credentials = self._credentials.get(record.user, {})
        credentials.pop(record.mechanism, None)
        if not credentials:
            self._credentials.pop(record.user, None)
        self._count(record.user, 1)

    def _count(self, user: str, by: int) -> None:
        """Add the credentials of a user to the shape counts, or subtract them."""
        credentials = self._credentials.get(user)
        if not credentials:
            return
        shapes = [shape_of(*item) for item in sorted(credentials.items())]
        for counts, counted in ((self.shapes, shapes), (self.strongest_shapes, shapes[-1:])):
            for shape in counted:
                counts[shape] += by
                if not counts[shape]:
                    del counts[shape]
