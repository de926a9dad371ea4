"""The same requests under different sets of ACLs, with responses comparable to those of Kafka.

All clients are User:ANONYMOUS, distinguished by host: the administrator is 127.0.0.1, the client
127.0.0.2. `python -m tests.support.acl_rights` records the responses of Kafka 4.2.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from benchmarks.kafka import LIGHT_JVM, kafka
from penstock.base.acls import (
    CLUSTER_NAME,
    STANDARD_AUTHORIZER,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from penstock.broker.security.config import SecurityConfig
from penstock.protocol import apis
from penstock.protocol.gen import (
    create_acls,
    delete_acls,
    find_coordinator,
    init_producer_id,
    metadata,
)
from tests.support.acl_requests import HIDDEN, SEEN, everything, questions, share_state_questions
from tests.support.certs import Authority
from tests.support.clients import create_topic
from tests.support.cluster import Cluster, NodeTls
from tests.support.host_client import ADMIN_HOST, CLIENT_HOST, HostClient
from tests.support.waiting import wait_until

_RECORDED: Final = Path(__file__).with_name("kafka_acl_responses.json")
REGEX_REFRESH_INTERVAL_MS: Final = 10_000
"""The minimum in Kafka."""

ANYONE = "User:ANONYMOUS"
NAMED = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
Creation = create_acls.AclCreation
ResponseSet = dict[str, Any]

_ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
NOT_COMPARED = frozenset(
    {
        # private tagged fields
        "deleted_epoch",
        # values specific to each broker
        "port",
        "host",
        "log_dir",
        "cluster_id",
        "controller_id",
        "brokers",
        "member_id",
        "producer_id",
        "leader_epoch",
        "node_endpoints",
        "error_message",
        # contents of fetched records, and of partitions that cannot be fetched
        "aborted_transactions",
        "records",
        "log_start_offset",
        "last_stable_offset",
        "acquisition_lock_timeout_ms",
    }
)
OTHER_REASONS = {
    "log dirs": "one log dir, with what the broker leads",
    "quorum": "the controller is another process",
}
"""Requests whose responses differ even without ACLs; they are compared only if denied."""
NEVER_COMPARED = {"credentials": "Kafka's refusal names a user without a name"}
DELETING = frozenset({"all but describe"})
OF_DELETED_TOPICS = {
    "alter configs": "without a change, Penstock does not look for the topic",
    "alter share offsets": "Kafka looks for the topic first, Penstock for the group",
}
READ_BY_BROKERS = frozenset(
    {
        "offsets",
        "fetch offsets",
        "fetch offsets 1",
        "fetch offsets 7",
        "fetch offsets by id",
        "fetch all offsets",
        "describe share groups",
        "list groups",
        "producers",
    }
)
"""Penstock brokers send these to each other, with ClusterAction."""


def allow(
    kind: ResourceType,
    name: str,
    operation: Operation,
    *,
    pattern: PatternType = PatternType.PREFIXED,
    permission: Permission = Permission.ALLOW,
    host: str = CLIENT_HOST,
) -> Creation:
    return Creation(kind, name, pattern, ANYONE, host, operation, permission)


def on_cluster(operation: Operation) -> Creation:
    return allow(ResourceType.CLUSTER, CLUSTER_NAME, operation, pattern=PatternType.LITERAL)


def on_seen(operation: Operation) -> list[Creation]:
    return [allow(kind, SEEN, operation) for kind in NAMED]


def on_all_but_hidden(denied: Operation) -> list[Creation]:
    return [
        *(allow(kind, "*", Operation.ALL, pattern=PatternType.LITERAL) for kind in NAMED),
        *(allow(kind, HIDDEN, denied, permission=Permission.DENY) for kind in NAMED),
    ]


RIGHTS: dict[str, list[Creation]] = {
    "nothing": [],
    "describe": [*on_seen(Operation.DESCRIBE), on_cluster(Operation.DESCRIBE)],
    "read": on_seen(Operation.READ),
    "write": [*on_seen(Operation.WRITE), on_cluster(Operation.DESCRIBE_CONFIGS)],
    "delete": [*on_seen(Operation.DELETE), on_cluster(Operation.CREATE)],
    "configs": [*on_seen(Operation.DESCRIBE_CONFIGS), *on_seen(Operation.CREATE)],
    "alter": [*on_seen(Operation.ALTER), *on_seen(Operation.ALTER_CONFIGS)],
    "cluster": [on_cluster(Operation.CLUSTER_ACTION)],
    "all but hidden": on_all_but_hidden(Operation.ALL),
    "all but describe": on_all_but_hidden(Operation.DESCRIBE),
}
"""Sets of rights of the client. The last set allows it to delete topics."""


def admit_administrator(address: str) -> None:
    names = [(kind, "*") for kind in NAMED] + [(ResourceType.CLUSTER, CLUSTER_NAME)]
    create(
        address,
        [
            allow(kind, name, Operation.ALL, pattern=PatternType.LITERAL, host=ADMIN_HOST)
            for kind, name in names
        ],
    )


def create(address: str, acls: Sequence[Creation]) -> None:
    with HostClient(address, ADMIN_HOST) as admin:
        response = admin.send_request(apis.CREATE_ACLS, create_acls.CreateAclsRequest(acls))
    assert {result["error_code"] for result in response["results"]} <= {0}, response


def set_rights(address: str, acls: Sequence[Creation]) -> None:
    """Grant the client exactly these ACLs. Kafka's broker applies them later than its
    controller.
    """
    requested = delete_acls.DeleteAclsFilter(
        ResourceType.ANY, None, PatternType.ANY, None, CLIENT_HOST, Operation.ANY, Permission.ANY
    )
    with HostClient(address, ADMIN_HOST) as admin:
        admin.send_request(apis.DELETE_ACLS, delete_acls.DeleteAclsRequest([requested]))
    create(address, acls)

    def is_followed() -> bool:
        with HostClient(address, ADMIN_HOST) as admin:
            response = admin.send_request(apis.DESCRIBE_ACLS, everything())
        found = {
            (
                *(resource[key] for key in ("resource_type", "resource_name", "pattern_type")),
                *(acl[key] for key in ("operation", "permission_type")),
            )
            for resource in response["resources"]
            for acl in resource["acls"]
            if acl["host"] == CLIENT_HOST
        }
        return found == {
            (
                acl.resource_type,
                acl.resource_name,
                acl.resource_pattern_type,
                acl.operation,
                acl.permission_type,
            )
            for acl in acls
        }

    wait_until(is_followed)


def prepare(address: str) -> dict[str, UUID]:
    """Create the topics and the internal topics. Return the topic ids."""
    for name in (SEEN, HIDDEN):
        create_topic(address, name, 1)
    with HostClient(address, ADMIN_HOST) as admin:
        for key_type in (0, 1):
            request = find_coordinator.FindCoordinatorRequest("x", key_type, ["x"])
            admin.send_request(apis.FIND_COORDINATOR, request)
        wait_until(lambda: has_producer_ids(admin))
        topics = [metadata.MetadataRequestTopic(name=name) for name in (SEEN, HIDDEN)]
        response = admin.send_request(apis.METADATA, metadata.MetadataRequest(topics), 12)
    return {topic["name"]: UUID(str(topic["topic_id"])) for topic in response["topics"]}


def has_producer_ids(client: HostClient) -> bool:
    request = init_producer_id.InitProducerIdRequest(None, 10_000)
    return not client.send_request(apis.INIT_PRODUCER_ID, request)["error_code"]


@contextmanager
def kafka_with_acls() -> Iterator[str]:
    """Run Kafka with an authorizer that allows everything until there are ACLs. Yield its address,
    with ACLs for the administrator.
    """
    replicas = (
        "transaction.state.log.replication.factor",
        "transaction.state.log.min.isr",
        "share.coordinator.state.topic.replication.factor",
        "share.coordinator.state.topic.min.isr",
    )
    settings = dict.fromkeys(replicas, "1") | {
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "allow.everyone.if.no.acl.found": "true",
        "group.initial.rebalance.delay.ms": "0",
        "group.consumer.regex.refresh.interval.ms": str(REGEX_REFRESH_INTERVAL_MS),
    }
    with kafka(settings, jvm=LIGHT_JVM) as process:
        admit_administrator(process.bootstrap)
        yield process.bootstrap


@asynccontextmanager
async def cluster_with_acls(directory: Path) -> AsyncIterator[Cluster]:
    """Start a cluster with the same settings and ACLs as `kafka_with_acls`. Its controller also
    authorizes forwarded requests.
    """
    rules = {"authorizer": STANDARD_AUTHORIZER, "allow_everyone_if_no_acl_found": True}
    authority = Authority(directory / "certificates")
    async with Cluster(
        directory,
        brokers=0,
        security=SecurityConfig(**rules),
        controller_settings=rules,
        node_tls=NodeTls(
            authority.make("penstock-controller").open(), authority.make("penstock-broker").open()
        ),
        group_consumer_regex_refresh_interval_ms=REGEX_REFRESH_INTERVAL_MS,
    ) as cluster:
        await cluster.start_broker(1)
        await asyncio.to_thread(admit_administrator, cluster.bootstrap)
        yield cluster


def recorded() -> dict[str, ResponseSet]:
    """Return the responses of Kafka 4.2."""
    found: dict[str, ResponseSet] = json.loads(_RECORDED.read_text())
    return found


def differences(expected: dict[str, ResponseSet], given: dict[str, ResponseSet]) -> list[str]:
    """Return a description of each request whose responses differ."""
    assert {rights: set(responses) for rights, responses in expected.items()} == {
        rights: set(responses) for rights, responses in given.items()
    }, "the requests differ: record the responses again"
    return [
        f"{rights}: {name}\n  expected {expected[rights][name]}\n  given    {response}"
        for rights, responses in given.items()
        for name, response in responses.items()
        if expected[rights][name] != response
    ]


def responses_under_all_rights(address: str) -> dict[str, ResponseSet]:
    """Return the compared responses, by rights and request."""
    ids = prepare(address)
    found: dict[str, ResponseSet] = {}
    for rights, acls in RIGHTS.items():
        set_rights(address, acls)
        responses = _responses(address, ids)
        found[rights] = {name: responses[name] for name in responses if is_compared(rights, name)}
    as_recorded: dict[str, ResponseSet] = json.loads(json.dumps(found, default=str))
    return as_recorded


def _responses(address: str, ids: dict[str, UUID]) -> ResponseSet:
    """Return the responses to all requests, each on its own connection."""
    responses: ResponseSet = {}
    for question in (*questions(ids), *share_state_questions(ids[HIDDEN])):
        with HostClient(address) as client:
            response = client.send_request(question.api, question.request, question.version)
        responses[question.name] = comparable(
            response, {str(found): name for name, found in ids.items()}
        )
    return responses


def comparable(value: Any, names: dict[str, str]) -> Any:
    """Return a response with names in place of ids, in normalized order."""
    if isinstance(value, dict):
        return {
            key: bool(item) if key == "configs" else comparable(item, names)
            for key, item in value.items()
            if key not in NOT_COMPARED
        }
    if isinstance(value, list):
        items = [comparable(item, names) for item in value if not is_internal(item)]
        return sorted(items, key=lambda item: json.dumps(item, default=str, sort_keys=True))
    found = names.get(str(value), value)
    return "an id" if isinstance(found, str) and _ID.fullmatch(found) else found


def is_internal(item: Any) -> bool:
    """Return whether this is an internal topic, whose partitions differ in Kafka."""
    return isinstance(item, dict) and str(item.get("name")).startswith("__")


def is_compared(rights: str, question: str) -> bool:
    if question in NEVER_COMPARED or (rights in DELETING and question in OF_DELETED_TOPICS):
        return False
    if question in OTHER_REASONS:
        return rights != "describe"
    return rights != "cluster" or (
        question not in READ_BY_BROKERS and not question.endswith((" state", " summary"))
    )


def main() -> None:
    """Record the responses of Kafka."""
    with kafka_with_acls() as address:
        found = responses_under_all_rights(address)
    parts = (
        f"{json.dumps(rights)}: {{\n"
        + ",\n".join(f"{json.dumps(name)}: {json.dumps(responses[name])}" for name in responses)
        + "\n}"
        for rights, responses in found.items()
    )
    _RECORDED.write_text("{\n" + ",\n".join(parts) + "\n}\n")


if __name__ == "__main__":
    main()
