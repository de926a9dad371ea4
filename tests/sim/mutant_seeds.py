# ruff: noqa: T201 - a command line program
"""Scenario and first seed of the planted bugs without a script.

`make sim-seeds` or `python -m tests.sim.mutant_seeds [--jobs 2] [NAME ...]` checks them, finds
others where they fail, and updates mutant_seeds.json. Seeds that several bugs share are preferred,
then seeds that find the bug early; `--again` chooses all of them again.
"""

import argparse
import json
import multiprocessing
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Final

from tests.sim.acl_mutants import ACL_MUTANTS
from tests.sim.clock_mutants import CLOCK_MUTANTS
from tests.sim.compacted_mutants import COMPACTED_MUTANTS
from tests.sim.consumer_group_mutants import CONSUMER_GROUP_MUTANTS
from tests.sim.damage_mutants import DAMAGE_MUTANTS
from tests.sim.fork_mutants import FORK_MUTANTS
from tests.sim.group_mutants import GROUP_MUTANTS
from tests.sim.late_mutants import LATE_MUTANTS
from tests.sim.leak_mutants import LEAK_MUTANTS
from tests.sim.load_mutants import LOAD_MUTANTS
from tests.sim.log_start_mutants import LOG_START_MUTANTS
from tests.sim.lost_slot_mutants import LOST_SLOT_MUTANTS
from tests.sim.mutants import planted
from tests.sim.offset_mutants import OFFSET_MUTANTS
from tests.sim.rack_mutants import RACK_MUTANTS
from tests.sim.read_ahead_mutants import READ_AHEAD_MUTANTS
from tests.sim.rollback_mutants import ROLLBACK_MUTANTS
from tests.sim.scripts.table import FOUND_BY
from tests.sim.share_consumer_mutants import SHARE_CONSUMER_MUTANTS
from tests.sim.share_mutants import SHARE_GROUP_MUTANTS, SHARE_MUTANTS
from tests.sim.streams_mutants import STREAMS_MUTANTS
from tests.sim.topic_mutants import TOPIC_MUTANTS
from tests.sim.transaction_mutants import TRANSACTION_MUTANTS
from tests.sim.world import World

SCENARIO = {
    "ack_before_durable": "calm",
    "ack_out_of_order": "calm",
    "own_object_taken_for_a_fence": "store",
    "any_412_is_success": "clock",
    "acknowledges_after_a_fence": "clock",
    "recovery_without_fence": "clock",
    "recovery_skips_a_slot": "crash",
    "recovery_stops_early": "clock",
    "wal_deleted_before_the_commit": "store",
    "zombie_may_commit": "zombie",
    "zombie_may_close": "zombie",
    "closed_without_flush": "move",
    "unclean_open_without_scan": "crash",
    "producers_not_restored": "move",
    "duplicate_acknowledged_at_once": "store",
    "readers_not_told_of_transactions": "transactions",
    "open_transactions_not_restored": "transactions",
    "sequences_not_checked": "calm",
    "slots_in_place_deleted_by_their_writer": "move",
    "watermark_moves_at_append": "calm",
    "wal_trimmed_by_list": "crash",
    "vote_not_durable": "quorum",
    "journal_not_synced": "quorum",
    "leader_counts_its_unsynced_log": "quorum",
    "commit_acknowledged_before_the_quorum": "quorum",
    "old_leader_serves_reads": "quorum",
    "uncommitted_records_are_served": "quorum",
    "image_not_rebuilt_after_leading": "rollback",
    "snapshot_of_what_is_not_committed": "quorum",
    "sources_not_compared": "rewrite",
    "refused_batches_not_remembered": "pipeline",
} | dict.fromkeys(TRANSACTION_MUTANTS, "coordinators")
SCENARIO |= dict.fromkeys(OFFSET_MUTANTS, "stale")
SCENARIO |= dict.fromkeys(DAMAGE_MUTANTS, "damage")
SCENARIO |= dict.fromkeys(READ_AHEAD_MUTANTS, "coordinators")
SCENARIO |= dict.fromkeys(CLOCK_MUTANTS, "steps")
SCENARIO |= dict.fromkeys(LATE_MUTANTS, "late")
SCENARIO |= dict.fromkeys(CONSUMER_GROUP_MUTANTS, "consumer_groups")
SCENARIO |= dict.fromkeys(GROUP_MUTANTS, "groups")
SCENARIO |= dict.fromkeys(SHARE_MUTANTS, "share_states")
SCENARIO |= dict.fromkeys(SHARE_CONSUMER_MUTANTS, "share_consumers")
SCENARIO |= dict.fromkeys(SHARE_GROUP_MUTANTS, "share_groups")
SCENARIO |= dict.fromkeys(STREAMS_MUTANTS, "streams_groups")
SCENARIO |= dict.fromkeys(ROLLBACK_MUTANTS, "rollback")
SCENARIO |= dict.fromkeys(LOG_START_MUTANTS, "log_life")
SCENARIO |= dict.fromkeys(COMPACTED_MUTANTS, "compacted")
SCENARIO |= dict.fromkeys(FORK_MUTANTS, "forks")
SCENARIO |= dict.fromkeys(LEAK_MUTANTS, "leaks")
SCENARIO |= dict.fromkeys(LOST_SLOT_MUTANTS, "lost_slots")
SCENARIO |= dict.fromkeys(RACK_MUTANTS, "coordinators")
SCENARIO |= dict.fromkeys(TOPIC_MUTANTS, "topics")
SCENARIO |= dict.fromkeys(LOAD_MUTANTS, "loads")
SCENARIO |= dict.fromkeys(ACL_MUTANTS, "acls")

SCENARIO = {name: scenario for name, scenario in SCENARIO.items() if name not in FOUND_BY}
"""Of the bugs that no script finds."""

SEEDS_TRIED: Final = 3
"""From the recorded seed on. A longer search would cost CI minutes, and nothing would say so."""
_FIRST_SEEDS_MAX: Final = 4
_NEAR_SEEDS_MAX: Final = 25
_SEARCH_SEEDS_MAX: Final = 500
_STEPS_MAX: Final = 30_000
"""Of the event loop: about a second. Where a bug takes longer, other seeds are tried first."""
_FILE: Final = Path(__file__).with_name("mutant_seeds.json")

FIRST_SEED: dict[str, int] = json.loads(_FILE.read_text())


def finding_seed(name: str, first: int, count: int) -> int | None:
    """Return the first of these seeds that finds the bug, or None."""
    with planted(name):
        for seed in range(first, first + count):
            if World(seed, SCENARIO[name]).run().violation is not None:
                return seed
    return None


def violation_without(name: str, seed: int) -> str | None:
    """Return the finding of the seed without the bug, which would be a false alarm."""
    return _violation(SCENARIO[name], seed)


@cache
def _violation(scenario: str, seed: int) -> str | None:
    return World(seed, scenario).run().violation


class _ShortWorld(World):
    """A world that ends after so many steps."""

    def trace(self, kind: str, *parts: object) -> None:
        super().trace(kind, *parts)
        if self.loop.steps > _STEPS_MAX:
            self.fail("long enough")


def _choose(place: tuple[str, list[str]], *, again: bool) -> dict[str, int | None]:
    """Return a seed for each bug that finds it and nothing else, or None. again: replace those that
    are good.

    Seeds that are hard to find come first: the other bugs can have them too.
    """
    scenario, names = place
    shared = {
        FIRST_SEED.get(name, 0)
        for name, its_scenario in SCENARIO.items()
        if its_scenario == scenario and name not in names
    }
    seeds: dict[str, int | None] = (
        {} if again else {name: _good(name, [FIRST_SEED.get(name, 0)]) for name in names}
    )
    shared |= {seed for seed in seeds.values() if seed is not None}
    for name in sorted(names, key=lambda name: -FIRST_SEED.get(name, 0)):
        if (found := seeds.get(name)) is None:
            seeds[name] = found = _search(name, FIRST_SEED.get(name, 0), sorted(shared))
            shared |= set() if found is None else {found}
    return seeds


def _search(name: str, known: int, shared: list[int]) -> int | None:
    near = range(known, known + _NEAR_SEEDS_MAX)
    some = [known, *range(_FIRST_SEEDS_MAX)]
    for soon, seeds in ((True, shared), (True, some), (False, shared), (False, near)):
        if (found := _good(name, seeds, soon=soon)) is not None:
            return found
    return _good(name, range(_SEARCH_SEEDS_MAX))


def _good(name: str, seeds: Iterable[int], *, soon: bool = False) -> int | None:
    """Return the first of the seeds that finds the bug and nothing else, or None. soon: within
    `_STEPS_MAX`.
    """
    world_type = _ShortWorld if soon else World
    for seed in seeds:
        with planted(name):
            outcome = world_type(seed, SCENARIO[name]).run()
        is_found = outcome.violation is not None and not (soon and outcome.steps > _STEPS_MAX)
        if is_found and violation_without(name, seed) is None:
            return seed
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.mutant_seeds")
    parser.add_argument("names", nargs="*", help="planted bugs (default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="processes that run seeds")
    parser.add_argument("--again", action="store_true", help="choose also where seeds are good")
    args = parser.parse_args()
    unknown = sorted(set(args.names) - SCENARIO.keys())
    if unknown:
        parser.error(f"no planted bug that seeds find is called {', '.join(unknown)}")
    names = args.names or list(SCENARIO)
    seeds, missing, count = dict(FIRST_SEED), list[str](), 0
    for name, seed in _chosen(names, args.jobs, again=args.again):
        known, count = seeds.get(name, 0), count + 1
        if seed is None:
            missing.append(name)
            reported = f"seeds up to {_SEARCH_SEEDS_MAX} do not find it"
        else:
            reported = f"seed {seed}" + ("" if seed == known else f" instead of {known}")
            seeds[name] = seed
            _write(seeds)
        print(f"[{count}/{len(names)}] {name}: {reported}", flush=True)
    if missing:
        print(f"not found: {', '.join(missing)}; the simulator has become weaker")
    return 1 if missing else 0


def _write(seeds: dict[str, int]) -> None:
    kept = {name: seed for name, seed in sorted(seeds.items()) if seed and name in SCENARIO}
    _FILE.write_text(json.dumps(kept, indent=2) + "\n")


def _chosen(names: list[str], jobs: int, *, again: bool) -> Iterator[tuple[str, int | None]]:
    """Yield bugs with their seeds, a scenario at a time."""
    places: dict[str, list[str]] = defaultdict(list)
    for name in names:
        places[SCENARIO[name]].append(name)
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=1) as pool:
        for seeds in pool.imap_unordered(partial(_choose, again=again), places.items()):
            yield from seeds.items()


if __name__ == "__main__":
    sys.exit(main())
