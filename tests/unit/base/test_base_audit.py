"""The audit log of changes: fields of a line, and limits."""

from structlog.testing import capture_logs

from penstock.base import audit
from penstock.base.audit import ChangeLog


def test_frequent_changes_of_one_client_are_suppressed_without_hiding_others() -> None:
    now_s = 5.0
    changes = ChangeLog(lambda: now_s)
    with capture_logs() as logs:
        for number in range(audit.LINES_MAX + 7):
            changes.write("offsets_deleted", [f"g{number}"], principal="User:eve", host="::1")
        changes.write("acls_added", ["a"], principal="User:mallory", host="::1")
        now_s += 2 * audit.INTERVAL_S
        changes.write("acls_added", ["b"], principal="User:eve", host="::1")
    assert len(logs) == audit.LINES_MAX + 2
    assert [line["resources"] for line in logs[-2:]] == [["a"], ["b"]]
    assert [line["suppressed_count"] for line in logs[-2:]] == [0, 7]


def test_fields_set_by_clients_are_escaped_and_truncated() -> None:
    with capture_logs() as logs:
        ChangeLog(lambda: 0.0).write(
            "topics_created",
            ["x" * 10_000],
            principal="User:a\nb",
            host="::1",
            client_id="\x1b[31m",
        )
    (line,) = logs
    assert (line["principal"], line["client_id"]) == ("User:a\\nb", "\\x1b[31m")
    assert len(line["resources"][0]) < 300
