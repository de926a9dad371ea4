"""Column masks of exports: values of every type, nested values, upserts, and dead letters."""

import datetime as dt
import hashlib
import hmac
import json
import pickle
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from penstock.base.partition_spec import parse_partition_by
from penstock.lake.arrow.pyarrow_untyped import pa
from penstock.lake.table.errors import InvalidTable
from penstock.lake.table.masks import Mask, Masking, parse_masks
from penstock.lake.table.model import PARTITION
from penstock.lake.table.rows import REJECTS, row_schema
from penstock.lake.table.values import ValueFormat
from tests.support.partitioned_rows import VALUES
from tests.support.table_log import Log
from tests.support.table_runs import Run

KEY = b"0123456789abcdef"
ITEMS = pa.list_(pa.struct([("card", pa.string()), ("tags", pa.list_(pa.string()))]))


def digest(value: bytes) -> bytes:
    return hmac.new(KEY, value, hashlib.sha256).digest()


def masked(values: list[Any], kind: Any, *masks: str) -> tuple[list[Any], Any]:
    """Return one column's values after masking, and its type."""
    masking = Masking(parse_masks(masks), KEY)
    rows = pa.table({"c": pa.array(values, kind)}).slice(1)
    schema = masking.schema(rows.schema, partition_column=PARTITION, keyed=False)
    found = masking.rows(rows)
    assert found.schema == schema
    assert masking.rows(rows.slice(0, 0)).schema == schema
    return found.column("c").to_pylist(), schema.field("c").type


CASES: list[tuple[list[Any], Any, str, list[Any]]] = [
        (["a", "secret", None], pa.string(), "c=redact", ["***", None]),
        ([b"a", b"\xff", None], pa.binary(), "c=redact", [b"***", None]),
        (["a", "secret", None], pa.string(), "c=null", [None, None]),
        ([1, 2, None], pa.int64(), "c=null", [None, None]),
        (["a", "4111111111111234", "1234567", "", None], pa.string(), "c=last4",
         ["****1234", "****", "****", None]),
        (["éèàç1234", "äöü\U0001f600123", "1234567\u0301"], pa.string(), "c=last4",
         ["****", "****567\u0301"]),
        ([1, 4111111111111234, 12, None], pa.int64(), "c=last4", ["****1234", "****", None]),
        (["a", "é", "", None], pa.string(), "c=hash",
         [digest("é".encode()).hex(), digest(b"").hex(), None]),
        ([b"a", b"\xff", None], pa.binary(), "c=hash", [digest(b"\xff"), None]),
        ([1, -5], pa.int32(), "c=hash", [digest(b"-5").hex()]),
        ([None, Decimal("1.50")], pa.decimal128(9, 2), "c=hash", [digest(b"1.50").hex()]),
        ([None, dt.date(1969, 12, 31)], pa.date32(), "c=hash", [digest(b"-1").hex()]),
        ([None, ["a", None], [], None], pa.list_(pa.string()), "c=redact",
         [["***", None], [], None]),
        ([None, ["a"]], pa.list_(pa.string()), "c=null", [None]),
        ([None, {"a": {"b": "x", "z": 1}}, {"a": None}, None],
         pa.struct([("a", pa.struct([("b", pa.string()), ("z", pa.int64())]))]), "c.a.b=redact",
         [{"a": {"b": "***", "z": 1}}, {"a": None}, None]),
        ([[{"card": "1", "tags": ["t"]}], [{"card": "2", "tags": ["u", None]}, None], None], ITEMS,
         "c.card=redact", [[{"card": "***", "tags": ["u", None]}, None], None]),
        ([[], [{"card": "2", "tags": ["u", None]}, {"card": None, "tags": []}]], ITEMS,
         "c.tags=hash",
         [[{"card": "2", "tags": [digest(b"u").hex(), None]}, {"card": None, "tags": []}]]),
        ([{"a.b": "x"}, {"a.b": "y"}], pa.struct([("a.b", pa.string())]), "c.a.b=redact",
         [{"a.b": "***"}]),
        ([None, {"a": 1}], pa.struct([("a", pa.int64())]), "c=null", [None]),
    ]  # fmt: skip


@pytest.mark.parametrize(("values", "kind", "mask", "expected"), CASES)
def test_values_are_masked(values: list[Any], kind: Any, mask: str, expected: list[Any]) -> None:
    found, masked_kind = masked(values, kind, mask)
    assert found == expected
    if mask.endswith(("=null", "=redact")):
        assert masked_kind == kind or pa.types.is_nested(kind)


@pytest.mark.parametrize(
    ("masks", "reason"),
    [
        (["nothing=null"], "'nothing': there is no such field; the fields are .*_key"),
        (["o.nothing=null"], "'nothing': there is no such field; the fields are at, id"),
        (["S=null"], "'S': there is no such field"),
        (["s.x=null"], "'x': the type string has no such field"),
        (["l=redact"], "redact does not support the type int64: use hash or null or last4"),
        (["x=last4"], "last4 does not support the type double: use hash or null"),
        (["o=hash"], "hash does not support the type struct.*: use null"),
        (["_offset=hash"], "_offset cannot be masked"),
        (["_timestamp=null"], "_timestamp cannot be masked"),
        ([f"{PARTITION}=null"], "cannot be masked"),
        (["_key=null"], "upserts need distinct keys; use _key=hash"),
        (["o=null", "o.id=null"], "'o' and 'o.id' overlap"),
        (["s=null", "s=hash"], "'s' and 's' overlap"),
        (["s"], "use FIELD=MASK, with one of redact, hash, null, last4"),
        (["s=sha1"], "use FIELD=MASK"),
        (["=null"], "use FIELD=MASK"),
    ],
)
def test_masks_that_do_not_fit_the_type_are_refused(masks: list[str], reason: str) -> None:
    schema = row_schema(VALUES, headers=False)
    with pytest.raises(InvalidTable, match=reason):
        Masking(parse_masks(masks), KEY).schema(schema, partition_column=PARTITION, keyed=True)


def test_mask_of_two_fields_is_refused() -> None:
    """Otherwise a new field with a dot in its name would reveal the nested one."""
    row = {"a": {"b": "secret"}, "a.b": "x"}
    kind = pa.struct([("a", pa.struct([("b", pa.string())])), ("a.b", pa.string())])
    with pytest.raises(InvalidTable, match=r"'a\.b' is ambiguous: 'a' and 'a\.b' are fields"):
        masked([row], kind, "c.a.b=redact")


def test_hash_masks_require_a_key_that_is_never_shown() -> None:
    for key in (b"", KEY[:-1]):
        with pytest.raises(InvalidTable, match="need a key of at least 16 bytes"):
            Masking((Mask("s", "hash"),), key)
    masking = Masking((Mask("s", "hash"),), KEY)
    assert KEY.decode() not in repr(masking)
    assert pickle.loads(pickle.dumps(masking)) == masking


def test_dead_letters_do_not_contain_values() -> None:
    letters = pa.Table.from_pylist(
        [
            {"topic": "t", "partition": 0, "offset": 1, "key": b"k", "value": b"secret",
             "error": "ArrowInvalid: Could not convert 'secret'"},
        ],
        schema=REJECTS,
    )  # fmt: skip
    for mask, key in (("s=null", b"k"), ("_key=hash", digest(b"k")), ("_key=null", None)):
        (row,) = Masking(parse_masks([mask]), KEY).dead_letters(letters).to_pylist()
        assert (row["offset"], row["key"], row["value"]) == (1, key, None)
        assert row["error"].startswith("ArrowInvalid: the reason is omitted")
    assert Masking().dead_letters(letters) == letters


@pytest.mark.parametrize("kind", ["iceberg", "parquet"])
def test_exports_with_masks_write_no_raw_value(log: Log, tmp_path: Path, kind: str) -> None:
    run = Run(log, tmp_path, kind)
    masks = parse_masks(["name=hash", "_key=hash", "tags=redact", "at.x=null"])
    options: dict[str, Any] = {
        "masking": Masking(masks, KEY),
        "upsert": True,
        "partition_by": parse_partition_by("truncate(4, name)"),
    }
    run.all(**options)
    kept = {key: record.offset for key, record in log.of_key().items()}
    rows = run.rows()
    assert {(row[PARTITION], row["_key"]): row["_offset"] for row in rows} == {
        (partition, digest(key)): offset for (partition, key), offset in kept.items()
    }
    sent = {(record.partition, record.offset): record.row or {} for record in log.sent}
    for row in rows:
        name = sent[row[PARTITION], row["_offset"]].get("name")
        assert row["name"] == (name and digest(name.encode()).hex())
        assert row["at"] == {"x": None}
        assert set(row["tags"]) <= {"***"}
    letters = run.rows("t__dlq")
    assert letters
    assert {row["value"] for row in letters} == {None}
    assert not {row["key"] for row in letters} & {record.key for record in log.sent if record.key}
    assert not [path for path in tmp_path.rglob("*") if re.search(r"name(%20|=| )\d", str(path))]


def test_removal_of_a_masked_field_from_the_schema_stops_the_export(
    log: Log, tmp_path: Path
) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    with pytest.raises(InvalidTable, match="'name': there is no such field"):
        Run(log, tmp_path, "iceberg").sync(
            value_format=ValueFormat("json", json.dumps(schema).encode()),
            masking=Masking(parse_masks(["name=null"])),
        )
