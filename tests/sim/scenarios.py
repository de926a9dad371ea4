"""The scenarios of the simulator: which faults `tests.sim.chaos` draws in each, how often, and
other differences.
"""

from collections.abc import Mapping

from tests.sim.consumer_groups import SUBSCRIBING
from tests.sim.groups import LATE_MEMBERS
from tests.sim.leaks import LEAKING
from tests.sim.overtaken import OVERTAKEN
from tests.sim.share_consumers import WORKING
from tests.sim.share_members import JOINING
from tests.sim.share_states import SHARING
from tests.sim.streams_members import STREAMING

SCENARIOS: Mapping[str, Mapping[str, int]] = {
    "calm": {"nothing": 5, "trim": 1, "move": 1},
    "crash": {"crash": 5, "slow_store": 1, "nothing": 2, "trim": 1},
    "zombie": {"pause": 4, "replace": 3, "cut": 2, "crash": 1, "slow_store": 1},
    "move": {"move": 8, "ping_pong": 4, "leave": 1, "trim": 1, "pause": 1},
    "store": {"slow_store": 3, "store_down": 3, "crash": 1, "move": 1},
    "suspicion": {"suspect": 8, "crash": 2, "replace": 1, "cut": 1, "move": 2, "slow_store": 1},
    "controller": {
        "crash_controller": 3,
        "pause_controller": 2,
        "cut_controller": 2,
        "transfer": 1,
        "coup": 3,
        "cut": 1,
        "move": 3,
        "crash": 2,
    },
    "quorum": {
        "crash_controller": 4,
        "pause_controller": 2,
        "cut_controller": 4,
        "split": 4,
        "slow_disk": 2,
        "broken_disk": 1,
        "blackout": 1,
        "move": 2,
        "coup": 4,
        "transfer": 3,
    },
    "disaster": {
        "lose_disks": 4,
        "crash": 2,
        "pause": 1,
        "replace": 1,
        "move": 2,
        "ping_pong": 1,
        "store_down": 1,
        "trim": 1,
    },
    "rollback": {
        "copy_disks": 4,
        "roll_back": 10,
        "pause_controller": 1,
        "cut_controller": 2,
        "transfer": 1,
        "move": 3,
    },
    "clock": {"cut": 6, "pause": 1, "replace": 1, "slow_store": 2, "move": 1, "nothing": 1},
    "balance": {
        "slow_broker": 4,
        "crash": 2,
        "pause": 1,
        "move": 2,
        "leave": 1,
        "unregister": 2,
        "crash_controller": 1,
        "slow_store": 1,
        "cut": 1,
        "nothing": 2,
    },
    "transactions": {
        "crash": 3,
        "pause": 2,
        "replace": 1,
        "move": 4,
        "ping_pong": 2,
        "leave": 1,
        "slow_store": 1,
        "store_down": 1,
        "cut": 1,
        "crash_controller": 1,
        "strike": 6,
    },
    "coordinators": {"strike": 12, "crash": 1, "pause": 1, "move": 1, "ping_pong": 1, "nothing": 1},
    "late": {
        "cut_brokers": 5,
        "cut_coordinator": 2,
        "move_offsets": 4,
        "strike_leader": 4,
        "strike": 1,
        "pause": 2,
        "crash": 1,
        "move": 2,
    },
    "rewrite": {
        "rewrite": 6,
        "move": 2,
        "crash": 2,
        "trim": 2,
        "pause": 1,
        "crash_controller": 1,
        "slow_store": 1,
        "nothing": 1,
    },
    "mixed": {
        "crash": 3,
        "pause": 2,
        "replace": 2,
        "cut": 2,
        "move": 4,
        "ping_pong": 2,
        "leave": 1,
        "trim": 2,
        "slow_store": 2,
        "store_down": 1,
        "crash_controller": 1,
        "pause_controller": 1,
        "coup": 1,
        "cut_controller": 1,
        "split": 1,
        "slow_disk": 1,
        "nothing": 2,
    },
    "stale": {
        "isolate": 6,
        "reject": 6,
        "move": 4,
        "pause": 1,
        "replace": 1,
        "crash_controller": 1,
        "cut_controller": 1,
        "crash": 1,
        "slow_store": 1,
    },
    "topics": {
        "crash": 4,
        "pause": 2,
        "replace": 2,
        "move": 4,
        "ping_pong": 2,
        "leave": 1,
        "slow_store": 2,
        "store_down": 1,
        "isolate": 3,
        "crash_controller": 2,
        "cut_controller": 1,
        "coup": 1,
        "cut": 1,
        "nothing": 1,
    },
    "pipeline": {
        "crash": 4,
        "pause": 1,
        "move": 4,
        "ping_pong": 2,
        "leave": 1,
        "slow_store": 1,
        "store_down": 1,
        "cut": 1,
        "nothing": 1,
    },
    "damage": {"strike_object": 8, "crash": 1, "move": 3, "ping_pong": 1, "nothing": 1},
    "steps": {
        "step_clock": 8,
        "crash": 1,
        "move": 3,
        "ping_pong": 1,
        "slow_store": 1,
        "crash_controller": 2,
        "transfer": 1,
        "nothing": 1,
    },
    "groups": {
        "crash": 2,
        "pause": 1,
        "haunt": 5,
        "move": 4,
        "ping_pong": 2,
        "leave": 1,
        "slow_store": 2,
        "cut": 1,
        "expire": 8,
        "nothing": 5,
    },
    "short_logs": {
        "crash": 2,
        "pause": 1,
        "move": 4,
        "ping_pong": 2,
        "slow_store": 1,
        "strike": 4,
        "nothing": 1,
    },
    "lost_slots": {
        "lose_slot": 8,
        "crash": 2,
        "move": 2,
        "pause": 1,
        "crash_controller": 1,
        "slow_store": 1,
        "nothing": 2,
    },
    "log_life": {
        "delete_records": 10,
        "crash": 3,
        "pause": 2,
        "replace": 1,
        "move": 4,
        "ping_pong": 2,
        "leave": 1,
        "slow_store": 1,
        "store_down": 1,
        "cut": 3,
        "crash_controller": 2,
        "cut_controller": 1,
        "nothing": 1,
    },
    "compacted": {
        "crash": 4,
        "pause": 2,
        "replace": 1,
        "move_compacted": 4,
        "clean_outside": 4,
        "leave": 1,
        "slow_store": 2,
        "store_down": 1,
        "cut": 2,
        "crash_controller": 2,
        "nothing": 2,
    },
    "forks": {
        "crash": 4,
        "pause": 2,
        "replace": 1,
        "move": 3,
        "ping_pong": 1,
        "leave": 1,
        "trim": 1,
        "slow_store": 1,
        "store_down": 1,
        "cut": 2,
        "crash_controller": 2,
        "strike": 2,
        "nothing": 2,
    },
    "leaks": {
        "delete_records": 6,
        "crash": 2,
        "pause": 1,
        "replace": 1,
        "move": 3,
        "move_compacted": 1,
        "leave": 1,
        "slow_store": 1,
        "crash_controller": 1,
        "nothing": 3,
    },
    "wal_store": {
        "crash": 4,
        "pause": 2,
        "replace": 2,
        "cut": 1,
        "move": 3,
        "ping_pong": 1,
        "leave": 1,
        "trim": 1,
        "slow_store": 1,
        "store_down": 2,
        "slow_wal_store": 2,
        "wal_store_down": 3,
        "lose_disks": 1,
        "crash_controller": 2,
        "nothing": 1,
    },
    "consumer_groups": {
        "crash": 2,
        "pause": 1,
        "haunt": 4,
        "move": 4,
        "ping_pong": 2,
        "leave": 1,
        "slow_store": 1,
        "cut": 1,
        "crash_controller": 1,
        "nothing": 4,
    },
    "streams_groups": {
        "crash": 3,
        "pause": 1,
        "haunt": 4,
        "move": 4,
        "ping_pong": 2,
        "leave": 1,
        "slow_store": 1,
        "cut": 1,
        "crash_controller": 1,
        "nothing": 4,
    },
    "share_groups": {
        "crash": 3,
        "pause": 1,
        "haunt": 3,
        "move": 4,
        "ping_pong": 2,
        "leave": 1,
        "slow_store": 1,
        "cut": 1,
        "crash_controller": 1,
        "nothing": 3,
    },
    "share_states": {
        "crash": 3,
        "pause": 1,
        "haunt": 3,
        "move": 4,
        "ping_pong": 2,
        "leave": 1,
        "slow_store": 2,
        "cut": 1,
        "crash_controller": 1,
        "nothing": 3,
    },
    "share_consumers": {
        "crash": 3,
        "pause": 2,
        "replace": 1,
        "haunt": 1,
        "move": 5,
        "ping_pong": 3,
        "leave": 1,
        "slow_store": 2,
        "cut": 1,
        "crash_controller": 1,
        "nothing": 3,
    },
    LATE_MEMBERS: {
        "crash": 1,
        "pause": 1,
        "move": 2,
        "leave": 1,
        "slow_store": 1,
        "cut": 1,
        "nothing": 6,
    },
    OVERTAKEN: {"nothing": 1},
    "loads": {
        "move_groups": 3,
        "move_groups_at_end": 3,
        "move_records": 2,
        "move_records_at_end": 7,
        "slow_broker": 1,
        "crash": 1,
    },
    "acls": {
        "crash_controller": 4,
        "pause_controller": 2,
        "cut_controller": 3,
        "split": 2,
        "coup": 4,
        "transfer": 4,
        "crash": 2,
        "nothing": 2,
    },
}

BALANCED = frozenset({"balance"})
"""The controller moves partitions on its own, as fast as it can."""

WITHOUT_LEASE = frozenset({"clock"})
"""Brokers measure time so wrongly that they never stop on their own; only the WAL fence
protects.
"""

STEPPING = frozenset({"steps"})
"""Wall clocks step by up to an hour, store readers hold leases, and every duration is checked."""

TRANSACTIONAL = frozenset(
    {"transactions", "coordinators", "steps", "late", "short_logs", "loads", "forks"}
)
"""Transactions run in a separate topic, and store readers read them meanwhile."""

COORDINATING = frozenset({"coordinators", "late", "loads"})
"""Almost nothing else runs."""

LATE = frozenset({"late", LATE_MEMBERS})
"""Messages between brokers, and between clients and brokers, arrive after newer connections were
opened.
"""

LOADING = frozenset({"loads"})
"""Leaders change while transactions end, and group coordinators load slowly."""

GROUPED = frozenset({"groups", LATE_MEMBERS})
"""Classic groups join, commit and are deleted."""

COORDINATED = GROUPED | SUBSCRIBING | STREAMING
"""The group coordinators are moved."""

COMPACTING = (
    frozenset({"groups", "short_logs"}) | SUBSCRIBING | STREAMING | SHARING | WORKING | JOINING
)
"""Coordinators compact their logs continuously."""

LONG = COORDINATED | LATE | LOADING | SHARING | JOINING
"""Faults last twice as long."""

PIPELINED = frozenset({"pipeline"})
"""Some producers have several batches of a partition in flight."""

ROLLED_BACK = frozenset({"rollback"})
"""The disk of one of three controllers is restored to an older state: see `tests.sim.rollback`."""

LOSING_SLOTS = frozenset({"lost_slots"})
"""The store loses WAL slots and gets them back; some readers read from it meanwhile."""

DELETING = frozenset({"log_life"}) | LEAKING
"""Old records are deleted by DeleteRecords, by age and by size: see `tests.sim.log_starts`."""

CLEANING = frozenset({"compacted"}) | LEAKING
"""Brokers clean the logs of a compacted topic: see `tests.sim.compacted`."""

FORKING = frozenset({"forks"}) | DELETING
"""Topics are forked and deleted while clients use them: see `tests.sim.forks`."""

_LOG_LIFE: Mapping[str, int] = {"delete_records": 2, "trim": 1, "move_compacted": 1}
"""Additional faults in every fourth run of any scenario: see `has_log_life`."""

WHOLE_LOGS = frozenset({"stale"})
"""Responses are judged by the whole log at the end, so no record is deleted."""

WAL_STORING = frozenset({"wal_store"})
"""WALs are in a separate store, which fails independently of the main store."""

WITHOUT_TOPIC_LIFE = frozenset({"disaster"})
"""A recovery may undo topic changes that got no response, and the checks of `tests.sim.topic_life`
take committed changes for final.
"""

READING = frozenset({"controller", "quorum"})
"""A client reads from the controllers continuously, without changing anything."""


def has_log_life(seed: int) -> bool:
    """Return whether, in addition to the faults of the scenario, records are deleted by request,
    age and size, logs are cleaned, and topics are forked, frozen, deleted and restored.
    """
    return seed % 4 == 3


def weights_of(scenario: str, seed: int) -> Mapping[str, int]:
    """Return the weights from which `Chaos` draws."""
    if not has_log_life(seed) or scenario in WAL_STORING:
        return SCENARIOS[scenario]
    deletes = scenario not in WHOLE_LOGS
    added = _LOG_LIFE if deletes else {"move_compacted": _LOG_LIFE["move_compacted"]}
    return {**added, **SCENARIOS[scenario]}
