"""Which settings each role has: those of the config classes that its process is built from, and of
the process itself.

Invariant: within a role a name occurs once; no name is the beginning of another one (so that every
name can be a TOML key with dots). Pure. Must not repeat what an annotation says (see
`base.settings`).
"""

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final, Literal

from base.listeners import parse_listeners
from base.settings import (
    Field,
    Kind,
    Setting,
    SettingInvalid,
    check,
    fields_of,
)
from broker.config import BrokerConfig
from controller.config import ControllerConfig
from deploy.node.logs import LEVELS
from stream.compaction.plan import CompactionConfig
from stream.config import StreamConfig

Role = Literal["broker", "controller"]
ROLES: Final[tuple[Role, ...]] = ("broker", "controller")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessConfig:
    """What every process of a cluster needs."""

    store: Annotated[str, Setting("store", Kind.STORE)]
    """Where all data are, the same for all nodes of a cluster:
    s3://BUCKET[/PREFIX]?endpoint=URL&region=NAME or file:DIR. Credentials come from the
    environment, files or the machine's role, as for other AWS clients, or as access_key and
    secret_key of the URL.
    """

    log_level: Annotated[str, Setting("log.level", Kind.ENUM, choices=tuple(LEVELS))] = "info"
    """The least important lines that are logged."""

    health_listener: Annotated[str, Setting("health.listener", Kind.TEXT)] = ""
    """host:port at which /startz, /livez, /readyz (for the probes of orchestrators) and /metrics
    (Prometheus) are answered over HTTP.
    Empty: nowhere.
    """

    traces_otlp_endpoint: Annotated[str, Setting("traces.otlp.endpoint", Kind.TEXT)] = ""
    """http://HOST:PORT of an OpenTelemetry collector (OTLP over HTTP) that gets traces. Empty: none
    are made. Needs the extra `traces`.
    """

    traces_sample_per_million: Annotated[
        int, Setting("traces.sample.per.million", Kind.INT, 0, 1_000_000)
    ] = 1_000
    """How many of a million produce requests are traced; each costs about 200 us of CPU. Moves of
    partitions are all traced.
    """

    def __post_init__(self) -> None:
        check(self)
        if self.traces_otlp_endpoint and not self.traces_otlp_endpoint.startswith(
            ("http://", "https://")
        ):
            raise SettingInvalid(
                "traces_otlp_endpoint",
                self.traces_otlp_endpoint,
                "http://HOST:PORT or https://HOST:PORT",
            )
        if self.health_listener:
            parse_listeners("health_listener", [self.health_listener])


PARTS: Final[dict[Role, tuple[type[Any], ...]]] = {
    "broker": (ProcessConfig, BrokerConfig, StreamConfig, CompactionConfig),
    "controller": (ProcessConfig, ControllerConfig),
}
"""The config classes of a role, in the order in which their settings are listed."""


@cache
def settings_of(role: Role) -> dict[str, Field]:
    """The settings of a role by their names."""
    found: dict[str, Field] = {}
    for part in PARTS[role]:
        for field in fields_of(part):
            assert field.name not in found, field.name
            found[field.name] = field
    return found


def roles_with(name: str) -> list[Role]:
    """Who has a setting of this name."""
    return [role for role in ROLES if name in settings_of(role)]


def flag_of(name: str) -> str:
    """As it is given on the command line."""
    return "--" + name.replace(".", "-")


def variable_of(name: str) -> str:
    """As it is given in the environment."""
    return "PENSTOCK_" + name.replace(".", "_").upper()
