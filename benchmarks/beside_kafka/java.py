"""Measure with Kafka's performance tools, which use the Java producer and consumer.

Each run is a new JVM, which compiles the client during the first 2.5 s; on two cores that is most
of a run with 500 MB. Therefore, a third of the produced records is not counted, and there are so
many records that the page cache must be written to disk.
"""

import csv
import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks import clients, kafka
from benchmarks.beside_kafka.single import Size, used
from benchmarks.beside_kafka.systems import System
from benchmarks.beside_kafka.warm import warm_up

RECORD_BYTES: Final = 1_000
_TOOL_S: Final = 90.0
_RATE: Final = re.compile(r"([\d.]+) MB/sec")
_MIB: Final = 1.048576
"""The tools print MB for 1,048,576 bytes."""
_PRODUCER: Final = ("acks=all", "batch.size=1000000", "linger.ms=20", "buffer.memory=134217728")


def run(main: str, *arguments: str) -> str:
    """Run a tool to its end and return its output. Raises RuntimeError if it fails."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        (Path(directory) / "log4j2.properties").write_text("rootLogger.level=OFF\n")
        done = subprocess.run(
            (
                "java",
                "-Xmx512m",
                "-cp",
                f"{directory}:{kafka.jars()}",
                f"org.apache.kafka.tools.{main}",
                *arguments,
            ),
            capture_output=True,
            text=True,
            timeout=_TOOL_S,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"{main} failed: {(done.stdout + done.stderr)[-500:]}")
    return done.stdout


def produced_mb_per_s(output: str) -> float:
    """Return the last rate that ProducerPerformance prints, which excludes the warm-up."""
    return float(_RATE.findall(output)[-1]) * _MIB


def consumed_mb_per_s(output: str) -> float:
    """Return the rate of ConsumerPerformance without the time to join its group."""
    names, values = list(csv.reader(output.strip().splitlines()[-2:], skipinitialspace=True))
    return float(dict(zip(names, values, strict=True))["fetch.MB.sec"]) * _MIB


def produce_and_consume(system: System, size: Size) -> Mapping[str, float]:
    count = size.java_mb * 1_000_000 // RECORD_BYTES
    few = count // 4
    warm, topic = system.new_topic(), system.new_topic()
    for name in (warm, topic):
        clients.create_topic(system.bootstrap, 1, name)
    address = ("--bootstrap-server", system.bootstrap)

    def produce(name: str, count: int) -> float:
        output = run(
            "ProducerPerformance",
            *address,
            *("--topic", name, "--record-size", str(RECORD_BYTES), "--throughput", "-1"),
            *("--num-records", str(count), "--warmup-records", str(count // 3)),
            *("--command-property", *_PRODUCER),
        )
        return produced_mb_per_s(output)

    def consume(count: int) -> float:
        output = run(
            "ConsumerPerformance",
            *address,
            *("--topic", topic, "--num-records", str(count), "--timeout", "30000"),
        )
        return consumed_mb_per_s(output)

    warm_up(lambda: produce(warm, few), size.warm_s)
    with used(system) as producing:
        produced = produce(topic, count)
    warm_up(lambda: consume(few), size.warm_s)
    with used(system) as consuming:
        consumed = consume(count)
    megabytes = count * RECORD_BYTES / 1e6
    return {
        "java-produce": produced,
        "java-produce-cpu": producing.ms_per(megabytes),
        "java-consume": consumed,
        "java-consume-cpu": consuming.ms_per(megabytes),
    }
