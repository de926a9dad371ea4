"""Every API in every version, with null, empty and absent fields, under sets of ACLs.

`kafka_acl_matrix.json` contains the responses of Kafka 4.2, which `make interop` compares with
Kafka. `python -m tests.support.acl_matrix record` renews it, `print` prints the whole matrix.
"""

import asyncio
import json
import re
import sys
import tempfile
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Final, NamedTuple, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec

from penstock.base.acls import Operation
from penstock.protocol import apis
from penstock.protocol.apis import ApiSpec
from penstock.protocol.codecs import CODECS
from penstock.protocol.framing import encode_request_frame
from penstock.protocol.gen import find_coordinator
from tests.support.acl_requests import (
    GROUPS,
    HIDDEN,
    IDS,
    TOPICS,
    Question,
    all_questions,
    share_state_questions,
)
from tests.support.acl_rights import (
    RIGHTS,
    Creation,
    cluster_with_acls,
    kafka_with_acls,
    on_seen,
    prepare,
    set_rights,
)
from tests.support.host_client import ADMIN_HOST, HostClient
from tests.support.waiting import wait_until

_RECORDED: Final = Path(__file__).with_name("kafka_acl_matrix.json")
NAMES: Final = frozenset({*TOPICS, *GROUPS, *IDS})
AS_IT_IS: Final = "as it is"
CLOSED: Final = "closed"
SILENT: Final = "no response"
_TIMEOUT_S: Final = 5.0
"""Much longer than a broker takes to respond."""
MATRIX_RIGHTS: Final[Mapping[str, Sequence[Creation]]] = {
    "nothing": [],
    **{name: RIGHTS[name] for name in ("describe", "read", "write", "configs", "alter")},
    "delete": on_seen(Operation.DELETE),
    "cluster": RIGHTS["cluster"],
}
"""These include no rights on hidden resources, so that nothing is deleted, and no right to create
topics that must not exist in other cells.
"""


class Cell(NamedTuple):
    """One request of the matrix. variant: how it differs from the plain request."""

    api: ApiSpec
    version: int
    question: str
    variant: str
    request: Any

    @property
    def row(self) -> str:
        return f"{self.api.name} v{self.version} {self.question}: {self.variant}"


def cells(ids: dict[str, UUID]) -> Iterator[Cell]:
    """Yield all requests. ids: the topic ids."""
    requested: dict[int, list[Question]] = {}
    for question in all_questions(ids):
        requested.setdefault(question.api.key, []).append(question)
    for api in apis.APIS.values():
        for version in range(api.served_min, api.max + 1):
            for question in _of_version(requested.get(api.key, []), version):
                yield from _variants(api, version, question)


def _of_version(requested: Sequence[Question], version: int) -> list[Question]:
    """Return the requests whose fields exist in this version: those for the next higher version
    that has requests, otherwise those for the highest version.
    """
    versions = [_version(question) for question in requested]
    later = [number for number in versions if number >= version]
    expected = min(later) if later else max(versions)
    return [question for question in requested if _version(question) == expected]


def _version(question: Question) -> int:
    return question.api.max if question.version is None else question.version


def _variants(api: ApiSpec, version: int, question: Question) -> Iterator[Cell]:
    sent: set[bytes] = set()
    changes = [(AS_IT_IS, question.request), *_changed(question.request, "")]
    for variant, request in changes:
        try:
            frame = encode_request_frame(
                api, version, 0, CODECS[api.key].encode_request, request, client_id=""
            )
        except (TypeError, AttributeError):
            continue  # the field is not nullable in this version
        if bytes(frame) not in sent:
            sent.add(bytes(frame))
            yield Cell(api, version, question.name, variant, request)


def _changed(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield copies of a request, each with one field null, empty or absent."""
    hints = get_type_hints(type(value))
    for field in msgspec.structs.fields(value):
        present, name = getattr(value, field.name), f"{path}{field.name}"
        for variant, other in _others(hints[field.name], _default(field)):
            if type(other) is not type(present) or other != present:
                yield f"{name} {variant}", msgspec.structs.replace(value, **{field.name: other})
        for inner, copy in _inner(present, f"{name}."):
            yield inner, msgspec.structs.replace(value, **{field.name: copy})


def _inner(present: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield copies of a structure, or of a list with a different first element."""
    if isinstance(present, msgspec.Struct):
        yield from _changed(present, path)
    elif isinstance(present, list) and present:
        if isinstance(present[0], msgspec.Struct):
            for inner, copy in _changed(present[0], path):
                yield inner, [copy, *present[1:]]
        elif isinstance(present[0], str) and present[0]:
            yield f"{path}item empty", ["", *present[1:]]


def _others(hint: Any, default: Any) -> Iterator[tuple[str, Any]]:
    options = set(get_args(hint)) if NoneType in get_args(hint) else {hint}
    plain = options - {NoneType}
    if NoneType in options:
        yield "null", None
    if str in plain:
        yield "empty", ""
    if bytes in plain:
        yield "empty", b""
    if any(get_origin(option) in (list, Sequence) or option is Sequence for option in plain):
        yield "empty", []
    is_number = plain <= {int, bool, float}
    if default is not msgspec.NODEFAULT and not is_number:
        yield "absent", default


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


# --- responses ------------------------------------------------------------------------------------


def outcome(response: Any) -> str:
    """Return the errors in a response by element, and the names that it reveals."""
    codes: set[str] = set()
    names: set[str] = set()

    def look(value: Any, path: str) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                if key == "error_code":
                    codes.add(f"{path}{item}")
                elif key.endswith("error_code") and item:
                    codes.add(f"{key.removesuffix('_error_code')}={item}")
                else:
                    look(item, path if not isinstance(item, list) else f"{key}=")
        elif isinstance(value, list):
            for item in value:
                look(item, path)
        elif value in NAMES:
            names.add(value)

    look(response, "")
    return " ".join([*sorted(codes), *(["|", *sorted(names)] if names else [])])


def codes_of(text: str) -> Iterator[tuple[str, int]]:
    """Yield the error codes of an outcome, with the part that contains them."""
    for word in text.partition("|")[0].split():
        part, _, code = word.rpartition("=")
        if code.lstrip("-").isdigit():
            yield part, int(code)


def outcomes(address: str, ids: dict[str, UUID]) -> dict[str, str]:
    """Return the outcome of each request, on one connection per API and version."""
    found: dict[str, str] = {}
    client: HostClient | None = None
    last: tuple[int, int] | None = None
    for cell in cells(ids):
        if client is None or last != (cell.api.key, cell.version):
            if client is not None:
                client.close()
            client = HostClient(address, timeout_s=_TIMEOUT_S)
            last = (cell.api.key, cell.version)
        try:
            found[cell.row] = outcome(client.send_request(cell.api, cell.request, cell.version))
        except (EOFError, OSError) as error:
            found[cell.row] = SILENT if isinstance(error, TimeoutError) else CLOSED
            client.close()
            client = None
    if client is not None:
        client.close()
    return found


Matrix = dict[str, dict[str, str]]
"""Outcomes by row and set of rights."""


def _coordinates_states(admin: HostClient, ids: dict[str, UUID]) -> bool:
    """Return whether the share coordinator has loaded its states."""
    key = f"{GROUPS[1]}:{urlsafe_b64encode(ids[HIDDEN].bytes).decode().rstrip('=')}:0"
    requested = find_coordinator.FindCoordinatorRequest(key, 2, [key])
    admin.send_request(apis.FIND_COORDINATOR, requested)
    questions = {item.name: item for item in share_state_questions(ids[HIDDEN])}
    question = questions["initialize state"]
    return outcome(admin.send_request(question.api, question.request)) == "partitions=0"


def matrix(address: str) -> Matrix:
    ids = prepare(address)
    with HostClient(address, ADMIN_HOST) as admin:
        wait_until(lambda: _coordinates_states(admin, ids))
    rows: Matrix = {}
    for rights, acls in MATRIX_RIGHTS.items():
        set_rights(address, acls)
        for row, found in outcomes(address, ids).items():
            rows.setdefault(row, {})[rights] = found
    return rows


# --- differences ----------------------------------------------------------------------------------

_PARTS: Final = r"\.(partition_data|partitions|partition_indexes) empty"
_KAFKA_FAILS: Final = "Kafka fails internally; Penstock refuses the request"
_BROKERS_READ: Final = "brokers of Penstock ask each other with ClusterAction"
_LEFT_OUT: Final = "a topic without partitions is in one of the responses only"
REASONS: Final[Sequence[tuple[str, str, str]]] = (
    (rf"(Produce|ListOffsets|OffsetCommit) .*{_PARTS}", "", _LEFT_OUT),
    (rf"(AddPartitionsToTxn|WriteTxnMarkers|AlterReplicaLogDirs) .*{_PARTS}", "", _LEFT_OUT),
    (r"Fetch .*topic_id null", "", "Kafka fails internally; Penstock does not find the topic"),
    (r"Metadata v1[23] .*(name|topic_id) null", "", _KAFKA_FAILS),
    (r"(ListOffsets|OffsetFetch|DescribeProducers) ", "cluster", _BROKERS_READ),
    (r"(ListGroups|ShareGroupDescribe) ", "cluster", _BROKERS_READ),
    (r"AddPartitionsToTxn .*transactions empty", "cluster", "Kafka never responds"),
    (r"CreateDelegationToken .*owner_principal_type null", "", _KAFKA_FAILS),
    (r"DescribeUserScramCredentials .*users null", "", "Kafka never responds"),
    (r"DescribeUserScramCredentials ", "", "Kafka's refusal names a user without a name"),
    (r"DescribeProducers .*name empty", "", "Kafka checks the name first; both refuse it"),
    (r"(GetTelemetrySubscriptions|PushTelemetry) ", "", "this cluster takes no client metrics"),
    (r"ShareGroupHeartbeat .*member_id empty", "read", "Kafka checks the id first; both refuse it"),
    (r"Share(Fetch|Acknowledge) .*(group|member)_id null", "", _KAFKA_FAILS),
    (r"Share(Fetch|Acknowledge) .*member_id empty", "read", "both refuse it, with other errors"),
    (r"\w+ShareGroupState.*group_id empty", "cluster", "Kafka refuses it without an error"),
    (r"\w+ShareGroupState.*topic_id null", "cluster", "both refuse it, with other errors"),
    (r"DescribeShareGroupOffsets .*partitions empty", "", "Kafka fails internally"),
)
"""Intended differences from Kafka: prefixes of row names, the sets of rights (empty: all of them),
and the reason.
"""


def reason_of(row: str, rights: str) -> str:
    found = (why for start, whose, why in REASONS if _is_about(start, whose, row, rights))
    return next(found, "")


def _is_about(start: str, whose: str, row: str, rights: str) -> bool:
    return whose in ("", rights) and re.match(start, row) is not None


def recorded() -> Matrix:
    """Return the responses of Kafka 4.2. A single outcome applies to all rights."""
    found = json.loads(_RECORDED.read_text())
    return {
        row: dict.fromkeys(MATRIX_RIGHTS, cell) if isinstance(cell, str) else cell
        for row, cell in found.items()
    }


def differences(expected: Matrix, given: Matrix) -> list[str]:
    """Return a description of each cell that differs without a reason, and of each reason that no
    cell needs.
    """
    assert expected.keys() == given.keys(), sorted(expected.keys() ^ given.keys())[:20]
    different = {
        (row, rights): f"{row} [{rights}]\n  expected {wanted}\n  given    {given[row][rights]}"
        for row, of_rights in expected.items()
        for rights, wanted in of_rights.items()
        if given[row][rights] != wanted
    }
    in_vain = [
        start
        for start, whose, _ in REASONS
        if not any(_is_about(start, whose, *cell) for cell in different)
    ]
    return [
        *(text for cell, text in different.items() if not reason_of(*cell)),
        *(f"nothing differs any more: {start}" for start in in_vain),
    ]


def record() -> None:
    with kafka_with_acls() as address:
        found = matrix(address)
    rows = (
        f"{json.dumps(row)}: {json.dumps(_shortened(of_rights))}"
        for row, of_rights in found.items()
    )
    _RECORDED.write_text("{\n" + ",\n".join(rows) + "\n}\n")


def _shortened(of_rights: dict[str, str]) -> str | dict[str, str]:
    different = set(of_rights.values())
    return different.pop() if len(different) == 1 else of_rights


def lines(expected: Matrix, given: Matrix) -> Iterator[str]:
    """Yield the matrix as text: equal cells once, different ones with both outcomes."""
    for row, of_rights in expected.items():
        yield row
        rights_of: dict[tuple[str, str, str], list[str]] = {}
        for rights, wanted in of_rights.items():
            found = given[row][rights]
            reason = "" if wanted == found else reason_of(row, rights) or "NO REASON"
            rights_of.setdefault((wanted, found, reason), []).append(rights)
        for (wanted, found, reason), whose in rights_of.items():
            who = "any rights" if len(whose) == len(of_rights) else ", ".join(whose)
            yield f"    {who}: " + (
                f"Kafka {wanted}; Penstock {found} ({reason})" if reason else wanted
            )


async def _given() -> Matrix:
    with tempfile.TemporaryDirectory() as directory:
        async with cluster_with_acls(Path(directory)) as cluster:
            return await asyncio.to_thread(matrix, cluster.bootstrap)


def main() -> None:
    if sys.argv[1:] == ["record"]:
        record()
        return
    expected, given = recorded(), asyncio.run(_given())
    for line in lines(expected, given):
        sys.stdout.write(f"{line}\n")
    cell_count = sum(map(len, expected.values()))
    different = sum(
        given[row][rights] != wanted
        for row, of_rights in expected.items()
        for rights, wanted in of_rights.items()
    )
    unexplained = differences(expected, given)
    sys.stdout.write(
        f"{cell_count} cells, {different} differ, {len(unexplained)} without a reason\n"
    )


if __name__ == "__main__":
    main()
