"""Every version of every API declares its required rights and refuses clients without them. With
null, empty or absent fields it responds as Apache Kafka 4.2 does. Runs over real sockets.
"""

import asyncio
from pathlib import Path

from penstock.base.acls import Operation
from penstock.base.principal import USER, Principal
from penstock.broker.handlers.table import API_RIGHTS, INLINE, make_handlers
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.requests.api_rights import ApiRights
from penstock.broker.requests.authorization import check_cluster
from penstock.broker.requests.node import Node
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode, known_code
from penstock.protocol.gen import heartbeat
from tests.support.acl_matrix import (
    AS_IT_IS,
    Cell,
    Matrix,
    cells,
    codes_of,
    differences,
    matrix,
    recorded,
)
from tests.support.acl_requests import HIDDEN, SEEN, UNKNOWN_ID
from tests.support.acl_rights import cluster_with_acls
from tests.support.handlers import Fixture

HARMLESS = frozenset({ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INVALID_REQUEST})
"""Codes that a client without rights may receive. As in Kafka, topic ids are not secret."""
SERVED = frozenset({*make_handlers(has_client_metrics=True), *INLINE})


async def test_every_api_version_responds_as_kafka_under_limited_rights(tmp_path: Path) -> None:
    """`make interop` verifies the recorded responses against Kafka."""
    async with cluster_with_acls(tmp_path) as cluster:
        given = await asyncio.to_thread(matrix, cluster.bootstrap)
    found = differences(recorded(), given)
    assert not found, "\n".join(found)
    assert not (problems := [text for cell in _requested() if (text := _problem(cell, given))]), (
        "\n".join(problems)
    )


def _requested() -> list[Cell]:
    """Return at least one request for each served version of each API."""
    requested = [
        cell for cell in cells({SEEN: UNKNOWN_ID, HIDDEN: UNKNOWN_ID}) if cell.variant == AS_IT_IS
    ]
    versions = {(cell.api.key, cell.version) for cell in requested}
    assert versions == {
        (key, version)
        for key in SERVED
        for version in range(apis.APIS[key].served_min, apis.APIS[key].max + 1)
    }
    return requested


def _problem(cell: Cell, given: Matrix) -> str:
    """Return what a response reveals to a client without rights, or "" if it reveals nothing."""
    declared: ApiRights = API_RIGHTS[cell.api.key]
    if declared.unchecked:
        return ""
    text = given[cell.row]["nothing"]
    codes = {(part, known_code(code)) for part, code in codes_of(text)}
    granted = {part for part, code in codes if part and code is ErrorCode.NONE}
    others = {code for _, code in codes} - declared.refusals - HARMLESS
    is_refused = not declared.refusals.isdisjoint({code for _, code in codes})
    if granted or others or not (is_refused or declared.hides):
        return f"{cell.row}: {text}"
    return ""


def test_every_served_api_declares_its_rights() -> None:
    assert API_RIGHTS.keys() == SERVED


async def test_handler_that_checks_an_undeclared_right_fails() -> None:
    def handle(node: Node, ctx: RequestContext) -> Response:
        check_cluster(node, ctx, Operation.ALTER)
        return None

    fixture = Fixture()
    fixture.connection.principal = Principal(USER, "alice")
    fixture.authorize(super_users="User:alice")
    fixture.use({apis.HEARTBEAT.key: handle})
    response = await fixture.send_request(
        apis.HEARTBEAT, 4, heartbeat.HeartbeatRequest("g", 1, "m")
    )
    assert known_code(response.error_code) is ErrorCode.UNKNOWN_SERVER_ERROR
