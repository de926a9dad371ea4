"""The pure parts of a partition: producers, epochs, validation, waiting fetches."""

import pytest

from penstock.broker.partition.delayed_fetch import FetchWait
from penstock.broker.partition.leader_epochs import LeaderEpochs
from penstock.broker.partition.producer_state import SEQUENCES_COUNT, KnownBatch, ProducerState
from penstock.broker.partition.refusal import Refusal
from penstock.broker.partition.validation import DEFAULT_RULES, TopicRules, validate_batch
from penstock.protocol.batch.header import CRC_START, parse_header
from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.error_codes import ErrorCode

NOW = 1_700_000_000_000


def record_batch(state, base, count, offset, *, pid=7, epoch=0, now=0):
    assert state.check(pid, epoch, base, count) is None
    state.record(pid, epoch, base, count, base_offset=offset, end_offset=offset + count, now_ms=now)


class TestProducerState:
    def test_an_unknown_producer_may_start_at_any_sequence(self):
        assert ProducerState().check(7, 3, 500, 10) is None

    def test_batches_before_the_known_sequences_do_not_count_as_duplicates(self):
        state = ProducerState()
        record_batch(state, 500, 10, 0)
        assert state.check(7, 0, 490, 10) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def test_the_offset_of_a_duplicate_is_returned_for_the_last_five_batches(self):
        state = ProducerState()
        for at in range(7):
            record_batch(state, at * 10, 10, at * 10)
        assert state.check(7, 0, 20, 10) == KnownBatch(20, 29, 20, 30)
        assert state.check(7, 0, 10, 10) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
        assert state.check(7, 0, 80, 10) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert state.check(7, 0, 65, 10) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def test_sequences_wrap_around_to_zero(self):
        state = ProducerState()
        record_batch(state, SEQUENCES_COUNT - 2, 3, 0)
        assert state.check(7, 0, 1, 1) is None
        assert state.check(7, 0, SEQUENCES_COUNT - 2, 3) == KnownBatch(SEQUENCES_COUNT - 2, 0, 0, 3)

    def test_a_new_producer_epoch_must_be_higher_and_start_at_sequence_zero(self):
        state = ProducerState()
        record_batch(state, 0, 1, 0, epoch=2)
        assert state.check(7, 1, 1, 1) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert state.check(7, 3, 1, 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert state.check(7, 3, 0, 1) is None

    def test_the_longest_inactive_producers_are_evicted_at_the_limit_and_expire(self):
        state = ProducerState(producers_count_max=3)
        for pid in range(3):
            record_batch(state, 0, 1, pid, pid=pid, now=pid * 10)
        record_batch(state, 1, 1, 3, pid=0, now=30)
        record_batch(state, 0, 1, 4, pid=9, now=40)
        assert list(state) == [2, 0, 9]
        assert state.expire(now_ms=65, silent_ms=40) == 1
        assert list(state) == [0, 9]


class TestLeaderEpochs:
    def test_an_epoch_ends_where_the_next_one_starts(self):
        epochs = LeaderEpochs([(1, 0), (4, 100), (5, 180)])
        assert epochs.end_offset(1, 200) == (1, 100)
        assert epochs.end_offset(3, 200) == (1, 100)
        assert epochs.end_offset(4, 200) == (4, 180)
        assert epochs.end_offset(5, 200) == (5, 200)
        assert epochs.end_offset(6, 200) == (-1, -1)
        assert LeaderEpochs().end_offset(0, 200) == (-1, -1)

    def test_an_epoch_without_records_is_replaced(self):
        epochs = LeaderEpochs([(1, 0), (2, 50)])
        epochs.assign(3, 50)
        epochs.assign(3, 70)
        assert list(epochs.entries) == [(1, 0), (3, 50)]

    @pytest.mark.parametrize("stored", [True, False], ids=["in a checkpoint", "in the log"])
    def test_batches_without_records_do_not_start_an_epoch(self, stored):
        epochs = LeaderEpochs([(-1, 0)] if stored else [])
        if not stored:
            epochs.assign(-1, 0)
        epochs.assign(5, 200)
        epochs.assign(-1, 250)
        assert list(epochs.entries) == [(5, 200)]
        assert epochs.end_offset(3, 300) == (3, 200)
        assert epochs.epoch_at(0) == -1

    def test_trimming_keeps_the_leader_epoch_of_the_log_start(self):
        epochs = LeaderEpochs([(1, 0), (4, 100), (5, 180)])
        epochs.trim(150)
        assert list(epochs.entries) == [(4, 150), (5, 180)]
        assert epochs.end_offset(2, 200) == (2, 150)
        assert [epochs.epoch_at(offset) for offset in (149, 150, 180)] == [-1, 4, 5]


def batch(count=2, *, key=b"k", timestamp=NOW, **options):
    records = [Record(at, timestamp, key, b"value %d" % at) for at in range(count)]
    return memoryview(encode_batch(records, **options))


def code_of(records, rules=DEFAULT_RULES):
    found = validate_batch(records, rules, NOW)
    return found.code if isinstance(found, Refusal) else None


class TestValidation:
    def test_a_valid_batch_is_accepted(self):
        records = batch(producer_id=1, producer_epoch=0, base_sequence=0)
        assert validate_batch(records, DEFAULT_RULES, NOW) == parse_header(records)

    def test_data_other_than_one_complete_batch_is_rejected(self):
        assert code_of(None) is ErrorCode.INVALID_RECORD
        assert code_of(memoryview(b"")) is ErrorCode.INVALID_RECORD
        assert (
            code_of(memoryview(bytearray(batch()) + bytearray(batch()))) is ErrorCode.INVALID_RECORD
        )
        assert code_of(batch()[:-1]) is ErrorCode.INVALID_RECORD

    @pytest.mark.parametrize("magic", [0, 1])
    def test_other_message_formats_are_rejected(self, magic):
        records = batch()
        records[16] = magic
        assert code_of(records) is ErrorCode.INVALID_RECORD

    @pytest.mark.parametrize("at", [CRC_START, 30, 60, -1])
    def test_a_flipped_bit_is_detected(self, at):
        records = batch()
        records[at] ^= 1
        assert code_of(records) is ErrorCode.CORRUPT_MESSAGE

    def test_record_count_and_last_offset_must_agree(self):
        assert code_of(batch(last_offset=5)) is ErrorCode.INVALID_RECORD
        assert code_of(memoryview(encode_batch([], last_offset=0))) is ErrorCode.INVALID_RECORD

    def test_control_batches_and_transactional_batches_without_producer_are_rejected(self):
        assert code_of(batch(attributes=0x30)) is ErrorCode.INVALID_RECORD
        assert code_of(batch(attributes=0x10)) is ErrorCode.INVALID_RECORD

    def test_a_producer_id_requires_epoch_and_sequence(self):
        assert (
            code_of(batch(producer_id=1, producer_epoch=0, base_sequence=-1))
            is ErrorCode.INVALID_RECORD
        )

    def test_the_batch_size_is_limited_by_the_topic(self):
        records = batch()
        assert code_of(records, TopicRules(message_bytes_max=len(records))) is None
        assert (
            code_of(records, TopicRules(message_bytes_max=len(records) - 1))
            is ErrorCode.MESSAGE_TOO_LARGE
        )

    def test_timestamps_are_limited_unless_the_topic_uses_append_time(self):
        window = TopicRules(timestamp_before_max_ms=1000, timestamp_after_max_ms=500)
        assert code_of(batch(timestamp=NOW - 1000), window) is None
        assert code_of(batch(timestamp=NOW - 1001), window) is ErrorCode.INVALID_TIMESTAMP
        assert code_of(batch(timestamp=NOW + 501), window) is ErrorCode.INVALID_TIMESTAMP
        rules = TopicRules(
            is_log_append_time=True, timestamp_before_max_ms=1, timestamp_after_max_ms=1
        )
        assert code_of(batch(timestamp=5), rules) is None

    def test_compacted_mirror_topics_do_not_require_keys(self):
        compacted = {"cleanup.policy": "compact,delete"}
        assert TopicRules.from_configs(compacted).needs_keys
        mirror = compacted | {"penstock.mirror.source": "topic"}
        assert not TopicRules.from_configs(mirror).needs_keys


def test_a_fetch_is_woken_once_when_enough_bytes_have_arrived():
    woken = []
    wait = FetchWait(100, lambda: woken.append(True))
    wait.progressed(60)
    assert not woken
    wait.progressed(40)
    wait.progressed(500)
    wait.interrupt()
    assert woken == [True]
