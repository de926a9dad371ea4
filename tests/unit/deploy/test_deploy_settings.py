"""Settings of a node: where they come from, which weighs more, and what is said about a wrong one."""

from pathlib import Path

import pytest

from broker.config import BrokerConfig, ConfigInvalid
from controller.config import ControllerConfig
from controller.errors import InvalidConfig
from deploy import node
from deploy.errors import DeployError, UnknownSetting, UsageError
from deploy.settings import build, docs_of, fields_of, from_environment, from_file, from_flags, merge

BROKER = fields_of(BrokerConfig)
NAMES = ["store", "log_level", *(field.name for field in BROKER)]


def test_flags_win_over_variables_over_the_file_over_defaults() -> None:
    file = from_file({"listen_port": 1, "rack": "file", "node_id": 3}, "broker", NAMES, "f.toml", ["controller"])
    variables = from_environment({"PENSTOCK_LISTEN_PORT": "2", "PENSTOCK_RACK": "variable"}, NAMES)
    flags = from_flags(["--listen-port", "4"], NAMES)
    config = build(BrokerConfig, merge(BROKER, file, variables, flags), (ConfigInvalid,))
    assert (config.listen_port, config.rack, config.node_id, config.listen_host) == (4, "variable", 3, "127.0.0.1")


def test_values_are_typed_whatever_they_come_as() -> None:
    flags = from_flags(["--controllers=a:1, b:2", "--auto-create-topics-enable", "false", "--store", "memory:"], NAMES)
    settings = merge(BROKER, flags)
    config = build(BrokerConfig, settings, (ConfigInvalid,))
    assert (config.controllers, config.auto_create_topics_enable, settings.store) == (("a:1", "b:2"), False, "memory:")
    from_toml = merge(BROKER, from_file({"controllers": ["a:1", "b:2"], "auto_create_topics_enable": False}, "broker", NAMES, "f", []))
    assert build(BrokerConfig, from_toml, (ConfigInvalid,)) == config


def test_a_table_of_the_role_wins_and_tables_of_others_are_left_alone() -> None:
    content = {"log_level": "debug", "listen_port": 1, "broker": {"listen_port": 2}, "controller": {"anything": 1}}
    assert from_file(content, "broker", NAMES, "f.toml", node.ROLES) == {"log_level": "debug", "listen_port": 2}


def test_unknown_keys_name_the_nearest_one_and_their_source() -> None:
    with pytest.raises(UnknownSetting, match=r"f\.toml: unknown setting 'lisen_port'; did you mean listen_port\?"):
        from_file({"lisen_port": 1}, "broker", NAMES, "f.toml", [])
    with pytest.raises(UnknownSetting, match=r"did you mean --node-id\?"):
        from_flags(["--nodeid", "1"], NAMES)
    with pytest.raises(UnknownSetting, match=r"did you mean PENSTOCK_LISTEN_PORT\?"):
        from_environment({"PENSTOCK_LISTENPORT": "1"}, NAMES)


def test_variables_that_are_not_ours_are_left_alone() -> None:
    """Kubernetes makes up PENSTOCK_PORT for a service called penstock, and `port` is a setting of controllers."""
    names = [field.name for field in fields_of(ControllerConfig)]
    environment = {
        "PENSTOCK_PORT": "tcp://10.0.0.1:9092",
        "PENSTOCK_BROKER_SERVICE_HOST": "10.0.0.1",
        "PENSTOCK_BOOTSTRAP": "a:1",
        "PORT": "1",
    }
    assert from_environment(environment, names) == {}


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--listen-port", "abc"], r"listen_port='abc' is not allowed: Expected `int`"),
        (["--listen-port", "70000"], r"listen_port=70000 is not allowed: 0 to 65535"),
        (["--listen-port"], r"--listen-port needs a value"),
        (["listen"], r"unexpected argument 'listen'"),
    ],
)
def test_wrong_values_are_refused_with_what_is_allowed(flags: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=told) as caught:
        build(BrokerConfig, merge(BROKER, from_flags(flags, NAMES)), (ConfigInvalid,))
    assert caught.value.exit_code == 2


def test_controller_settings_are_typed_and_checked(tmp_path: Path) -> None:
    fields = fields_of(ControllerConfig)
    with pytest.raises(UsageError, match=r"data_dir is missing: give --data-dir, PENSTOCK_DATA_DIR or data_dir in the file"):
        merge(fields, {})
    assert build(ControllerConfig, merge(fields, {"data_dir": str(tmp_path)}), (InvalidConfig,)).data_dir == tmp_path
    with pytest.raises(UsageError, match="session_timeout_ms"):
        build(ControllerConfig, merge(fields, {"data_dir": str(tmp_path), "session_timeout_ms": "1"}), (InvalidConfig,))


def test_help_lists_every_setting_with_its_doc(capsys: pytest.CaptureFixture[str]) -> None:
    assert node.run("broker", ["--help"], {}) == 0
    shown = capsys.readouterr().out
    assert all(field.flag in shown for field in BROKER)
    assert docs_of(BrokerConfig)["listen_port"] in shown


def test_a_node_without_a_store_or_with_a_bad_file_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"store is missing: give --store URL"):
        node.run("broker", [], {})
    with pytest.raises(UsageError, match="No such file"):
        node.run("broker", ["--config", str(tmp_path / "none.toml")], {})
    bad = tmp_path / "bad.toml"
    bad.write_text("listen_port = = 1")
    with pytest.raises(DeployError, match="is not TOML"):
        node.run("broker", [], {"PENSTOCK_CONFIG": str(bad)})
