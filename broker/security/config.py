"""Settings of a broker about who may connect and what they may do.

Invariant: an object of SecurityConfig is valid; a wrong value raises SettingInvalid.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from base.principal import Principal
from base.settings import Kind, Setting, SettingInvalid, check

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_PRINCIPAL_SEPARATOR: Final = ";"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig:
    authorizer: Annotated[str, Setting("authorizer.class.name", Kind.TEXT)] = ""
    """Who decides what clients may do: StandardAuthorizer, by ACLs (also with Kafka's package name
    before it). Empty: every client may do everything. The same for all brokers of a cluster.
    """

    super_users: Annotated[str, Setting("super.users", Kind.TEXT)] = ""
    """Principals that may do everything, as User:name, separated by semicolons. The brokers' own
    principal should be one of them.
    """

    allow_everyone_if_no_acl_found: Annotated[
        bool, Setting("allow.everyone.if.no.acl.found", Kind.BOOL)
    ] = False
    """Whether everyone may do everything with a resource that has no ACL."""

    def __post_init__(self) -> None:
        check(self)
        if self.authorizer.removeprefix("org.apache.kafka.metadata.authorizer.") not in {
            "",
            "StandardAuthorizer",
        }:
            raise SettingInvalid("authorizer", self.authorizer, f"{STANDARD_AUTHORIZER}, or empty")
        try:
            self.super_user_names()
        except ValueError as error:
            raise SettingInvalid(
                "super_users", self.super_users, "User:name, separated by semicolons"
            ) from error

    @property
    def has_authorizer(self) -> bool:
        return bool(self.authorizer)

    def super_user_names(self) -> frozenset[str]:
        """Return the super users as `User:name`. Raises ValueError."""
        texts = (text.strip() for text in self.super_users.split(_PRINCIPAL_SEPARATOR))
        return frozenset(str(Principal.parse(text)) for text in texts if text)
