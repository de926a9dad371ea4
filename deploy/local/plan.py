"""Plan a local cluster: its processes, their arguments and their ports.

Invariant: pure; the same options and ports result in the same plan. Timeouts are shorter than in
production, because developers wait for them.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import quote

from penstock.deploy.local.signatures import ACCESS_KEY, SECRET_VARIABLE

if TYPE_CHECKING:
    from penstock.deploy.local.security import SecurityFiles
    from penstock.deploy.node.config.definition import Role as NodeRole
    from penstock.deploy.node.config.effective import Effective

Role = Literal["store", "controller", "broker"]

BUCKET: Final = "penstock"
WAL_BUCKET: Final = "penstock-wal"
SESSION_TIMEOUT_MS: Final = 3_000
SESSION_GRACE_MS: Final = 300
SHUTDOWN_TIMEOUT_MS: Final = 5_000
BROKERS_MAX: Final = 32
CLUSTER_ID: Final = "penstock-dev"
"""Cluster id in persistent stores if there are several controllers, which must have the same one.
With moto and memory, a new id is generated. A single controller generates its own.
"""

ELECTION_TIMEOUT_MS: Final = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """Options specified by the user. store: "moto", "memory", "file:DIR" or the URL of a bucket. A
    port of 0 means any free port.
    """

    brokers: int = 2
    controllers: int = 1
    host: str = "127.0.0.1"
    port: int = 9092
    controller_port: int = 0
    store_port: int = 0
    store: str = "moto"
    wal_store: str = ""
    """Empty: the WALs are in the store. "moto": a second bucket of moto. Otherwise a URL."""
    restart: bool = True
    auto_balance: bool = False
    log_level: str = "warning"
    settings: tuple[str, ...] = ()
    """KEY=VALUE settings, for the roles that have the setting. They override the plan's choices."""
    given: frozenset[str] = frozenset()
    """Settings that are set in the environment or a file and for which the plan does not choose a
    value.
    """
    config: str = ""
    """Path of the configuration file of every node; empty for none."""
    secure: bool = False
    """Whether clients need TLS and SCRAM, and nodes TLS among themselves."""
    console: bool = True
    """Whether to serve the web console, if it is installed."""
    console_port: int | None = None
    """None: the default port or, if it is taken, any free port."""
    allow_insecure: bool = False
    """Whether nodes may allow unauthenticated access at `host`."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The free ports that were found. store: 0 if the store is not a process of the cluster."""

    brokers: tuple[int, ...]
    controllers: tuple[int, ...]
    store: int


PORT_FLAGS: Final[Mapping[Role, str]] = {
    "store": "--store-port",
    "controller": "--controller-port",
    "broker": "--port",
}
_NODE_COMMAND: Final = ("-m", "penstock.deploy.cli")


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """One process. arguments: after the interpreter. node_id: None for the store. environment:
    additional variables; the URL of a store may contain keys, and all users of the machine can see
    arguments.
    """

    role: Role
    node_id: int | None
    host: str
    port: int
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])

    def load(self, environment: Mapping[str, str]) -> "Effective":
        """Return the configuration that the broker or controller loads if it starts with these
        variables and its own. Raises UsageError.
        """
        from penstock.deploy.node.config.load import load  # not for `--help`

        flags = self.arguments[len(_NODE_COMMAND) + 1 :]
        role: NodeRole = "controller" if self.role == "controller" else "broker"
        return load(role, flags, {**environment, **self.environment})

    @property
    def name(self) -> str:
        return self.role if self.role == "store" else f"{self.role} {self.node_id}"


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """A planned cluster. processes: in startup order, which is the reverse of the shutdown order.
    controller: addresses of all controllers, separated by commas.
    """

    bootstrap: str
    controller: str
    store_url: str
    wal_store_url: str
    restart: bool
    processes: tuple[ProcessPlan, ...]

    def of_role(self, role: Role) -> list[ProcessPlan]:
        return [process for process in self.processes if process.role == role]


def store_url(options: ClusterOptions, ports: Ports, secret: str = "") -> str:
    """Return the store URL used by nodes. Objects of a `file:` store are in a directory next to the
    controller's journal. secret: of moto.
    """
    if options.store == "moto":
        return _moto_url(BUCKET, ports, secret)
    if options.store == "memory":
        return "memory:"
    if options.store.startswith("file:"):
        return options.store.rstrip("/") + "/objects"
    return options.store


def _moto_url(bucket: str, ports: Ports, secret: str) -> str:
    url = f"s3://{bucket}?endpoint={quote(f'http://127.0.0.1:{ports.store}', safe=':/')}"
    keys = f"&access_key={ACCESS_KEY}&secret_key={quote(secret, safe='')}"
    return url + (keys if secret else "")


def plan_cluster(
    options: ClusterOptions,
    ports: Ports,
    controller_directory: str,
    security: "SecurityFiles | None" = None,
    *,
    store_secret: str = "",
) -> ClusterPlan:
    """Plan all processes. controller_directory: for the controllers' journals; it must live as long
    as the store. security: the files of a secure cluster. store_secret: the key with which clients
    of moto must sign requests.
    """
    reached = "127.0.0.1" if options.host in {"0.0.0.0", "::"} else options.host  # noqa: S104 - a comparison
    wal_store = options.wal_store
    if wal_store == "moto":
        wal_store = _moto_url(WAL_BUCKET, ports, store_secret)
    urls = {"PENSTOCK_STORE": store_url(options, ports, store_secret)}
    if wal_store:
        urls["PENSTOCK_WAL_STORE"] = wal_store
    log_level = () if "log.level" in options.given else ("--log-level", options.log_level)

    def node(role: "NodeRole", node_id: int, port: int, flags: Sequence[str]) -> ProcessPlan:
        secure = _security_flags(role, options, port, security)
        arguments = (*_NODE_COMMAND, role, *log_level, *flags, *secure)
        return ProcessPlan(role, node_id, reached, port, arguments, urls)

    processes: list[ProcessPlan] = []
    if options.store == "moto":
        buckets = ("--bucket", BUCKET, "--bucket", WAL_BUCKET)
        command = ("-m", "penstock.deploy.local.moto_store", *buckets)
        secret = {SECRET_VARIABLE: store_secret}
        processes.append(ProcessPlan("store", None, "127.0.0.1", ports.store, command, secret))
    addresses = [f"{reached}:{port}" for port in ports.controllers]
    for number, port in enumerate(ports.controllers):
        flags = _controller_flags(options, number, port, addresses, controller_directory)
        processes.append(node("controller", number, port, flags))
    controller = ",".join(addresses)
    for number, port in enumerate(ports.brokers):
        flags = _broker_flags(options, number, port, controller)
        processes.append(node("broker", number, port, flags))
    return ClusterPlan(
        ",".join(f"{reached}:{port}" for port in ports.brokers),
        controller,
        urls["PENSTOCK_STORE"],
        wal_store,
        options.restart,
        tuple(processes),
    )


def _controller_flags(
    options: ClusterOptions, number: int, port: int, addresses: Sequence[str], directory: str
) -> tuple[str, ...]:
    peers = quorum_peers(addresses)
    chosen: dict[str, object] = {
        "broker.session.timeout.ms": SESSION_TIMEOUT_MS,
        "broker.session.grace.ms": SESSION_GRACE_MS,
    }
    own: dict[str, object] = {
        "metadata.log.dir": f"{directory}/{number}" if peers else directory,
        "listeners": f"{_bracketed(options.host)}:{port}",
    }
    if options.auto_balance:
        own["auto.balance.enable"] = "true"
    if peers:
        chosen["controller.quorum.election.timeout.ms"] = ELECTION_TIMEOUT_MS
        cluster_id = CLUSTER_ID
        if options.store in {"moto", "memory"}:  # whose directory is new at each start
            cluster_id += f"-{hashlib.sha256(directory.encode()).hexdigest()[:12]}"
        own |= {
            "cluster.id": cluster_id,
            "node.id": number,
            "controller.quorum.voters": ",".join(peers),
        }
    return _flags("controller", options, chosen, own)


def _flags(
    role: "NodeRole",
    options: ClusterOptions,
    chosen: Mapping[str, object],
    own: Mapping[str, object],
) -> tuple[str, ...]:
    """Return the flags of a node. chosen: the plan's choices, which users may override. own: flags
    that nodes need to find each other.
    """
    from penstock.deploy.node.config.definition import flag_of, roles_with  # not for `--help`

    flags = ["--config", options.config] if options.config else []
    if options.allow_insecure:
        flags.append(flag_of("allow.insecure"))
    for name, value in chosen.items():
        flags += () if name in options.given else (flag_of(name), str(value))
    for text in options.settings:
        flags += ("--set", text) if role in roles_with(text.partition("=")[0].strip()) else ()
    for name, value in own.items():
        flags += (flag_of(name), str(value))
    return tuple(flags)


def quorum_peers(addresses: Sequence[str]) -> tuple[str, ...]:
    """Return the `controller.quorum.voters` setting; empty for a single controller."""
    if len(addresses) == 1:
        return ()
    return tuple(f"{number}@{address}" for number, address in enumerate(addresses))


def _broker_flags(
    options: ClusterOptions, node_id: int, port: int, controller: str
) -> tuple[str, ...]:
    chosen = {"shutdown.timeout.ms": SHUTDOWN_TIMEOUT_MS, "group.initial.rebalance.delay.ms": 0}
    own = {
        "node.id": node_id,
        "listeners": f"{_bracketed(options.host)}:{port}",
        "controller.quorum.bootstrap.servers": controller,
    }
    return _flags("broker", options, chosen, own)


def _security_flags(
    role: "NodeRole", options: ClusterOptions, port: int, files: "SecurityFiles | None"
) -> tuple[str, ...]:
    """Return the flags of a node in a secure cluster."""
    if files is None:
        return ()
    from penstock.deploy.local.security import AUTHORIZER_SETTINGS, CLIENT_PROTOCOL
    from penstock.deploy.node.config.definition import flag_of

    given = files.node_settings(role) | AUTHORIZER_SETTINGS
    if role == "broker":
        given |= files.broker_settings()
        given["listeners"] = f"{CLIENT_PROTOCOL}://{_bracketed(options.host)}:{port}"
    return tuple(part for name, value in given.items() for part in (flag_of(name), value))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
