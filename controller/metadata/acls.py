"""The ACLs of the cluster, without duplicates, in the order of their creation.
`controller.metadata.acl_index` evaluates them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from penstock.base.acls import WILDCARD, Operation, PatternType, Permission, ResourceType, is_known
from penstock.controller.metadata.errors import broken
from penstock.controller.metadata.records import AclEntry, AclRecord, AclRemoved


def acl_text(acl: AclEntry) -> str:
    """Describe an ACL in one line."""
    return (
        f"{Permission(acl.permission).name} {acl.principal} {Operation(acl.operation).name}"
        f" from {acl.host} on {ResourceType(acl.resource_type).name}"
        f" {PatternType(acl.pattern_type).name} {acl.resource_name}"
    )


class AclFilter(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Selects ACLs. None and ANY match all values of a field.

    The pattern type MATCH with a name selects all patterns that apply to this resource.
    """

    resource_type: int = int(ResourceType.ANY)
    pattern_type: int = int(PatternType.ANY)
    resource_name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: int = int(Operation.ANY)
    permission: int = int(Permission.ANY)

    def problem(self) -> str:
        """Return the reason why the filter is invalid, or "" if it is valid."""
        if not (
            is_known(ResourceType, self.resource_type) and is_known(PatternType, self.pattern_type)
        ):
            return "Unknown patternFilter."
        if not (is_known(Operation, self.operation) and is_known(Permission, self.permission)):
            return "Unknown entryFilter."
        return ""

    def matches(self, acl: AclEntry) -> bool:
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
            and self._matches_pattern(acl)
        )

    def _matches_pattern(self, acl: AclEntry) -> bool:
        name, kind = self.resource_name, self.pattern_type
        if kind not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if name is None:
            return True
        if kind != PatternType.MATCH:
            return name == acl.resource_name
        if acl.pattern_type == PatternType.PREFIXED:
            return name.startswith(acl.resource_name)
        return acl.resource_name in (name, WILDCARD)


@dataclass(slots=True)
class AclsImage:
    _acls: dict[AclEntry, None] = field(default_factory=dict[AclEntry, None])

    def __iter__(self) -> Iterator[AclEntry]:
        return iter(self._acls)

    def __len__(self) -> int:
        return len(self._acls)

    def __contains__(self, acl: AclEntry) -> bool:
        return acl in self._acls

    def add(self, record: AclRecord) -> None:
        self._acls[record.acl] = None

    def remove(self, record: AclRemoved) -> None:
        if record.acl not in self._acls:
            raise broken(f"{record.acl} is removed, but does not exist")
        del self._acls[record.acl]
