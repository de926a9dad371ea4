"""Keys are formatted and parsed; other keys are rejected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.ids import (
    NodeEpoch,
    NodeId,
    ObjectId,
    WalSequence,
)
from penstock.stream.format import keys
from penstock.stream.ports import IN_STORE, BrokerIncarnation

INT64 = st.integers(0, (1 << 63) - 1)
NODES = st.integers(0, (1 << 31) - 1)


@given(NODES, INT64, INT64)
def test_wal_keys_survive_a_round_trip(node_id: int, node_epoch: int, sequence: int) -> None:
    writer = BrokerIncarnation(NodeId(node_id), NodeEpoch(node_epoch))
    key = keys.wal_key(writer, WalSequence(sequence), IN_STORE)
    assert keys.parse_wal_key(key) == keys.WalSlot(writer, WalSequence(sequence), IN_STORE)
    assert key.startswith(keys.wal_prefix(writer, IN_STORE))


@given(INT64, INT64)
def test_wal_keys_sort_in_slot_order(a: int, b: int) -> None:
    writer = BrokerIncarnation(NodeId(1), NodeEpoch(1))
    assert (a < b) == (
        keys.wal_key(writer, WalSequence(a), IN_STORE)
        < keys.wal_key(writer, WalSequence(b), IN_STORE)
    )


@given(INT64)
def test_data_keys_survive_a_round_trip(object_id: int) -> None:
    assert keys.parse_data_key(keys.data_key(ObjectId(object_id))) == object_id


def test_the_format_of_stored_keys_is_unchanged() -> None:
    assert (
        keys.wal_key(BrokerIncarnation(NodeId(3), NodeEpoch(17)), WalSequence(5), IN_STORE)
        == "wal/3/17/00000000000000000005"
    )
    assert keys.data_key(ObjectId(0x1A2B)) == "data/b2a10000/6699"
    assert (
        keys.snapshot_key("abc", 9, 2)
        == "meta/abc/snapshots/00000000000000000009-00000000000000000002"
    )
    assert keys.parse_snapshot_key("abc", keys.snapshot_key("abc", 9, 2)) == (9, 2)
    assert keys.backup_key("abc", 9) == "meta/abc/log/00000000000000000009"
    assert keys.parse_backup_key("abc", keys.backup_key("abc", 9)) == 9


def test_the_cluster_id_of_a_metadata_key_is_parsed() -> None:
    assert keys.parse_cluster_id(keys.backup_key("a-b_1", 9)) == "a-b_1"
    assert [
        keys.parse_cluster_id(key)
        for key in ("meta/", "meta/a", "wal/a/b", "meta/a b/c", "meta//c")
    ] == [None] * 5


@pytest.mark.parametrize(
    "key",
    [
        "", "wal/1/2", "wal/1/2//", "wal/1/2/3",
        "wal/01/2/00000000000000000005", "wal/1/02/00000000000000000005",
        "wal/-1/2/00000000000000000005", "wal/1/2/00000000000000000005 ",
        "wal/1/2/00000000000000000005\n", "wal/2147483648/2/00000000000000000005",
        "wal/1/2/99999999999999999999", "x/wal/1/2/00000000000000000005",
        "wal/1/2/0000000000000000000\u0665",
        "meta/abc/log/0000000000000000009", "meta/abd/log/00000000000000000009",
        "meta/abc/log/00000000000000000009-1",
        "data/00000000/6699", "data/b2a10000/06699", "data/b2a10000/6699/", "data/B2A10000/6699",
        "data/b2a10000/",
    ],
)  # fmt: skip
def test_keys_in_other_formats_are_rejected(key: str) -> None:
    assert keys.parse_wal_key(key) is None
    assert keys.parse_data_key(key) is None
    assert keys.parse_snapshot_key("abc", key) is None
    assert keys.parse_backup_key("abc", key) is None


@pytest.mark.parametrize("cluster_id", ["", "a/b", "..", "a" * 65, "a b"])
def test_cluster_ids_cannot_escape_their_prefix(cluster_id: str) -> None:
    with pytest.raises(ValueError, match="cluster id"):
        keys.meta_prefix(cluster_id)
