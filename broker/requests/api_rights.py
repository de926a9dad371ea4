"""The permissions that an API declares in `broker.handlers.table`: which permissions its handler
may check, and how it rejects a client that lacks them. `broker.requests.acl_authorizer` fails if a
handler checks an undeclared permission.
"""

from dataclasses import dataclass
from typing import Final

from penstock.base.acls import Operation, ResourceType
from penstock.protocol.error_codes import ErrorCode

Right = tuple[Operation, ResourceType]

_REFUSALS: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}


@dataclass(frozen=True, slots=True)
class ApiRights:
    """The permissions of one API. hides: whether responses omit items that the client may not see,
    instead of returning an error. unchecked: the reason why some requests need no permission; empty
    if all of them do.
    """

    rights: frozenset[Right]
    hides: bool = False
    unchecked: str = ""

    @property
    def refusals(self) -> frozenset[ErrorCode]:
        """Return the errors for a client that lacks a permission."""
        return frozenset(_REFUSALS[kind] for _, kind in self.rights)


def needs(*rights: Right, hides: bool = False, unchecked: str = "") -> ApiRights:
    return ApiRights(frozenset(rights), hides, unchecked)


def on(operation: Operation, *kinds: ResourceType) -> tuple[Right, ...]:
    return tuple((operation, kind) for kind in kinds)


TOPIC: Final = ResourceType.TOPIC
GROUP: Final = ResourceType.GROUP
CLUSTER: Final = ResourceType.CLUSTER
TRANSACTIONAL_ID: Final = ResourceType.TRANSACTIONAL_ID
AS_BROKER: Final[Right] = (Operation.CLUSTER_ACTION, CLUSTER)
MEMBER: Final = needs((Operation.READ, GROUP))
DESCRIBED: Final = needs(*on(Operation.DESCRIBE, GROUP, TOPIC))
BROKERS: Final = needs(AS_BROKER)
CLUSTER_ALTER: Final = needs((Operation.ALTER, CLUSTER))
CLUSTER_DESCRIBE: Final = needs((Operation.DESCRIBE, CLUSTER))
CREATE: Final = on(Operation.CREATE, CLUSTER, TOPIC)
LOGIN: Final = needs(unchecked="clients send it before they have a principal")
OWN_METRICS: Final = needs(unchecked="a client gets its own instance and pushes its own metrics")
OWN_TOKENS: Final = needs(unchecked="for the owner and the renewers of a token only")
