"""What the test process and the process of its cluster tell each other: one JSON document a line,
each command answered by one.

Invariant: pure values. Both sides are of one installation, so nothing here needs versions.
"""

from typing import Final

import msgspec

LINE_BYTES_MAX: Final = 1 << 20


class Command(msgspec.Struct, frozen=True, kw_only=True, tag_field="do"):
    """Base."""


class Begin(Command, frozen=True, kw_only=True, tag="begin"):
    """A test begins: remember which topics and groups there are."""


class End(Command, frozen=True, kw_only=True, tag="end"):
    """A test is over: no faults, all brokers, and no topic or group that was not there when it
    began.
    """


class KillBroker(Command, frozen=True, kw_only=True, tag="kill"):
    """Crash: nothing is flushed, closed or said."""

    node_id: int


class RestartBroker(Command, frozen=True, kw_only=True, tag="restart"):
    """Start it again on its port; if it still runs, after a crash."""

    node_id: int


class AwaitTopic(Command, frozen=True, kw_only=True, tag="await-topic"):
    """Answer when every live broker knows the topic and every partition is served."""

    topic: str
    timeout_ms: int


class AddFaults(Command, frozen=True, kw_only=True, tag="add-faults"):
    """Let the store fail from now on. node_id: only for this broker. operations: names of the store
    port's methods; none: all.

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
    """The answer tells what was injected meanwhile."""

    number: int


AnyCommand = Begin | End | KillBroker | RestartBroker | AwaitTopic | AddFaults | RemoveFaults


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """error: empty if it worked. injected: faults by kind. groups: those that could not be removed
    because consumers are still in them.
    """

    error: str = ""
    injected: dict[str, int] = {}
    groups: list[str] = []


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of the cluster's process: ports in the order of node ids, or why it did not
    start.
    """

    error: str = ""
    ports: list[int] = []
