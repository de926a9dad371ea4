"""The schemas that values were written with, by the ids that precede the values. There is no I/O,
because a function looks up the schemas.
"""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from penstock.lake.table.errors import InvalidSchema
from penstock.protocol.registry.model import NotRegistered, SchemaInvalid, StoredSchema
from penstock.protocol.registry.wire_format import SchemaKey

_WRITERS_MAX: Final = 1_000
_Compiled = TypeVar("_Compiled")

SchemaSource = bytes | StoredSchema
"""The content of a schema's file, or a schema of a registry."""

FindSchema = Callable[[SchemaKey], SchemaSource]
"""Returns the schema with an id or a GUID. Raises NotRegistered, or RegistryError if this cannot be
determined.
"""


class Writers(Generic[_Compiled]):
    """The schemas that values were written with, compiled for one decoder."""

    def __init__(
        self, name: str, find: FindSchema, compiled: Callable[[SchemaSource], _Compiled]
    ) -> None:
        """`compiled` raises InvalidSchema or SchemaInvalid."""
        self._name = name
        self._find = find
        self._compile = compiled
        self._known: dict[SchemaKey, _Compiled | NotRegistered] = {}

    def of(self, number: SchemaKey) -> _Compiled:
        """Return the compiled schema with an id. Raise ValueError if it does not exist or cannot be
        used, or RegistryError.
        """
        found = self._known.get(number)
        if found is None:
            if len(self._known) >= _WRITERS_MAX:
                self._known.clear()
            found = self._known[number] = self._look_up(number)
        if isinstance(found, NotRegistered):
            raise ValueError(str(found))
        return found

    def _look_up(self, number: SchemaKey) -> _Compiled | NotRegistered:
        try:
            source = self._find(number)
        except NotRegistered as error:
            return error
        if isinstance(source, StoredSchema) and source.type.lower() != self._name:
            return NotRegistered(
                f"schema {number} is of type {source.type}, and the columns are of {self._name}"
            )
        try:
            return self._compile(source)
        except (InvalidSchema, SchemaInvalid) as error:
            return NotRegistered(f"schema {number} cannot be used: {error}")
