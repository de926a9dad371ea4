"""Schedule and status reports of a table runner."""

from random import Random
from uuid import UUID

import pytest

from penstock.base.partition_spec import DAY
from penstock.lake.manifest.table_status import RunnerStatus, exports_of
from penstock.lake.table.declared import DeclaredTable, declared_tables
from penstock.lake.table.errors import InvalidSchema, InvalidTable
from penstock.lake.table.job import SyncOptions
from penstock.lake.table.masks import Mask, Masking
from penstock.lake.table.schedule import PAUSE_MS_MAX, Exported, Failed, Schedule
from penstock.lake.table.topic_export import (
    MAINTAIN_FIRST_S_MAX,
    MAINTAIN_S,
    MaintenanceTurns,
)
from penstock.stream.format.manifest.model import TopicEntry

ENABLED = {"penstock.table.enable": "true"}
VALUE_SCHEMA = {"penstock.value.schema": '{"type": "object"}'}


def entry(name: str, configs: dict[str, str] | None = None, *, number: int = 1) -> TopicEntry:
    return TopicEntry(name, UUID(int=number), 1, (), ENABLED | (configs or {}), False)


def declared(*names: str, **configs: str) -> dict[str, DeclaredTable]:
    named = {f"penstock.table.{key.replace('_', '.')}": value for key, value in configs.items()}
    return declared_tables(entry(name, named) for name in names)


class Clock:
    """A schedule and the time in seconds; the wall clock is 1,000 s ahead."""

    def __init__(self, **tables: DeclaredTable) -> None:
        self.now_s = 0.0
        self.stepped_ms = 0
        self.schedule = Schedule(Random(1))
        self.declare(tables)

    @property
    def now_ms(self) -> int:
        return int(self.now_s * 1_000) + 1_000_000 + self.stepped_ms

    def declare(self, tables: dict[str, DeclaredTable]) -> tuple[list[str], list[str]]:
        added, removed = self.schedule.declare(tables, self.now_s, self.now_ms, {})
        return [table.topic for table in added], [table.topic for table in removed]

    def due(self, free: int = 9) -> list[DeclaredTable]:
        return self.schedule.due(self.now_s, free)

    def finish(self, table: DeclaredTable, *, remaining: int = 0, error: str = "") -> bool:
        result = Exported(began_ms=self.now_ms, remaining=remaining, committed=True, rows=3)
        given = Failed(error) if error else result
        return self.schedule.finish(table, given, self.now_s, self.now_ms)

    def state(self, topic: str = "a") -> str:
        statuses = self.schedule.statuses(self.now_s)
        return next(status.state for status in statuses if status.topic == topic)


def test_complete_tables_wait_for_their_interval_and_incomplete_ones_for_their_turn() -> None:
    clock = Clock(**declared("a", "b", "c"))
    first = clock.due(2)
    assert [table.topic for table in first] == ["a", "b"]
    assert [table.topic for table in clock.due()] == ["c"]
    clock.now_s = 5
    clock.finish(first[0])
    clock.finish(first[1], remaining=7)
    assert [table.topic for table in clock.due()] == ["b"]
    assert clock.schedule.next_due_s() == 60, "from the start of the turn"
    clock.now_s = 60
    assert [table.topic for table in clock.due()] == ["a"]
    assert clock.schedule.next_due_s() is None
    assert not clock.schedule.is_settled


def test_pauses_after_errors_grow_until_a_change_or_a_success() -> None:
    tables = declared("a")
    clock = Clock(**tables)
    pauses: list[float] = []
    for _ in range(12):
        (table,) = clock.due()
        clock.finish(table, error="no")
        due_s = clock.schedule.next_due_s()
        assert due_s is not None
        pauses.append(due_s - clock.now_s)
        clock.now_s = due_s
    assert 0.5 <= pauses[0] <= 1
    assert PAUSE_MS_MAX / 2_000 <= pauses[-1] <= PAUSE_MS_MAX / 1_000
    assert clock.state() == "failing"
    assert clock.schedule.is_settled
    assert clock.declare(declared("a", mode="upsert")) == (["a"], ["a"])
    assert clock.state() == "behind", "nothing has been exported for an hour"
    (table,) = clock.due()
    clock.finish(table)
    assert clock.state() == "up to date"


def test_a_table_with_records_left_is_not_up_to_date() -> None:
    """This holds after an error as well as after a complete turn."""
    clock = Clock(**declared("a"))
    assert clock.state() == "waiting"
    clock.finish(*clock.due(), error="the store is down")
    assert clock.schedule.is_settled
    clock.now_s = 2
    clock.finish(*clock.due(), remaining=7)
    assert clock.state() == "waiting"
    clock.finish(*clock.due())
    assert clock.state() == "up to date"
    clock.now_s = 62
    clock.finish(*clock.due(), remaining=7)
    assert clock.state() == "waiting"
    clock.now_s = 240
    assert clock.state() == "behind"
    clock.finish(*clock.due())
    assert clock.state() == "up to date"


def test_a_result_of_an_earlier_declaration_is_dropped() -> None:
    clock = Clock(**declared("a"))
    (old,) = clock.due()
    assert clock.declare({}) == ([], ["a"])
    assert clock.declare(declared("a")) == (["a"], [])
    assert not clock.finish(old)
    (new,) = clock.due()
    assert clock.finish(new)
    assert clock.declare(declared("a")) == ([], [])


def test_the_lag_is_the_age_of_the_last_complete_turn() -> None:
    clock = Clock(**declared("a"))
    clock.now_s = 10
    assert clock.schedule.statuses(clock.now_s)[0].lag_ms == 10_000, "since it was declared"
    (table,) = clock.due()
    clock.finish(table, remaining=5)
    clock.now_s = 20
    status = clock.schedule.statuses(clock.now_s)[0]
    assert (status.lag_ms, status.lag_records, status.rows) == (20_000, 5, 3)
    (table,) = clock.due()
    clock.finish(table)
    clock.now_s = 50
    status = clock.schedule.statuses(clock.now_s)[0]
    assert (status.lag_ms, status.lag_records, status.commits) == (30_000, 0, 2)
    clock.now_s = 20 + 2 * 60 + 61
    assert clock.state() == "behind"
    other = Schedule(Random(1))
    other.declare(declared("a"), 0, clock.now_ms, {"a": status})
    assert other.statuses(0)[0].lag_ms == 181_000, "continued by the next runner"


@pytest.mark.parametrize("step_ms", [-600_000, 600_000])
def test_wall_clock_changes_do_not_affect_the_lag(step_ms: int) -> None:
    clock = Clock(**declared("a"))
    (table,) = clock.due()
    clock.finish(table)
    clock.now_s, clock.stepped_ms = 70, step_ms
    assert clock.schedule.statuses(clock.now_s)[0].lag_ms == 70_000
    (table,) = clock.due()
    clock.finish(table)
    clock.now_s = 75
    status = clock.schedule.statuses(clock.now_s)[0]
    assert (status.lag_ms, status.complete_ms) == (5_000, clock.now_ms - 5_000)


@pytest.mark.parametrize(
    ("configs", "name", "framed"),
    [
        ({}, "raw", False),
        ({"penstock.table.schema": "raw"} | VALUE_SCHEMA, "raw", False),
        (VALUE_SCHEMA, "json", False),
        (VALUE_SCHEMA | {"penstock.value.schema.type": "avro"}, "avro", False),
        (VALUE_SCHEMA | {"penstock.value.schema.type": "protobuf"}, "protobuf", False),
        ({"penstock.table.schema": '{"type": "object"}'}, "json", False),
        ({"penstock.table.schema": '{"type": "record"}'}, "avro", False),
    ],
)
def test_the_value_format_is_parsed(configs: dict[str, str], name: str, framed: bool) -> None:
    table = declared_tables([entry("t", configs)])["t"]
    found = table.value_format(None)
    assert (found.name, found.framed) == (name, framed)


@pytest.mark.parametrize(
    "configs",
    [
        {"penstock.table.schema": "registry"},
        {"penstock.table.schema": "registry:orders"},
        {"penstock.value.schema.validation": "true"},
    ],
)
def test_a_registered_schema_requires_a_registry(configs: dict[str, str]) -> None:
    table = declared_tables([entry("t", configs)])["t"]
    with pytest.raises(InvalidSchema, match="--schema-registry"):
        table.value_format(None)


@pytest.mark.parametrize(
    ("name", "value"), [("partition.by", "week(n)"), ("commit.interval.ms", "1 min")]
)
def test_invalid_configs_stop_only_their_topic(name: str, value: str) -> None:
    """A newer controller may accept values that this runner does not support."""
    tables = declared_tables([entry("t", {f"penstock.table.{name}": value}), entry("u")])
    with pytest.raises(InvalidTable, match=f"configs of topic 't' are invalid: .*{value[:4]}"):
        tables["t"].sync_options(SyncOptions(), None)
    tables["u"].sync_options(SyncOptions(), None)


def test_masks_use_the_key_of_the_runner_and_debezium_requires_upserts() -> None:
    base = SyncOptions(masking=Masking(key=bytes(16)))
    options = declared("t", mask="a=hash, b=null")["t"].sync_options(base, None)
    assert options.masking == Masking((Mask("a", "hash"), Mask("b", "null")), bytes(16))
    assert not declared("t")["t"].sync_options(base, None).masking.masks
    table = declared("t", unwrap="debezium", mode="upsert", schema='{"type": "object"}')["t"]
    assert table.sync_options(base, None).value_format.unwrap == "debezium"
    with pytest.raises(InvalidTable, match=r"penstock\.table\.mode=upsert"):
        declared("t", unwrap="debezium")["t"].sync_options(base, None)


@pytest.mark.parametrize(("value", "fields"), [("", None), ("none", ()), ("day", (DAY,))])
def test_a_table_keeps_its_partitioning_unless_another_one_is_declared(
    value: str, fields: object
) -> None:
    for table in (declared("t", partition_by=value)["t"], declared("t")["t"]):
        assert table.sync_options(SyncOptions(), None).partition_by == fields
        fields = None


def test_only_enabled_client_topics_declare_tables() -> None:
    off = replace_configs(entry("off"), {"penstock.table.enable": "false"})
    snapshot = entry("a@nightly")
    assert list(declared_tables([entry("a.b-c"), off, snapshot])) == ["a.b-c"]
    assert declared("a.b-c")["a.b-c"].table == "a_b_c"
    assert declared("a", name="x.y")["a"].table == "x.y"


def replace_configs(topic: TopicEntry, configs: dict[str, str]) -> TopicEntry:
    return TopicEntry(topic.name, topic.topic_id, 1, (), configs, False)


def test_tables_are_maintained_once_a_day_one_at_a_time() -> None:
    now_s = 0.0
    turns = MaintenanceTurns(lambda: now_s, Random(1))
    assert not turns.begin("a")
    assert not turns.begin("b")
    now_s = MAINTAIN_FIRST_S_MAX
    assert turns.begin("a")
    assert not turns.begin("b")
    turns.end()
    assert turns.begin("b")
    turns.end()
    now_s = MAINTAIN_S
    assert not turns.begin("a")
    now_s += MAINTAIN_FIRST_S_MAX
    assert turns.begin("a")


@pytest.mark.parametrize(
    ("value", "milliseconds"), [("", 86_400_000), ("-1", None), ("7200000", 7_200_000)]
)
def test_the_snapshot_retention_is_parsed(value: str, milliseconds: int | None) -> None:
    configs = {"snapshot_retention_ms": value} if value else {}
    assert declared("a", **configs)["a"].settings.snapshot_retention_ms == milliseconds


def test_the_newest_running_status_of_a_topic_is_used() -> None:
    clock = Clock(**declared("a", "b"))
    (table, _) = clock.due()
    clock.finish(table)
    topics = clock.schedule.statuses(clock.now_s)
    old = RunnerStatus(runner="old", version="1", started_ms=0, updated_ms=0, topics=topics)
    now_ms = 500_000
    new = RunnerStatus(
        runner="new", version="1", started_ms=0, updated_ms=now_ms - 1_000, topics=topics[:1]
    )
    stopped = RunnerStatus(
        runner="s", version="1", started_ms=0, updated_ms=now_ms, stopped=True, topics=topics
    )
    topic_id = str(UUID(int=1))
    found = exports_of({"a": topic_id, "b": topic_id, "c": topic_id}, [old, stopped, new], now_ms)
    assert [(view.topic, view.runner, view.state) for view in found] == [
        ("a", "new", "up to date"),
        ("b", "s", "not running"),
        ("c", "", "not running"),
    ]
    assert found[0].lag_ms == topics[0].lag_ms + 1_000
    recreated = exports_of({"a": str(UUID(int=2))}, [new], now_ms)
    assert [view.state for view in recreated] == ["not running"]
