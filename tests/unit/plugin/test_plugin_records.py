"""Keys are assigned to the same partitions as by Kafka's own clients."""

from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_murmur2

from penstock.testing.records import murmur2, partition_of


@given(st.binary(max_size=40))
def test_murmur2_matches_kafka_python(key: bytes) -> None:
    assert murmur2(key) == kafka_murmur2(key) & 0xFFFF_FFFF


def test_murmur2_matches_the_java_client() -> None:
    """Kafka's own test vectors (UtilsTest.testMurmur2), as unsigned numbers."""
    vectors = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"abc": 479470107,
    }
    assert {key: murmur2(key) for key in vectors} == {
        key: value & 0xFFFF_FFFF for key, value in vectors.items()
    }


def test_records_without_keys_are_distributed_round_robin() -> None:
    assert [partition_of(None, index, 3) for index in range(5)] == [0, 1, 2, 0, 1]
