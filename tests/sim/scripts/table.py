"""Which script finds which planted bug, and what it says then."""

from collections.abc import Mapping, Sequence

from tests.sim.directed import ScriptFunction
from tests.sim.scripts import groups, logs, topics, transactions

FOUND_BY: Mapping[str, Sequence[tuple[ScriptFunction, str]]] = {
    "cleaned_past_the_last_stable_offset": [
        (logs.clean_below_an_open_transaction, "the log has {}")
    ],
    "end_repeated_is_refused": [
        (transactions.repeat_an_end, "a repeated end gets PRODUCER_FENCED")
    ],
    "fenced_ends_are_repetitions": [
        (transactions.end_after_a_new_instance, "a fenced producer commits and gets NONE")
    ],
    "few_producers_remembered": [
        (logs.repeat_a_batch_after_other_producers, "the batch is stored 2 times"),
        (logs.repeat_a_batch_after_a_restart, "the batch is stored 2 times"),
    ],
    "few_producers_stored": [(logs.repeat_a_batch_after_a_restart, "the batch is stored 2 times")],
    "forks_below_cleaned_ranges": [
        (topics.compact_past_a_fork, "the fork has []"),
        (topics.compact_past_a_snapshot, "the fork has []"),
    ],
    "late_offsets_are_carried_out": [
        (transactions.deliver_an_offset_late, "the offset of the aborted transaction, 1")
    ],
    "offsets_kept_by_name": [
        (topics.recreate_a_topic, "offset 1 of topic t is read"),
        (topics.recreate_a_topic_and_load_the_group, "offset 1 of topic t is read"),
    ],
    "recovery_stops_early": [
        (logs.write_between_the_last_read_and_the_fence, "the log has [b'1']")
    ],
    "sequences_judged_without_a_lease": [
        (logs.write_out_of_order_to_an_old_leader, "refuses the next batch by OUT_OF_ORDER")
    ],
    "stale_coordinator_answers": [
        (transactions.read_offsets_at_an_old_coordinator, "returns the offset 1")
    ],
    "tasks_sent_once": [(groups.lose_the_tasks_of_a_member, "the members have")],
}
