"""Wait for brokers that `penstock dev` is restarting.

Commands opt in to this; the console, `penstock top` and the doctor report that brokers are down
instead. Limit: RESTART_S.
"""

import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

from penstock.deploy.clients import state_file
from penstock.deploy.clients.state_file import ClusterState, ProcessState
from penstock.deploy.output import remark

RESTART_S: Final = 30.0
"""Maximum wait, which is longer than a broker takes to start, even after several failures."""
PAUSE_S: Final = 0.1
_waits: ContextVar[bool] = ContextVar("waits_for_restarts", default=False)


def wait_for_restarts() -> None:
    """Make clients in this context wait for restarting brokers."""
    _waits.set(True)


def is_restarting(
    state: ClusterState,
    is_running: Callable[[ProcessState], bool] = lambda broker: broker.is_running,
) -> bool:
    """Return whether no broker is ready and the supervisor is starting or restarting them."""
    brokers = state.of_role("broker")
    return state.restarts and not any(
        broker.phase == "serving" and is_running(broker) for broker in brokers
    )


def has_restarted(bootstrap: str, pause: Callable[[float], None] = time.sleep) -> bool:
    """Wait while the brokers at these addresses restart; return whether one is ready again."""
    state = state_file.of_user() if _waits.get() else None
    if state is None or state.bootstrap != bootstrap or not is_restarting(state):
        return False
    remark(
        f"penstock: waiting for the brokers of `penstock dev` to start (at most {RESTART_S:.0f} s)"
    )
    ends_at = time.monotonic() + RESTART_S
    while state is not None and is_restarting(state):
        if time.monotonic() > ends_at:
            return False
        pause(PAUSE_S)
        state = state_file.of_user()
    return state is not None
