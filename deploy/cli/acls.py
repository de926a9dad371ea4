"""Run `penstock acls`: list, add and remove ACLs."""

from collections.abc import Sequence
from dataclasses import astuple
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

Topic = Annotated[
    str | None,
    typer.Option("--topic", help="A topic, or * for all topics.", autocompletion=complete_topics),
]
Group = Annotated[
    str | None,
    typer.Option("--group", help="A group, or * for all groups.", autocompletion=complete_groups),
]
TransactionalId = Annotated[
    str | None, typer.Option("--transactional-id", help="A transactional id, or * for all.")
]
OnCluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
Prefix = Annotated[
    bool, typer.Option("--prefix", help="Match all names that start with the given name.")
]
PrincipalName = Annotated[
    str | None, typer.Option("--principal", help="Principal: User:NAME, or User:* for everyone.")
]
Host = Annotated[
    str | None,
    typer.Option(
        "--host", help="Client address; default: all addresses.", show_default="all hosts"
    ),
]
Operations = Annotated[
    list[str] | None,
    typer.Option(
        "--operation",
        help=(
            "Operation: read, write, create, delete, alter, describe, cluster-action, "
            "describe-configs, alter-configs, idempotent-write, or all. Repeatable."
        ),
    ),
]
Deny = Annotated[
    bool,
    typer.Option("--deny", help="Deny the operations. Denials take precedence over permissions."),
]


@app.command("list")
def list_acls(
    *,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: OnCluster = False,
    principal: PrincipalName = None,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """List ACLs. With a resource, list all ACLs that apply to it, including prefixes and wildcards.

    For example: penstock acls list --topic orders
    """
    from penstock.deploy.clients.acls import AclSelection, listed_acls
    from penstock.deploy.clients.wire import WireClient

    found = _resource(topic, group, transactional_id, is_cluster=cluster)
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
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: OnCluster = False,
    prefix: Prefix = False,
    principal: PrincipalName = None,
    host: Host = None,
    operation: Operations = None,
    deny: Deny = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Allow or deny a principal operations on a resource.

    For example: penstock acls add --topic orders --principal User:alice --operation write

    penstock acls add --group billing- --prefix --principal User:bob --operation read
    """
    from penstock.deploy.clients.acls import add_acls, listed_acls
    from penstock.deploy.clients.wire import WireClient

    resource = _resource(topic, group, transactional_id, is_cluster=cluster)
    if resource is None:
        raise UsageError("specify a resource: --topic, --group, --transactional-id or --cluster")
    if principal is None or not operation:
        raise UsageError("specify --principal User:NAME and --operation OPERATION")
    wanted = _selections(
        resource, (principal, host or "*"), operation, is_prefix=prefix, is_denied=deny
    )
    with WireClient(bootstrap) as client:
        add_acls(client, wanted)
        added = [acl for item in wanted for acl in listed_acls(client, item)]
    _print(added, output)


@app.command("remove")
def remove(
    *,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: OnCluster = False,
    prefix: Prefix = False,
    principal: PrincipalName = None,
    host: Host = None,
    operation: Operations = None,
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

    resource = _resource(topic, group, transactional_id, is_cluster=cluster)
    if resource is None and principal is None:
        raise UsageError("specify the resource or the --principal whose ACLs to remove")
    wanted = _selections(
        resource, (principal, host), operation or [None], is_prefix=prefix, is_denied=deny
    )
    with WireClient(bootstrap) as client:
        removed = [acl for item in wanted for acl in listed_acls(client, item)]
        if not dry_run:
            confirm(f"remove {counted(len(removed), 'ACL')}?", yes=yes)
            removed = [acl for item in wanted for acl in remove_acls(client, item)]
    _print(removed, output)
    if dry_run and output is Format.TABLE:
        say("nothing was changed")


def _resource(
    topic: str | None, group: str | None, transactional_id: str | None, *, is_cluster: bool
) -> "tuple[ResourceType, str] | None":
    """Return the resource selected by the options, or None. Raises UsageError."""
    from penstock.base.acls import CLUSTER_NAME, ResourceType

    named = {
        ResourceType.TOPIC: topic,
        ResourceType.GROUP: group,
        ResourceType.TRANSACTIONAL_ID: transactional_id,
        ResourceType.CLUSTER: CLUSTER_NAME if is_cluster else None,
    }
    found = [(kind, name) for kind, name in named.items() if name is not None]
    if len(found) > 1:
        raise UsageError(
            "specify only one resource: --topic, --group, --transactional-id or --cluster"
        )
    if found and not found[0][1]:
        raise UsageError("the name of the resource is empty")
    return found[0] if found else None


def _selections(
    resource: "tuple[ResourceType, str] | None",
    who: tuple[str | None, str | None],
    operations: Sequence[str | None],
    *,
    is_prefix: bool,
    is_denied: bool,
) -> "list[AclSelection]":
    """Return one selection per operation. Raises UsageError."""
    from penstock.base.acls import PatternType, Permission
    from penstock.base.principal import Principal
    from penstock.deploy.clients.acls import OPERATIONS, AclSelection

    principal, host = who
    if principal is not None:
        try:
            Principal.parse(principal)
        except ValueError as error:
            raise UsageError(str(error)) from None
    kind, name = resource or (None, None)
    pattern = PatternType.PREFIXED if is_prefix else PatternType.LITERAL
    selections: list[AclSelection] = []
    for word in operations:
        if word is not None and word not in OPERATIONS:
            raise UsageError(f"unknown operation {word!r}; use one of {', '.join(OPERATIONS)}")
        selections.append(
            AclSelection(
                kind,
                name,
                None if resource is None else pattern,
                principal,
                host,
                None if word is None else OPERATIONS[word],
                Permission.DENY if is_denied else None if word is None else Permission.ALLOW,
            )
        )
    return selections


def _print(acls: "list[AclView]", output: Format) -> None:
    columns = ("resource", "name", "pattern", "principal", "host", "operation", "permission")
    report_table(output, acls, "", columns, map(astuple, acls))
