"""What a local cluster consists of: which processes, with which arguments, on which ports.

Invariant: pure; the same options and ports give the same plan. Nothing is looked up and nothing is started here.
Times are shorter than in production: a developer waits for every one of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import quote

Role = Literal["store", "controller", "broker"]

BUCKET: Final = "penstock"
SESSION_TIMEOUT_MS: Final = 3_000
SESSION_GRACE_MS: Final = 300
SHUTDOWN_TIMEOUT_MS: Final = 5_000
BROKERS_MAX: Final = 32
CLUSTER_ID: Final = "penstock-dev"
"""Of a cluster with several controllers, which have to agree on one; a controller that is alone makes up its own."""

ELECTION_TIMEOUT_MS: Final = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """What the user asked for. store: "moto", "memory", "file:DIR" or "s3://...". A port of 0 means any free one."""

    brokers: int = 2
    controllers: int = 1
    host: str = "127.0.0.1"
    port: int = 9092
    controller_port: int = 0
    store_port: int = 0
    store: str = "moto"
    restart: bool = True
    auto_balance: bool = False
    log_level: str = "warning"


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports that were found free. store is 0 where the store is no process of ours."""

    brokers: tuple[int, ...]
    controllers: tuple[int, ...]
    store: int


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """arguments: behind the interpreter. node_id: None for the store."""

    role: Role
    node_id: int | None
    host: str
    port: int
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.role if self.role == "store" else f"{self.role} {self.node_id}"


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """processes: in the order in which they are started; they are stopped in the opposite one. controller: addresses of all, by commas."""

    bootstrap: str
    controller: str
    store_url: str
    restart: bool
    processes: tuple[ProcessPlan, ...]

    def of_role(self, role: Role) -> list[ProcessPlan]:
        return [process for process in self.processes if process.role == role]


def broker_ports(options: ClusterOptions) -> Sequence[int]:
    """Consecutive ones from the first; all 0 if any will do."""
    return [options.port + index if options.port else 0 for index in range(options.brokers)]


def controller_ports(options: ClusterOptions) -> Sequence[int]:
    """Likewise."""
    return [options.controller_port + index if options.controller_port else 0 for index in range(options.controllers)]


def store_url(options: ClusterOptions, ports: Ports) -> str:
    """The store as brokers and controller open it. Objects of a `file:` store lie beside the controller's journal, not among it."""
    if options.store == "moto":
        return f"s3://{BUCKET}?endpoint={quote(f'http://127.0.0.1:{ports.store}', safe=':/')}"
    if options.store.startswith("file:"):
        return options.store.rstrip("/") + "/objects"
    return options.store


def shown_store(options: ClusterOptions, store_port: int) -> str:
    """The store as a person opens it."""
    return f"http://127.0.0.1:{store_port}/{BUCKET}" if options.store == "moto" else options.store


def plan_cluster(options: ClusterOptions, ports: Ports, controller_directory: str) -> ClusterPlan:
    """controller_directory: holds the controllers' journals; belongs to the store as long as that lives."""
    reached = "127.0.0.1" if options.host in {"0.0.0.0", "::"} else options.host  # noqa: S104 - a comparison
    url = store_url(options, ports)
    addresses = [f"{reached}:{port}" for port in ports.controllers]
    controller = ",".join(addresses)
    common = ("--store", url, "--log-level", options.log_level)
    processes: list[ProcessPlan] = []
    if options.store == "moto":
        processes.append(ProcessPlan("store", None, "127.0.0.1", ports.store, ("-m", "deploy.cluster.moto_store", "--bucket", BUCKET)))
    processes += [
        ProcessPlan(
            "controller",
            number,
            reached,
            port,
            ("-m", "deploy.cli", "controller", *common, *_controller_flags(options, number, port, addresses, controller_directory)),
        )
        for number, port in enumerate(ports.controllers)
    ]
    processes += [
        ProcessPlan(
            "broker", node_id, reached, port, ("-m", "deploy.cli", "broker", *common, *_broker_flags(options, node_id, port, controller))
        )
        for node_id, port in enumerate(ports.brokers)
    ]
    bootstrap = ",".join(f"{reached}:{port}" for port in ports.brokers)
    return ClusterPlan(bootstrap, controller, url, options.restart, tuple(processes))


def _controller_flags(options: ClusterOptions, number: int, port: int, addresses: Sequence[str], directory: str) -> tuple[str, ...]:
    peers = quorum_peers(addresses)
    quorum = (
        *("--cluster-id", CLUSTER_ID),
        *("--controller-id", str(number)),
        *("--peers", ",".join(peers)),
        *("--election-timeout-ms", str(ELECTION_TIMEOUT_MS)),
    )
    return (
        *("--data-dir", data_directory(directory, number, options.controllers)),
        *("--host", options.host),
        *("--port", str(port)),
        *("--session-timeout-ms", str(SESSION_TIMEOUT_MS)),
        *("--session-grace-ms", str(SESSION_GRACE_MS)),
        *("--auto-balance", str(options.auto_balance).lower()),
        *(quorum if peers else ()),
    )


def quorum_peers(addresses: Sequence[str]) -> tuple[str, ...]:
    """The controllers' setting `peers`; none for one that is alone."""
    return tuple(f"{number}@{address}" for number, address in enumerate(addresses)) if len(addresses) > 1 else ()


def data_directory(directory: str, number: int, controllers: int) -> str:
    """Each controller's own; one that is alone has the whole."""
    return directory if controllers == 1 else f"{directory}/{number}"


def _broker_flags(options: ClusterOptions, node_id: int, port: int, controller: str) -> tuple[str, ...]:
    return (
        *("--node-id", str(node_id)),
        *("--listen-host", options.host),
        *("--listen-port", str(port)),
        *("--controllers", controller),
        *("--shutdown-timeout-ms", str(SHUTDOWN_TIMEOUT_MS)),
        *("--group-initial-rebalance-delay-ms", "0"),
    )
