"""Node configuration: the sources of values, their precedence, and errors about invalid values."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.base.errors import ExpectedError
from penstock.base.settings import Kind
from penstock.broker.config import BrokerConfig
from penstock.broker.quotas.connections import ListenerLimits
from penstock.controller.config import ControllerConfig
from penstock.deploy.errors import UnknownSetting, UsageError
from penstock.deploy.node import process as node
from penstock.deploy.node.config.definition import (
    ROLES,
    TABLES,
    ProcessConfig,
    Role,
    flag_of,
    settings_of,
    variable_of,
)
from penstock.deploy.node.config.docs import first_sentence, markdown
from penstock.deploy.node.config.load import load
from penstock.deploy.node.config.schema import role_schema
from penstock.stream.compaction.plan import CompactionConfig
from penstock.stream.config import StreamConfig

ROOT = Path(__file__).resolve().parents[3]
STORE = ("--store", "s3://bucket?endpoint=http://127.0.0.1:1")
LOCAL = ("--store", "file:/nowhere")


def file_with(directory: Path, text: str) -> tuple[str, ...]:
    path = directory / "f.toml"
    path.write_text(text)
    return ("--config", str(path))


# --- sources --------------------------------------------------------------------------------------


def test_flags_override_variables_which_override_the_file_and_defaults(tmp_path: Path) -> None:
    file = file_with(
        tmp_path,
        'num.partitions = 2\nnode.id = 3\nmax.connections = 7\n[broker]\nbroker.rack = "file"',
    )
    variables = {"PENSTOCK_NUM_PARTITIONS": "4", "PENSTOCK_BROKER_RACK": "variable"}
    effective = load("broker", (*STORE, *file, "--num-partitions", "5"), variables)
    config = effective.part(BrokerConfig)
    assert (
        config.num_partitions,
        config.rack,
        config.node_id,
        config.connections_max,
        config.group_max_size,
    ) == (
        5,
        "variable",
        3,
        7,
        1_000,
    )
    places = {name: value.place for name, value in effective.values.items()}
    assert places["num.partitions"] == "--num-partitions"
    assert places["broker.rack"] == "variable PENSTOCK_BROKER_RACK"
    assert places["node.id"].endswith("f.toml")
    assert places["group.max.size"] == "default"


def test_every_setting_can_be_set_in_each_way(tmp_path: Path) -> None:
    """All settings of a role, with their defaults as values: as a flag, with --set, as a variable
    and as a key.
    """
    for role in ROLES:
        given = {
            field.name: str(tmp_path) if field.required else None
            for field in settings_of(role).values()
        }
        values = load(
            role, (*STORE, *(() if role == "broker" else ("--metadata-log-dir", str(tmp_path)))), {}
        ).values
        texts = {
            name: given[name] or value.text
            for name, value in values.items()
            if name != "store" and value.value is not None
        }
        public = {  # secrets have no flags
            name: text
            for name, text in texts.items()
            if values[name].field.setting.kind is not Kind.SECRET
        }
        flags = [part for name, text in public.items() for part in (flag_of(name), text)]
        sets = [part for name, text in public.items() for part in ("--set", f"{name}={text}")]
        keys = "\n".join(f"{json.dumps(name)} = {json.dumps(text)}" for name, text in texts.items())
        expected = {name: value.value for name, value in values.items()}
        for arguments, environment in (
            ((*STORE, *flags), {}),
            ((*STORE, *sets), {}),
            (STORE, {variable_of(name): text for name, text in texts.items()}),
            ((*STORE, *file_with(tmp_path, keys)), {}),
        ):
            found = load(role, arguments, environment).values
            assert {name: value.value for name, value in found.items()} == expected
            assert all(found[name].place != "default" for name in public)


def test_the_table_of_the_role_takes_precedence_and_other_roles_are_ignored(tmp_path: Path) -> None:
    text = (
        'log.level = "debug"\nnum.partitions = 1\n[broker]\nnum.partitions ='
        ' 2\n[controller]\nbroker.session.timeout.ms = "9s"'
    )
    config = load("broker", (*STORE, *file_with(tmp_path, text)), {})
    assert (config.part(ProcessConfig).log_level, config.part(BrokerConfig).num_partitions) == (
        "debug",
        2,
    )
    controller = load(
        "controller", (*STORE, *file_with(tmp_path, text), "--metadata-log-dir", "x"), {}
    ).part(ControllerConfig)
    assert (controller.default_partitions, controller.session_timeout_ms) == (1, 9_000)


def test_names_that_start_like_a_role_are_not_in_the_table_of_the_role(
    tmp_path: Path,
) -> None:
    text = 'broker.rack = "a"\ncontroller.quorum.bootstrap.servers = ["c:1", "d:2"]'
    config = load("broker", (*STORE, *file_with(tmp_path, text)), {}).part(BrokerConfig)
    assert (config.rack, config.controllers) == ("a", ("c:1", "d:2"))


@pytest.mark.parametrize("name", ["describe", "alter", "list"])
def test_the_config_command_suggests_the_configs_command(name: str) -> None:
    from penstock.deploy.cli.app import app

    result = CliRunner().invoke(app, ["config", name, "topic", "orders"])
    assert result.exit_code == 2
    assert f"Did you mean `penstock configs {name}`?" in " ".join(result.stderr.split())


def test_names_of_settings_flags_and_variables_are_unambiguous() -> None:
    """No name is a prefix table of another name, except for two of Kafka's; and no flag or variable
    belongs to two settings.
    """
    names = sorted({name for role in ROLES for name in settings_of(role)})
    assert {short for short in names for long in names if long.startswith(short + ".")} == TABLES
    assert (
        len({flag_of(name) for name in names})
        == len({variable_of(name) for name in names})
        == len(names)
    )
    assert not [name for role in ROLES for name in settings_of(role) if f"{role}.{name}" in names]


def test_a_listener_can_have_its_own_settings(tmp_path: Path) -> None:
    text = """
    listeners = ["IN://127.0.0.1:0", "EXT://127.0.0.1:0"]
    max.connections = 9
    listener.name.ext.max.connections = 7
    "max.connections.per.ip" = 3
    """
    extra = "--set", "listener.name.in.max.connection.creation.rate=5"
    effective = load("broker", (*STORE, *extra, *file_with(tmp_path, text)), {})
    config = effective.part(BrokerConfig)
    assert [tuple(vars_of(config.limits_of(name))) for name in ("IN", "EXT")] == [
        (9, 5),
        (7, 2**31 - 1),
    ]
    assert config.connections_per_ip_max == 3
    assert effective.values["listener.name.ext.max.connections"].place.endswith("f.toml")
    for wrong, message in (
        (
            "listener.name.none.max.connections=1",
            "there is no such listener; existing listeners: in, ext",
        ),
        ("listener.name.ext.max.connections=0", "1 to 1000000"),
        (
            "listener.name.ext.num.partitions=1",
            "num.partitions is not a setting of a single listener",
        ),
        ("max.connections.per.ip.overrides=10.0.0.1", "ADDRESS:COUNT"),
        ("max.connections.per.ip.overrides=somewhere:1", "ADDRESS:COUNT"),
    ):
        with pytest.raises(UsageError, match=message):
            load("broker", (*STORE, "--set", wrong, *file_with(tmp_path, text)), {})


def vars_of(limits: ListenerLimits) -> tuple[int, int]:
    return limits.connections, limits.creation_rate


def test_other_environment_variables_are_ignored() -> None:
    """Kubernetes sets variables for services, and the command line has its own; settings of another
    role may be set, too.
    """
    environment = {
        "PENSTOCK_PORT": "tcp://10.0.0.1:9092",
        "PENSTOCK_BROKER_SERVICE_HOST": "10.0.0.1",
        "PENSTOCK_BROKER_SERVICE_PORT_KAFKA": "9092",
        "PENSTOCK_BROKER_PORT_9092_TCP_ADDR": "10.0.0.1",
        "PENSTOCK_BOOTSTRAP": "a:1",
        "PENSTOCK_METADATA_LOG_DIR": "x",
        "NUM_PARTITIONS": "9",
    }
    assert load("broker", STORE, environment).values == load("broker", STORE, {}).values


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "variables", "told"),
    [
        (
            ["--nodeid", "1"],
            {},
            r"command line: unknown setting '--nodeid'; did you mean --node-id\?",
        ),
        (
            ["--set", "num.partition=1"],
            {},
            r"--set: unknown setting 'num.partition'; did you mean num\.partitions\?",
        ),
        (
            [],
            {"PENSTOCK_NUMPARTITIONS": "1"},
            (
                r"environment: unknown setting 'PENSTOCK_NUMPARTITIONS'; did you mean"
                r" PENSTOCK_NUM_PARTITIONS\?"
            ),
        ),
        (
            [],
            {"PENSTOCK_ZZZZZZZZZZZZZZZZZZZ": "1"},
            r"environment: unknown setting 'PENSTOCK_ZZ.*; did you mean",
        ),
        (
            ["--set", "q=1"],
            {},
            r"--set: unknown setting 'q'; docs/reference/configuration.md lists the settings",
        ),
    ],
)
def test_errors_of_unknown_keys_contain_the_nearest_key_and_the_source(
    arguments: list[str], variables: dict[str, str], told: str
) -> None:
    with pytest.raises(UnknownSetting, match=told):
        load("broker", (*STORE, *arguments), variables)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "num.partition = 1",
            r"f\.toml: unknown setting 'num.partition'; did you mean num\.partitions\?",
        ),
        (
            "[broker]\nnum.partition = 1",
            r"f\.toml, \[broker\]: unknown setting 'num.partition'; did you mean num\.partitions\?",
        ),
        (
            "[broker]\nmetadata.log.dir = 'x'",
            r"\[broker\]: metadata.log.dir is a setting of the controller, not of the broker",
        ),
        (
            "[controller]\nmax.connections = 1",
            r"\[controller\]: max.connections is a setting of the broker",
        ),
        ("[brokers]\nnum.partitions = 1", r"unknown setting 'brokers.num.partitions'"),
        ("num.partitions = = 1", r"is not TOML"),
    ],
)
def test_errors_in_the_table_of_another_role_are_reported(
    text: str, told: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=told):
        load("broker", (*STORE, *file_with(tmp_path, text)), {})


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["--num-partitions", "abc"],
            r"--num-partitions: num\.partitions='abc' is not allowed: a whole number, -1 to 10000",
        ),
        (
            ["--num-partitions", "70000"],
            r"num\.partitions='70000' is not allowed: a whole number, -1 to 10000",
        ),
        (
            ["--wal-linger-ms", "1 week"],
            (
                r"wal\.linger\.ms='1 week' is not allowed: milliseconds, or a number with ms, s,"
                r" min, h or d, 0 to 1min"
            ),
        ),
        (
            ["--wal-bulk-max-bytes", "1GiB"],
            r"wal\.bulk\.max\.bytes='1GiB' is not allowed: bytes, .* 1 to 64MiB",
        ),
        (
            ["--log-level", "loud"],
            r"log\.level='loud' is not allowed: one of debug, info, warning, error",
        ),
        (["--auto-create-topics-enable", "maybe"], r"is not allowed: true or false"),
        (
            ["--queued-max-request-bytes", "1MiB"],
            (
                r"queued\.max\.request\.bytes='1048576' .* at least socket\.request\.max\.bytes"
                r" \(104857600\)"
            ),
        ),
        (
            ["--log-cache-max-bytes", "1MiB"],
            r"log\.cache\.max\.bytes \(1048576\) must hold two blocks of upload\.block\.max\.bytes",
        ),
        (
            ["--listeners", "localhost"],
            r"--listeners: listeners='localhost' is not allowed: \[NAME://\]host:port with a port",
        ),
        (["--listeners", "SSL://:1"], r"ssl\.keystore\.location='' .* a PEM file, which TLS needs"),
        (["--ssl-key-password", "x"], r"is a secret, .* variable PENSTOCK_SSL_KEY_PASSWORD"),
        (["--set", "ssl.key.password=x"], r"is a secret"),
        (["--listeners", "SASL_PLAINTEXT://:1"], r"sasl\.inter\.broker\.username='' .* a user of"),
        (["--inter-broker-listener-name", "X"], r"one of PLAINTEXT"),
        (["--listener-security-protocol-map", "A:TLS"], r"'A:TLS' is not allowed: NAME:PROTOCOL"),
        (
            ["--listeners", "X://:1", "--listener-security-protocol-map", "A:SSL"],
            r"there is none for X, as in X:SSL",
        ),
        (["--sasl-enabled-mechanisms", "GSSAPI"], r"each of SCRAM-SHA-256, .* at most once"),
        (
            ["--sasl-enabled-mechanisms", "OAUTHBEARER", "--listeners", "SASL_PLAINTEXT://:1"],
            r"sasl\.oauthbearer\.jwks\.endpoint\.url=''",
        ),
        (["--sasl-oauthbearer-jwks-endpoint-url", "ftp://x"], r"https://, http:// or file:PATH"),
        (
            [
                *("--sasl-enabled-mechanisms", "OAUTHBEARER"),
                *("--sasl-oauthbearer-jwks-endpoint-url", "file:keys.json"),
                *("--sasl-oauthbearer-required-scope", "kafka orders"),
                *("--listeners", "SASL_PLAINTEXT://:1"),
            ],
            r"sasl\.oauthbearer\.required\.scope='kafka orders' .* by commas",
        ),
        (["--ssl-enabled-protocols", "TLSv1.1"], r"each of TLSv1\.2, TLSv1\.3"),
        (["--ssl-principal-mapping-rules", "RULE:x"], r"'RULE:x' is not a rule"),
        (
            ["--listeners", ":1,B://:2,b://:3"],
            r"listener names must be unique; B is used twice",
        ),
        (
            ["--advertised-listeners", "EXTERNAL://h:1"],
            r"advertised\.listeners='EXTERNAL://h:1' is not allowed: names of listeners: PLAINTEXT",
        ),
        (["--advertised-listeners", "b-{id}:1"], r"\{id\} requires node\.id to be set"),
        (
            ["--advertised-listeners", "{podd}:1"],
            r"templates are \{host\}, \{port\}, \{id\}, \{pod\}, \{ordinal\}",
        ),
        (
            ["--node-id", "{ordinal}"],
            r"\{ordinal\} needs a host name that ends in a number; this one is 'laptop'",
        ),
        (["--store", "s3://b"], r"--store: store URL 's3://b' is not valid"),
        (
            ["--metadata-log-dir", "x"],
            r"command line: --metadata-log-dir is a setting of the controller, not of the broker",
        ),
        (["--num-partitions"], r"--num-partitions needs a value"),
        (["--set", "num.partitions"], r"KEY=VALUE"),
        (["listen"], r"unexpected argument 'listen'"),
        (["--broker-rack", "x\udcff"], r"broker.rack='x\\udcff' is not allowed: text in UTF-8"),
        (["--set", "num.partitions=\udcff"], r"num.partitions='\\udcff' is not allowed"),
    ],
)
def test_errors_of_invalid_values_list_the_allowed_ones(arguments: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=told) as caught:
        load("broker", (*STORE, *arguments), {}, hostname="laptop")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            [],
            (
                r"metadata\.log\.dir is missing: set --metadata-log-dir,"
                r" PENSTOCK_METADATA_LOG_DIR, or metadata\.log\.dir in the file"
            ),
        ),
        (
            ["--metadata-log-dir", "x", "--broker-session-timeout-ms", "1"],
            r"broker\.session\.grace\.ms.* to broker\.session\.timeout\.ms",
        ),
        (
            ["--metadata-log-dir", "x", "--listeners", "a:1,B://b:2"],
            r"a controller has one listener",
        ),
        (
            ["--metadata-log-dir", "x", "--controller-quorum-voters", "0@a:1,1@b:1"],
            r"controller\.quorum\.voters='0@a:1,1@b:1' is not",
        ),
    ],
)
def test_controllers_reject_invalid_values_in_the_same_way(arguments: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        load("controller", (*STORE, *arguments), {})


def test_the_error_without_a_store_or_file_contains_the_missing_option(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"store is missing: set --store URL \(s3://"):
        load("broker", [], {})
    with pytest.raises(ExpectedError, match="No such file"):
        load("broker", [], {"PENSTOCK_CONFIG": str(tmp_path / "none.toml")})


@pytest.mark.parametrize("role", ROLES)
def test_access_keys_of_the_store_are_not_flags(role: Role) -> None:
    url = "s3://bucket?access_key=abc&secret_key=sesame"
    for flags in (("--store", url), ("--set", f"store={url}"), ("--wal-store", url)):
        with pytest.raises(
            UsageError, match=r"PENSTOCK_(WAL_)?STORE, or AWS_ACCESS_KEY_ID"
        ) as caught:
            load(role, flags, {})
        assert "sesame" not in str(caught.value)
    loaded = load(role, (), {"PENSTOCK_STORE": url}, complete=False)
    assert loaded.values["store"].value == url


# --- resulting configuration ----------------------------------------------------------------------


def test_batching_delays_are_short_for_memory_and_files_unless_set() -> None:
    effective = load("broker", LOCAL, {})
    assert (
        effective.part(StreamConfig).wal_linger_ms,
        effective.values["wal.linger.ms"].place,
    ) == (5, "default over memory and files")
    assert (
        load("broker", (*LOCAL, "--wal-linger-ms", "7"), {}).part(StreamConfig).wal_linger_ms == 7
    )
    assert load("broker", STORE, {}).part(StreamConfig) == StreamConfig()


@pytest.mark.parametrize(
    ("url", "waits"),
    [
        ("s3://wals", True),
        ("gs://wals", True),
        ("az://account/wals", True),
        ("s3://wals?endpoint=https://s3.wasabisys.com", True),
        ("s3://wals?endpoint=https://8.8.8.8", True),
        ("s3://wals?endpoint=https://minio.example.com", True),
        ("s3://wals?endpoint=https://10.1.2.3:9000", False),
        ("s3://wals?endpoint=http://127.0.0.1:1", False),
        ("s3://wals?endpoint=http://[fd00::1]:9000", False),
        ("s3://wals?endpoint=http://minio:9000", False),
        ("s3://wals?endpoint=http://minio.streams.svc:9000", False),
        ("s3://wals?endpoint=https://minio.streams.svc.cluster.local", False),
        ("gs://wals?endpoint=http://localhost:1", False),
        ("az://account/wals?endpoint=http://localhost:1", False),
        ("file:/mnt/wals", False),
        ("s3://wals--use1-az4--x-s3?region=us-east-1", False),
    ],
)
def test_batching_delays_are_longer_if_the_wal_store_charges_for_requests(
    url: str, waits: bool
) -> None:
    for store in (LOCAL, STORE):
        effective = load("broker", (*store, "--wal-store", url), {})
        stream = effective.part(StreamConfig)
        found = (stream.wal_linger_ms, stream.wal_linger_idle_ms, stream.wal_put_interval_ms)
        assert found == ((250, 40, 20) if waits else (0, 0, 0))
        assert stream.wal_hedge_factor == StreamConfig().wal_hedge_factor
        where = "default" if waits else "default for a WAL store with cheap requests"
        assert effective.values["wal.linger.ms"].place == where
        assert effective.part(ProcessConfig).wal_store == url
        given = ("--wal-linger-ms", "250", "--wal-put-interval-ms", "7")
        stream = load("broker", (*store, "--wal-store", url, *given), {}).part(StreamConfig)
        assert (stream.wal_linger_ms, stream.wal_put_interval_ms) == (250, 7)
        assert stream.defaults.get("wal_linger_ms", 250) == (250 if waits else 0)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    ("wal_store", "why"),
    [
        ("memory:", "separate store in each process"),
        ("s3://wals--x-s3?region=us-east-1", "has the form NAME--ZONE--x-s3"),
        ("s3://bucket?endpoint=http://127.0.0.1:1", "overlaps with the store"),
        ("s3://bucket/wals?endpoint=http://127.0.0.1:1&region=eu-west-1", "overlaps with the"),
        ("s3a://wals", "did you mean s3://"),
    ],
)
def test_an_unusable_wal_store_is_rejected(role: Role, wal_store: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        load(role, STORE, {"PENSTOCK_WAL_STORE": wal_store}, complete=False)
    assert "PENSTOCK_WAL_STORE" in str(caught.value)


@pytest.mark.parametrize("role", ROLES)
def test_a_store_without_ordered_listing_can_only_be_a_wal_store(role: Role) -> None:
    url = "s3://data--use1-az4--x-s3/part"
    store = {"PENSTOCK_STORE": f"{url}?region=us-east-1&access_key=a&secret_key=hush"}
    with pytest.raises(UsageError, match="which can only be the WAL store") as caught:
        load(role, (), store, complete=False)
    assert f"PENSTOCK_STORE: store: {url}?region" in str(caught.value)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("store", "wal_store"),
    [
        ("gs://bucket/a", "gs://bucket/a/b"),
        ("az://account/container/a", "az://account/container"),
        ("s3://bucket/data", "s3://bucket/data"),
        ("file:/data", "file:/data/wals"),
        ("file:/data/store", "file:///data/store"),
        ("file:/data/store", "file:/"),
    ],
)
def test_a_wal_store_must_not_overlap_with_the_store(store: str, wal_store: str) -> None:
    with pytest.raises(UsageError, match="overlaps with the store"):
        load("controller", ("--store", store, "--wal-store", wal_store), {}, complete=False)


@pytest.mark.parametrize(
    ("store", "wal_store"),
    [
        ("s3://bucket/data", "s3://bucket/wals"),
        ("s3://bucket/wal", "s3://bucket/wals"),
        ("s3://bucket?endpoint=http://127.0.0.1:1", "s3://bucket?endpoint=http://127.0.0.1:2"),
        ("gs://bucket", "gs://wals"),
        ("az://account/container", "az://fast/container"),
        ("s3://bucket", "gs://bucket"),
        ("file:/data", "s3://bucket"),
        ("s3://bucket", "file:/mnt/wals"),
        ("file:/data/store", "file:/data/store-wals"),
    ],
)
def test_a_wal_store_may_be_in_any_other_place(store: str, wal_store: str) -> None:
    flags = ("--store", store, "--wal-store", wal_store)
    loaded = load("controller", flags, {}, complete=False)
    assert loaded.part(ProcessConfig).wal_store == wal_store


def test_every_part_of_a_broker_is_built_from_its_settings() -> None:
    effective = load(
        "broker",
        (*STORE, "--set", "compaction.interval.ms=3s", "--set", "log.cache.max.bytes=1GiB"),
        {},
    )
    assert effective.part(CompactionConfig).interval_ms == 3_000
    assert effective.part(StreamConfig).log_cache_bytes_max == 1 << 30


def test_id_and_addresses_are_derived_from_the_pod_name() -> None:
    arguments = (
        *STORE,
        "--node-id",
        "{ordinal}",
        "--listeners",
        "PLAINTEXT://:9092,EXTERNAL://:9094",
        "--allow-insecure",
        "--advertised-listeners",
        "PLAINTEXT://{pod}.brokers:{port},EXTERNAL://{host}:{ordinal+31000}",
    )
    config = load("broker", arguments, {}, hostname="penstock-broker-12").part(BrokerConfig)
    assert config.node_id == 12
    reported = config.advertised("10.0.0.7", {"PLAINTEXT": 9092, "EXTERNAL": 9094})
    assert [(one.name, one.host, one.port) for one in reported] == [
        ("PLAINTEXT", "penstock-broker-12.brokers", 9092),
        ("EXTERNAL", "10.0.0.7", 31_012),
    ]


# --- documentation --------------------------------------------------------------------------------


def test_the_configuration_reference_is_up_to_date() -> None:
    """Run `penstock config docs > docs/reference/configuration.md` after a change."""
    assert (ROOT / "docs" / "reference" / "configuration.md").read_text() == markdown()


@pytest.mark.parametrize("role", ROLES)
def test_help_lists_every_setting_with_the_first_sentence_of_its_description(
    role: Role, capsys: pytest.CaptureFixture[str]
) -> None:
    assert node.run(role, ["--help"], {}) == 0
    shown = capsys.readouterr().out
    for field in settings_of(role).values():
        assert field.doc, field.name
        assert f"  {flag_of(field.name)} " in shown
        assert first_sentence(field.doc) in shown


@pytest.mark.parametrize("text", ["20261130", '["20261130"]'])
def test_secrets_of_the_wrong_type_are_not_shown(tmp_path: Path, text: str) -> None:
    path = tmp_path / "penstock.toml"
    path.write_text(f"ssl.key.password = {text}\n")
    with pytest.raises(
        UsageError, match=r"ssl\.key\.password='.*' is not allowed: text"
    ) as refused:
        load("broker", ["--store", "memory:", "--config", str(path)], {})
    assert "20261130" not in str(refused.value)


def test_config_show_prints_values_and_sources_without_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from penstock.deploy.cli.app import app

    monkeypatch.setenv("PENSTOCK_NUM_PARTITIONS", "6")
    store = "s3://bucket?endpoint=http://127.0.0.1:1&access_key=abc&secret_key=sesame"
    monkeypatch.setenv("PENSTOCK_STORE", store)
    done = CliRunner().invoke(app, ["config", "show", "--json", "--set", "wal.linger.ms=1s"])
    assert done.exit_code == 0, done.output
    reported = json.loads(done.stdout)
    assert reported["num.partitions"] == {
        "value": "6",
        "source": "variable PENSTOCK_NUM_PARTITIONS",
    }
    assert reported["wal.linger.ms"] == {"value": "1000", "source": "--set wal.linger.ms"}
    assert reported["max.connections"] == {"value": "10000", "source": "default"}
    assert "sesame" not in done.output
    assert set(reported) == set(settings_of("broker"))
    given = CliRunner().invoke(app, ["config", "show", "--given", "--json", "--role", "controller"])
    assert set(json.loads(given.stdout)) == {"num.partitions", "store", "metadata.log.dir"}


@pytest.mark.parametrize("role", ROLES)
def test_the_schema_contains_exactly_the_settings(role: Role) -> None:
    schema = role_schema(role)
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) == set(settings_of(role))
    assert schema["properties"]["num.partitions"]["maximum"] == 10_000
    assert schema["properties"]["log.level"] == {
        "description": "The lowest level that is logged.",
        "enum": ["debug", "info", "warning", "error"],
        "default": "info",
    }
