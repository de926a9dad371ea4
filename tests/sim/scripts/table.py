"""The scripts that find planted bugs, with their findings."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from tests.sim.directed import ScriptFunction
from tests.sim.scripts import (
    cleaning,
    clocks,
    controllers,
    disks,
    drained_wal_stores,
    graces,
    group_deletions,
    group_log,
    groups,
    late,
    late_admin,
    late_others,
    late_requests,
    leaks,
    log_starts,
    logs,
    lost_transactions,
    lost_wal_stores,
    near,
    offsets,
    quorum,
    racks,
    recovery,
    rewriting,
    share_changes,
    share_fetch,
    share_states,
    topics,
    transactions,
    unordered_lists,
    wal,
    wal_rewrites,
    wal_stores,
)

_Found: TypeAlias = Mapping[str, Sequence[tuple[ScriptFunction, str]]]

_LOGS: _Found = {
    "few_producers_remembered": [
        (logs.repeat_a_batch_after_other_producers, "the batch is stored 2 times"),
        (logs.repeat_a_batch_after_a_restart, "the batch is stored 2 times"),
    ],
    "few_producers_stored": [(logs.repeat_a_batch_after_a_restart, "the batch is stored 2 times")],
    "recovery_stops_early": [
        (logs.write_between_the_last_read_and_the_fence, "the log has [b'1']")
    ],
    "refused_batches_not_remembered": [
        (logs.write_after_a_refused_batch, "refused with OUT_OF_ORDER_SEQUENCE_NUMBER")
    ],
    "sequences_judged_without_a_lease": [
        (logs.write_out_of_order_to_an_old_leader, "refuses the next batch by OUT_OF_ORDER")
    ],
}
_WAL: _Found = {
    "ack_before_durable": [
        (wal.write_while_the_store_does_not_respond, "acknowledged before it is durable")
    ],
    "ack_out_of_order": [
        (wal.write_while_the_store_does_not_respond, "acknowledged before it is durable")
    ],
    "acknowledges_after_a_fence": [(wal.write_to_a_fenced_leader, "leader acknowledges")],
    "any_412_is_success": [(wal.write_to_a_fenced_leader, "leader acknowledges")],
    "commits_out_of_order": [(wal.upload_two_blocks_at_once, "an upload is not committed")],
    "closed_without_flush": [(wal.move_with_a_record_under_way, "the record is refused")],
    "doubtful_partitions_handed_over": [(wal.lose_a_slot, "the log has [b'0']")],
    "duplicate_acknowledged_at_once": [
        (wal.write_while_the_store_does_not_respond, "a repeated record is acknowledged")
    ],
    "hole_fenced_although_later_slots_prove_it": [(wal.lose_a_slot, "was written twice")],
    "loaded_reads_pass_over_a_block": [(wal.lose_a_slot, "the log has [b'1', b'2']")],
    "own_object_taken_for_a_fence": [
        (wal.lose_the_response_of_a_put, "takes its own object in slot 0 for a fence")
    ],
    "producers_not_restored": [(wal.move_with_a_record_under_way, "a batch is stored again at 2")],
    "reads_bridge_damage": [(wal.read_a_damaged_object, "the log has [b'2']")],
    "recovery_skips_a_slot": [(wal.fail_over, "does not hold")],
    "recovery_without_fence": [(wal.write_to_a_fenced_leader, "leader acknowledges")],
    "sequences_not_checked": [(wal.write_with_a_gap, "a gap gets NONE")],
    "slots_in_place_deleted_by_their_writer": [
        (wal.move_with_a_record_under_way, "the metadata has it as COMMITTED")
    ],
    "unclean_open_without_scan": [(wal.fail_over, "the last batch is stored again at 10")],
    "wal_deleted_before_the_commit": [(wal.upload_without_a_commit, "is deleted")],
    "wal_trimmed_by_list": [(wal.fail_over, "the metadata has it as COMMITTED")],
    "watermark_moves_at_append": [
        (wal.write_while_the_store_does_not_respond, "the high watermark is 3")
    ],
    "zombie_may_close": [(wal.commit_late, "goes back")],
    "zombie_may_commit": [(wal.commit_late, "goes back")],
    "slots_after_a_hole_always_prove_it": [(wal.crash_with_slots_under_way, "does not hold")],
    "readers_bridge_holes": [(wal.read_a_tail_with_a_lost_slot, "said to end at 3")],
    "readers_do_not_doubt": [(wal.read_a_tail_with_a_lost_slot, "said to end at 1")],
    "readers_end_at_a_lost_slot": [(wal.read_a_tail_with_a_lost_slot, "said to end at 1")],
}
_CLEANING: _Found = {
    "abort_markers_dropped": [
        (cleaning.clean_an_aborted_transaction, "the log has {b'k': b'old'}")
    ],
    "aborted_records_kept": [(cleaning.clean_an_aborted_transaction, "are never deleted")],
    "aborted_records_mapped": [
        (cleaning.clean_an_aborted_transaction, "the log has {b'l': b'new'}")
    ],
    "cleaned_past_the_last_stable_offset": [
        (cleaning.clean_below_an_open_transaction, "the log has {}")
    ],
    "full_map_ignored": [
        (cleaning.clean_more_keys_than_fit_into_the_map, "the log has {b'000': b'new'")
    ],
    "last_sequence_lost": [(cleaning.clean_all_records_of_a_producer, "is stored again at 2")],
    "oldest_record_kept": [(cleaning.clean_some_keys, "the log has {b'a': b'1'")],
    "sources_not_compared": [(rewriting.rewrite_ranges_twice, "the conflicts are [False, False]")],
    "suspended_for_ever": [
        (cleaning.clean_after_a_damaged_object_was_restored, "the log is not cleaned after")
    ],
    "tombstones_may_go_before_deleted_records": [
        (cleaning.delete_records_during_a_pass, "the fork has {b'k': b'v'")
    ],
    "tombstones_dropped_at_once": [(cleaning.clean_a_value_and_its_tombstone, "the log has {}")],
}
_OFFSETS: _Found = {
    "ends_told_without_a_lease": [
        (offsets.ask_an_old_leader_for_the_end, "the old leader returns the end 0")
    ],
    "first_record_of_the_batch_is_taken": [(offsets.look_up_a_time, "to be 0, in memory")],
    "leader_epochs_ignored": [(offsets.name_an_old_leader_epoch, "an old epoch gets NONE")],
    "leader_epochs_not_restored": [
        (offsets.ask_where_an_epoch_ended, "epoch 0 is said to end at 2")
    ],
    "lease_never_ends": [
        (offsets.ask_an_old_leader_for_the_end, "the old leader returns the end 0")
    ],
    "refused_connection_is_a_proof": [
        (offsets.ask_an_old_leader_behind_a_firewall_for_the_end, "returns the end 0")
    ],
    "times_looked_up_in_objects_only": [(offsets.look_up_a_time, "to be -1, in memory")],
    "trimmed_without_a_checkpoint": [
        (log_starts.delete_what_a_producer_wrote, "is stored again at 2")
    ],
    "log_start_forgotten_at_open": [
        (log_starts.delete_what_a_producer_wrote, "UNKNOWN_SERVER_ERROR")
    ],
    "log_start_named_before_it_is_committed": [
        (log_starts.delete_without_the_controller, "start at 1 before")
    ],
    "everything_is_old": [(log_starts.retain_records, "the log start moves from 0 to")],
    "size_is_exceeded_by_the_last_range": [
        (log_starts.retain_records, "bytes are left of at least 1000")
    ],
    "forks_begin_at_the_log_start": [(log_starts.fork_with_deleted_records, "OFFSET_OUT_OF_RANGE")],
    "kept_records_do_not_hold_their_objects": [
        (log_starts.fork_with_deleted_records, "refers to an object that does not exist")
    ],
    "kept_records_dropped_at_once": [(log_starts.fork_with_deleted_records, "INVALID_CONFIG")],
}
_TOPICS: _Found = {
    "forks_below_cleaned_ranges": [
        (topics.compact_past_a_fork, "the fork has []"),
        (topics.compact_past_a_snapshot, "the fork has []"),
    ],
    "offsets_kept_by_name": [
        (topics.recreate_a_topic, "offset 1 of topic t is read"),
        (topics.recreate_a_topic_and_load_the_group, "offset 1 of topic t is read"),
    ],
    "added_partitions_share_streams": [(topics.grow_a_topic_twice, "NOT_LEADER_OR_FOLLOWER")],
    "deleted_topic_gives_up_its_objects": [
        (topics.undelete_a_topic, "refers to an object that does not exist")
    ],
    "deleted_topic_removed_before_its_grace_is_over": [
        (topics.undelete_a_topic, "UNKNOWN_TOPIC_OR_PARTITION")
    ],
    "deletion_keeps_objects": [(topics.delete_a_topic, "leaves the objects")],
    "deleted_topic_still_served": [
        (topics.write_to_a_deleted_topic, "a record of a deleted topic is accepted")
    ],
    "deletion_keeps_streams": [(topics.delete_a_topic, "leaves the streams")],
    "forks_do_not_hold_their_objects": [
        (topics.delete_the_source_of_a_fork, "which does not exist")
    ],
    "inherited_transactions_not_looked_for": [
        (topics.fork_with_an_open_transaction, "b'b': b'open'")
    ],
    "inherited_transactions_stay_open": [
        (topics.fork_with_an_open_transaction, "get {b'a': b'plain'}")
    ],
    "reads_find_the_topic_by_its_name": [
        (topics.read_a_deleted_topic_by_its_id, "records of another one")
    ],
    "repeated_growth_adds_again": [(topics.grow_a_topic_twice, "the topic has 4 partitions")],
    "snapshots_do_not_hold_their_objects": [
        (topics.delete_the_topic_of_a_snapshot, "which is not committed")
    ],
    "snapshots_forget_open_transactions": [(topics.fork_with_an_open_transaction, "b'b': b'open'")],
    "snapshots_of_the_committed_metadata": [(topics.fork_what_only_the_wal_has, "the fork has {}")],
    "undelete_does_not_wait_for_the_close": [
        (topics.undelete_a_topic_without_brokers, "is open without a leader or a move")
    ],
    "undelete_keeps_the_leader_epoch": [(topics.undelete_a_topic, "was 0, now it is 0")],
    "batches_cut_at_the_fork": [(topics.fork_inside_a_batch, "CORRUPT_MESSAGE")],
    "snapshots_without_group_offsets": [
        (topics.take_a_snapshot_with_a_group, "the snapshot has the offsets []")
    ],
}
_TRANSACTIONS: _Found = {
    "appended_before_the_coordinator_knows": [
        (transactions.write_while_the_coordinator_is_unknown, "the coordinator does not list")
    ],
    "complete_before_the_markers": [
        (transactions.crash_before_the_markers_are_sent, "readers get {}"),
        (transactions.crash_the_leader_before_its_marker_is_stored, "readers get {}"),
    ],
    "decided_transactions_not_resumed": [
        (transactions.crash_before_the_markers_are_sent, "readers get {}")
    ],
    "end_acknowledged_before_it_is_durable": [
        (transactions.crash_while_a_decision_is_stored, "acknowledged before it is durable")
    ],
    "end_repeated_is_refused": [
        (transactions.repeat_an_end, "a repeated end gets PRODUCER_FENCED")
    ],
    "end_repeated_with_another_epoch": [(transactions.repeat_an_end, "gets NONE and (0, 3)")],
    "epoch_kept_by_a_fence": [(transactions.write_after_a_timeout, "a fenced producer writes")],
    "epoch_kept_by_a_new_instance": [
        (transactions.begin_twice, "the producers have the epochs (0, 0)")
    ],
    "epoch_kept_by_the_end": [(transactions.write_late_after_an_end, "is appended after its end")],
    "first_batch_of_each_piece_is_loaded": [
        (transactions.end_after_a_restart, "INVALID_TXN_STATE")
    ],
    "fenced_ends_are_repetitions": [
        (transactions.end_after_a_new_instance, "a fenced producer commits and gets NONE")
    ],
    "late_offsets_are_carried_out": [
        (transactions.deliver_an_offset_late, "the offset of the aborted transaction, 1")
    ],
    "markers_sent_before_the_decision_is_durable": [
        (transactions.crash_while_a_decision_is_stored, "after the abort, readers get {b'k'")
    ],
    "offsets_count_before_the_marker": [
        (transactions.read_an_offset_of_an_open_transaction, "the offset 1 of an open")
    ],
    "open_transactions_not_loaded": [(transactions.end_after_a_restart, "INVALID_TXN_STATE")],
    "partitions_elsewhere_get_no_marker": [(transactions.commit_at_two_leaders, "readers get {}")],
    "refused_markers_count": [(transactions.commit_while_the_leader_changes, "readers get {}")],
    "timeout_aborts_what_is_decided": [
        (transactions.crash_before_the_markers_are_sent, "readers get {}")
    ],
    "open_transactions_not_restored": [
        (transactions.reopen_with_an_open_transaction, "of an open transaction")
    ],
    "last_stable_offset_passes_markers_that_are_not_durable": [
        (transactions.append_in_front_of_a_marker, "before the marker is durable")
    ],
    "late_ends_are_carried_out": [(late.deliver_an_end_late, "readers get {b'k': b'open'}")],
    "late_markers_end_what_is_open": [
        (late.deliver_a_marker_late, "readers get [b'v', b'open', b'last']")
    ],
    "late_markers_settle_offsets": [
        (late.deliver_a_marker_of_offsets_late, "the offset 2 of an open")
    ],
    "markers_of_older_coordinators_count": [
        (late.deliver_a_marker_of_an_earlier_coordinator, "readers get [b'v', b'open', b'last']")
    ],
    "serials_begin_anew": [(late.deliver_a_marker_late, "readers get [b'v']")],
    "aborted_transactions_are_not_told_near": [
        (near.read_objects_near, "get [b'plain', b'aborted']")
    ],
    "aborted_transactions_of_a_tail_are_not_told": [
        (near.read_the_tail_near, "get [b'plain', b'aborted']")
    ],
    "aborts_at_the_begin_of_a_tail_are_not_told": [
        (near.read_an_abort_near_whose_records_are_uploaded, "get [b'aborted']")
    ],
    "open_transactions_are_read_near": [(near.read_objects_near, "get [b'plain', b'open']")],
    "open_transactions_of_a_tail_are_read": [(near.read_the_tail_near, "get [b'plain', b'open']")],
    "readers_not_told_of_transactions": [
        (near.read_objects_near, "get [b'plain', b'aborted', b'open']")
    ],
}
_GROUPS: _Found = {
    "stale_coordinator_responds": [
        (transactions.read_offsets_at_an_old_coordinator, "returns the offset 1")
    ],
    "tasks_sent_once": [(groups.lose_the_tasks_of_a_member, "the members have")],
    "owned_partitions_given_away": [
        (groups.consumers_share_partitions, "gets what the first one has")
    ],
    "revocations_not_awaited": [(groups.consumers_share_partitions, "has not given up")],
    "active_tasks_given_away": [
        (groups.streams_threads_share_tasks, "gets what the first one has")
    ],
    "given_up_tasks_not_awaited": [(groups.streams_threads_share_tasks, "has not given up")],
    "assignments_not_restored": [
        (groups.replace_the_coordinator_of_consumers, "FENCED_MEMBER_EPOCH")
    ],
    "tasks_not_restored": [
        (groups.replace_the_coordinator_of_streams_threads, "FENCED_MEMBER_EPOCH")
    ],
    "share_members_not_restored": [
        (groups.replace_the_coordinator_of_share_members, "FENCED_MEMBER_EPOCH")
    ],
    "deleted_groups_keep_their_epoch": [
        (
            group_deletions.consumer_joins_while_its_group_is_deleted,
            "the member subscribes and gets []",
        ),
        (
            group_deletions.streams_thread_joins_while_its_group_is_deleted,
            "the member gets UNKNOWN_SERVER_ERROR",
        ),
    ],
    "silent_members_stay": [(groups.consumer_falls_silent, "the members have [[]]")],
    "silent_streams_members_stay": [(groups.streams_thread_falls_silent, "the members have [[]]")],
    "silent_share_members_stay": [(groups.share_member_falls_silent, "the members have [[1]]")],
    "initializations_end_with_their_request": [
        (groups.share_member_hangs_up_while_it_joins, "the members have [[]]")
    ],
    "member_epochs_unchecked": [(groups.consumer_falls_silent, "a member commits after others")],
    "streams_epochs_unchecked": [
        (groups.streams_thread_falls_silent, "a member commits after others")
    ],
    "heartbeats_acknowledged_before_durable": [
        (groups.consumer_joins_while_the_store_hangs, "before the group is durable"),
        (groups.remove_a_consumer_while_the_store_hangs, "a LeaveGroup is acknowledged before"),
    ],
    "streams_acknowledged_before_durable": [
        (groups.streams_thread_joins_while_the_store_hangs, "before the group is durable")
    ],
    "plain_commits_never_written": [(groups.load_an_offset, "the offset -1 is loaded")],
    "deleted_offsets_come_back": [(groups.load_an_offset, "it was deleted")],
    "generations_unchecked": [
        (groups.commit_in_an_old_generation, "an old generation is accepted")
    ],
    "offsets_of_subscribed_topics_deleted": [
        (groups.delete_an_offset_of_a_subscribed_topic, "a subscribed topic is -1")
    ],
}
_GROUP_LOG: _Found = {
    "copies_override_newer_records": [
        (group_log.compact_with_a_commit_in_flight, "the offset 1 is loaded")
    ],
    "groups_with_commits_in_flight_forgotten": [
        (group_log.commit_while_the_group_is_deleted, "the offset -1 is found")
    ],
    "markers_lost_during_load": [
        (group_log.end_a_transaction_while_its_offsets_are_loaded, "UNSTABLE_OFFSET_COMMIT")
    ],
    "tombstones_after_commits_in_flight": [
        (group_log.delete_an_offset_in_flight, "after its deletion")
    ],
}
_SHARES: _Found = {
    "changes_of_share_states_overlap": [
        (share_changes.delete_share_offsets_twice, "and gets INVALID_REQUEST"),
        (share_changes.alter_share_offsets_during_a_deletion, "and gets INVALID_REQUEST"),
    ],
    "epochs_of_deletions_not_stored": [
        (share_changes.delete_the_former_group_late, "and gets INVALID_REQUEST")
    ],
    "failed_alterations_not_fenced": [
        (share_changes.alter_share_offsets_late, "that failed, [] are acknowledged")
    ],
    "unfinished_alterations_forgotten": [
        (share_changes.alter_share_offsets_and_move, "that failed, [] are acknowledged")
    ],
    "partitions_given_without_states": [
        (groups.share_partitions_while_their_states_are_stored, "before the states are durable")
    ],
    "states_confirmed_before_durable": [
        (share_states.write_while_the_store_hangs, "before it is durable")
    ],
    "older_leaders_read_states": [
        (share_states.use_an_old_leader_epoch, "an old leader reads: NONE")
    ],
    "older_leaders_write_states": [
        (share_states.use_an_old_leader_epoch, "an old leader writes: 0")
    ],
    "leader_epochs_not_recorded": [
        (share_states.use_an_old_leader_epoch, "writes after a restart: 0")
    ],
    "snapshots_forget_earlier_changes": [(share_states.load_a_state, "the state is (1, {29})")],
    "initializations_forget_epochs": [
        (share_states.initialize_without_an_epoch, "an older group initializes: NONE")
    ],
    "states_initialized_again": [(share_states.initialize_again, "the state is (0, set())")],
    "copies_without_batches": [(share_states.load_a_state, "the state is (1, set())")],
    "start_offsets_not_kept": [(share_states.load_a_state, "the state is (0, {1, 3")],
    "acknowledged_before_stored": [
        (share_fetch.acknowledge_while_the_store_hangs, "before it is durable")
    ],
    "stored_share_states_forgotten": [
        (share_fetch.move_with_acknowledged_records, "gives [2, 3, 4]")
    ],
    "share_start_offsets_forgotten": [
        (share_fetch.move_with_acknowledged_records, "gives [0, 1, 2, 3, 4]")
    ],
    "locks_given_twice": [
        (share_fetch.release_one_of_five_records, "another member has [0, 1, 2, 3, 4]")
    ],
    "gaps_taken_for_done": [(share_fetch.move_with_acknowledged_records, "gives [4]")],
}
_CLOCKS: _Found = {
    "moves_end_by_the_wall_clock": [
        (clocks.step_the_clock_of_the_controller_during_a_move, "the source of a move is fenced")
    ],
    "transactions_time_out_by_the_wall_clock": [
        (clocks.step_the_clock_of_a_coordinator, "PRODUCER_FENCED")
    ],
}
_CONTROLLERS: _Found = {
    "acls_copied_after_the_offset_of_the_snapshot": [
        (controllers.remove_an_acl_during_a_snapshot, "is removed, but does not exist")
    ],
    "attempts_of_earlier_epochs_carried_out": [
        (controllers.deliver_the_creation_of_an_acl_late, "a late attempt adds")
    ],
    "emptied_journal_votes": [(disks.empty_a_journal, "commits another entry")],
    "hears_at_once": [(disks.restore_a_disk_before_an_election, "commits another entry")],
    "image_not_rebuilt_after_leading": [
        (quorum.lead_again_after_a_record_was_lost, "that is not what was committed")
    ],
    "leader_counts_its_unsynced_log": [(quorum.elect_with_slow_disks, "of (0, 1, 2) have on disk")],
    "old_leader_serves_reads": [(quorum.elect_with_slow_disks, "for confirmed by [1]")],
    "restored_disk_votes": [(disks.restore_a_disk, "commits another entry")],
    "snapshot_of_what_is_not_committed": [
        (controllers.follow_from_a_snapshot_with_a_slow_disk, "sends a snapshot at")
    ],
    "snapshots_lack_tokens": [
        (controllers.load_a_snapshot_with_a_token, "that is not what was committed")
    ],
    "vote_not_durable": [(quorum.elect_with_slow_disks, "its disk has HardState(term=0")],
    "commit_acknowledged_before_the_quorum": [
        (controllers.crash_with_a_slow_disk, "is mistaken for committed")
    ],
    "journal_not_synced": [
        (controllers.crash_after_a_creation, "which only [] of (0,) have on disk")
    ],
    "snapshots_forget_the_stored_stream": [
        (controllers.load_a_snapshot_with_a_fork, "CORRUPT_MESSAGE")
    ],
    "uncommitted_records_are_served": [
        (controllers.crash_with_a_slow_disk, "that are not the committed ones")
    ],
    "snapshots_have_removed_acls": [(controllers.remove_an_acl, "that is not what was committed")],
    "removal_acknowledged_before_the_commit": [
        (controllers.remove_an_acl_with_a_slow_disk, "before it is committed")
    ],
    "removal_takes_the_acls_beside_it": [(controllers.remove_an_acl, "['User:b'] have an ACL")],
    "silence_ends_the_session": [
        (controllers.silence_the_controller, "the broker has lost its session")
    ],
    "failed_attempts_end_the_session": [
        (controllers.silence_the_controller, "the broker has lost its session")
    ],
    "records_of_silent_streams_are_applied": [
        (controllers.catch_up_after_a_silence, "metadata_follower_failed")
    ],
    "ends_of_silent_streams_are_lost": [
        (
            controllers.replace_a_broker_while_its_stream_is_silent,
            "the broker did not learn that it was replaced",
        )
    ],
    "late_registrations_replace_later_ones": [
        (
            controllers.register_a_start_after_its_successor,
            "a late registration has fenced the next start",
        )
    ],
    "abandoned_streams_take_over": [
        (
            controllers.abandon_a_stream_whose_first_message_is_late,
            "an abandoned stream has taken over the session",
        )
    ],
    "first_messages_are_not_awaited_longer": [
        (controllers.connect_to_a_slow_controller, "a condition of the script does not hold")
    ],
}
_LATE_REQUESTS: _Found = {
    "late_consumer_heartbeats_are_carried_out": [
        (late_requests.repeat_the_first_heartbeat_of_a_consumer, "m2 is given a partition")
    ],
    "late_streams_heartbeats_are_carried_out": [
        (late_requests.repeat_the_first_heartbeat_of_a_streams_member, "m2 is given a task")
    ],
    "late_share_heartbeats_are_carried_out": [
        (late_requests.repeat_the_first_heartbeat_of_a_share_member, "m1 is assigned what")
    ],
    "late_joins_are_carried_out": [
        (late_requests.repeat_a_join, "the JoinGroup that its client waits for gets UNKNOWN_MEMBER")
    ],
    "late_syncs_are_carried_out": [
        (late_requests.repeat_a_sync, "the SyncGroup that its client waits for gets REBALANCE_IN")
    ],
    "late_commits_are_carried_out": [
        (late_requests.commit_late_in_a_consumer_group, "the committed offset goes back to 1"),
        (late_requests.commit_late_in_a_classic_group, "the committed offset goes back to 1"),
    ],
    "advancing_commits_are_late": [(late_requests.commit_over_a_pool_of_connections, "NoResponse")],
    "moves_back_are_forgotten": [
        (late_requests.commit_late_after_a_move_back, "the committed offset goes from 3 to 4")
    ],
    "commits_in_flight_overlooked": [
        (late_requests.commit_late_during_a_commit, "the committed offset goes back to 3")
    ],
    "late_share_fetches_are_carried_out": [
        (late_requests.fetch_late_in_a_share_session, "which m1 has")
    ],
    "late_share_acknowledgements_are_carried_out": [
        (late_requests.acknowledge_late_in_a_share_session, "which m1 has")
    ],
    "acknowledgements_end_later_sessions": [
        (late_requests.end_a_share_session_late, "which m1 has")
    ],
    "connections_of_share_sessions_forgotten": [
        (late_requests.end_a_forgotten_share_session_late, "which m1 has")
    ],
    "share_sessions_end_by_key": [
        (late_requests.replace_a_share_session_that_is_ending, "which m1 has")
    ],
    "locks_released_one_step_late": [
        (late_requests.open_a_share_session_as_the_earlier_one_ends, "which m1 has")
    ],
    "fetches_outlive_their_sessions": [
        (late_requests.fetch_while_a_share_session_ends, "m2 is given []"),
        (late_requests.fetch_while_a_share_session_is_replaced, "m1 is given []"),
    ],
    "share_sessions_stay_on_their_first_connection": [
        (late_requests.continue_a_share_session_on_a_new_connection, "which m1 has")
    ],
    "deletions_of_share_states_without_epoch": [
        (late_requests.delete_a_state_late, "the state of the next group is read with INVALID")
    ],
    "deletions_of_share_states_not_remembered": [
        (late_requests.initialize_a_state_late, "the deleted group has a state")
    ],
    "highest_delivery_count_wins": [
        (late_requests.release_late, "an acknowledged record is available again")
    ],
    "unstored_deliveries_forgotten": [
        (late_requests.count_deliveries_without_a_coordinator, "the deliveries count as")
    ],
    "upgrades_forget_what_members_own": [
        (late_requests.upgrade_a_classic_group, "m2 is given what a classic member owns")
    ],
    "upgrade_by_assignments_alone": [
        (late_requests.upgrade_between_rebalances, "m2 is given what a classic member owns")
    ],
}
_LATE_OTHERS: _Found = {
    "sequences_not_checked": [(late_others.write_late, "the log has [b'0', b'1', b'2', b'0']")],
    "fetch_sessions_take_any_epoch": [(late_others.fetch_late, "a session at offset 3 gets [1]")],
    "late_deletions_find_topics_by_name": [
        (late_others.delete_a_topic_late, "the next topic is deleted")
    ],
    "late_partitions_are_added": [
        (late_others.add_a_partition_late, "the transaction that is over is Ongoing")
    ],
    "late_offsets_are_added": [
        (late_others.add_offsets_late, "the transaction that is over is Ongoing")
    ],
    "late_inits_abort": [
        (late_others.renew_an_epoch_late, "the producer commits and gets PRODUCER_FENCED")
    ],
    "late_inits_between_transactions": [
        (
            late_others.renew_an_epoch_between_transactions,
            "the producer has committed and gets INVALID_TXN_STATE",
        )
    ],
    "versions_of_transactions_last": [(late_others.change_the_version, "PRODUCER_FENCED")],
    "late_heartbeats_extend_sessions": [(late_others.beat_late, "a member is alive by heartbeats")],
    "groups_with_members_deleted": [
        (late_others.delete_a_group_late, "a group with members is deleted")
    ],
    "share_offsets_changed_under_members": [
        (late_others.change_share_offsets_late, "AlterShareGroupOffsets with members gets NONE")
    ],
    "late_joins_undo_leaves": [
        (late_others.join_late_after_leaving, "the last member gets ["),
        (late_others.join_late_after_leaving_and_an_upgrade, "the last member gets ["),
    ],
    "late_leaves_remove_the_next_start": [
        (late_others.leave_late, "a static member gets UNKNOWN_MEMBER_ID")
    ],
    "late_static_joins_are_carried_out": [
        (late_others.join_late_as_a_static_member, "a static member gets FENCED_INSTANCE_ID")
    ],
    "late_starts_of_static_members": [
        (late_others.join_late_as_a_static_member, "a static member gets FENCED_INSTANCE_ID"),
        (late_others.join_late_in_the_classic_protocol, "a start gets GROUP_ID_NOT_FOUND"),
        (late_others.join_late_in_the_consumer_protocol, "a static member gets FENCED_INSTANCE_ID"),
        (late_others.join_late_between_two_starts, "a start gets UNRELEASED_INSTANCE_ID"),
    ],
    "repeated_starts_of_static_members_refused": [
        (
            late_others.lose_the_first_response_of_a_static_consumer,
            "a start gets UNRELEASED_INSTANCE_ID",
        )
    ],
    "late_static_leaves_are_carried_out": [
        (late_others.restart_a_static_consumer, "a start gets FENCED_MEMBER_EPOCH")
    ],
    "partitions_of_stopped_members_lost": [
        (late_others.restart_a_static_consumer, "the next start gets []")
    ],
    "racks_of_brokers_ignored": [
        (racks.read_in_both_racks, "a client of the other rack is sent to -1")
    ],
    "every_rack_is_near": [(racks.read_in_both_racks, "broker 3 serves the other rack")],
    "consumers_are_not_returned_to_the_leader": [
        (racks.return_to_the_leader, "a broker that backs off sends a client to -1")
    ],
    "returned_consumers_are_redirected": [
        (racks.return_to_the_leader, "a client is sent to [2, 2] in a row")
    ],
    "brokers_that_back_off_get_consumers": [
        (racks.return_to_the_leader, "a client is sent to 2, which backs off")
    ],
}
_LATE_ADMIN: _Found = {
    "log_starts_move_back": [(late_admin.delete_records_late, "returns the log start 1")],
    "late_creations_set_configs": [(late_admin.create_a_topic_late, "is created with NONE")],
    "late_additions_of_partitions_add_more": [
        (late_admin.add_partitions_late, "the topic has 5 partitions")
    ],
    "appended_configs_repeat": [(late_admin.append_to_a_config_late, "compact,compact")],
    "lists_set_unconditionally": [(late_admin.append_to_a_config_at_once, "the list is ['")],
    "configs_outlive_topics": [(late_admin.alter_configs_late, "the next topic has the configs")],
    "repeated_acls_are_kept_twice": [(late_admin.create_acls_late, "1 ACLs are left")],
    "late_deletions_take_all_acls": [(late_admin.delete_acls_late, "the topic has ACLs for []")],
    "late_removals_take_all_quotas": [
        (late_admin.remove_a_quota_late, "the user has the quotas []")
    ],
    "late_deletions_take_all_credentials": [
        (late_admin.delete_a_credential_late, "alice has credentials for []")
    ],
    "expired_tokens_are_renewed": [(late_admin.renew_a_token_late, "a token that is expired: OK")],
    "late_reassignments_move_again": [
        (late_admin.move_late, "a late AlterPartitionReassignments moves")
    ],
    "late_elections_move_again": [(late_admin.move_late, "a late ElectLeaders moves")],
    "late_removals_take_live_brokers": [
        (late_admin.unregister_a_broker_late, "a live broker is removed")
    ],
    "late_upgrades_downgrade": [
        (late_admin.upgrade_a_feature_late, "a late upgrade sets the level 1")
    ],
    "reads_create_groups": [
        (late_admin.read_a_deleted_group_late, "late reads create the group ['g'] again")
    ],
    "metadata_always_creates_topics": [
        (late_admin.ask_for_metadata_late, "a read creates the topic")
    ],
    "ids_of_fetch_sessions_are_reused": [
        (late_admin.close_a_fetch_session_late, "a fetch session gets FETCH_SESSION_ID_NOT_FOUND")
    ],
}
_WAL_STORES: _Found = {
    "ranges_stay_in_wal_stores": [
        (wal_rewrites.restart_all_brokers, "bytes are in the WAL store only")
    ],
    "ranges_without_a_leader_stay": [
        (wal_rewrites.delete_and_restore_a_topic, "bytes are in the WAL store only")
    ],
    "jobs_stay_with_dead_brokers": [
        (wal_rewrites.kill_the_broker_that_rewrites, "bytes are in the WAL store only")
    ],
    "jobs_begin_at_the_first_stream": [
        (wal_rewrites.rewrite_beside_a_lost_slot, "wait for a slot that is lost")
    ],
    "retained_records_fill_the_wal_store": [
        (wal_rewrites.move_beside_retained_records, "the move uploaded first")
    ],
    "rounds_given_up_for_one_stream": [
        (wal_rewrites.restore_a_topic_during_a_rewrite, "the round was given up")
    ],
    "turns_wait_for_the_wal_store": [
        (
            wal_rewrites.compact_while_the_wal_store_does_not_respond,
            "small objects wait for the WAL store",
        )
    ],
    "wal_stores_read_without_backoff": [
        (wal_rewrites.rewrite_after_a_long_outage, "requests in 5 minutes")
    ],
    "recovery_reads_the_wrong_store": [
        (wal_stores.fail_over_in_a_wal_store, "wal/1/1/00000000000000000000 was written twice")
    ],
    "recovery_trusts_an_empty_store": [
        (wal_stores.fail_over_with_an_empty_store_mounted, "handed over without its WAL")
    ],
    "any_broker_recovers_from_a_wal_store": [
        (
            wal_stores.fail_over_while_a_broker_does_not_reach_the_store,
            "no broker that reaches the WAL store recovers the WAL",
        )
    ],
    "fence_not_checked_afterwards": [
        (wal_stores.fence_while_the_store_is_replaced, "ended the WAL")
    ],
    "vanished_wals_are_empty": [(wal_stores.lose_a_whole_wal, "was written twice")],
    "wals_opened_without_a_marker": [
        (wal_stores.kill_a_broker_before_its_first_slot, "a condition of the script does not hold")
    ],
    "slots_go_to_the_other_store_instead": [
        (wal_stores.lose_the_wal_store_for_a_while, "acknowledged while the WAL store is down")
    ],
    "brokers_use_any_wal_store": [
        (wal_stores.start_with_another_store, "serves with another WAL store")
    ],
    "slots_in_a_wal_store_deleted_by_list": [
        (wal_stores.fail_over_in_a_wal_store, "the metadata has it as COMMITTED")
    ],
    "readers_ignore_the_wal_store": [
        (wal_stores.read_the_tail_from_a_wal_store, "said to end at 0")
    ],
    "readers_trust_an_empty_store": [
        (wal_stores.read_the_tail_from_a_wal_store, "said to end at 0")
    ],
    "readers_take_vanished_wals_for_empty": [
        (wal_stores.read_the_tail_of_a_wal_that_vanished, "said to end at 0")
    ],
    "moved_slots_acknowledged_at_once": [
        (wal_stores.lose_the_wal_store_for_long, "acknowledged without a WAL")
    ],
    "wal_moved_without_an_upload": [
        (wal_stores.lose_the_wal_store_for_long, "wal_slot_failed_unexpectedly")
    ],
    "moved_wals_repeat_slots": [
        (wal_stores.lose_the_response_of_a_slot_and_the_store, "was written twice")
    ],
    "moves_not_in_the_metadata": [
        (wal_stores.lose_the_wal_store_for_long, "acknowledged without a WAL")
    ],
    "identity_checked_once": [
        (wal_stores.replace_the_wal_store_of_a_running_broker, "the log has [b'0'")
    ],
    "identity_checked_after_errors_only": [
        (wal_stores.replace_the_wal_store_of_a_running_broker, "the WAL stays in the wrong store")
    ],
    "slots_in_doubt_acknowledged": [
        (wal_stores.replace_the_wal_store_of_a_running_broker, "the log has [b'0'")
    ],
    "brokers_wait_for_the_wal_store": [
        (wal_stores.lose_the_wal_store_for_long, "Produce: None after 30.0 s")
    ],
    "brokers_wait_for_the_identity": [
        (wal_stores.lose_the_identity_of_the_wal_store, "Produce: None after 30.0 s")
    ],
    "brokers_probe_any_wal_store": [
        (wal_stores.lose_the_identity_of_the_wal_store, "written to another store"),
        (wal_stores.start_with_another_store_that_is_down, "are written to another store"),
    ],
    "brokers_return_at_once": [
        (wal_stores.lose_the_wal_store_for_long, "returns to a store that has just failed")
    ],
    "brokers_need_the_wal_store_to_start": [
        (wal_stores.start_without_the_wal_store, "a condition of the script does not hold")
    ],
    "readers_look_into_the_old_store": [
        (wal_stores.follow_a_wal_that_moves, "said to end at 6, not 7")
    ],
    "recovery_ignores_moves": [
        (wal_stores.lose_the_wal_store_for_long, "a condition of the script does not hold")
    ],
    "dead_wals_recovered_without_their_store": [
        (wal_stores.kill_a_broker_that_leaves_the_wal_store, "was written twice")
    ],
    "readers_expect_a_marker_at_once": [
        (wal_stores.read_the_tail_beside_a_wal_without_a_marker, "only the records below offset 5")
    ],
    "lists_are_not_sorted": [(unordered_lists.lose_a_slot, "was written twice")],
    "long_lists_end_early": [
        (unordered_lists.lose_a_slot_in_a_long_list, "was written twice"),
        (unordered_lists.read_a_tail_with_a_long_list, "a part of a LIST is taken for all of it"),
    ],
    "failed_lists_prove_nothing_is_there": [
        (unordered_lists.lose_a_slot_in_a_long_list, "was written twice"),
        (unordered_lists.read_a_tail_with_a_long_list, "said to end at 0"),
    ],
}
_LOST_WAL_STORES: _Found = {
    "dead_wals_end_without_a_decision": [
        (lost_wal_stores.abandon_a_wal_store, "records are given up without a decision")
    ],
    "abandoned_below_live_brokers": [
        (lost_wal_stores.abandon_a_wal_store, "abandoned below a live broker")
    ],
    "abandoned_although_it_works": [
        (lost_wal_stores.abandon_a_wal_store_that_works, "a store that works is abandoned")
    ],
    "leases_of_dead_writers_ignored": [
        (
            lost_wal_stores.abandon_a_wal_store_with_a_late_writer,
            "acknowledged after the store was abandoned",
        )
    ],
    "abandoned_stores_used_again": [
        (lost_wal_stores.abandon_a_wal_store, "to be abandoned does not exist or is lost")
    ],
    "brokers_return_to_abandoned_stores": [
        (lost_wal_stores.abandon_a_wal_store, "cannot be placed in store 1")
    ],
    "lost_wals_end_without_a_backup": [
        (
            lost_wal_stores.abandon_a_wal_store_without_a_backup,
            "a WAL ended that a backup would read",
        )
    ],
    "moves_to_abandoned_stores_repeated": [
        (lost_wal_stores.abandon_a_wal_store_while_a_broker_returns, "Produce: None after 30.0 s")
    ],
    "lost_ranges_stay": [
        (
            script,
            "a condition of the script does not hold",
        )
        for script in (
            lost_wal_stores.abandon_a_wal_store_with_ranges,
            lost_wal_stores.lose_ranges_of_a_fork,
            lost_wal_stores.lose_ranges_of_a_deleted_topic,
            lost_wal_stores.lose_a_part_of_a_transaction,
            lost_wal_stores.recover_without_ranges_in_the_wal_store,
        )
    ],
    "records_of_unknown_transactions_stay": [
        (lost_wal_stores.abandon_a_wal_store_with_the_end_of_a_transaction, "b'aborted'")
    ],
    "dropped_deleted_records_are_not_published": [
        (lost_wal_stores.lose_retained_records, "WalStoreRequired")
    ],
    "lost_timestamps_are_found": [
        (lost_wal_stores.lose_the_newest_timestamp, "the newest record is at offset -1")
    ],
    "empty_batches_begin_an_epoch": [
        (lost_wal_stores.lose_the_whole_log, "the end of the lost epoch is (-1, ")
    ],
    "offsets_reused_in_the_same_epoch": [
        (lost_wal_stores.reuse_offsets, "the end of the lost epoch is ")
    ],
    "recovered_without_a_record_of_the_loss": [
        (lost_wal_stores.recover_without_the_wal_store, "an abandoned store is used again")
    ],
}
_DRAINED_WAL_STORES: _Found = {
    "ended_beside_dead_wals": [
        (drained_wal_stores.drain_a_wal_store_with_a_dead_wal, "although a dead WAL is in it")
    ],
    "ended_beside_ranges": [(drained_wal_stores.drain_a_wal_store, "WalStoreRequired")],
    "returns_dropped_during_a_drain": [
        (drained_wal_stores.drain_a_wal_store_while_a_broker_returns, "was written twice")
    ],
    "wal_store_not_checked_during_a_drain": [
        (
            drained_wal_stores.start_with_another_store_during_a_drain,
            "serves with another WAL store",
        )
    ],
    "brokers_leave_at_once": [
        (drained_wal_stores.kill_a_broker_that_leaves_a_drained_wal_store, "two WALs move at once")
    ],
    "end_of_a_drain_not_published": [
        (drained_wal_stores.drain_a_wal_store_with_a_dead_wal, "WalStoreRequired")
    ],
    "returns_to_a_drained_store_repeated": [
        (drained_wal_stores.end_while_returning, "Produce: None after 30.0 s")
    ],
    "end_of_a_drain_not_backed_up": [
        (drained_wal_stores.end_without_backup, "reported before the backup contains it")
    ],
    "moved_wals_rebuilt_from_where_they_were": [
        (drained_wal_stores.recover_during_a_drain, "was written twice")
    ],
    "drains_forgotten_by_recoveries": [
        (drained_wal_stores.recover_during_a_drain, "the recovery has forgotten the drain")
    ],
}
_LOST_TRANSACTIONS: _Found = {
    "markers_in_lost_wals_awaited": [
        (lost_transactions.lose_the_marker_of_a_transaction, "read_committed consumers find {}"),
        (
            lost_transactions.lose_the_marker_of_an_abort_and_commit,
            "an aborted record is committed",
        ),
        (lost_transactions.lose_the_marker_of_an_offset, "UNSTABLE_OFFSET_COMMIT"),
    ],
    "markers_in_lost_wals_recovered": [
        (
            lost_transactions.recover_without_the_marker_of_a_transaction,
            "read_committed consumers find {}",
        )
    ],
    "offsets_of_internal_topics_trimmed": [
        (
            lost_transactions.lose_a_recovered_marker_of_an_offset,
            "the uploaded offset of another group is -1",
        )
    ],
    "markers_in_lost_ranges_awaited": [
        (
            lost_transactions.lose_a_recovered_marker_of_an_offset,
            "the last stable offset went from 3 to 1",
        )
    ],
    "offsets_below_lost_ranges_unstable": [
        (
            lost_transactions.lose_a_recovered_marker_below_a_checkpoint,
            "UNSTABLE_OFFSET_COMMIT",
        )
    ],
    "open_offsets_dropped": [
        (
            lost_transactions.lose_a_part_of_open_offsets,
            "the offset of a committed transaction is -1",
        )
    ],
    "epochs_given_out_again_after_a_loss": [
        (lost_transactions.lose_the_epoch_of_a_producer, "an acknowledged record is missing")
    ],
    "open_transactions_without_events": [
        (lost_transactions.lose_the_event_of_an_open_transaction, "is stable up to 2")
    ],
}
_LEAKS: _Found = {
    "fences_go_at_once": [(leaks.let_a_fence_grow_old, "a paused broker may have to find")],
    "fences_never_go": [(leaks.let_a_fence_grow_old, "an old fence is never deleted")],
    "slots_of_deleted_streams_kept": [
        (leaks.delete_topics_whose_slots_are_not_uploaded, "of deleted topics are never deleted")
    ],
}
_GRACES: _Found = {
    "graces_begin_with_the_log": [
        (graces.replace_a_controller_during_an_upload, "its object is [<ObjectPhase.DESTROYED")
    ],
    "prepared_objects_expire_by_the_wall_clock": [
        (graces.replace_a_controller_during_an_upload, "its object is [<ObjectPhase.DESTROYED")
    ],
    "leases_are_ignored": [
        (graces.delete_what_a_reader_holds, "deleted during the lease of a reader")
    ],
    "leases_expire_by_wall_clocks": [
        (graces.delete_what_a_reader_holds, "deleted during the lease of a reader")
    ],
    "manifests_hold_is_ignored": [
        (graces.delete_what_the_newest_manifest_names, "that the newest manifest names")
    ],
}
_RECOVERY: _Found = {
    "deleted_before_the_backup": [
        (recovery.delete_slots_without_a_backup, "the recovery finds data missing")
    ],
    "acknowledged_before_the_backup": [
        (recovery.create_a_topic_without_a_backup, "a topic was created, and is missing")
    ],
    "ids_and_epochs_given_out_again": [
        (recovery.fail_over_without_a_backup, "epoch 1 is served by")
    ],
    "only_the_owners_wal_is_read": [(recovery.fail_over_without_a_backup, "the log has [b'1']")],
    "recovered_wals_not_fenced": [
        (recovery.write_with_an_old_lease, "a leader of the old history acknowledges")
    ],
    "old_history_not_fenced": [(recovery.leave_the_old_controller_running, "BackupGap")],
}
FOUND_BY: _Found = {
    **_LOGS,
    **_WAL,
    **_CLEANING,
    **_OFFSETS,
    **_TOPICS,
    **_TRANSACTIONS,
    **_GROUPS,
    **_GROUP_LOG,
    **_SHARES,
    **_CLOCKS,
    **_CONTROLLERS,
    **_LATE_REQUESTS,
    **_LATE_ADMIN,
    **_LATE_OTHERS,
    **_WAL_STORES,
    **_LOST_TRANSACTIONS,
    **_LOST_WAL_STORES,
    **_DRAINED_WAL_STORES,
    **_LEAKS,
    **_GRACES,
    **_RECOVERY,
}
