"""List, set and delete quotas of users, clients and addresses: `penstock quotas`."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.deploy.cli.options import BOOTSTRAP, Bootstrap, DryRun, Output
from penstock.deploy.errors import UsageError
from penstock.deploy.output import Format, report, report_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.deploy.clients.quotas import QuotaView

app = typer.Typer(
    help="List, set and delete quotas of users, clients and addresses.", no_args_is_help=True
)
_DEFAULT: Final = "<default>"

User = Annotated[str | None, typer.Option("--user", help="A user, or <default>.")]
Client = Annotated[str | None, typer.Option("--client-id", help="A client id, or <default>.")]
Ip = Annotated[str | None, typer.Option("--ip", help="An address or a host, or <default>.")]


@app.command("list")
def list_(
    *,
    user: User = None,
    client_id: Client = None,
    ip: Ip = None,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """List quotas. With options, list only quotas of entities that match all of them.

    For example: penstock quotas list --user alice
    """
    from penstock.deploy.clients.quotas import list_quotas
    from penstock.deploy.clients.wire import WireClient

    with WireClient(bootstrap) as client:
        _print(list_quotas(client, _entity(user, client_id, ip)), output=output)


@app.command("set")
def set_(
    quotas: Annotated[
        list[str],
        typer.Argument(
            metavar="QUOTA=VALUE",
            help=(
                "producer_byte_rate, consumer_byte_rate (bytes per second), request_percentage "
                "(of a broker's event loop time), controller_mutation_rate (partitions per "
                "second); for addresses, connection_creation_rate (per second)."
            ),
        ),
    ],
    *,
    user: User = None,
    client_id: Client = None,
    ip: Ip = None,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Set quotas of a user, a client, a client of a user, or an address. Quotas apply per broker.

    For example: penstock quotas set --user alice producer_byte_rate=1000000

    penstock quotas set --user '<default>' --client-id '<default>' request_percentage=50
    """
    _alter(_entity(user, client_id, ip), dict(map(_value, quotas)), bootstrap, output=output)


@app.command("delete")
def delete(
    quotas: Annotated[
        list[str] | None,
        typer.Argument(metavar="QUOTA", help="Only these.", show_default="all quotas"),
    ] = None,
    *,
    user: User = None,
    client_id: Client = None,
    ip: Ip = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Delete quotas of one entity. Machine-readable formats contain the quotas that are left.

    For example: penstock quotas delete --user alice producer_byte_rate --dry-run
    """
    from penstock.deploy.clients.quotas import QuotaView, list_quotas, shown
    from penstock.deploy.clients.wire import WireClient

    entity = _entity(user, client_id, ip)
    _check_named(entity)
    with WireClient(bootstrap) as client:
        present = [item for item in list_quotas(client, entity) if item.entity == entity]
    found = [key for item in present for key in item.quotas]
    names = quotas or found
    missing = [name for name in names if name not in found]
    if missing or not names:
        wanted = missing[0] if missing else "quota"
        raise UsageError(f"{shown(entity)} has no quota {wanted}; see `penstock quotas list`")
    if dry_run:
        left = [
            QuotaView(entity, {key: item.quotas[key] for key in item.quotas if key not in names})
            for item in present
        ]
        would = f"would delete {', '.join(names)} of {shown(entity)}"
        report(output, [item for item in left if item.quotas], would)
        return
    _alter(entity, dict.fromkeys(names), bootstrap, output=output)


def _entity(user: str | None, client_id: str | None, ip: str | None) -> dict[str, str | None]:
    given = {"user": user, "client-id": client_id, "ip": ip}
    if ip is not None and (user is not None or client_id is not None):
        raise UsageError("--ip cannot be combined with --user or --client-id")
    return {
        kind: None if name == _DEFAULT else name for kind, name in given.items() if name is not None
    }


def _check_named(entity: dict[str, str | None]) -> None:
    if not entity:
        raise UsageError("specify an entity: --user, --client-id, both, or --ip")


def _value(text: str) -> tuple[str, float]:
    from penstock.deploy.clients.quotas import parse_value

    name, _, value = text.partition("=")
    try:
        return name, parse_value(value)
    except ValueError:
        raise UsageError(
            f"{text!r} is not a quota: use QUOTA=NUMBER, as in producer_byte_rate=1000000"
        ) from None


def _alter(
    entity: dict[str, str | None],
    values: "dict[str, float] | dict[str, None]",
    bootstrap: str,
    *,
    output: Format,
) -> None:
    from penstock.deploy.clients.quotas import alter_quotas, list_quotas
    from penstock.deploy.clients.wire import WireClient

    _check_named(entity)
    with WireClient(bootstrap) as client:
        alter_quotas(client, entity, values)
        found = [item for item in list_quotas(client, entity) if item.entity == entity]
    _print(found, output=output)


def _print(found: "Sequence[QuotaView]", *, output: Format) -> None:
    from penstock.deploy.clients.quotas import shown

    rows = [
        (shown(item.entity), key, f"{value:,.15g}")
        for item in found
        for key, value in sorted(item.quotas.items())
    ]
    report_table(output, found, "", ["entity", "quota", "value"], rows)
