"""The APIs without their own exchange: requests that read, or that change nothing.

Excluded: ApiVersions and SASL, which affect only the connection on which they arrive, and client
metrics, which brokers without a receiver do not advertise and which change only metrics. Delegation
token requests are rejected on these connections: see the scenario `acls`.
"""

from collections import defaultdict
from collections.abc import Collection
from typing import Any, Final
from uuid import UUID

from penstock.protocol import apis
from tests.sim.connections import Connection
from tests.sim.directed import Script
from tests.sim.overtaken import COPIES_MIN
from tests.support.acl_requests import TOPICS, Question, all_questions

LEFT_OUT: Final = frozenset(
    {
        apis.API_VERSIONS.key,
        apis.SASL_HANDSHAKE.key,
        apis.SASL_AUTHENTICATE.key,
        apis.GET_TELEMETRY_SUBSCRIPTIONS.key,
        apis.PUSH_TELEMETRY.key,
    }
)
_DELAY_S: Final = 0.05
_TIMEOUT_S: Final = 10.0


async def ask_the_rest(script: Script, used: Collection[int]) -> None:
    """Send requests of the other APIs with late copies, which must not change metadata. used: the
    API keys of sent requests.
    """
    broker, found = script.broker(1), defaultdict[int, list[Question]](list)
    for question in all_questions({name: UUID(int=at) for at, name in enumerate(TOPICS, 1)}):
        found[question.api.key].append(question)
    rest = [found[key] for key in sorted(apis.APIS.keys() - LEFT_OUT - set(used))]
    for questions in rest:
        for question in questions:
            await script.send_request(broker, *_request(question))
    before = _metadata(script)
    for questions in rest:
        for at in range(COPIES_MIN):
            request = _request(questions[at % len(questions)])
            connection: Any = script.world.connect(broker)
            left = connection.leave_behind(request, _DELAY_S)
            await Connection.send_request(connection, *request, _TIMEOUT_S)
            left.is_overtaken = True
    await script.world.overtaken.arrived()
    if _metadata(script) != before:
        script.world.fail("late copies of requests that change nothing change metadata")


def _request(question: Question) -> tuple[Any, int, Any]:
    version = question.api.max if question.version is None else question.version
    return question.api, version, question.request


def _metadata(script: Script) -> list[Any]:
    image = script.world.metadata.image
    topics = [(topic.name, topic.topic_id, len(topic.partitions)) for topic in image.topics]
    return [sorted(topics), *map(repr, (image.configs, image.acls, image.quotas, image.scram))]
