"""Find the quota of a user and client (KIP-55, KIP-546).

Only the most specific quota applies: (user, client), (user, default client), user, (default user,
client), both defaults, default user, client, default client. All users of a client share a quota
that is set for this client without a user. All other quotas are counted separately for each user.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final, TypeAlias

from penstock.controller.metadata.quotas import CLIENT_ID, USER, Entity
from penstock.controller.metadata.records import QuotaTarget


class _NoName(Enum):
    """Replaces a name in a scope."""

    DEFAULT = 0
    """All names without their own quota."""
    ABSENT = 1
    """The quota is independent of this name."""


DEFAULT: Final = _NoName.DEFAULT
ABSENT: Final = _NoName.ABSENT

Scope: TypeAlias = tuple[str | _NoName, str | _NoName]
"""User and client id. The scope of a quota contains the clients that it applies to. The scope of a
meter contains the clients whose usage it counts, and never contains DEFAULT.
"""


def scope_of(entity: Entity) -> Scope | None:
    """Return the scope of an entity, or None if it is not a user or client."""
    names = {part.type: DEFAULT if part.name is None else part.name for part in entity}
    if not names or not names.keys() <= {USER, CLIENT_ID}:
        return None
    return names.get(USER, ABSENT), names.get(CLIENT_ID, ABSENT)


def entity_of(scope: Scope) -> Entity:
    """Return the entity of a scope."""
    user, client_id = scope
    return tuple(
        QuotaTarget(kind, name if isinstance(name, str) else None)
        for kind, name in ((CLIENT_ID, client_id), (USER, user))
        if name is not ABSENT
    )


def resolve(
    quota_of: Callable[[Scope], float | None], user: str, client_id: str
) -> tuple[Scope, float] | None:
    """Return the scope whose clients share the quota that applies to this client, and the quota, or
    None if there is none.

    quota_of: returns the quota of a scope.
    """
    both, of_user, of_client = (user, client_id), (user, ABSENT), (ABSENT, client_id)
    levels: tuple[tuple[Scope, Scope], ...] = (
        (both, both),
        ((user, DEFAULT), both),
        (of_user, of_user),
        ((DEFAULT, client_id), both),
        ((DEFAULT, DEFAULT), both),
        ((DEFAULT, ABSENT), of_user),
        (of_client, of_client),
        ((ABSENT, DEFAULT), of_client),
    )
    for scope, shared_by in levels:
        bound = quota_of(scope)
        if bound is not None:
            return shared_by, bound
    return None
