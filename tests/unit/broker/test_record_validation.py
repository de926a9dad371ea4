"""Records are validated as by Kafka 4.2: every case of the table, with every codec, by the native
validator and by the one in Python. tests/interop sends the same batches to Kafka.
"""

import random
import resource
import shutil
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from penstock.broker.errors import ErrorCode
from penstock.broker.partition.record_check import RecordCheck, TakesLong
from penstock.broker.partition.refusal import Refusal
from penstock.broker.partition.validation import SAMPLED_ONE_IN, TopicRules, validate_batch
from penstock.broker.requests.record_checks import (
    BATCH_REASONS,
    INLINE_BYTES_MAX,
    CheckRequest,
    InlineLimits,
    RecordChecks,
)
from penstock.controller.metadata.topic_configs import CONFIG_DEFAULTS
from penstock.protocol.batch import walk
from penstock.protocol.batch.compression import Compression
from penstock.protocol.batch.header import BatchHeader, check_crc, parse_header, patch_times
from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.batch.walk import (
    NEEDS_KEYS,
    SEQUENTIAL,
    Limits,
    Walker,
    lz4_frame_in_python,
    walk_in_python,
)
from tests.support.missing import missing
from tests.support.record_cases import (
    ACCEPTED,
    BYTES,
    CASES,
    FRAMINGS,
    HOUR_MS,
    NONE,
    OUTCOMES,
    SOUND,
    Case,
    Framing,
    field,
    record,
)

NOW = 1_700_000_000_000
HEADER_END = 61
NATIVE = Path(walk.__file__).parent / "native"
WITH_NAMES = {"ids": lambda case: case.name}


def validated(batch: bytes, rules: TopicRules | None = None) -> BatchHeader | Refusal:
    return validate_batch(
        memoryview(bytearray(batch)),
        rules or TopicRules(),
        NOW,
        check=RecordCheck(),
        allows_transactions=False,
    )


@pytest.fixture(params=["native", "python"])
def walked_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "python":
        monkeypatch.setattr(walk, "_native", None)
    elif not walk.IS_NATIVE:
        pytest.skip("this platform has no native walk")
    return str(request.param)


@pytest.mark.usefixtures("walked_by")
@pytest.mark.parametrize("case", CASES, **WITH_NAMES)
def test_validation_cases(case: Case) -> None:
    """With all codecs in one test: starting a test takes longer than to validate a batch."""
    outcome, rules = OUTCOMES.get(case.name, ACCEPTED), TopicRules.from_configs(case.configs)
    for codec in Compression:
        is_plain = codec is Compression.NONE or outcome.packed is None
        batch = case.batch(codec, NOW)
        found = validated(batch, rules)
        if isinstance(found, Refusal):
            assert found.code == (outcome.code if is_plain else outcome.packed), (codec, found)
            assert found.message, codec
            assert tuple(at for at, _ in found.record_errors) == outcome.errors, codec
        else:
            assert (outcome.code if is_plain else outcome.packed) == NONE, codec
            assert found.attributes & ~8 == parse_header(batch).attributes & ~8, codec


@pytest.mark.usefixtures("walked_by")
@pytest.mark.parametrize("framing", FRAMINGS, **WITH_NAMES)
def test_unusual_codec_frames(framing: Framing) -> None:
    found = validated(framing.batch(NOW))
    code = found.code if isinstance(found, Refusal) else NONE
    assert code == OUTCOMES.get(framing.name, ACCEPTED).code, found


@pytest.mark.parametrize("case", BYTES, **WITH_NAMES)
def test_a_request_must_contain_exactly_one_valid_batch(case: Case) -> None:
    found = validated(case.of(SOUND.batch(Compression.NONE, NOW)))
    assert (found.code if isinstance(found, Refusal) else NONE) == case.code, found


@pytest.mark.parametrize("codec", Compression, ids=lambda codec: codec.name.lower())
@pytest.mark.parametrize(
    ("name", "newest_ms"),
    [
        ("max timestamp -1", NOW),
        ("max timestamp -5", NOW),
        ("max timestamp low", NOW + 5),
        ("max timestamp of the first record", NOW + 5),
        ("max timestamp high", NOW),
        ("max timestamp a year high", NOW),
        ("base timestamp is not the first", NOW + 7),
        ("descending", NOW),
        ("append time", NOW),
        ("append time with deltas", NOW - 5),
        ("no timestamp", -1),
        ("no timestamp, max now", -1),
        ("timestamp -5, max now", -1),
    ],
)
def test_derived_header_fields_are_corrected_to_match_the_records(
    name: str, newest_ms: int, codec: Compression
) -> None:
    (case,) = [case for case in CASES if case.name == name]
    batch = bytearray(case.batch(codec, NOW))
    header = validated(batch)
    assert isinstance(header, BatchHeader)
    patch_times(batch, 0, header)
    stored = parse_header(batch)
    assert stored.max_timestamp_ms == newest_ms
    assert stored.attributes == codec
    assert check_crc(batch)
    assert batch[HEADER_END:] == case.batch(codec, NOW)[HEADER_END:]


def test_a_batch_with_a_correct_header_is_unchanged() -> None:
    batch = SOUND.batch(Compression.ZSTD, NOW)
    assert validated(batch) == parse_header(batch)


def test_config_defaults_match_the_default_rules() -> None:
    defaults = TopicRules.from_configs({})
    for name, value in (
        ("message.timestamp.after.max.ms", defaults.timestamp_after_max_ms),
        ("message.timestamp.before.max.ms", defaults.timestamp_before_max_ms),
        ("max.message.bytes", defaults.message_bytes_max),
        ("record.validation", defaults.validation),
    ):
        assert CONFIG_DEFAULTS[name] == str(value)


BAD = next(case for case in CASES if case.name == "header name null")


def _validation(value: str, **configs: str) -> TopicRules:
    named = {name.replace("_", "."): value for name, value in configs.items()}
    return TopicRules.from_configs({"record.validation": value} | named)


def test_only_batch_headers_are_checked_if_the_topic_is_configured_so() -> None:
    bad = BAD.batch(Compression.NONE, NOW)
    assert not isinstance(validated(bad, _validation("header")), Refusal)
    for configs in (
        {"cleanup_policy": "compact"},
        {"message_timestamp_before_max_ms": "1000"},
        {"message_timestamp_after_max_ms": "3600000"},
    ):
        assert isinstance(validated(bad, _validation("header", **configs)), Refusal)
    ahead = SOUND.batch(Compression.NONE, NOW + 2 * HOUR_MS)
    found = validated(ahead, _validation("header"))
    assert isinstance(found, Refusal)
    assert found.code is ErrorCode.INVALID_TIMESTAMP


async def test_after_an_invalid_sample_all_batches_of_the_client_are_checked() -> None:
    checks = RecordChecks(None)
    rules = _validation("sampled")

    def codes(client: str, count: int = 200) -> list[bool]:
        found = []
        for at in range(count):
            data = record(headers=field(None) * 2, header_count=1, value=field(b"%d" % at))
            batch = memoryview(bytearray(Case("", data).batch(Compression.NONE, NOW)))
            request = CheckRequest(batch, rules, NOW, client, 12, allows_transactions=False)
            found.append(isinstance(checks.check_inline(request, InlineLimits()), Refusal))
        return found

    refused = codes("bad")
    first = refused.index(True)
    assert first < 10 * SAMPLED_ONE_IN
    assert all(refused[first:])
    assert not codes("other", first)[0] or first == 0
    await checks.close()


async def test_rejected_batches_are_counted_by_reason() -> None:
    checks = RecordChecks(None)
    named = {case.name: case for case in CASES}
    refused = {
        "header name null": "records",
        "count -1": "records",
        "damaged": "checksum",
        "a year ahead": "timestamp",
        "null key, compacted": "no_key",
        "sound": "",
    }
    for name in refused:
        case = named[name]
        rules = TopicRules.from_configs(case.configs)
        batch = memoryview(bytearray(case.batch(Compression.NONE, NOW)))
        request = CheckRequest(batch, rules, NOW, "c", 12, allows_transactions=False)
        checks.check_inline(request, InlineLimits())
    batch = memoryview(bytearray(SOUND.batch(Compression.NONE, NOW)))
    small = TopicRules(message_bytes_max=10)
    request = CheckRequest(batch, small, NOW, "c", 12, allows_transactions=False)
    checks.check_inline(request, InlineLimits())
    batch = memoryview(bytearray(SOUND.batch(Compression.ZSTD, NOW)))
    request = CheckRequest(batch, TopicRules(), NOW, "c", 6, allows_transactions=False)
    checks.check_inline(request, InlineLimits())
    expected = Counter([*filter(None, refused.values()), "too_large", "compression"])
    assert checks.refused_batches == expected
    assert set(expected) < set(BATCH_REASONS)
    await checks.close()


def test_a_request_is_checked_inline_up_to_a_limit() -> None:
    budget, rules = InlineLimits(), TopicRules(message_bytes_max=10 << 20)

    def batch(size_bytes: int, codec: Compression = Compression.NONE) -> memoryview:
        noise = random.Random(1).randbytes(size_bytes)
        return memoryview(encode_batch([Record(0, NOW, b"k", noise)], compression=codec))

    assert budget.allows(batch(INLINE_BYTES_MAX // 2), rules)
    assert not budget.allows(batch(INLINE_BYTES_MAX), rules)
    assert budget.allows(batch(100, Compression.ZSTD), rules)
    assert budget.allows(batch(100_000, Compression.ZSTD), rules)
    assert not budget.allows(batch(100), rules)


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec])
def test_a_batch_is_decompressed_inline_up_to_a_limit(codec: Compression) -> None:
    inline_bytes = 64 << 10

    def check(size_bytes: int, rules: TopicRules) -> BatchHeader | Refusal:
        records = [Record(0, NOW, b"k", bytes(size_bytes))]
        batch = memoryview(encode_batch(records, compression=codec))
        return validate_batch(batch, rules, NOW, check=RecordCheck(inline_bytes))

    assert isinstance(check(inline_bytes // 2, TopicRules()), BatchHeader)
    with pytest.raises(TakesLong):
        check(inline_bytes, TopicRules())
    refused = check(inline_bytes, TopicRules(decompressed_bytes_max=inline_bytes // 2))
    assert isinstance(refused, Refusal)
    assert refused.code is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_memory_is_released_after_a_decompression_bomb(codec: Compression) -> None:
    limit = 16 << 20
    rules = TopicRules(decompressed_bytes_max=limit)
    records = [Record(0, NOW, b"k", bytes(2 * limit))]
    bomb = memoryview(encode_batch(records, compression=codec))
    checks = [RecordCheck() for _ in range(8)]
    before = resident_bytes()
    for check in checks:
        refused = validate_batch(bomb, rules, NOW, check=check)
        assert isinstance(refused, Refusal)
        assert refused.code is ErrorCode.MESSAGE_TOO_LARGE
    assert resident_bytes() - before < 2 * limit


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_both_validators_agree_on_damaged_records() -> None:
    """The native validator never reads beyond the data; otherwise this process would crash."""
    rng, walker = random.Random(7), Walker()
    for _ in range(20_000):
        case = rng.choice(CASES)
        data = bytearray(case.data[:300])
        for _ in range(rng.randrange(3)):
            at = rng.randrange(len(data) + 1)
            del data[at : at + rng.randrange(2)]
            data[at : at + rng.randrange(2)] = bytes([rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF))])
        limits = Limits(
            rng.choice((-(2**63), -5, 0)), rng.choice((2**63 - 1, 0, 100)), rng.randrange(8)
        )
        count, base_ms = min(max(case.count, 0), 9), rng.choice((0, -1, 2**63 - 1, -(2**63), 1000))
        found = walker.walk(memoryview(data), count, base_ms, limits)
        assert found == walk_in_python(data, count, base_ms, limits), data.hex()
        if data:
            frame = memoryview(b"\x04\x22\x4d\x18" + data)
            assert walker.lz4_frame(frame) == lz4_frame_in_python(frame)


@cache
def small_records(count: int) -> bytes:
    return b"".join(record(at, key=field(b""), value=field(b"")) for at in range(count))


SIZES = (None, 0, 1, 62, 63, 64, 65, 8_190, 8_191, 8_192)
TIMES_MS = (0, -1, 63, -64, 8_191, -8_192, 2**20 - 1, -(2**20), 2**20, 2**31, 2**62)


def test_both_validators_agree_where_varints_get_longer() -> None:
    """The native validator has fast paths for records with short varints, and for simple records
    before the last ones.
    """
    rng, walker = random.Random(11), Walker()
    codes = set[int]()

    def some_field() -> bytes:
        size = rng.choice(SIZES[: rng.choice((4, 7, 10))])
        return field(None if size is None else bytes(size))

    def some_record(index: int) -> bytes:
        header_count = rng.choice((0, 0, 1, 2, 70))
        names = [field(bytes(rng.choice((0, 1, 64)))) for _ in range(header_count)]
        headers = b"".join(name + field(rng.choice((None, b"", b"v" * 70))) for name in names)
        ms = rng.choice(TIMES_MS)
        return record(
            index, ms=ms, key=some_field(), value=some_field(), headers=headers,
            header_count=header_count,
        )  # fmt: skip

    for number in range(2_000):
        first = 8_190 if number % 200 == 0 else rng.choice((0, 0, 0, 62))
        count = first + rng.randrange(1, 5)
        small = small_records(first)
        tail = bytearray(b"".join(some_record(at) for at in range(first, count)))
        for _ in range(rng.randrange(3)):
            at = rng.choice((rng.randrange(len(tail)), rng.randrange(min(len(tail), 12))))
            tail[at] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, tail[at] ^ 1, tail[at] + 2 & 0xFF))
        if not rng.randrange(4):
            del tail[rng.randrange(len(tail)) :]
        base_ms = rng.choice((0, 1_000, NOW, 2**63 - 1, -(2**63), 2**63 - 2**20, -(2**63) + 2**20))
        low_ms = rng.choice((-(2**63), 0, base_ms - 70, base_ms, 2**63 - 1))
        high_ms = rng.choice((2**63 - 1, 0, base_ms + 70, base_ms, -(2**63)))
        limits = Limits(max(low_ms, -(2**63)), min(high_ms, 2**63 - 1), rng.randrange(8))
        more = rng.choice((0, 0, 3))
        after = b"".join(record(at, value=field(b"")) for at in range(count, count + more))
        data = bytearray(small + tail + after)
        count += more - (not rng.randrange(9))
        found = walker.walk(memoryview(data), count, base_ms, limits)
        assert found == walk_in_python(data, count, base_ms, limits), bytes(tail).hex()
        codes.add(found.code)
    assert codes == {walk.DONE, *walk.REASONS}


def test_both_validators_agree_on_the_simplest_records() -> None:
    """The native validator compares expected bytes; one byte of a record differs."""
    rng, walker = random.Random(13), Walker()
    codes = set[int]()
    for number in range(2_000):
        first = 8_188 if number % 200 == 0 else rng.choice((0, 60))
        key, value = rng.choice((0, 1, 62, 63, 64)), rng.choice((0, 60, 61, 62, 63, 64, 100, 8_000))
        records = [
            record(at, ms=rng.choice((at, 8_192)), key=field(bytes(key)), value=field(bytes(value)))
            for at in range(first, first + 5)
        ]
        damaged = bytearray(records[rng.randrange(3)])
        at = rng.choice((rng.randrange(10), rng.randrange(len(damaged)), len(damaged) - 1))
        at = min(at, len(damaged) - 1)
        damaged[at] = rng.choice((0, 1, 0x80, damaged[at] ^ 1, damaged[at] ^ 0x80))
        records[rng.randrange(4)] = bytes(damaged)
        small = small_records(first)
        data = bytearray(small + b"".join(records))
        limits = Limits(flags=rng.choice((0, NEEDS_KEYS, SEQUENTIAL)))
        found = walker.walk(memoryview(data), first + 5, NOW, limits)
        assert found == walk_in_python(data, first + 5, NOW, limits), b"".join(records).hex()
        codes.add(found.code)
    assert codes >= {walk.DONE, walk.BAD_LENGTH, walk.BAD_FIELD, walk.BAD_END, walk.BAD_DELTA}


def test_the_native_code_matches_its_source(tmp_path: Path) -> None:
    """The compiler generates the same bytes on every machine."""
    if shutil.which("sh") is None:
        missing("there is no shell")
    subprocess.run(["sh", NATIVE / "build.sh", sys.executable, tmp_path], check=True)
    built = {path.name: path.read_bytes() for path in tmp_path.glob("walk-*")}
    assert built == {path.name: path.read_bytes() for path in NATIVE.glob("walk-*")}
