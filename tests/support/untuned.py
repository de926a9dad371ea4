"""Read the producers that the doctor and the console list as untuned."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from penstock.controller.api.load_messages import ProposeMoves
from penstock.deploy.console.live import LiveCluster
from penstock.deploy.console.options import ConsoleOptions
from penstock.deploy.doctor import checks
from tests.support.cluster import Cluster


async def doctor_findings(cluster: Cluster) -> list[str]:
    """Return the findings of the doctor about clients, with their remedies."""
    found = await cluster.broker.client.propose_moves(ProposeMoves(moves_max=0))
    problems = {int(load.node_id): load.problems for load in found.before if load.problems}
    return [f"{item.sentence} {item.mend}" for item in checks.clients(problems).findings]


@asynccontextmanager
async def followed(cluster: Cluster) -> AsyncGenerator[LiveCluster]:
    """Follow the cluster as the console does."""
    assert cluster.controller is not None
    options = ConsoleOptions(bootstrap=cluster.bootstrap, controller=cluster.controller.address)
    live = LiveCluster(options, lambda: 0)
    await live.start()
    try:
        live.want()
        yield live
    finally:
        await live.stop()
