"""Run `penstock dev`, from checking its options until the last process has ended.

Invariant: errors in ports, bucket or options are reported before any process starts. At the end,
the state file and all temporary files are removed, and no process is left, regardless of the
signals that arrive. Prints only the ready line on stdout.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Final

from penstock.base.collector import pause_collector
from penstock.base.errors import ExpectedError
from penstock.base.extras import install_hint
from penstock.controller.config import QUORUM_SIZES
from penstock.deploy.clients import state_file
from penstock.deploy.clients.security import current_security, use
from penstock.deploy.clients.state_file import ClusterState, Phase, ProcessState
from penstock.deploy.errors import PortTaken, UsageError, check_port
from penstock.deploy.local import client_snippets as snippets
from penstock.deploy.local.contents import FirstContents
from penstock.deploy.local.directories import (
    check_store_directory,
    close_objects,
    controller_directory,
    security_directory,
)
from penstock.deploy.local.ending import EndingSignals
from penstock.deploy.local.plan import (
    BROKERS_MAX,
    PORT_FLAGS,
    ClusterOptions,
    ClusterPlan,
    Ports,
    plan_cluster,
)
from penstock.deploy.local.ports import find_ports
from penstock.deploy.local.security import SecurityFiles, make, names_of_this_machine, new_password
from penstock.deploy.local.supervisor import Supervisor, state_of
from penstock.deploy.local.web_console import WebConsole
from penstock.deploy.local.web_console import listen as listen_for_console
from penstock.deploy.node import lifeline
from penstock.deploy.node.config.definition import ROLES
from penstock.deploy.node.config.load import given_outside_flags
from penstock.deploy.node.config.sources import check_assignment
from penstock.deploy.output import Progress, counted
from penstock.objectstore.config import DirectoryConfig
from penstock.objectstore.errors import InvalidStoreUrl
from penstock.objectstore.url import is_remote, parse_store_url, redact_url
from penstock.stream.wal.wal_store_url import check_wal_store_url

_FORMS: Final = (
    "moto, memory, file:DIR, s3://BUCKET?endpoint=URL, gs://BUCKET or az://ACCOUNT/CONTAINER"
)


def run_dev(
    options: ClusterOptions,
    state_path: Path | None,
    started_at: float,
    contents: FirstContents | None = None,
) -> None:
    """Run a cluster until SIGINT, SIGTERM or SIGHUP. state_path: None for the default path, or
    another one in the same directory if another cluster uses it. started_at: according to
    time.monotonic(), for the ready line. Raises ExpectedError.
    """
    lifeline.die_with_parent(os.environ)
    signals = EndingSignals()
    options = check(options)
    contents = (contents or FirstContents()).check()
    for option, url in (("--store", options.store), ("--wal-store", options.wal_store)):
        if is_remote(url):
            asyncio.run(_check_bucket(option, url))
    try:
        _run_cluster(options, state_path, started_at, contents, signals)
    except PortTaken as error:
        for other in state_file.running(state_file.default_path(os.environ)):
            if error.port in _ports_of(other):
                raise ExpectedError(
                    f"port {error.port} is taken by the `penstock dev` that is already running (pid"
                    f" {other.pid}): press Ctrl-C in its terminal, or choose another port with"
                    f" {error.flag} (0: any free port)"
                ) from None
        raise


def _run_cluster(
    options: ClusterOptions,
    state_path: Path | None,
    started_at: float,
    contents: FirstContents,
    signals: EndingSignals,
) -> None:
    """Raises PortTaken, ExpectedError."""
    default_path = state_file.default_path(os.environ)
    with ExitStack() as choosing:
        choosing.enter_context(state_file.choosing(default_path))
        others = state_file.running(default_path)
        other = state_file.known(default_path)
        path = state_path or state_file.unused_path(default_path)
        reserved = [port for each in others for port in _ports_of(each)]
        ports = find_ports(options, Random(), reserved)  # noqa: S311 - which port is no secret
        state_file.check_writable(path)
        check_store_directory(options.store)
        with controller_directory(options.store, os.environ) as directory, signals:
            files = SecurityFiles(security_directory(options.store, directory))
            plan = plan_cluster(
                options,
                ports,
                directory,
                files if options.secure else None,
                store_secret=new_password() if options.secure else "",
            )
            for process in (plan.of_role("controller")[0], plan.of_role("broker")[0]):
                process.load(os.environ)
            if options.secure:
                close_objects(options.store)
                use(make(files.directory, names_of_this_machine(options.host), plan.bootstrap))
            dev = _Dev(
                options,
                plan,
                contents,
                security=files if options.secure else None,
                state_path=path,
                started_at=started_at,
                ports=ports,
                signals=signals,
                on_recorded=choosing.close,
            )
            if other is not None and state_path is None:
                _say(
                    f"another `penstock dev` (pid {other.pid}) runs with brokers at"
                    f" {other.bootstrap}, and commands use it; for this cluster: export"
                    f" {state_file.VARIABLE}={path}"
                )
            _say(f"starting {_described(options)}; {_data(options.store)}")
            if options.store == "memory":  # the nodes run in this process
                import uvloop

                pause_collector()
                uvloop.run(dev.run())
            else:
                asyncio.run(dev.run())
            _say(f"stopped; {_data(options.store, has_ended=True)}")


def _ports_of(cluster: ClusterState) -> set[int]:
    return {process.port for process in cluster.processes}


def _described(options: ClusterOptions) -> str:
    nodes = [counted(options.controllers, "controller"), counted(options.brokers, "broker")]
    if options.store == "moto":
        nodes.append("an S3 server (moto)")
    return f"{', '.join(nodes[:-1])} and {nodes[-1]}"


def _data(store: str, *, has_ended: bool = False) -> str:
    """Describe the location of a store's data."""
    if store not in {"moto", "memory"}:
        return f"data {'stay' if has_ended else 'are'} in {redact_url(store)}"
    if has_ended:
        return "its data was in memory and is lost"
    return "data are in memory and end with it; --store file:DIR keeps them"


def check(options: ClusterOptions) -> ClusterOptions:
    """Return the options with an absolute store and the environment's settings. Raises
    UsageError.
    """
    if not 1 <= options.brokers <= BROKERS_MAX:
        raise UsageError(f"--brokers {options.brokers} is not allowed: 1 to {BROKERS_MAX}")
    if options.controllers not in QUORUM_SIZES:
        raise UsageError(f"--controllers {options.controllers} is not allowed: 1, 3 or 5")
    check_port("--port", options.port)
    check_port("--controller-port", options.controller_port)
    check_port("--store-port", options.store_port)
    check_port("--console-port", options.console_port or 0)
    store = (
        options.store.removesuffix(":") if options.store in {"memory:", "moto:"} else options.store
    )
    if store.startswith("file:"):
        directory = store.removeprefix("file:").removeprefix("//")
        if not directory:
            raise UsageError("--store file: needs a directory, as in --store file:./data")
        store = f"file:{Path(directory).absolute()}"
    elif store not in {"moto", "memory"} and not is_remote(store):
        raise UsageError(f"--store {store} is not allowed: {_FORMS}")
    elif store == "moto":
        _check_moto()
    wal_store = options.wal_store.removesuffix(":")
    _check_wal_store(wal_store, store)
    if wal_store.startswith("file:"):
        wal_store = f"file:{_created(wal_store)}"
    for text in options.settings:
        check_assignment(text)
    config = str(Path(options.config).absolute()) if options.config else ""
    return replace(
        options,
        store=store,
        wal_store=wal_store,
        config=config,
        given=frozenset(given_outside_flags(ROLES, os.environ, config)),
    )


def _created(url: str) -> Path:
    """Create the directory of a file: URL, which nodes require. Raises UsageError."""
    config = parse_store_url(url)
    assert isinstance(config, DirectoryConfig), f"{url} is no directory"
    directory = Path(config.directory).absolute()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--wal-store {url}: cannot create it: {error.strerror}") from None
    return directory


def _check_wal_store(wal_store: str, store: str) -> None:
    if not wal_store or (wal_store == "moto" and store == "moto"):
        return
    if store == "memory":
        raise UsageError("--wal-store is not possible with --store memory: use --store moto")
    if wal_store == "moto":
        raise UsageError("--wal-store moto needs --store moto")
    try:
        check_wal_store_url(wal_store, "" if store == "moto" else store)
    except InvalidStoreUrl as error:
        raise UsageError(f"--wal-store {error}") from None


def _check_moto() -> None:
    from penstock.deploy.local import moto_store

    try:
        moto_store.check_installed()
    except ExpectedError as error:
        raise ExpectedError(
            f"{error}, or choose another store: --store memory, --store file:DIR"
        ) from None


@dataclass(slots=True, eq=False)
class _Dev:
    """on_recorded: called once the state file contains the ports."""

    options: ClusterOptions
    plan: ClusterPlan
    contents: FirstContents
    security: SecurityFiles | None
    state_path: Path
    started_at: float
    ports: Ports
    signals: EndingSignals
    on_recorded: Callable[[], None]
    cluster_id: str = ""
    console: WebConsole | None = None
    filling: asyncio.Task[None] | None = None
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    supervisor: Supervisor | None = None

    async def run(self) -> None:
        with self.signals.calling(self._interrupted):
            try:
                with self._web_console():
                    if self.options.store == "memory":
                        await self._run_in_process()
                    else:
                        await self._supervise()
            finally:
                state_file.remove(self.state_path)
            if self.filling is not None:
                await self.filling

    def _interrupted(self) -> None:
        if not self.stop.is_set():
            _say("stopping; Ctrl-C again stops at once")
            self.stop.set()
        elif self.supervisor is not None:
            self.supervisor.hurry()

    @contextmanager
    def _web_console(self) -> Generator[None, None, None]:
        """Serve the console while this context lasts, if it is requested and installed."""
        options = self.options
        listening = listen_for_console(options.console_port) if options.console else None
        if listening is None and options.console:
            _say(f"no web console: its packages are missing; {install_hint('console')}")
        if listening is None:
            yield
            return
        variables = {} if self.security is None else self.security.admin_variables()
        with WebConsole(
            listening,
            self.state_path,
            os.environ | variables,
            _say,
            is_secure=options.secure,
        ) as self.console:
            yield

    async def _supervise(self) -> None:
        from penstock.deploy.local.moto_store import listen

        try:
            store_socket = listen(self.ports.store) if self.ports.store else None
        except OSError:
            raise PortTaken("127.0.0.1", self.ports.store, PORT_FLAGS["store"]) from None

        def write_state(processes: Sequence[ProcessState]) -> None:
            self.cluster_id = supervisor.cluster_id
            self._write_state(processes)

        supervisor = Supervisor(self.plan, os.environ, store_socket, write_state, _say)
        self.supervisor = supervisor
        await supervisor.run(self.stop, self._ready)

    async def _run_in_process(self) -> None:
        from penstock.deploy.node import logs

        def write_state(phase: Phase) -> None:
            nodes = self.plan.processes
            self._write_state([state_of(node, os.getpid(), phase, starts=1) for node in nodes])

        write_state("starting")
        logs.configure(self.options.log_level)
        from penstock.deploy.local.in_process import run_in_process

        def ready(cluster_id: str) -> None:
            self.cluster_id = cluster_id
            write_state("serving")
            self._ready()

        await run_in_process(self.plan, self.stop, ready)

    def _write_state(self, processes: Sequence[ProcessState]) -> None:
        state = ClusterState(
            pid=os.getpid(),
            bootstrap=self.plan.bootstrap,
            controller=self.plan.controller,
            store_url=self.plan.store_url,
            wal_store_url=self.plan.wal_store_url,
            processes=list(processes),
            command_config=str(self.security.client_properties) if self.security else "",
            controller_tls=self.security.node_settings("admin") if self.security else {},
            console="" if self.console is None else self.console.url,
            cluster_id=self.cluster_id,
            restarts=self.options.restart,
            pid_started=state_file.start_of(os.getpid()),
        )
        try:
            state_file.write(self.state_path, state)
        except ExpectedError as error:  # for example, a full disk; clients do not need the console
            _say(str(error))
        self.on_recorded()

    def _ready(self) -> None:
        """Create topics before the ready line, for clients that wait for it, and write records
        after it.
        """
        if self.stop.is_set():
            return
        if self.contents:
            self.filling = asyncio.get_running_loop().create_task(self._fill())
        else:
            self._announce()

    async def _fill(self) -> None:
        from penstock.deploy.local import contents

        bootstrap = self.plan.bootstrap
        try:
            created = await asyncio.to_thread(
                contents.create_topics,
                bootstrap,
                self.contents.topics,
                keeps_all=self.contents.seed is not None,
            )
            self._announce()
            if self.contents.seed is None:
                return
            for name in sorted(set(self.contents.topics) - created):
                _say(f"topic {name} exists already and gets no records from {self.contents.seed}")
            began = time.monotonic()
            records = (record for record in self.contents.records() if record.topic in created)
            with Progress("seeding", None, "records") as progress:
                count = await asyncio.to_thread(
                    contents.send, bootstrap, records, progress.advance, self.stop.is_set
                )
            _say(
                f"seeded {counted(count, 'record')} into {', '.join(sorted(created)) or 'nothing'}"
                f" in {time.monotonic() - began:.1f} s"
            )
        except ExpectedError:
            self.stop.set()
            raise

    def _announce(self) -> None:
        took_s = time.monotonic() - self.started_at
        files = self.security
        config = f" command-config={files.client_properties}" if files else ""
        console = "" if self.console is None else f" console={self.console.url}"
        print(
            f"ready: bootstrap={self.plan.bootstrap} store={redact_url(self.plan.store_url)}"
            f" controller={self.plan.controller} state={self.state_path}{config}{console}"
            f" took={took_s:.1f}s",
            flush=True,
        )
        if files is not None:
            _say(f"clients need TLS and SCRAM; Java's properties: {files.client_properties}")
            _say(f"for penstock commands without the state file: source {files.environment}")
        if files is not None or sys.stderr.isatty():
            topic = next(iter(self.contents.topics), "orders")
            for line in snippets.lines(
                bootstrap=self.plan.bootstrap,
                topic=topic,
                store=self.plan.store_url,
                security=current_security(),
                hides_secrets=True,
            ):
                print(f"  {line}", file=sys.stderr)
            _say(
                "example programs, with the secrets: penstock snippets CLIENT; live view: penstock"
                " top; Ctrl-C stops the cluster"
            )


def _say(line: str) -> None:
    print(f"penstock: {line}", file=sys.stderr, flush=True)


async def _check_bucket(option: str, url: str) -> None:
    """Raise DeployError with the command that creates the bucket if it does not exist. Importing
    the client takes 0.5 s.
    """
    from penstock.objectstore.errors import BucketNotFound, ObjectStoreError
    from penstock.objectstore.url import open_store

    try:
        config = parse_store_url(url)
        store = open_store(config)
    except ObjectStoreError as error:
        raise UsageError(f"{option} {error}") from None
    try:
        async for _ in store.list("probe/"):
            break
    except BucketNotFound as error:
        raise ExpectedError(str(error)) from None
    except ObjectStoreError as error:
        raise ExpectedError(f"store {config.redacted()}: {error}") from None
    finally:
        await store.close()
