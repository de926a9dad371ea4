"""`penstock nodes`: who is in the cluster, and which WALs are open."""

import os

from deploy.commands.options import AsJson, Controller, StateFile


def nodes(*, controller: Controller = None, state_file: StateFile = None, as_json: AsJson = False) -> None:
    """Show the brokers: epoch, address, what each leads, and WALs that still wait for recovery."""
    from deploy.metadata import find_controller, look
    from deploy.output import print_json, print_table
    from deploy.views import view_cluster

    address = find_controller(controller, state_file, os.environ)
    cluster = look(address, lambda image: view_cluster(image, address))
    if as_json:
        print_json(cluster)
        return
    rows = [
        (n.node_id, n.node_epoch, "fenced" if n.fenced else "alive", n.address, n.rack or "-", n.leads, n.open_streams)
        for n in cluster.nodes
    ]
    title = f"cluster {cluster.cluster_id}, controller {address}, metadata offset {cluster.metadata_offset:,}"
    print_table(title, ["node", "epoch", "is", "address", "rack", "leads", "open streams"], rows)
    wals = [(w.node_id, w.node_epoch, w.committed, "its writer" if w.is_alive else f"recovery by {w.recoverer}") for w in cluster.wals]
    print_table("open WALs", ["node", "epoch", "committed up to slot", "belongs to"], wals)
