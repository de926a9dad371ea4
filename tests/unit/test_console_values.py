"""The pure parts of the console: logins, values and presentation."""

from dataclasses import replace
from datetime import UTC, datetime
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.acls import Operation
from penstock.base.listeners import SecurityProtocol
from penstock.deploy.admin.reassign.trace import MoveView, Step
from penstock.deploy.admin.views import view_cluster
from penstock.deploy.clients.configs import ConfigView
from penstock.deploy.clients.security import PLAINTEXT, ClientSecurity
from penstock.deploy.console import formats, views
from penstock.deploy.console.config_choices import choice_of, unit_of
from penstock.deploy.console.deferred import is_use
from penstock.deploy.console.guard import is_known_host, is_same_origin
from penstock.deploy.console.health import BrokerHealth, StoreHealth, diagnose
from penstock.deploy.console.options import ConsoleOptions, check
from penstock.deploy.console.paging import ROWS_MAX, page_of
from penstock.deploy.console.records import SEARCHED_RECORDS_MAX, RecordSelection, windows_of
from penstock.deploy.console.rights import NotAllowed, Rights, operations_of
from penstock.deploy.console.samples import last_known, sample_of
from penstock.deploy.console.sessions import (
    FAILURES_MAX,
    IDLE_S_MAX,
    RIGHTS_S,
    SESSION_S_MAX,
    SESSIONS_MAX,
    SETTLE_S,
    Sessions,
)
from penstock.deploy.errors import UsageError
from penstock.deploy.top.view import stored_topics, view_top
from tests.fuzz.console_world import IMAGE, TOPIC

SASL = ClientSecurity(SecurityProtocol.SASL_SSL, "PLAIN", "console", "secret")


# --- logins ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "is_known"),
    [
        ("127.0.0.1:9080", True),
        ("[::1]:9080", True),
        ("localhost", True),
        ("10.1.2.3", True),
        ("console.example.com:443", True),
        ("CONSOLE.example.com", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("", False),
        ("[", False),
    ],
)
def test_only_addresses_and_configured_host_names_are_accepted(host: str, is_known: bool) -> None:
    assert is_known_host(host, ("console.example.com",)) == is_known


@pytest.mark.parametrize(
    ("headers", "is_same"),
    [
        ({"origin": "http://a:1", "sec-fetch-site": "same-origin"}, True),
        ({"origin": "http://a:1"}, True),
        ({"origin": "http://b:1"}, False),
        ({"origin": "null"}, False),
        ({}, False),
        ({"origin": "http://a:1", "sec-fetch-site": "same-site"}, False),
    ],
)
def test_forms_must_come_from_the_same_origin(headers: dict[str, str], is_same: bool) -> None:
    assert is_same_origin({"host": "a:1", **headers}) == is_same


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_console_on_loopback_needs_no_login(host: str) -> None:
    check(ConsoleOptions(bootstrap="b:1", host=host))


def test_a_console_on_other_addresses_requires_a_login_or_consent() -> None:
    options = ConsoleOptions(bootstrap="b:1", host="0.0.0.0")
    with pytest.raises(UsageError, match="--allow-insecure"):
        check(options)
    check(replace(options, allow_insecure=True))
    with pytest.raises(UsageError, match=r"security\.protocol=SASL_SSL"):
        check(replace(options, login=True, security=PLAINTEXT))
    check(replace(options, login=True, security=SASL))
    with pytest.raises(UsageError, match="must be set together"):
        check(ConsoleOptions(bootstrap="b:1", certificate="cert.pem"))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def sessions_at(clock: Clock) -> Sessions:
    numbers = count()
    return Sessions(clock, lambda: f"token-{next(numbers)}")


def test_sessions_end_when_idle_or_too_old() -> None:
    clock = Clock()
    sessions = sessions_at(clock)
    session = sessions.open("alice", SASL)
    clock.now += IDLE_S_MAX - 1
    assert sessions.find(session.token) is session
    clock.now += IDLE_S_MAX
    assert sessions.find(session.token) is None
    session = sessions.open("alice", SASL)
    began = clock.now
    while clock.now - began < SESSION_S_MAX - IDLE_S_MAX:
        clock.now += IDLE_S_MAX - 1
        assert sessions.find(session.token) is session
    clock.now = began + SESSION_S_MAX
    assert sessions.find(session.token) is None


def test_rights_are_checked_again_when_old_and_after_a_change() -> None:
    """A change may create a topic that the user may see, and brokers learn about it a
    moment later.
    """
    clock = Clock()
    sessions = sessions_at(clock)
    session = sessions.open("alice", SASL)
    sessions.changed(session)
    for later_s, is_old in (
        (0, True),
        (SETTLE_S / 2, True),
        (SETTLE_S, False),
        (RIGHTS_S + 1, True),
    ):
        clock.now += later_s
        assert sessions.find(session.token) is session
        assert sessions.needs_rights(session) == is_old
        sessions.checked(session, session.rights)


def test_scripts_of_an_open_page_do_not_extend_the_session_and_rarely_check_rights() -> None:
    """After a change, only pages that the user opens check the rights again."""
    clock = Clock()
    sessions = sessions_at(clock)
    session = sessions.open("alice", SASL, Rights())
    sessions.changed(session)
    checks = 0
    while (found := sessions.peek(session.token)) is not None:
        clock.now += 1
        if sessions.needs_rights(found, is_use=False):
            checks += 1
            sessions.checked(found, Rights())
        assert clock.now <= IDLE_S_MAX
    assert clock.now == IDLE_S_MAX
    assert checks == IDLE_S_MAX // (RIGHTS_S + 1)


@pytest.mark.parametrize(
    ("path", "headers", "counts"),
    [
        ("/topics", {}, True),
        ("/topics/live/messages", {}, True),
        ("/topics", {"hx-request": "true"}, False),
        ("/live/health", {}, False),
        ("/live/overview", {}, False),
    ],
)
def test_only_requests_by_the_user_count_as_activity(
    path: str, headers: dict[str, str], counts: bool
) -> None:
    assert is_use(path, headers) == counts


def test_the_longest_idle_session_ends_at_the_limit() -> None:
    clock = Clock()
    sessions = sessions_at(clock)
    first = sessions.open("first", SASL)
    for _ in range(SESSIONS_MAX):
        clock.now += 1
        sessions.find(first.token)
        sessions.open("more", SASL)
    assert len(sessions) == SESSIONS_MAX
    assert sessions.find(first.token) is first


def test_failed_logins_of_one_address_are_counted() -> None:
    clock = Clock()
    sessions = sessions_at(clock)
    for _ in range(FAILURES_MAX):
        assert sessions.may_try("10.0.0.1")
        sessions.failed("10.0.0.1")
    assert not sessions.may_try("10.0.0.1")
    assert sessions.may_try("10.0.0.2")
    clock.now += 61
    assert sessions.may_try("10.0.0.1")


def test_rights_follow_the_acls() -> None:
    rights = Rights(topics={"words": operations_of(1 << Operation.DESCRIBE)})
    rights.need_topic("words")
    rights.need_topic("words@nightly")
    for refused in (
        lambda: rights.need_topic("words", records=True),
        lambda: rights.need_topic("secrets"),
        rights.need_cluster,
        rights.need_everything,
    ):
        with pytest.raises(NotAllowed):
            refused()
    assert operations_of(-2147483648) == frozenset()


# --- presentation ---------------------------------------------------------------------------------


@given(st.binary(max_size=4_000))
def test_any_bytes_can_be_displayed(data: bytes) -> None:
    shown = formats.shown_bytes(data)
    assert shown.size_bytes == len(data)
    assert len(shown.line) <= formats.LINE_CHARS_MAX
    assert "\n" not in shown.line
    if shown.kind == "text":
        assert shown.text.encode() == data


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (None, "null", "null"),
        (b"", "empty", ""),
        (b'{"a":[1]}', "json", '{\n  "a": [\n    1\n  ]\n}'),
        (b'{"a":', "text", '{"a":'),
        ("zo\u00eb".encode(), "text", "zo\u00eb"),
        (b"a\x00b", "hex", f"000000  {'61 00 62':<48} a.b"),
        (b"[" * 5_000, "text", "[" * 5_000),
    ],
)
def test_types_of_values_are_recognized(data: bytes | None, kind: str, text: str) -> None:
    shown = formats.shown_bytes(data)
    assert (shown.kind, shown.text) == (kind, text)


@pytest.mark.parametrize("text", [r'"\ud800"', r'{"a": "\ud800"}', "[NaN]"])
def test_json_that_has_no_utf_8_or_no_value_is_shown_unchanged(text: str) -> None:
    shown = formats.shown_bytes(text.encode())
    assert (shown.kind, shown.text) == ("text", text)


def test_numbers_and_names_in_json_are_shown_as_written() -> None:
    shown = formats.shown_bytes(b'{"a":1.00000000000000000001,"a":1e999}')
    assert shown.text == '{\n  "a": 1.00000000000000000001,\n  "a": 1e999\n}'


def test_indents_do_not_multiply_the_size_of_json() -> None:
    """Without a limit, each of these 16 KiB takes 4.8 MB on the page."""
    data = b"[" * 300 + b",".join([b"1"] * 7_800) + b"]" * 300
    assert len(data) <= formats.SHOWN_BYTES_MAX
    shown = formats.shown_bytes(data)
    assert (shown.kind, shown.text) == ("text", data.decode())


def test_long_values_are_truncated_between_characters() -> None:
    shown = formats.shown_bytes(("x" + "\u00e9" * formats.SHOWN_BYTES_MAX).encode())
    assert (shown.kind, shown.is_cut) == ("text", True)
    assert len(shown.text.encode()) <= formats.SHOWN_BYTES_MAX


def test_unknown_values_are_displayed_as_dashes() -> None:
    for shown in (formats.number, formats.bytes_text, formats.rate, formats.usd):
        assert shown(None) == formats.UNKNOWN
    assert formats.milliseconds(None) == formats.moment(-1) == formats.UNKNOWN
    assert formats.milliseconds(3.25) == "3.2 ms"
    assert formats.milliseconds(12_345) == "12.3 s"
    assert formats.usd(0.0004) == "$0.0004"
    assert formats.age(90_000) == "90 s"
    assert formats.moment(1_000) == "1970-01-01 00:00:01.000 UTC"
    assert formats.moment(1 << 60) == f"{1 << 60} ms"


@given(st.integers(0, 1_000), st.integers(-5, 50))
def test_pages_cover_a_list(total: int, number: int) -> None:
    items = list(range(total))
    page = page_of(items, number)
    assert 1 <= page.number <= page.pages
    assert len(page.rows) <= ROWS_MAX
    shown = [row for at in range(1, page.pages + 1) for row in page_of(items, at).rows]
    assert shown == items


def test_windows_are_as_large_as_the_page_or_the_search() -> None:
    bounds = {0: (10, 1_000), 1: (0, 5)}
    newest = RecordSelection(topic="t", limit=20)
    assert windows_of(newest, bounds) == {0: (980, 1_000), 1: (0, 5)}
    assert windows_of(replace(newest, start="earliest"), bounds) == {0: (10, 30), 1: (0, 5)}
    after = replace(newest, start="offset", offset=500)
    assert windows_of(after, bounds) == {0: (500, 520), 1: (5, 5)}
    searched = windows_of(replace(newest, key="k"), {0: (0, 10**9)})
    assert searched == {0: (10**9 - SEARCHED_RECORDS_MAX, 10**9)}
    since = replace(newest, start="time", since=datetime(2026, 1, 1, tzinfo=UTC))
    assert windows_of(since, {0: (7, 9)}) == {0: (7, 9)}


def test_the_bars_of_a_move_are_contiguous() -> None:
    steps = [Step(1, "controller", "a", 0.0), Step(2, "broker 0", "b", 30.0)]
    steps += [Step(3, "broker 0", "c", None), Step(4, "broker 0", "d", 10.0)]
    bars = views.bars(MoveView("t", 0, 0, 1, 3, 0, None, steps))
    assert [(bar.x, bar.width) for bar in bars] == [(0, 0), (0, 750), (750, 0), (750, 250)]
    unknown = [Step(1, "controller", "a", None)]
    assert views.bars(MoveView("t", 0, 0, 1, 3, 0, None, unknown))[0].width == 0


def test_a_log_never_ends_before_its_committed_end() -> None:
    """End offsets are measured every two seconds, while the metadata arrives at once."""
    ends = {0: 0}
    first, *others = views.view_partitions(IMAGE, TOPIC, ends) or ()
    assert first.end_offset == first.committed_offset > 0
    assert [partition.end_offset for partition in others] == [None] * len(others)
    ends[0] = first.committed_offset + 5
    (again, *_) = views.view_partitions(IMAGE, TOPIC, ends) or ()
    assert again.end_offset == first.committed_offset + 5


def test_the_topic_list_and_the_topic_page_show_the_same_size() -> None:
    """It is the size of the records without partition state, which the cluster also stores."""
    topics = {topic.topic_id for topic in IMAGE.topics}
    streams = [stream for stream in IMAGE.streams if stream.topic_id in topics]
    entries = [entry for stream in streams for entry in stream.entries]
    view = view_top(view_cluster(IMAGE, "", {}), stored_topics(IMAGE), {})
    assert view.stored_bytes == sum(entry.size_bytes for entry in entries)
    assert view.stored_bytes > sum(topic.stored_bytes for topic in view.topics) > 0
    for topic in view.topics:
        partitions = views.view_partitions(IMAGE, topic.name, {}) or ()
        assert topic.stored_bytes == sum(partition.size_bytes for partition in partitions)


def test_values_that_no_broker_has_reported_are_unknown() -> None:
    """Neither pages nor samples contain a zero for them."""
    view = view_top(view_cluster(IMAGE, "", {}), stored_topics(IMAGE), {})
    assert view.cluster.nodes
    for node in view.cluster.nodes:
        assert (node.bytes_in_s, node.bytes_out_s, node.requests_s) == (None, None, None)
    assert {topic.records for topic in view.topics} == {None}
    sample = sample_of(view, 0, None, has_loads=True)
    assert (sample.bytes_in, sample.bytes_out, sample.records, sample.put) == (None,) * 4


@pytest.mark.parametrize(
    ("controllers_s", "broker", "store", "titles", "stale_s"),
    [
        (0.4, BrokerHealth(1, False, age_s=1.9), StoreHealth(0.5), [], 0.0),
        (9.0, BrokerHealth(1, False, age_s=9.0), None, ["The cluster does not respond"], 9.0),
        (9.0, BrokerHealth(1, False, age_s=1.0), None, ["The controllers do not respond"], 9.0),
        (0.4, BrokerHealth(1, True), None, ["Broker 1 is fenced"], 0.0),
        (0.4, BrokerHealth(1, False, 3.0, 3.0, 3.0, 3.0), None, ["Broker 1 is silent"], 3.0),
        (
            0.4,
            BrokerHealth(1, False, waiting_s=2.0, age_s=4.0),
            None,
            ["Broker 1 does not respond"],
            4.0,
        ),
        (
            0.4,
            BrokerHealth(1, False, age_s=0.1),
            StoreHealth(5.0),
            ["The object store does not respond"],
            5.0,
        ),
        (
            0.4,
            BrokerHealth(1, False, age_s=0.1),
            StoreHealth(0.1, "no such bucket"),
            ["The object store refuses this console"],
            0.0,
        ),
        (0.4, BrokerHealth(1, False, append_ms=7_000.0), None, ["Appends are slow"], 0.0),
    ],
)
def test_health_problems_have_titles_and_ages(
    controllers_s: float,
    broker: BrokerHealth,
    store: StoreHealth | None,
    titles: list[str],
    stale_s: float,
) -> None:
    health = diagnose(controllers_s, {1: broker}, store, 0)
    assert [problem.title for problem in health.problems][:1] == titles
    assert health.stale_s == stale_s
    (*_, leaderless) = diagnose(0.4, {}, None, 3).problems
    assert leaderless.title == "3 partitions have no leader"


def test_values_that_are_currently_unknown_keep_their_last_value() -> None:
    view = view_top(view_cluster(IMAGE, "", {}), stored_topics(IMAGE), {})
    samples = [sample_of(view, at, rate, has_loads=False) for at, rate in ((1, 7.0), (2, None))]
    known = last_known(samples)
    assert (known["records"], known["at_ms"], known["bytes_in"]) == (7.0, 2, None)


@pytest.mark.parametrize(
    ("name", "kind", "unit"),
    [
        ("retention.ms", "long", "milliseconds"),
        ("log.retention.check.interval.ms", "long", "milliseconds"),
        ("segment.bytes", "int", "bytes"),
        ("num.partitions", "int", "number"),
        ("auto.create.topics.enable", "boolean", "true or false"),
        ("cleanup.policy", "list", "list, separated by commas"),
        ("compression.type", "string", "text"),
    ],
)
def test_config_values_have_units(name: str, kind: str, unit: str) -> None:
    assert unit_of(ConfigView(name, "1", "default", True, (), kind)) == unit


def test_forms_explain_the_notation_of_units() -> None:
    config = ConfigView("retention.ms", "1", "default", True, (), "long")
    assert choice_of(config).unit == "milliseconds, or as in 7d"


def test_settings_are_entered_as_lines() -> None:
    found = views.parse_settings("a=1\n\n b = x=y \nretention.ms = 7d")
    assert found == {"a": "1", "b": "x=y", "retention.ms": "604800000"}
    with pytest.raises(UsageError, match="'nothing' is not KEY=VALUE"):
        views.parse_settings("nothing")
