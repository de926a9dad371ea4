"""Run librdkafka's tests against Penstock: the whole suite with each group protocol and with
idempotent producers, the share consumer tests, and the security tests with SASL and ACLs.

`NOT_RUN` lists the excluded tests; `librdkafka/penstock.patch` changes three.
"""

import asyncio
import os
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest

from penstock.base.acls import STANDARD_AUTHORIZER
from penstock.deploy.local.handle import LocalCluster
from tests.support.child_process import killed_at_end
from tests.support.java import JVM, JavaHome
from tests.support.missing import built
from tests.support.secure_cluster import BROKER_USER, create_user, secure_cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(5_400)]

ROOT: Final = Path(__file__).parents[2]
BUILD_S: Final = 1_800
RUN_S: Final = 800
KAFKA_VERSION: Final = "4.2.0"
USER, PASSWORD = "tester", "tester secret"
"""Not a super user: the tests create ACLs for it and check their effects."""
PATIENT: Final = {"session_timeout_ms": 30_000, "session_grace_ms": 30_000}
DEFAULT: Final = (
    "0019_list_groups",
    "0044_partition_cnt",
    "0080_admin_ut",
    "0081_admin",
    "0103_transactions",
    "0109_auto_create_topics",
    "0112_assign_unknown_part",
    "0128_sasl_callback_queue",
    "0135_sasl_credentials",
    "0140_commit_metadata",
    "0142_reauthentication",
)
"""Tests of the scenario `default`."""
WITHOUT_NEW_TOPICS: Final = ("0107_topic_recreate", "0111_delay_create_topics")
"""Tests of the scenario `noautocreate`."""
SHARE: Final = "share"
"""The share consumer tests, which no other profile runs."""
PROFILES: Final = {
    "classic": ("classic", ()),
    "consumer": ("consumer", ()),
    "idempotent": ("classic", ("-P",)),
    SHARE: ("classic", ()),
}
"""By profile: the group protocol, and arguments of the program."""
NOT_RUN: Final = {
    "0081": "runs with ACLs, in the other test",
}
"""Test numbers with the reason for the exclusion."""
NOT_RUN_BY_PROFILE: Final = {
    "consumer": {
        "0109": "expects an assignment beside a topic to which it has no right; the group"
        " coordinator of Kafka 4.2 refuses the subscription, too"
    }
}
IN_MEMORY: Final = ("0055",)
"""Measures the latency of single records with limits that an fsync exceeds on a busy machine, so it
runs alone and with an in-memory store.
"""
FIRST, ALONE = "first", "alone"
WAITS: Final = {FIRST: "-p5", ALONE: "-p20"}
"""By attempt: the number of concurrent tests, by which librdkafka scales timeouts (2.7 and 7.7
times). Tests that change ACLs start a JVM each time.
"""
LONG: Final = ("0113", "0174")
"""These take at least ten minutes, so they start first."""
IN_PARALLEL: Final = 4
TEST_RUN_S: Final = 2_400
"""Time limit of one test."""
SETTINGS: Final = (
    *("--brokers", "3", "--no-console", "--log-level", "error"),
    # Tolerate slow responses of a busy machine.
    *("--set", "broker.session.timeout.ms=30000", "--set", "broker.session.grace.ms=30000"),
    *("--set", f"authorizer.class.name={STANDARD_AUTHORIZER}"),
    *("--set", "allow.everyone.if.no.acl.found=true"),
    *("--set", "num.partitions=4"),
    # Some tests start two consumers and expect both in the first rebalance.
    *("--set", "group.initial.rebalance.delay.ms=3000"),
    # As in librdkafka's CI for its share consumer tests.
    *("--set", "group.share.min.record.lock.duration.ms=1000"),
)
_TOOLS: Final = {"kafka-topics": "TopicCommand", "kafka-acls": "AclCommand"}
_DECLARED: Final = re.compile(r"\b_TEST\((\w+),\s*([^,]*),")
_RESULT: Final = re.compile(r"^\|\S* (\d{4}_\w+) +\| +(\w+) \|", re.MULTILINE)


@pytest.fixture(scope="module")
def tests() -> Path:
    """Return the folder with the compiled test program."""
    return built("ensure-librdkafka.sh", BUILD_S)


@pytest.mark.parametrize(
    ("scenario", "names"),
    [("default", DEFAULT), ("noautocreate", WITHOUT_NEW_TOPICS)],
    ids=["default", "noautocreate"],
)
async def test_librdkafka_security_tests_pass(
    tests: Path, tmp_path: Path, scenario: str, names: tuple[str, ...]
) -> None:
    security = {
        "ssl_keystore_location": "",
        "ssl_truststore_location": "",
        "authorizer": STANDARD_AUTHORIZER,
        "super_users": f"User:{BROKER_USER}",
        "allow_everyone_if_no_acl_found": True,
        "connections_max_reauth_ms": 10_000,
    }
    async with secure_cluster(
        tmp_path,
        "SASL_PLAINTEXT",
        brokers=3,
        security=security,
        controller_settings=PATIENT,
        auto_create_topics_enable=scenario == "default",
    ) as cluster:
        await create_user(cluster, USER, PASSWORD)
        config = tmp_path / "test.conf"
        config.write_text(
            f"bootstrap.servers={cluster.bootstrap}\n"
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
            f"sasl.username={USER}\nsasl.password={PASSWORD}\n"
        )
        output = await asyncio.to_thread(run, tests, config, scenario, names)
    results = dict(_RESULT.findall(output))
    assert results == dict.fromkeys(results, "PASSED"), output[-20_000:]
    assert results.keys() >= {*names}, output[-20_000:]


@dataclass(frozen=True, slots=True)
class Result:
    number: str
    outcome: str
    seconds: float
    log: Path

    @property
    def failed(self) -> bool:
        return self.outcome == "failed"


@dataclass(frozen=True, slots=True)
class Suite:
    """Runs the tests of a profile, each in its own process."""

    tests: Path
    kafka_home: Path
    directory: Path
    """Directory for configs and logs."""
    profile: str

    def run(self) -> list[Result]:
        """Return the results in test order. A failed test is repeated once, alone, because many
        fail if a step takes longer than they expect.
        """
        numbers = declared(self.tests, self.profile)
        shared = sorted(
            set(numbers) - {*IN_MEMORY}, key=lambda number: (number not in LONG, number)
        )
        with self._cluster("shared") as bootstrap, ThreadPoolExecutor(IN_PARALLEL) as pool:
            results = list(pool.map(lambda number: self._one(number, bootstrap), shared))
        results += [self._alone(number, FIRST) for number in numbers if number in IN_MEMORY]
        results = [self._repeated(result) if result.failed else result for result in results]
        return sorted(results, key=lambda result: result.number)

    def _repeated(self, first: Result) -> Result:
        """Repeat a test in a new cluster, without the topics of the first attempt."""
        again = self._alone(first.number, ALONE)
        return again if again.failed else replace(again, outcome=f"{again.outcome}, repeated")

    def _alone(self, number: str, attempt: str) -> Result:
        with self._cluster(number) as bootstrap:
            return self._one(number, bootstrap, attempt)

    @contextmanager
    def _cluster(self, name: str) -> Iterator[str]:
        directory = self.directory / f"store-{name}"
        store = "memory:" if name in IN_MEMORY else f"file:{directory}"
        with LocalCluster((*SETTINGS, "--store", store)) as cluster:
            yield cluster.bootstrap
        shutil.rmtree(directory, ignore_errors=True)

    def _left_out(self, number: str) -> str:
        return (NOT_RUN | NOT_RUN_BY_PROFILE.get(self.profile, {})).get(number, "")

    def _one(self, number: str, bootstrap: str, attempt: str = FIRST) -> Result:
        log, began = self.directory / f"{number}.{attempt}", time.monotonic()
        if reason := self._left_out(number):
            return Result(number, f"left out: {reason}", 0.0, log)
        protocol, arguments = PROFILES[self.profile]
        config = self.directory / f"{number}.conf"
        config.write_text(f"bootstrap.servers={bootstrap}\n")
        variables = {
            "TEST_CONSUMER_GROUP_PROTOCOL": protocol,
            "KAFKA_PATH": str(self.kafka_home),
            "BROKERS": bootstrap.partition(",")[0],
        }
        output = run(
            self.tests, config, "default", (number,), (WAITS[attempt], "-L", *arguments), variables
        )
        log.write_text(output)
        found = set(dict(_RESULT.findall(output)).values())
        passed = found and found <= {"PASSED", "SKIPPED"}
        outcome = "failed" if not passed else "passed" if "PASSED" in found else "skipped"
        return Result(number, outcome, time.monotonic() - began, log)


@pytest.mark.parametrize("profile", PROFILES)
def test_librdkafka_suite_passes(
    tests: Path,
    java: JavaHome,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    profile: str,
) -> None:
    home = kafka_home(java, tmp_path / "kafka")
    results = Suite(tests, home, tmp_path, profile).run()
    with capsys.disabled():
        print(table(profile, results))  # noqa: T201 - the result of an hour
    assert [result.log for result in results if result.failed] == []


def table(profile: str, results: Sequence[Result]) -> str:
    """Return the counts of a profile, and a line for each test."""
    counts = Counter(result.outcome.partition(":")[0] for result in results)
    seconds = sum(result.seconds for result in results)
    title = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
    lines = [f"  {each.number}  {each.seconds:4.0f} s  {each.outcome}" for each in results]
    return "\n".join([f"\nlibrdkafka, {profile}: {title}; {seconds:.0f} s", *lines, ""])


def declared(tests: Path, profile: str) -> list[str]:
    """Return the numbers of a profile's tests that require a broker. All tests with the same number
    run together.
    """
    table = (tests / "test.c").read_text().partition("struct test tests[] = {")[2]
    found = _DECLARED.findall(table.partition("{NULL}")[0])
    names = [
        name
        for name, flags in found
        if not re.search("LOCAL|MANUAL", flags) and not name.endswith(("_local", "_mock"))
        if ("_share_consumer_" in name) == (profile == SHARE)
    ]
    return list(dict.fromkeys(name[:4] for name in names))


def kafka_home(java: JavaHome, home: Path) -> Path:
    """Create a directory with Kafka's tools and jars in the layout that librdkafka's
    tests expect.
    """
    (home / "bin").mkdir(parents=True)
    (home / "libs").symlink_to(ROOT / "build/kafka/libs")
    command = f'exec {" ".join(JVM)} -cp "$CLASSPATH:{java.class_path}"'
    scripts = {"kafka-run-class": ""} | {
        name: f"org.apache.kafka.tools.{main}" for name, main in _TOOLS.items()
    }
    for name, main in scripts.items():
        script = home / f"bin/{name}.sh"
        script.write_text(f'#!/bin/sh\n{command} {main} "$@"\n')
        script.chmod(0o755)
    return home


def run(
    tests: Path,
    config: Path,
    scenario: str,
    names: tuple[str, ...],
    arguments: tuple[str, ...] = ("-p1",),
    variables: Mapping[str, str] | None = None,
) -> str:
    """Run the tests and return their output."""
    environment = {
        "RDKAFKA_TEST_CONF": str(config),
        "TEST_KAFKA_VERSION": KAFKA_VERSION,
        "TEST_SCENARIO": scenario,
        "TESTS": ",".join(name[:4] for name in names),
        "LD_LIBRARY_PATH": f"{tests.parent}/src:{tests.parent}/src-cpp",
    } | dict(variables or {})
    started = subprocess.Popen(
        [tests / "test-runner", *arguments],
        cwd=tests,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # The tests write to sockets that they have closed, and expect an error instead of a signal.
        restore_signals=False,
    )
    with killed_at_end(started) as process:
        try:
            output, _ = process.communicate(timeout=TEST_RUN_S if variables else RUN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
    return re.sub(r"\x1b\[[\d;]*m", "", output.decode(errors="replace"))
