"""Values designed to take quadratic time or a deep stack to parse, and files with secrets that
other users could read.
"""

import base64
import stat
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from penstock.base.ids import Millis
from penstock.controller.active.leases import LeaseBook
from penstock.controller.raft.directory import LocalFiles
from penstock.deploy.clients import state_file
from penstock.deploy.clients.bearer_tokens import end_of
from penstock.deploy.mirror.progress import _decoded
from penstock.deploy.records.formats import BadRecord, JsonCodec
from penstock.lake.sql.inference import StructOf
from penstock.lake.sql.json_values import JsonColumn, JsonDecoder
from penstock.objectstore.memory import MemoryStore
from penstock.protocol.batch.records import Record
from penstock.stream.format.keys import lease_key
from penstock.stream.format.manifest.lease import LEASE_BYTES_MAX

DEEP = b"[" * 100_000


def test_config_numbers_are_parsed_in_linear_time() -> None:
    """A request may contain 10,000 of them. With an ambiguous regular expression, the controller
    needed 0.4 s for each.
    """
    code = (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (20, 20))\n"
        "from penstock.controller.metadata.topic_configs import VALUE_CHARS_MAX, problem\n"
        "value = '1' * (VALUE_CHARS_MAX - 1) + 'x'\n"
        "for _ in range(1_000):\n"
        "    assert problem('min.cleanable.dirty.ratio', value)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_a_deeply_nested_lease_prevents_deletions_like_a_damaged_one() -> None:
    """Readers of the store may write leases. A lease that crashed the janitor would stop all
    deletions.
    """
    store = MemoryStore()
    lease = b'{"x":' + b"[" * (LEASE_BYTES_MAX - 5)
    await store.put(lease_key("c", uuid4(), 1), lease)
    book = LeaseBook(store, "c", now=lambda: 0.0, now_ms=lambda: Millis(0))
    assert await book.protected_from() == 0


def test_deeply_nested_metadata_records_are_rejected_like_damaged_ones() -> None:
    with pytest.raises(BadRecord):
        JsonCodec().decode(DEEP)
    with pytest.raises(ValueError, match="is not from a mirror"):
        _decoded(Record(0, 0, DEEP, DEEP))
    claims = base64.urlsafe_b64encode(DEEP).decode()
    with pytest.raises(ValueError, match="exp"):
        end_of(f"header.{claims}.signature")


def test_a_deeply_nested_value_becomes_null_in_an_sql_column() -> None:
    decoder = JsonDecoder([JsonColumn("a", "a", StructOf((("b", "BIGINT"),)))])
    depth = 900
    deep = '{"a":' + '{"b":' * depth + "1" + "}" * depth + "}"
    parsed = decoder.parse(pa.array(['{"a": {"b": 1}}', deep], pa.string_view()))
    decoder.close()
    assert parsed.arrays[0].to_pylist() == [{"b": 1}, None]
    assert [list(item.rows) for item in parsed.misfits] == [[1]]


def test_files_with_secrets_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    """The metadata log contains salted keys of users, and a store URL may contain access keys."""
    LocalFiles(tmp_path).create("segment").close()
    state = state_file.ClusterState(
        pid=1, bootstrap="", controller="", store_url="s3://b?secret_key=x", processes=[]
    )
    state_file.write(tmp_path / "state.json", state)
    for name in ("segment", "state.json"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
