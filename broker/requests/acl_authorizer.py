"""Authorize requests with the ACLs in this broker's metadata image, and report denials. Handlers
call the functions in `authorization`.
"""

from collections.abc import Mapping

from penstock.base.acls import Operation, ResourceType
from penstock.broker.network.request import RequestContext
from penstock.broker.requests.api_rights import ApiRights
from penstock.broker.requests.audit import AuditLog
from penstock.broker.security.config import SecurityConfig
from penstock.controller.metadata.acl_index import AclIndex
from penstock.controller.metadata.delta import MetadataDelta
from penstock.controller.metadata.image import MetadataImage
from penstock.protocol import apis


class UndeclaredRight(Exception):
    """Raised if a handler checks a permission that its API does not declare."""


class Authorizer:
    def __init__(
        self, config: SecurityConfig, audit: AuditLog, declared: Mapping[int, ApiRights]
    ) -> None:
        """declared: the permissions that handlers may check, by API key."""
        self.index = AclIndex(
            super_users=config.super_user_names(),
            allows_without_acl=config.allow_everyone_if_no_acl_found,
        )
        self.audit = audit
        self._declared = declared

    def on_batch(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Apply the ACLs that changed in this batch."""
        if delta.everything:
            self.index.replace(image.acls)
            return
        for acl in delta.acls:
            if acl in image.acls:
                self.index.add(acl)
            else:
                self.index.remove(acl)

    def allows(
        self,
        ctx: RequestContext,
        operation: int,
        resource_type: int,
        name: str,
        *,
        logs: bool = True,
    ) -> bool:
        """Return whether the client has this permission. logs: whether to log a denial. Pass False
        if a denial only omits items from a response.
        """
        self._check_declared(ctx, operation, resource_type)
        connection = ctx.connection
        allowed = self.index.allows(
            connection.principal, connection.peer_host, operation, resource_type, name
        )
        if not allowed and logs:
            self.audit.denied_access(ctx, operation, resource_type, name)
        return allowed

    def allows_any(self, ctx: RequestContext, operation: int, resource_type: int) -> bool:
        """Return whether the client has this permission on at least one resource of the type."""
        self._check_declared(ctx, operation, resource_type)
        connection = ctx.connection
        return self.index.allows_any(
            connection.principal, connection.peer_host, operation, resource_type
        )

    def operations(self, ctx: RequestContext, resource_type: int, name: str) -> int:
        """Return the operations that the client is authorized to perform, as a bit field."""
        connection = ctx.connection
        return self.index.operations(
            connection.principal, connection.peer_host, resource_type, name
        )

    def _check_declared(self, ctx: RequestContext, operation: int, resource_type: int) -> None:
        """Raise UndeclaredRight if the API of the request does not declare this permission."""
        if (operation, resource_type) not in self._declared[ctx.api_key].rights:
            raise UndeclaredRight(
                f"{apis.APIS[ctx.api_key].name} checks {Operation(operation).name} on"
                f" {ResourceType(resource_type).name}: add it to broker/handlers/table.py"
            )
