"""Replace the system boundaries of the product for one simulator run, and guard the run.

Invariant: everything is restored when the run ends, also after an error.
"""

import gc
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

import structlog

import penstock.broker.coordination.log as coordinator_log_module
import penstock.broker.requests.yielding as slices_module
import penstock.broker.transactions.markers as markers_module
import penstock.controller.active.controller as active_controller_module
import penstock.controller.active.server as server_module
import penstock.controller.api.client as client_module
import penstock.controller.api.follower as follower_module
import penstock.controller.main as main_module
import penstock.controller.managers.objects as objects_manager
import penstock.controller.raft.identity as identity_module
import penstock.controller.raft.transport as transport_module
from tests.sim import scenarios
from tests.sim.checkers import Violation
from tests.sim.control import SimActiveController, SimQuorum, new_uuid
from tests.sim.late import MARKERS_TIMEOUT_S
from tests.sim.limits import PREPARED_TTL_MS
from tests.sim.loads import LOAD_READ_BYTES
from tests.sim.loop import process_name
from tests.sim.network import SimChannel, SimListener, SimRaftSender

if TYPE_CHECKING:
    from tests.sim.world import World

_STEP_LIMIT_S = 10.0
"""CPU time limit; a step needs less than a millisecond."""


@contextmanager
def patched_borders(world: "World") -> Iterator[None]:
    """Replace the product's system boundaries: transport, ids, logs, the clock of long requests,
    and the lifetime of prepared objects (1 h is too long to wait for).
    """
    rng = Random(f"{world.seed}/ids")
    real_prepare = objects_manager.prepare_objects
    replaced: list[tuple[Any, str, Any]] = [
        (client_module, "Channel", SimChannel),
        (follower_module, "Channel", SimChannel),
        (server_module, "Listener", SimListener),
        (transport_module, "_Sender", SimRaftSender),
        (main_module, "RaftQuorum", SimQuorum),
        (main_module, "ActiveController", SimActiveController),
        (active_controller_module, "uuid4", new_uuid),
        (slices_module, "_clock", _work_clock(Random(f"{world.seed}/work"))),
        (identity_module, "new_id", lambda: new_uuid().hex[:22]),
        (client_module, "uuid4", lambda: UUID(int=rng.getrandbits(128))),
        (
            objects_manager,
            "prepare_objects",
            lambda *args: real_prepare(*args, ttl_ms=PREPARED_TTL_MS),
        ),
    ]
    if world.scenario in scenarios.LATE:
        replaced.append((markers_module, "REQUEST_TIMEOUT_S", MARKERS_TIMEOUT_S))
    if world.scenario in scenarios.LOADING:
        replaced.append((coordinator_log_module, "READ_BYTES", LOAD_READ_BYTES))
    originals = [getattr(target, name) for target, name, _ in replaced]
    for target, name, value in replaced:
        setattr(target, name, value)
    logging = structlog.get_config()
    structlog.configure(
        processors=[_log_to(world)], wrapper_class=structlog.make_filtering_bound_logger(30)
    )
    try:
        yield
    finally:
        structlog.configure(**logging)
        for (target, name, _), original in zip(replaced, originals, strict=True):
            setattr(target, name, original)


def _work_clock(rng: Random) -> Callable[[], float]:
    """Return a clock that ends a slice of a request after at most about twenty steps. Virtual time
    stands still while code runs.
    """
    now_s = 0.0

    def look() -> float:
        nonlocal now_s
        now_s += slices_module.FIRST_SLICE_S * rng.random() / 10
        return now_s

    return look


def _log_to(world: "World") -> Callable[..., Any]:
    def processor(_: Any, __: str, event: Any) -> Any:
        world.note(dict(event))
        raise structlog.DropEvent

    return processor


@contextmanager
def step_limit(world: "World") -> Iterator[None]:
    """End the run if code does not return to the event loop."""
    steps = -1

    def look(_: int, __: object) -> None:
        nonlocal steps
        if world.loop.steps == steps:
            raise Violation(f"a step of {process_name()} does not end")
        steps = world.loop.steps

    previous = signal.signal(signal.SIGVTALRM, look)
    signal.setitimer(signal.ITIMER_VIRTUAL, _STEP_LIMIT_S, _STEP_LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)


@contextmanager
def quiet_collector() -> Iterator[None]:
    """Disable the garbage collector during a run, because finalizers run at arbitrary times."""
    was_enabled = gc.isenabled()
    gc.disable()
    gc.collect()
    gc.freeze()  # modules are not scanned again
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
