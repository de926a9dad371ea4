"""Run `penstock nodes`: show the brokers, their loads and their open WALs; unregister one."""

import os
from typing import TYPE_CHECKING, Final

import typer

from deploy.cli.options import Controller, Output, StateFile
from deploy.errors import NoController
from deploy.output import Format

if TYPE_CHECKING:
    from deploy.views import NodeView

_COLUMNS: Final = (
    "node",
    "epoch",
    "state",
    "address",
    "rack",
    "leads",
    "open streams",
    "in MB/s",
    "out MB/s",
    "append p50/p99 ms",
    "note",
)

app = typer.Typer(
    help=(
        "Show the brokers: epoch, address, leaders, load, why the balancer excludes them, and WALs"
        " that wait for recovery."
    )
)


@app.callback(invoke_without_command=True)
def nodes(
    context: typer.Context,
    *,
    controller: Controller = None,
    state_file: StateFile = None,
    output: Output = Format.TABLE,
) -> None:
    if context.invoked_subcommand is not None:
        return
    from deploy.balance.admin import propose_moves
    from deploy.clients.metadata import find_controller, read_metadata
    from deploy.output import print_document, print_table
    from deploy.views import view_cluster

    address = find_controller(controller, state_file, os.environ)
    try:
        loads = {broker.node_id: broker for broker in propose_moves(address).before}
    except NoController:  # no leader now; the other controllers also have the metadata
        loads = {}
    cluster = read_metadata(address, lambda image: view_cluster(image, address, loads))
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
        )
        for w in cluster.wals
    ]
    print_table("open WALs", ["node", "epoch", "committed up to slot", "belongs to"], wals)


@app.command("unregister")
def unregister(
    node_id: int, *, controller: Controller = None, state_file: StateFile = None
) -> None:
    """Remove the registration of a dead broker that will not start again.

    Refused while the broker is alive, while its WAL is not recovered, and while a move names it. No
    record is lost: its WAL objects stay as long as partitions refer to them.
    """
    from base.ids import NodeId
    from controller.api.messages import RemoveBroker
    from deploy.clients.metadata import find_controller
    from deploy.clients.quorum import change

    address = find_controller(controller, state_file, os.environ)
    change(address, lambda client: client.remove_broker(RemoveBroker(node_id=NodeId(node_id))))
    print(f"Broker {node_id} is no longer registered")


def _row(node: "NodeView") -> tuple[object, ...]:
    return (
        node.node_id,
        node.node_epoch,
        "fenced" if node.fenced else "alive",
        node.address,
        node.rack or "-",
        node.leads,
        node.open_streams,
        node.bytes_in_s / 1e6,
        node.bytes_out_s / 1e6,
        _latencies(node),
        node.note or "-",
    )


def _latencies(node: "NodeView") -> str:
    return (
        "-"
        if node.append_p50_ms is None or node.append_p99_ms is None
        else f"{node.append_p50_ms:,.0f} / {node.append_p99_ms:,.0f}"
    )
