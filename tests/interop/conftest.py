"""Share the jars of Kafka 4.2 among these tests; skip them on a machine without a JDK or Maven."""

import pytest

from benchmarks.kafka import KafkaMissing
from tests.support.java import JavaHome


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> JavaHome:
    try:
        return JavaHome(tmp_path_factory.mktemp("java"))
    except KafkaMissing as missing:
        pytest.skip(str(missing))
