"""List the settings of each role, from the config classes of the role and of the process.

Invariant: within a role each name occurs once. Only names in `TABLES` are prefixes of other names,
so every other name can be a dotted TOML key. Pure. Does not repeat annotations (see
`base.settings`).
"""

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final, Literal

from penstock.base.listeners import LISTENER_PREFIX, ListenerKey, parse_listeners
from penstock.base.settings import (
    Field,
    Kind,
    Setting,
    SettingInvalid,
    check,
    fields_of,
)
from penstock.broker.config import BrokerConfig
from penstock.broker.listener_settings import listener_field, listener_settings
from penstock.broker.security.config import SecurityConfig
from penstock.controller.api.tls import TlsConfig
from penstock.controller.config import ControllerConfig
from penstock.deploy.node.config.console import ConsoleConfig
from penstock.deploy.node.logs import LEVELS
from penstock.stream.compaction.plan import CompactionConfig
from penstock.stream.config import StreamConfig

Role = Literal["broker", "controller"]
ROLES: Final[tuple[Role, ...]] = ("broker", "controller")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessConfig:
    """Settings of every process of a cluster."""

    store: Annotated[str, Setting("store", Kind.STORE)]
    """The object store, the same for all nodes of a cluster:
    s3://BUCKET[/PREFIX]?endpoint=URL&region=NAME, gs://BUCKET[/PREFIX],
    az://ACCOUNT/CONTAINER[/PREFIX] or file:DIR. Credentials come from the environment, files or the
    identity of the pod or machine, as in other clients of the cloud, or from the URL. In S3,
    sse=AES256 (SSE-S3) or sse=aws:kms (SSE-KMS, with sse_kms_key_id=ARN and sse_bucket_key=true)
    encrypts each object that is written.
    """

    wal_store: Annotated[str, Setting("wal.store", Kind.STORE)] = ""
    """A second object store for the WALs, in another bucket or prefix than `store`, which
    determines the latency of produce requests: s3://, gs:// or az://, or file:DIR on a file system
    that
    all nodes share. The same for all nodes of a cluster. Empty: WALs are in `store`. See
    [Choose a WAL store](../how-to/wal-store.md).
    """

    log_level: Annotated[str, Setting("log.level", Kind.ENUM, choices=tuple(LEVELS))] = "info"
    """The lowest level that is logged. The audit log has no level."""

    health_listener: Annotated[str, Setting("health.listener", Kind.TEXT)] = ""
    """HOST:PORT for HTTP requests to /startz, /livez, /readyz (probes of orchestrators) and
    /metrics (Prometheus). Empty: no such listener.
    """

    allow_insecure: Annotated[bool, Setting("allow.insecure", Kind.BOOL)] = False
    """Whether this node may have listeners on other addresses than loopback that allow
    unauthenticated access, and whether a broker with secure listeners may connect to controllers
    there without TLS. Otherwise it refuses to start. The node logs a warning about them every hour.
    Applies to `health_listener` only with `console.access`.
    """

    traces_otlp_endpoint: Annotated[str, Setting("traces.otlp.endpoint", Kind.TEXT)] = ""
    """URL (http://HOST:PORT) of an OpenTelemetry collector (OTLP over HTTP) that receives traces.
    Empty: no traces. Needs the `traces` extra.
    """

    traces_sample_per_million: Annotated[
        int, Setting("traces.sample.per.million", Kind.INT, 0, 1_000_000)
    ] = 1_000
    """Number of produce requests per million that are traced; each takes about 200 us of CPU. All
    moves of partitions are traced.
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
    "broker": (
        ProcessConfig,
        ConsoleConfig,
        TlsConfig,
        BrokerConfig,
        SecurityConfig,
        StreamConfig,
        CompactionConfig,
    ),
    "controller": (ProcessConfig, ConsoleConfig, TlsConfig, ControllerConfig),
}
"""The config classes of each role, in the order of the documentation."""


@cache
def settings_of(role: Role) -> dict[str, Field]:
    """Return the settings of a role by name."""
    found: dict[str, Field] = {}
    for part in PARTS[role]:
        for field in fields_of(part):
            assert field.name not in found, field.name
            found[field.name] = field
    return found


TABLES: Final = frozenset({"max.connections", "max.connections.per.ip"})
"""Names of Kafka settings that are prefixes of other names. A TOML file with both must quote the
longer name.
"""


def setting_of(role: Role, name: str) -> Field | None:
    """Return the setting of a role with this name, which may apply to a single listener, or
    None.
    """
    found = settings_of(role).get(name)
    return listener_field(name) if found is None and role == "broker" else found


def roles_with(name: str) -> list[Role]:
    """Return the roles that have a setting of this name."""
    return [role for role in ROLES if setting_of(role, name) is not None]


def flag_of(name: str) -> str:
    """Return the command line flag of a setting."""
    return "--" + name.replace(".", "-")


def variable_of(name: str) -> str:
    """Return the environment variable of a setting."""
    return "PENSTOCK_" + name.replace(".", "_").upper()


def listener_setting_of_variable(variable: str) -> str | None:
    """Return the setting of a single listener that this variable sets, or None. This includes
    listeners with underscores in their names.
    """
    rest = variable.removeprefix(variable_of(LISTENER_PREFIX))
    if rest == variable:
        return None
    for name in listener_settings():
        listener = rest.removesuffix("_" + name.replace(".", "_").upper())
        if listener != rest and listener:
            return str(ListenerKey(listener.lower(), name))
    return None
