"""Adapt the limits that a seed draws to the subject of a scenario.

Invariant: other scenarios keep the drawn limits, and the random draws of a scenario do not depend
on those of another.
"""

from dataclasses import replace
from random import Random

import msgspec

from tests.sim.acls import RULED, ruled_limits
from tests.sim.clock_steps import stepping
from tests.sim.late import late_limits
from tests.sim.leaks import LEAKING
from tests.sim.limits import Limits, quick_limits
from tests.sim.loads import loading_limits
from tests.sim.offsets import ASKING
from tests.sim.overtaken import OVERTAKEN
from tests.sim.rollback import CONTROLLERS
from tests.sim.scenarios import (
    BALANCED,
    CLEANING,
    COORDINATED,
    COORDINATING,
    DELETING,
    LATE,
    LOADING,
    ROLLED_BACK,
    STEPPING,
    WAL_STORING,
)
from tests.sim.topic_life import LIVING


def scenario_limits(scenario: str, drawn: Limits, rng: Random) -> Limits:
    """Return the limits for one run of `scenario`."""
    if scenario == OVERTAKEN:
        return quick_limits()
    if scenario in BALANCED:
        config = msgspec.structs.replace(
            drawn.controller,
            auto_balance=True,
            balance_interval_ms=300,
            balance_cooldown_ms=1_000,
            balance_return_delay_ms=0,
            balance_bytes_min=1,
        )
        return replace(drawn, controller=config, partitions=max(drawn.partitions, 6))
    if scenario in ASKING:
        config = msgspec.structs.replace(
            drawn.controller, session_timeout_ms=rng.choice((1_500, 6_000)), session_grace_ms=300
        )
        return replace(
            drawn, controller=config, partitions=min(4, drawn.partitions), brokers=3, producers=1
        )
    if scenario in ROLLED_BACK:
        return replace(drawn, controllers=CONTROLLERS)
    if scenario in WAL_STORING:
        after_ms = rng.choice((0, 1_000, 4_000, 10_000))
        stream = replace(drawn.stream, wal_fallback_after_ms=after_ms)
        return_s = rng.choice((1.0, 10.0))
        return replace(drawn, wal_store=True, stream=stream, wal_return_after_s=return_s)
    if scenario in RULED:
        return ruled_limits(drawn)
    if scenario in COORDINATED:
        limits = replace(drawn, partitions=min(drawn.partitions, 3), producers=1)
        return late_limits(limits) if scenario in LATE else limits
    if scenario in STEPPING:
        return stepping(drawn)
    if scenario in LIVING:
        config = msgspec.structs.replace(
            drawn.controller, delete_grace_ms=rng.choice((0, 1_500, 5_000, 600_000))
        )
        return replace(drawn, controller=config)
    if scenario in CLEANING - LEAKING:
        # Readers must see what was cleaned, not the leader's cache.
        stream = replace(drawn.stream, block_bytes_max=300, log_cache_bytes_max=600)
        return replace(drawn, stream=stream)
    if scenario in DELETING:
        config = msgspec.structs.replace(
            drawn.controller, delete_grace_ms=rng.choice((0, 2_000, 600_000))
        )
        return replace(drawn, controller=config)
    limits = replace(drawn, partitions=1, producers=1) if scenario in COORDINATING else drawn
    if scenario in LOADING:
        return loading_limits(limits)
    return late_limits(limits) if scenario in LATE else limits


def with_log_life(scenario: str, limits: Limits, rng: Random) -> Limits:
    """Return the limits for a run with log life: deleted topics can be restored for a while."""
    if scenario in LIVING | DELETING | STEPPING:
        return limits
    config = msgspec.structs.replace(
        limits.controller, delete_grace_ms=rng.choice((0, 2_000, 600_000))
    )
    return replace(limits, controller=config)
