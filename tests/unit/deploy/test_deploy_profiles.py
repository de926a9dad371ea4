"""Profiles: the file, which cluster a command uses, and the output of `penstock profile`."""

import json
import os
import stat
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.base.errors import ExpectedError
from penstock.deploy.cli.app import app
from penstock.deploy.clients import controllers, profiles, security, state_file
from penstock.deploy.clients.metadata import find_controller
from penstock.deploy.clients.target import find_brokers, find_store, no_broker
from penstock.deploy.errors import NoController, UsageError
from tests.support.certs import Authority


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv(state_file.VARIABLE, str(tmp_path / "dev.json"))
    for name in ("PENSTOCK_BOOTSTRAP", "PENSTOCK_PROFILE", "PENSTOCK_COMMAND_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def run(*arguments: str) -> str:
    result = copy_context().run(CliRunner().invoke, app, list(arguments))
    if isinstance(result.exception, ExpectedError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_profiles_are_added_shown_used_and_removed(tmp_path: Path) -> None:
    secrets = tmp_path / "prod.properties"
    secrets.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=a\nsasl.password=s3cret\n"
    )
    store = "s3://bucket?access_key=x&secret_key=s3cret"
    assert "active now" in run(
        "profile", "add", "prod", "-b", "k:1", "--store", store, "--command-config", str(secrets)
    )
    run("profile", "add", "dev", "--bootstrap", "k:2")
    path = tmp_path / "config" / "penstock" / "profiles.toml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [item["active"] for item in json.loads(run("profile", "list", "--json"))] == [
        False,
        True,
    ]
    shown = run("profile", "show", "-o", "json")
    assert json.loads(shown)["command_config"] == str(secrets)
    assert "s3cret" not in shown + run("profile", "list")
    assert "dev is active" in run("profile", "use", "dev")
    assert json.loads(run("profile", "show", "--json"))["bootstrap"] == "k:2"
    run("profile", "remove", "dev")
    assert profiles.read(path).active == ""
    with pytest.raises(UsageError, match=r"profile 'prd' does not exist in .*; did you mean prod?"):
        run("topics", "list", "--profile", "prd")
    with pytest.raises(UsageError, match="exists; use --replace to overwrite it"):
        run("profile", "add", "prod", "-b", "k:3")
    path.write_text("active = 1\n")
    with pytest.raises(UsageError, match=r"profiles file .* cannot be read"):
        run("profile", "list")


@pytest.mark.parametrize("command", ["topics list", "topics delete t --yes", "consume t"])
def test_without_a_cluster_there_is_no_default_address(tmp_path: Path, command: str) -> None:
    """A broker at a default address could belong to someone else."""
    reason = r"no brokers given, and no running cluster in .*dev.json: pass --bootstrap HOST:PORT"
    with pytest.raises(UsageError, match=reason):
        run(*command.split())
    (tmp_path / "dev.json").write_text("{")
    with pytest.raises(ExpectedError, match=r"state file .*dev.json cannot be read"):
        run(*command.split())


@pytest.mark.parametrize(
    ("addresses", "is_dev"),
    [("dev:1", True), ("dev:1,dev:3", True), ("dev:1,other:1", False), ("dev:2", False)],
)
def test_credentials_of_dev_are_used_only_for_its_own_addresses(
    tmp_path: Path, addresses: str, is_dev: bool
) -> None:
    (tmp_path / "client.properties").write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=a\nsasl.password=s\n"
    )
    dev_cluster(
        tmp_path, bootstrap="dev:1,dev:3", command_config=str(tmp_path / "client.properties")
    )

    def find() -> None:
        assert find_brokers(addresses).bootstrap == addresses
        assert security.current_security().username == ("a" if is_dev else "")

    copy_context().run(find)


def test_the_console_uses_given_client_properties_without_a_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, those of a client certificate. They override those of the local cluster."""
    (tmp_path / "dev.properties").write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=a\nsasl.password=s\n"
    )
    dev_cluster(tmp_path, command_config=str(tmp_path / "dev.properties"))
    given = tmp_path / "given.properties"
    given.write_text("security.protocol=SSL\n")
    served: list[Any] = []
    monkeypatch.setattr("penstock.deploy.console.server.serve", served.append)
    run("console")
    run("--command-config", str(given), "console")
    assert [options.security.username for options in served] == ["a", ""]
    assert served[1].security == security.read_file(given)


@pytest.mark.parametrize(("address", "is_dev"), [("dev:2", True), ("dev:1", False)])
def test_tls_settings_of_dev_are_used_only_for_its_controllers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, is_dev: bool
) -> None:
    monkeypatch.setattr(controllers, "_of_cluster", {})
    files = Authority(tmp_path).make("penstock-admin")
    dev_cluster(tmp_path, controller_tls=files.settings)
    assert find_controller(address, None, {}) == address
    assert (controllers.connect(address, {}).tls is not None) is is_dev


def dev_cluster(tmp_path: Path, bootstrap: str = "dev:1", **more: Any) -> None:
    state = state_file.ClusterState(
        pid=os.getpid(),
        bootstrap=bootstrap,
        controller="dev:2",
        store_url="file:/dev-store",
        processes=[],
        **more,
    )
    state_file.write(tmp_path / "dev.json", state)


def test_options_override_variables_profiles_and_dev(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="no store given, and no `penstock dev` runs"):
        find_store()
    dev_cluster(tmp_path)
    assert find_brokers("").bootstrap == "dev:1"
    assert find_store() == "file:/dev-store"
    profile = profiles.Profile(bootstrap="prod:1", store="s3://prod", command_config="/none")
    found = profiles.Profiles(active="prod", profiles={"prod": profile})
    profiles.write(profiles.default_path(os.environ), found)

    def with_profile() -> None:
        profiles.use("", os.environ)
        assert find_brokers("").bootstrap == "prod:1"
        assert find_store() == "s3://prod"
        assert find_brokers("other:1").bootstrap == "other:1"
        with pytest.raises(UsageError, match="--command-config /none"):
            security.current_security()
        said = str(no_broker(find_brokers("")))
        assert "prod:1 (profile prod)" in said
        assert said.endswith("; for the running `penstock dev`, use --bootstrap dev:1")

    copy_context().run(with_profile)
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP", "env:1")
    assert "no broker responds at env:1 ($PENSTOCK_BOOTSTRAP)" in str(
        no_broker(find_brokers("env:1"))
    )


@pytest.mark.parametrize(
    ("profile", "is_dev"),
    [
        (profiles.Profile(bootstrap="prod:1"), False),
        (profiles.Profile(controller="prod:2"), False),
        (profiles.Profile(store="s3://prod"), False),
        (profiles.Profile(bootstrap="other:1, dev:1"), True),
        (profiles.Profile(command_config="/none"), True),
    ],
)
def test_unset_profile_values_are_never_taken_from_another_cluster(
    tmp_path: Path, profile: profiles.Profile, is_dev: bool
) -> None:
    dev_cluster(tmp_path)
    found = profiles.Profiles(active="prod", profiles={"prod": profile})
    profiles.write(profiles.default_path(os.environ), found)

    def with_profile() -> None:
        profiles.use("", os.environ)
        if is_dev:
            assert find_store() == "file:/dev-store"
            assert find_controller(None, None, os.environ) == "dev:2"
            return
        if not profile.store:
            with pytest.raises(UsageError, match="profile prod names no store"):
                find_store()
            with pytest.raises(UsageError, match="profile prod names no store"):
                run("sql", "SELECT 1")
        if not profile.controller:
            with pytest.raises(NoController, match="profile prod has no controller"):
                find_controller(None, None, os.environ)
        if not profile.bootstrap:
            with pytest.raises(UsageError, match="profile prod names no brokers: pass --boot"):
                find_brokers("")
        named = tmp_path / "dev.json"
        assert find_store(named) == "file:/dev-store"
        assert find_controller(None, named, os.environ) == "dev:2"

    copy_context().run(with_profile)


def test_the_error_without_a_cluster_says_how_to_start_one() -> None:
    with pytest.raises(ExpectedError, match=r"no broker responds at 127.0.0.1:1; start one with"):
        run("topics", "list", "--bootstrap-server", "127.0.0.1:1")


@pytest.mark.parametrize("option", ["-b", "--bootstrap", "--bootstrap-server"])
def test_an_option_before_its_command_gets_a_hint(option: str) -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, [option, "k:1", "topics", "list"])
    assert result.exit_code == 2
    assert f"{option} goes after the command: penstock topics list" in result.output


@pytest.mark.parametrize(
    "command", ["nodes", "nodes unregister 2", "quorum describe", "top --json", "compact orders"]
)
def test_commands_that_connect_to_controllers_document_it(command: str) -> None:
    arguments = [*command.split(), "--bootstrap-server=k:1"]
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)
    assert result.exit_code == 2
    said = "--bootstrap-server: this command asks the controllers: --controller HOST:PORT"
    assert said in result.output
