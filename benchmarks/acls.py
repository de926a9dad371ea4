"""Measure the CPU time of authorizing one partition with 10,000 ACLs, as in a Fetch of 1,000
topics.

Cached: the same client has been checked before. New: the first check since the ACLs changed. The
index is measured without a socket, because 1 us would be lost in the noise of a request.
"""

import time
from types import SimpleNamespace
from typing import Any, Final, cast

from benchmarks.harness import Measure
from penstock.base.acls import STANDARD_AUTHORIZER, Operation, PatternType, Permission, ResourceType
from penstock.base.principal import USER, Principal
from penstock.broker.handlers.table import API_RIGHTS
from penstock.broker.requests.acl_authorizer import Authorizer
from penstock.broker.requests.audit import AuditLog
from penstock.broker.requests.authorization import allows_topic
from penstock.broker.security.config import SecurityConfig
from penstock.controller.metadata.records import AclEntry

ACLS: Final = 10_000
TOPICS: Final = 1_000
ROUNDS: Final = 50
_USERS: Final = 100


def acls() -> list[Measure]:
    config = SecurityConfig(authorizer=STANDARD_AUTHORIZER)
    authorizer = Authorizer(config, AuditLog(lambda: 0.0), API_RIGHTS)
    for number in range(ACLS):
        authorizer.index.add(_acl(number))
    node = cast("Any", SimpleNamespace(authorizer=authorizer))
    bare = cast("Any", SimpleNamespace(authorizer=None))
    connection = SimpleNamespace(principal=Principal(USER, "user-7"), peer_host="10.0.0.1")
    ctx = cast("Any", SimpleNamespace(connection=connection))
    names = [f"team-{number % _USERS}-topic-{number}" for number in range(TOPICS)]
    spare = _acl(ACLS)

    def check(who: Any) -> float:  # noqa: ANN401 - a node or a stand-in
        began = time.process_time()
        for name in names:
            allows_topic(who, ctx, Operation.READ, name, logs=False)
        return (time.process_time() - began) / len(names) * 1e6

    new: list[float] = []
    for number in range(ROUNDS):
        (authorizer.index.remove if number % 2 else authorizer.index.add)(spare)
        new.append(check(node))
    remembered = [check(node) for _ in range(ROUNDS)]
    without = [check(bare) for _ in range(ROUNDS)]
    title = "ACL check of a partition with 10,000 ACLs"
    return [
        Measure(title, _median(remembered), "us", 2, "lower"),
        Measure(f"{title}, first one after a change", _median(new), "us", 40, "lower"),
        Measure("the same without an authorizer", _median(without), "us", 0.5, "lower"),
    ]


def _acl(number: int) -> AclEntry:
    """Return one of many ACLs, of 100 users; half of them have prefixes, of 20 lengths."""
    is_prefix = number % 2 == 0
    name = f"team-{number % _USERS}-topic-{number}"
    return AclEntry(
        ResourceType.TOPIC,
        PatternType.PREFIXED if is_prefix else PatternType.LITERAL,
        name[: 4 + number % 20] if is_prefix else name,
        f"User:user-{number // 20 % _USERS}",
        "*" if number % 3 else f"10.0.{number % 200}.1",
        (Operation.READ, Operation.WRITE, Operation.ALL)[number % 3],
        Permission.DENY if number % 50 == 0 else Permission.ALLOW,
    )


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
