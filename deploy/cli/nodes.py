"""Run `penstock nodes`: show brokers, their loads and open WALs; unregister a broker."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.deploy.cli.completing import complete_brokers
from penstock.deploy.cli.confirmation import confirm
from penstock.deploy.cli.options import Controllers, DryRun, Output, Yes
from penstock.deploy.errors import NoController
from penstock.deploy.output import Format, print_document, print_table, report

if TYPE_CHECKING:
    from penstock.deploy.admin.views import NodeView

_COLUMNS: Final = (
    "node",
    "epoch",
    "state",
    "last heartbeat",
    "address",
    "rack",
    "leads",
    "open streams",
    "in MB/s",
    "out MB/s",
    "append p50/p99 ms",
    "note",
)

app = typer.Typer()


@app.callback(invoke_without_command=True)
def nodes(
    context: typer.Context,
    *,
    controllers: Controllers,
    output: Output = Format.TABLE,
) -> None:
    """Show the brokers: epoch, last heartbeat, address, leaders, load, reason for exclusion by the
    balancer, and WALs that wait for recovery.

    For example: penstock nodes --output json
    """
    if context.invoked_subcommand is not None:
        return
    from penstock.deploy.admin.balance import propose_moves
    from penstock.deploy.admin.views import view_cluster
    from penstock.deploy.clients.metadata import read_metadata

    address = controllers.find()
    # Any controller can return the metadata, but only the leader can return the loads.
    image = read_metadata(address, lambda image: image)
    try:
        loads = {broker.node_id: broker for broker in propose_moves(address).before}
    except NoController:
        loads = {}
    cluster = view_cluster(image, address, loads)
    if output is not Format.TABLE:
        print_document(output, cluster)
        return
    title = (
        f"cluster {cluster.cluster_id}, controller {address}, metadata offset"
        f" {cluster.metadata_offset:,}"
    )
    print_table(title, _COLUMNS, [_row(node) for node in cluster.nodes])
    wals = [
        (
            w.node_id,
            w.node_epoch,
            w.committed,
            "its writer" if w.is_alive else f"recovery by {w.recoverer}",
            "WAL store" if w.wal_store else "store",
        )
        for w in cluster.wals
    ]
    print_table("open WALs", ["node", "epoch", "committed up to slot", "belongs to", "in"], wals)


@app.command("unregister")
def unregister(
    node_id: Annotated[
        int,
        typer.Argument(metavar="ID", help="Id of the broker.", autocompletion=complete_brokers),
    ],
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    controllers: Controllers,
    output: Output = Format.TABLE,
) -> None:
    """Remove the registration of a dead broker that will not start again.

    This is rejected while the broker is alive, its WAL is not recovered, or a move involves the
    broker. No record is lost: its WAL objects are kept as long as partitions reference them.

    For example: penstock nodes unregister 2 --dry-run
    """
    from penstock.base.ids import NodeId
    from penstock.controller.api.messages import RemoveBroker
    from penstock.deploy.clients.quorum import change

    address = controllers.find()
    view = {"node_id": node_id, "dry_run": dry_run}
    if dry_run:
        report(output, view, _to_unregister(address, node_id))
        return
    confirm(f"remove the registration of broker {node_id}?", yes=yes)
    change(address, lambda client: client.remove_broker(RemoveBroker(node_id=NodeId(node_id))))
    report(output, view, f"Broker {node_id} is no longer registered")


def _to_unregister(controller: str, node_id: int) -> str:
    """Return the current registration. The controller decides whether it can be removed."""
    from penstock.base.errors import ExpectedError
    from penstock.deploy.admin.views import view_cluster
    from penstock.deploy.clients.metadata import read_metadata

    cluster = read_metadata(controller, lambda image: view_cluster(image, controller, {}))
    found = [node for node in cluster.nodes if node.node_id == node_id]
    if not found:
        known = ", ".join(str(node.node_id) for node in cluster.nodes)
        raise ExpectedError(f"broker {node_id} is not registered; registered brokers: {known}")
    if not found[0].fenced:
        raise ExpectedError(f"broker {node_id} is alive: stop it first")
    return f"would remove the registration of broker {node_id} at {found[0].address}"


def _row(node: "NodeView") -> tuple[object, ...]:
    return (
        node.node_id,
        node.node_epoch,
        "fenced" if node.fenced else "alive",
        _last_heartbeat(node),
        node.address,
        node.rack or "-",
        node.leads,
        node.open_streams,
        None if node.bytes_in_s is None else node.bytes_in_s / 1e6,
        None if node.bytes_out_s is None else node.bytes_out_s / 1e6,
        node.append_latencies(),
        node.note or "-",
    )


def _last_heartbeat(node: "NodeView") -> str:
    session = node.session
    if session is None or session.heartbeat_age_ms is None:
        return "-"
    return f"{session.heartbeat_age_ms / 1_000:.1f} s ago"
