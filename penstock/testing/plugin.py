"""Options, the fixtures `penstock` and `penstock_cluster`, and logs in test reports.

A run without these fixtures imports only this module and `options` (1 ms) and never fails because
of them. Each pytest process, and thus each worker of pytest-xdist, has its own cluster on free
ports.
"""

from collections.abc import Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pytest

from penstock.testing.options import InvalidOption, Options

if TYPE_CHECKING:
    from penstock.testing.client import KafkaClient
    from penstock.testing.cluster import PenstockCluster
    from penstock.testing.penstock import Penstock
    from penstock.testing.process import ClusterProcess

__all__ = ["penstock", "penstock_cluster", "pytest_addoption", "pytest_configure"]

_OPTIONS: Final = (
    ("brokers", "how many brokers the cluster of this test run has (default: 2)"),
    ("port", "port of the first broker, the others follow (default: 0, any free ones)"),
    ("latency", "latency of each PUT to the object store, P50 or P50,P99 in ms (default: none)"),
    (
        "log-level",
        (
            "log level of brokers and controller: debug, info, warning or error; a failing test"
            " shows the log (default: warning)"
        ),
    ),
    (
        "secure",
        (
            "true: clients need TLS and SCRAM, and ACLs count; penstock.client_settings() has what"
            " they need (default: false)"
        ),
    ),
)
_FLAGS: Final = frozenset({"secure"})
_FIXTURES: Final = frozenset({"penstock", "penstock_cluster"})


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("penstock", "Penstock: a Kafka cluster for tests")
    for name, text in _OPTIONS:
        kind: dict[str, str] = (
            {"action": "store_const", "const": "true"}
            if name in _FLAGS
            else {"metavar": name.upper()}
        )
        group.addoption(f"--penstock-{name}", default=None, help=text, **kind)
        parser.addini(_ini(name), f"{text}; --penstock-{name} overrides it", default="")


def pytest_configure(config: pytest.Config) -> None:
    try:
        options = Options.parse(
            brokers=_option_text(config, "brokers"),
            port=_option_text(config, "port"),
            latency=_option_text(config, "latency"),
            log_level=_option_text(config, "log-level"),
            secure=_option_text(config, "secure"),
        )
    except InvalidOption as error:
        raise pytest.UsageError(str(error)) from None
    if options.port and (hasattr(config, "workerinput") or config.getoption("numprocesses", None)):
        raise pytest.UsageError(
            "--penstock-port cannot be used with pytest-xdist: each worker has its own cluster on"
            " free ports; use bootstrap_servers"
        )
    config.pluginmanager.register(_Run(options), _Run.__name__)


def _ini(name: str) -> str:
    return "penstock_" + name.replace("-", "_")


def _option_text(config: pytest.Config, name: str) -> str:
    option: str | None = config.getoption(f"--penstock-{name}")
    return str(config.getini(_ini(name))) if option is None else option


class _Run:
    """The cluster of this pytest process. It starts in the background as soon as a test is known to
    need it.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._process: ClusterProcess | None = None
        self._client: KafkaClient | None = None

    def process(self) -> "ClusterProcess":
        """Return the process, which may not be ready yet."""
        if self._process is None:
            from penstock.testing.process import ClusterProcess

            self._process = ClusterProcess(self._options)
        return self._process

    def ready(self) -> "tuple[ClusterProcess, KafkaClient]":
        process = self.process()
        if self._client is None:
            # While the cluster starts, this process imports the modules that the helpers need.
            from penstock.testing.client import KafkaClient

            process.wait_ready()
            self._client = KafkaClient(process.bootstrap_servers, process.security)
        return process, self._client

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if not session.config.option.collectonly and any(
            _FIXTURES & set(getattr(item, "fixturenames", ())) for item in session.items
        ):
            # Failures are ignored, because the fixture will raise them again, and it may be another
            # project's fixture with the same name.
            with suppress(Exception):
                self.process()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if self._process is not None:
            item.stash[_LOGGED] = self._process.log_end()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if (
            report.failed
            and self._process is not None
            and _FIXTURES & set(getattr(item, "fixturenames", ()))
        ):
            log = self._process.log_since(item.stash.get(_LOGGED, 0))
            if log:
                report.sections.append((f"Penstock's log during {report.when}", log))
        return report

    def pytest_unconfigure(self) -> None:
        if self._client is not None:
            self._client.close()
        if self._process is not None:
            self._process.close()


_LOGGED: Final = pytest.StashKey[int]()


def _ready(config: pytest.Config) -> "tuple[ClusterProcess, KafkaClient]":
    run = config.pluginmanager.get_plugin(_Run.__name__)
    assert isinstance(run, _Run)
    return run.ready()


@pytest.fixture(scope="session")
def penstock_cluster(pytestconfig: pytest.Config) -> "PenstockCluster":
    """A Kafka cluster in memory for the whole run: `bootstrap_servers` for your clients, and
    helpers. Everything created through it stays.
    """
    from penstock.testing.cluster import PenstockCluster

    return PenstockCluster(*_ready(pytestconfig))


@pytest.fixture
def penstock(
    penstock_cluster: "PenstockCluster", request: pytest.FixtureRequest
) -> "Generator[Penstock]":
    """The clean cluster: topics and consumer groups that appear in the test are deleted after it,
    brokers restarted, faults removed.
    """
    from penstock.testing.penstock import Penstock

    penstock = Penstock(*_ready(request.config), request.node.nodeid)
    yield penstock
    penstock.end()
