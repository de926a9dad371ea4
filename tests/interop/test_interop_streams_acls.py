"""Kafka Streams applications with limited rights. Each has its own user, and all run at once: some
have the rights listed in docs/how-to/authorize-clients.md, each of the others lacks one of them.

CAUSES contains how they end with Apache Kafka 4.2; `make interop` also runs them there and
compares.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.kafka import LIGHT_JVM, kafka
from penstock.base.acls import STANDARD_AUTHORIZER, Operation, PatternType, Permission, ResourceType
from penstock.protocol import apis
from penstock.protocol.gen.create_acls import AclCreation
from tests.support.acl_requests import everything
from tests.support.acl_rights import create
from tests.support.clients import POLL_S, TIMEOUT_S, checked, produce
from tests.support.host_client import ADMIN_HOST, HostClient
from tests.support.java import JavaHome, wait_while_running
from tests.support.secure_cluster import BROKER_USER, secure_cluster
from tests.support.streams_groups import talk_to_coordinator
from tests.support.waiting import wait_until

PARTITIONS = 2
WORDS = [b"w%d" % (number % 5) for number in range(20)]
PASSWORD = "secret"
PROTOCOLS = ("classic", "streams")
ADMINISTRATORS = "User:ANONYMOUS;User:broker"
HASTY = {
    "group.streams.initial.rebalance.delay.ms": 0,
    "group.streams.min.heartbeat.interval.ms": 100,
    "group.streams.heartbeat.interval.ms": 300,
}

Right = tuple[ResourceType, str, PatternType, Operation]
TOPIC, GROUP, TRANSACTIONAL_ID = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.TRANSACTIONAL_ID,
)
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED


def needed(name: str) -> dict[str, Right]:
    """Return the ACLs that an application of this name requires."""
    return {
        "source-read": (TOPIC, "words", LITERAL, Operation.READ),
        "output-write": (TOPIC, f"totals-{name}", LITERAL, Operation.WRITE),
        "internal-read": (TOPIC, f"{name}-", PREFIXED, Operation.READ),
        "internal-write": (TOPIC, f"{name}-", PREFIXED, Operation.WRITE),
        "internal-create": (TOPIC, f"{name}-", PREFIXED, Operation.CREATE),
        "internal-delete": (TOPIC, f"{name}-", PREFIXED, Operation.DELETE),
        "group-read": (GROUP, name, LITERAL, Operation.READ),
        "id-write": (TRANSACTIONAL_ID, f"{name}-", PREFIXED, Operation.WRITE),
    }


LESS = ("source-read", "output-write", "group-read", "id-write")
"""Rights that some applications have replaced by Describe."""
_TOPIC_DENIED = "TopicAuthorizationException: Not authorized to access topics: "
CAUSES = {
    "source-read": f"{_TOPIC_DENIED}[words]",
    "output-write": f"{_TOPIC_DENIED}[totals-NAME]",
    "internal-read": f"{_TOPIC_DENIED}[NAME-INTERNAL]",
    "internal-write": f"{_TOPIC_DENIED}[NAME-INTERNAL]",
    "group-read": "GroupAuthorizationException: Not authorized to access group: NAME",
    "id-write": "TransactionalIdAuthorizationException: Transactional Id authorization failed.",
}
"""Failure of an application without a right, or with only Describe, with both protocols."""
UNNAMED = "TopicAuthorizationException: Topic authorization failed."
"""Content of a heartbeat response."""
NOT_CREATED = "TopicAuthorizationException: Authorization failed."
"""Failure with the classic protocol without Create, because there the application creates the
topics.
"""


def applications() -> dict[str, tuple[str, list[Right]]]:
    """Return protocol, guarantee and rights of each application."""
    found: dict[str, tuple[str, list[Right]]] = {}

    def add(name: str, modes: str, missing: str = "", *instead: Right) -> None:
        rights = [right for key, right in needed(name).items() if key != missing]
        found[name] = modes, [*rights, *instead]

    for protocol in PROTOCOLS:
        once, modes = f"{protocol}-at-least-once", f"{protocol} exactly_once_v2"
        add(once, f"{protocol} at_least_once", "id-write")
        add(f"{protocol}-all", modes)
        for missing in needed(""):
            add(f"{protocol}-no-{missing}", modes, missing)
        for missing in LESS:
            name = f"{protocol}-less-{missing}"
            resource, text, pattern, _ = needed(name)[missing]
            add(name, modes, missing, (resource, text, pattern, Operation.DESCRIBE))
    return found


APPLICATIONS = applications()
WAITING = "streams-no-internal-create"
"""The broker should create its topics, and each heartbeat reports that they are missing."""


def acls(name: str, rights: Sequence[Right]) -> list[AclCreation]:
    user = f"User:{name}"
    return [
        AclCreation(resource, text, pattern, user, "*", operation, Permission.ALLOW)
        for resource, text, pattern, operation in rights
    ]


@pytest.fixture(scope="session")
def secured_counts(java: JavaHome) -> JavaHome:
    java.compile(Path(__file__).parent / "streams" / "SecuredCounts.java")
    return java


@pytest.mark.costly("each application needs a JVM")
async def test_streams_applications_require_exactly_the_documented_rights(
    secured_counts: JavaHome, tmp_path: Path
) -> None:
    users = tmp_path / "users"
    names = [*APPLICATIONS, BROKER_USER]
    users.write_text("".join(f"{name}:{PASSWORD}\n" for name in names))
    users.chmod(0o600)
    security = {
        "authorizer": STANDARD_AUTHORIZER,
        "super_users": ADMINISTRATORS,
        "sasl_users_file": str(users),
    }
    settings = {name.replace(".", "_"): value for name, value in HASTY.items()}
    async with secure_cluster(
        tmp_path / "cluster",
        "PLAINTEXT",
        "SASL_PLAINTEXT",
        brokers=2,
        security=security,
        **settings,
    ) as cluster:
        ports = [broker.server.ports["SASL_PLAINTEXT"] for broker in cluster.brokers.values()]
        bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)
        await asyncio.to_thread(
            check_applications, cluster.bootstrap, bootstrap, secured_counts, tmp_path
        )


@pytest.mark.long
def test_recorded_causes_match_kafka(secured_counts: JavaHome, tmp_path: Path) -> None:
    replicas = (
        "transaction.state.log.replication.factor",
        "transaction.state.log.min.isr",
        "share.coordinator.state.topic.replication.factor",
        "share.coordinator.state.topic.min.isr",
    )
    settings = dict.fromkeys(replicas, "1") | {
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": ADMINISTRATORS,
        "group.initial.rebalance.delay.ms": "0",
        **{name: str(value) for name, value in HASTY.items()},
    }
    with kafka(settings, users=dict.fromkeys(APPLICATIONS, PASSWORD), jvm=LIGHT_JVM) as process:
        bootstrap = f"127.0.0.1:{process.sasl_port}"
        check_applications(process.bootstrap, bootstrap, secured_counts, tmp_path)


def check_applications(
    administration: str, bootstrap: str, java: JavaHome, directory: Path
) -> None:
    """Run all applications. administration: broker addresses for the super user."""
    prepare(administration)
    listed, log = directory / "applications", directory / "streams.log"
    listed.write_text("".join(f"{name} {modes}\n" for name, (modes, _) in APPLICATIONS.items()))
    arguments = ("SecuredCounts", bootstrap, str(directory / "state"), str(listed))
    with ExitStack() as stack:
        process = stack.enter_context(java.application(*arguments, log=log))
        totals = stack.enter_context(closing(Totals(administration)))
        talk = stack.enter_context(closing(talk_to_coordinator(administration, WAITING)))
        ends: dict[str, str] = {}

        def wait_for(condition: Callable[[], bool]) -> None:
            wait_while_running(process, log, condition)

        def have_ended() -> bool:
            ends.update(totals.complete() | failures(log))
            if talk.describe(WAITING)["group_state"] == "NotReady":
                ends[WAITING] = "waits"
            return ends.keys() == APPLICATIONS.keys()

        wait_for(have_ended)
        assert ends == expected_ends()
        assert not [topic for topic in talk.topics() if topic.startswith(f"{WAITING}-")]
        for protocol in PROTOCOLS:
            kept = f"{protocol}-no-internal-delete"
            wait_for(lambda name=f"{protocol}-all": totals.is_purged(name))
            wait_for(lambda name=kept: is_purge_refused(log, name))
            assert not totals.is_purged(kept)
        # The waiting application continues without a restart.
        create(totals.broker, acls(WAITING, [needed(WAITING)["internal-create"]]))
        wait_for(lambda: WAITING in totals.complete())


def expected_ends() -> dict[str, str]:
    ends: dict[str, str] = {}
    for name in APPLICATIONS:
        lacking = name.partition("-")[2].removeprefix("no-").removeprefix("less-")
        ends[name] = CAUSES.get(lacking, "runs").replace("NAME", name)
    return ends | {WAITING: "waits", "classic-no-internal-create": NOT_CREATED}


def prepare(administration: str) -> None:
    """Create the topics and ACLs, and wait until all brokers apply them."""
    topics = ["words", *(f"totals-{name}" for name in APPLICATIONS)]
    admin = AdminClient({"bootstrap.servers": administration})
    created = admin.create_topics([NewTopic(topic, PARTITIONS) for topic in topics])
    for creation in created.values():
        creation.result(TIMEOUT_S)
    produce(administration, "words", WORDS, partitions=range(PARTITIONS))
    given = [acl for name, (_, rights) in APPLICATIONS.items() for acl in acls(name, rights)]
    brokers = administration.split(",")
    create(brokers[0], given)
    for broker in brokers:
        with HostClient(broker, ADMIN_HOST) as client:
            wait_until(lambda client=client: count_acls(client) == len(given))


def count_acls(client: HostClient) -> int:
    resources = client.send_request(apis.DESCRIBE_ACLS, everything())["resources"]
    return sum(len(resource["acls"]) for resource in resources)


def failures(log: Path) -> dict[str, str]:
    """Return the causes with which applications have ended. Two details depend on their threads:
    which internal topic is missed first, and whether a heartbeat or a Metadata response comes
    first; only the latter contains the source topic.
    """
    found = re.findall(r"^(\S+) fails: (.*)$", log.read_text(), re.MULTILINE)
    return {
        name: re.sub(
            rf"{name}-(by-word-repartition|counts-changelog)", f"{name}-INTERNAL", cause
        ).replace(UNNAMED, CAUSES["source-read"])
        for name, cause in found
    }


def is_purge_refused(log: Path, name: str) -> bool:
    refused = (
        rf"DeleteRecords .* {name}-by-word-repartition-\d failed .* TOPIC_AUTHORIZATION_FAILED"
    )
    return re.search(refused, log.read_text()) is not None


class Totals:
    """Reads the output of all applications."""

    def __init__(self, administration: str) -> None:
        self.broker = administration.split(",")[0]
        self._counts: Counter[str] = Counter()
        self._consumer = Consumer(
            {
                "bootstrap.servers": administration,
                "group.id": "reader",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
            }
        )
        self._consumer.assign(
            [
                TopicPartition(f"totals-{name}", index, 0)
                for name in APPLICATIONS
                for index in range(PARTITIONS)
            ]
        )

    def complete(self) -> dict[str, str]:
        """Read available records; return the running applications that have counted all words."""
        for message in self._consumer.consume(1_000, POLL_S):
            self._counts[str(checked(message).topic()).removeprefix("totals-")] += 1
        return {name: "runs" for name, count in self._counts.items() if count >= len(WORDS)}

    def is_purged(self, name: str) -> bool:
        """Return whether records of the repartition topic were deleted."""
        return any(
            self._consumer.get_watermark_offsets(
                TopicPartition(f"{name}-by-word-repartition", index), TIMEOUT_S
            )[0]
            for index in range(PARTITIONS)
        )

    def close(self) -> None:
        self._consumer.close()
