"""Exchanges of administrators with brokers: ACLs, configs, quotas, SCRAM users and leaders."""

import asyncio
from random import Random
from typing import Any, Final

from penstock.base.acls import Operation
from penstock.base.scram import ScramMechanism
from penstock.controller.metadata.configs import TOPIC_RESOURCE
from penstock.protocol import apis
from tests.sim.directed import Script
from tests.sim.overtaken import LATE_S, Exchange
from tests.sim.scripts import late_admin as requests

_RATES: Final = ("producer_byte_rate", "consumer_byte_rate")


async def administer(script: Script, rng: Random, number: int) -> None:
    """Make changes to one topic and one user, and undo some of them. Late copies may repeat a
    change, as in Kafka, but change nothing else.
    """
    topic, user = f"administered{number}", f"user{number}"
    await script.create(topic, cleanup_policy="delete")
    mechanisms = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
    for request in (
        *(requests.adding_acl(operation, topic) for operation in (Operation.READ, Operation.WRITE)),
        requests.removing_acl(Operation.WRITE, topic),
        *(requests.altering_quota(rate, 1e3, user) for rate in _RATES),
        requests.altering_quota(_RATES[0], None, user),
        *(requests.altering_credential(mechanism, user) for mechanism in mechanisms),
        requests.altering_credential(mechanisms[0], user, deletes=True),
        requests.setting("cleanup.policy", "compact", requests.APPEND, topic),
        requests.setting("max.message.bytes", "1000", topic=topic),
    ):
        await requests.succeed(script, request)
        await asyncio.sleep(rng.choice((0.0, 0.05)))
    await asyncio.sleep(LATE_S)
    image = script.world.metadata.image
    operations = {acl.operation for acl in image.acls if acl.resource_name == topic}
    assert Operation.READ in operations, f"the read ACL of {topic} is missing"
    rates = [values for entity, values in image.quotas.items() if entity[0].name == user]
    assert rates[0].get(_RATES[1]) == 1e3, f"{user} has the quotas {rates}"
    assert mechanisms[1] in image.scram.of(user), f"a credential of {user} is missing"
    found = dict(image.configs.get(TOPIC_RESOURCE, topic))
    expected = {"cleanup.policy": "delete,compact", "max.message.bytes": "1000"}
    assert found == expected, f"{topic} has the configs {found}"


async def move(script: Script, rng: Random, number: int) -> None:
    """Move the leader of a partition there and back by reassignment and by election, and replace
    its configs. The partition keeps its records.
    """
    topic = f"moved{number}"
    part, written = (topic, 0), list[bytes]()
    await script.create(topic)
    for serial, replicas in enumerate(((1, 2), (2, 1), (2, 1))):
        for request in (
            requests.reassigning_to(*replicas, topic=topic),
            requests.electing_preferred(topic),
        ):
            await script.send_request(script.broker(1), *request)
        await requests.succeed(script, requests.replacing("retention.ms", f"100{serial}", topic))
        written.append(b"%d" % serial)
        await script.write(part, (b"k", written[-1]), producer_id=1, sequence=serial)
        await asyncio.sleep(rng.uniform(0.0, LATE_S))
    await asyncio.sleep(LATE_S)
    read = [record.value for record in await script.read(part)]
    assert read == written, f"{written} are written, {topic} has {read}"
    found: dict[str, Any] = dict(script.world.metadata.image.configs.get(TOPIC_RESOURCE, topic))
    assert found.keys() == {"retention.ms"}, f"{topic} has the configs {found}"


ADMIN_EXCHANGES: Final = (
    Exchange(
        administer,
        (
            apis.CREATE_ACLS,
            apis.DELETE_ACLS,
            apis.ALTER_CLIENT_QUOTAS,
            apis.ALTER_USER_SCRAM_CREDENTIALS,
            apis.INCREMENTAL_ALTER_CONFIGS,
        ),
    ),
    Exchange(move, (apis.ALTER_PARTITION_REASSIGNMENTS, apis.ELECT_LEADERS, apis.ALTER_CONFIGS)),
)
