"""Run `penstock acls`: list, add and remove ACLs."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.deploy.cli.completing import complete_groups, complete_topics
from penstock.deploy.cli.confirmation import confirm
from penstock.deploy.cli.options import BOOTSTRAP, Bootstrap, DryRun, Output, Yes
from penstock.deploy.errors import UsageError
from penstock.deploy.output import Format, counted, report_table, say

if TYPE_CHECKING:
    from penstock.base.acls import ResourceType
    from penstock.deploy.clients.acls import AclSelection, AclView

app = typer.Typer(
    help="List, add and remove ACLs.",
    no_args_is_help=True,
)

Principals = Annotated[
    str | None, typer.Option("--principal", help="Principal: User:NAME, or User:* for everyone.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceOptions:
    """Options that select a resource; at most one is allowed."""

    topic: Annotated[
        str | None,
        typer.Option(
            "--topic", help="A topic, or * for all topics.", autocompletion=complete_topics
        ),
    ] = None
    group: Annotated[
        str | None,
        typer.Option(
            "--group", help="A group, or * for all groups.", autocompletion=complete_groups
        ),
    ] = None
    transactional_id: Annotated[
        str | None, typer.Option("--transactional-id", help="A transactional id, or * for all.")
    ] = None
    cluster: Annotated[bool, typer.Option("--cluster", help="The cluster itself.")] = False

    def selected(self) -> "tuple[ResourceType, str] | None":
        """Return the selected resource, or None. Raises UsageError."""
        from penstock.base.acls import CLUSTER_NAME, ResourceType

        named = {
            ResourceType.TOPIC: self.topic,
            ResourceType.GROUP: self.group,
            ResourceType.TRANSACTIONAL_ID: self.transactional_id,
            ResourceType.CLUSTER: CLUSTER_NAME if self.cluster else None,
        }
        found = [(kind, name) for kind, name in named.items() if name is not None]
        if len(found) > 1:
            raise UsageError(
                "specify only one resource: --topic, --group, --transactional-id or --cluster"
            )
        if found and not found[0][1]:
            raise UsageError("the name of the resource is empty")
        return found[0] if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchOptions:
    """Options for the other fields of ACLs."""

    prefix: Annotated[
        bool, typer.Option("--prefix", help="Match all names that start with the given name.")
    ] = False
    principal: Principals = None
    host: Annotated[
        str | None,
        typer.Option(
            "--host", help="Client address; default: all addresses.", show_default="all hosts"
        ),
    ] = None
    operation: Annotated[
        list[str] | None,
        typer.Option(
            "--operation",
            help=(
                "Operation: read, write, create, delete, alter, describe, cluster-action, "
                "describe-configs, alter-configs, idempotent-write, or all. Repeatable."
            ),
        ),
    ] = None

    def selections(
        self, resource: "tuple[ResourceType, str] | None", host: str | None, *, is_denied: bool
    ) -> "list[AclSelection]":
        """Return one selection per operation, or one for all of them. Raises UsageError."""
        from penstock.base.acls import PatternType, Permission
        from penstock.base.principal import Principal
        from penstock.deploy.clients.acls import OPERATIONS, AclSelection

        if self.principal is not None:
            try:
                Principal.parse(self.principal)
            except ValueError as error:
                raise UsageError(str(error)) from None
        kind, name = resource or (None, None)
        pattern = PatternType.PREFIXED if self.prefix else PatternType.LITERAL
        words: Sequence[str | None] = self.operation or [None]
        selections: list[AclSelection] = []
        for word in words:
            if word is not None and word not in OPERATIONS:
                raise UsageError(f"unknown operation {word!r}; use one of {', '.join(OPERATIONS)}")
            selections.append(
                AclSelection(
                    kind,
                    name,
                    None if resource is None else pattern,
                    self.principal,
                    host,
                    None if word is None else OPERATIONS[word],
                    Permission.DENY if is_denied else None if word is None else Permission.ALLOW,
                )
            )
        return selections


@app.command("list")
def list_acls(
    *,
    resource: ResourceOptions,
    principal: Principals = None,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """List ACLs. With a resource, list all ACLs that apply to it, including prefixes and wildcards.

    For example: penstock acls list --topic orders
    """
    from penstock.deploy.clients.acls import AclSelection, listed_acls
    from penstock.deploy.clients.wire import WireClient

    found = resource.selected()
    wanted = (
        AclSelection(principal=principal)
        if found is None
        else AclSelection(found[0], found[1], principal=principal, matches=True)
    )
    with WireClient(bootstrap) as client:
        acls = listed_acls(client, wanted)
    _print(acls, output)


@app.command("add")
def add(
    *,
    resource: ResourceOptions,
    match: MatchOptions,
    deny: Annotated[
        bool,
        typer.Option(
            "--deny", help="Deny the operations. Denials take precedence over permissions."
        ),
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Allow or deny a principal operations on a resource.

    For example: penstock acls add --topic orders --principal User:alice --operation write

    penstock acls add --group billing- --prefix --principal User:bob --operation read
    """
    from penstock.deploy.clients.acls import add_acls, listed_acls
    from penstock.deploy.clients.wire import WireClient

    selected = resource.selected()
    if selected is None:
        raise UsageError("specify a resource: --topic, --group, --transactional-id or --cluster")
    if match.principal is None or not match.operation:
        raise UsageError("specify --principal User:NAME and --operation OPERATION")
    wanted = match.selections(selected, match.host or "*", is_denied=deny)
    with WireClient(bootstrap) as client:
        add_acls(client, wanted)
        added = [acl for item in wanted for acl in listed_acls(client, item)]
    _print(added, output)


@app.command("remove")
def remove(
    *,
    resource: ResourceOptions,
    match: MatchOptions,
    deny: Annotated[
        bool,
        typer.Option(
            "--deny",
            help="Only ACLs that deny; default: ACLs that allow or, without --operation, both.",
        ),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Remove the ACLs of a resource or of a principal, and print them. Other options limit what is
    removed.

    For example: penstock acls remove --topic orders --principal User:alice
    """
    from penstock.deploy.clients.acls import listed_acls, remove_acls
    from penstock.deploy.clients.wire import WireClient

    selected = resource.selected()
    if selected is None and match.principal is None:
        raise UsageError("specify the resource or the --principal whose ACLs to remove")
    wanted = match.selections(selected, match.host, is_denied=deny)
    with WireClient(bootstrap) as client:
        removed = [acl for item in wanted for acl in listed_acls(client, item)]
        if not dry_run:
            confirm(f"remove {counted(len(removed), 'ACL')}?", yes=yes)
            removed = [acl for item in wanted for acl in remove_acls(client, item)]
    _print(removed, output)
    if dry_run and output is Format.TABLE:
        say("nothing was changed")


def _print(acls: "list[AclView]", output: Format) -> None:
    columns = ("resource", "name", "pattern", "principal", "host", "operation", "permission")
    report_table(output, acls, "", columns, map(astuple, acls))
