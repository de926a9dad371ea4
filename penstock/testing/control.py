"""Messages between the test process and the process of its cluster: one JSON document per line, and
one response to each command.

Invariant: pure values. Both sides belong to one installation, so messages need no versions.
"""

from typing import Final

import msgspec

LINE_BYTES_MAX: Final = 1 << 20


class Command(msgspec.Struct, frozen=True, kw_only=True, tag_field="do"):
    """The base of all commands."""


class Begin(Command, frozen=True, kw_only=True, tag="begin"):
    """A test begins: remember the existing topics and groups."""


class End(Command, frozen=True, kw_only=True, tag="end"):
    """A test has ended: remove faults, start all brokers, and delete topics and groups created
    since `Begin`.
    """


class KillBroker(Command, frozen=True, kw_only=True, tag="kill"):
    """Crash a broker: it does not flush, close or announce anything."""

    node_id: int


class RestartBroker(Command, frozen=True, kw_only=True, tag="restart"):
    """Start a broker on its port, after crashing it if it is running."""

    node_id: int


class AwaitTopic(Command, frozen=True, kw_only=True, tag="await-topic"):
    """Respond when the topic is in the metadata of every live broker and every partition is
    served.
    """

    topic: str
    timeout_ms: int


class AddFaults(Command, frozen=True, kw_only=True, tag="add-faults"):
    """Start injecting store failures, for all brokers or for `node_id`. `operations` are names of
    ObjectStore methods; if empty, all are affected.

    Rates are probabilities per call.
    """

    number: int
    down: bool
    error_rate: float
    lost_response_rate: float
    latency_p50_ms: float
    latency_p99_ms: float
    operations: list[str]
    node_id: int | None
    seed: int


class RemoveFaults(Command, frozen=True, kw_only=True, tag="remove-faults"):
    """Remove faults. The response contains the number of injected faults."""

    number: int


AnyCommand = Begin | End | KillBroker | RestartBroker | AwaitTopic | AddFaults | RemoveFaults


class CommandResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a command. `error` is empty on success, `injected` counts faults by kind, and
    `groups` lists groups that could not be deleted because they still have consumers.
    """

    error: str = ""
    injected: dict[str, int] = {}
    groups: list[str] = []


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """The first output line of the cluster's process: ports in the order of node ids, or the reason
    why it did not start.
    """

    error: str = ""
    ports: list[int] = []
    client_properties: str = ""
    """File with the connection properties of clients; empty without security."""
