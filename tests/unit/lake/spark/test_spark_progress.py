"""The lag of a source is computed from the progress of a query, as with Spark's Kafka source."""

import json
from typing import Any

import pytest

from penstock.spark import lag


def source(end: object, latest: object) -> dict[str, object]:
    return {"endOffset": end, "latestOffset": latest, "numInputRows": 1}


AHEAD = {"a": {"0": 5, "1": 3}, "b": {"0": 0}, "a#0b": {}}
LATEST = {"a": {"0": 9, "1": 3}, "b": {"0": 2}}
BEHIND = {
    "partitions": {"a": {"0": 4, "1": 0}, "b": {"0": 2}},
    "avgOffsetsBehindLatest": 2.0,
    "maxOffsetsBehindLatest": 4,
    "minOffsetsBehindLatest": 0,
}


@pytest.mark.parametrize(("end", "latest", "expected"), [
    (AHEAD, LATEST, [BEHIND]),
    (json.dumps(AHEAD), json.dumps(LATEST), [BEHIND]),
    (LATEST, AHEAD, [{**BEHIND, "partitions": {"a": {"0": 0, "1": 0}, "b": {"0": 0}},
                      "avgOffsetsBehindLatest": 0.0, "maxOffsetsBehindLatest": 0}]),
    ({"a": {"0": 5}}, {"a": {"0": 6, "1": 8}}, [
        {"partitions": {"a": {"0": 1}}, "avgOffsetsBehindLatest": 1.0,
         "maxOffsetsBehindLatest": 1, "minOffsetsBehindLatest": 1}]),
    (AHEAD, None, []),
    (None, LATEST, []),
    ("7", "9", []),
    (7, 9, []),
    ({"logOffset": 3}, {"logOffset": 3}, []),
    ("no JSON", "{", []),
])  # fmt: skip
def test_the_lag_is_computed_from_the_progress(
    end: object, latest: object, expected: list[Any]
) -> None:
    progress = {"sources": [source({"logOffset": 1}, None), source(end, latest)]}
    assert lag(progress) == lag(json.dumps(progress)) == expected


def test_a_query_without_progress_has_no_lag() -> None:
    assert lag(None) == []
