"""Test profiles: the file, which cluster a command means, and what `penstock profile` prints."""

import json
import os
import stat
from contextvars import copy_context
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.base.errors import ExpectedError
from penstock.deploy.cli.app import app
from penstock.deploy.clients import profiles, security, state_file
from penstock.deploy.clients.metadata import find_controller
from penstock.deploy.clients.target import find_brokers, find_store, no_broker
from penstock.deploy.errors import NoController, UsageError


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


def dev_cluster(tmp_path: Path) -> None:
    state = state_file.ClusterState(
        pid=os.getpid(),
        bootstrap="dev:1",
        controller="dev:2",
        store_url="file:/dev-store",
        processes=[],
    )
    state_file.write(tmp_path / "dev.json", state)


def test_options_win_over_variables_profiles_and_dev(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_brokers("").bootstrap == "127.0.0.1:9092"
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
def test_unset_values_of_a_profile_never_come_from_another_cluster(
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
            assert "profile prod names no brokers" in find_brokers("").origin
        named = tmp_path / "dev.json"
        assert find_store(named) == "file:/dev-store"
        assert find_controller(None, named, os.environ) == "dev:2"

    copy_context().run(with_profile)


def test_a_cluster_that_does_not_respond_states_how_to_start_one() -> None:
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
def test_commands_that_request_controllers_document_it(command: str) -> None:
    arguments = [*command.split(), "--bootstrap-server=k:1"]
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)
    assert result.exit_code == 2
    said = "--bootstrap-server: this command asks the controllers: --controller HOST:PORT"
    assert said in result.output
