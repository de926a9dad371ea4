"""Principals: the authenticated peers of connections."""

from typing import Final, NamedTuple, Self

USER: Final = "User"


class Principal(NamedTuple):
    """A client or node, which may be authenticated. Names are compared byte for byte, as in Kafka.
    kind: `User`, unless an operator has used another type in an ACL.
    """

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `User:name`. Raises ValueError."""
        kind, colon, name = text.partition(":")
        if not (kind and colon and name):
            raise ValueError(f"{text!r} is not a principal: write it as User:name")
        return cls(kind, name)


def parse_principals(text: str) -> frozenset[str]:
    """Parse principals separated by semicolons, as in `super.users`. Raises ValueError."""
    items = (item.strip() for item in text.split(";"))
    return frozenset(str(Principal.parse(item)) for item in items if item)


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
"""The principal of unauthenticated clients."""
