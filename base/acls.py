"""Numbers of ACL fields, as in Kafka's protocol. **Stored in metadata: never change one.**"""

from enum import IntEnum
from typing import Final


class ResourceType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How the name in an ACL matches resources. ANY and MATCH occur only in filters."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""The only authorizer, as a value of `authorizer.class.name`."""
WILDCARD: Final = "*"
"""As the name of a literal pattern, this matches every resource; as a host, every host."""
WILDCARD_PRINCIPAL: Final = "User:*"
_UNKNOWN: Final = 0
CLUSTER_NAME: Final = "kafka-cluster"
"""The only name of a resource of type CLUSTER."""


def is_known(kind: type[IntEnum], code: int) -> bool:
    """Return whether this is a valid code of its type and not UNKNOWN."""
    return code in set(kind) and code != _UNKNOWN


def is_authorizer(name: str) -> bool:
    """Return whether this is a valid value of `authorizer.class.name`. Empty means no
    authorizer.
    """
    return name in {"", STANDARD_AUTHORIZER, STANDARD_AUTHORIZER.rpartition(".")[2]}
