"""The course of a run of the scenario `overtaken`: all exchanges concurrently, in a cluster without
faults.
"""

from typing import TYPE_CHECKING

from tests.sim.directed import Script
from tests.sim.overtaken import exchange_all
from tests.sim.overtaken_admin import ADMIN_EXCHANGES
from tests.sim.overtaken_groups import GROUP_EXCHANGES, create_groups
from tests.sim.overtaken_logs import LOG_EXCHANGES, create_logs
from tests.sim.overtaken_rest import ask_the_rest

if TYPE_CHECKING:
    from tests.sim.world import World


async def exchange_requests(world: "World") -> None:
    world.calm = True
    world.start_controller(0)
    for node_id in range(1, world.limits.brokers + 1):
        world.start_broker(node_id)
    script, exchanges = Script(world), (*LOG_EXCHANGES, *GROUP_EXCHANGES, *ADMIN_EXCHANGES)
    await script.until(lambda: all(broker.serving for broker in world.brokers.values()))
    script.authorize()
    await create_logs(script)
    await create_groups(script)
    await exchange_all(script, exchanges)
    await ask_the_rest(script, {api.key for exchange in exchanges for api in exchange.apis})
    world.checker.check_metadata()
