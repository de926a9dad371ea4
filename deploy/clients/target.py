"""Find the cluster that a command means, and say which one does not answer.

The order is: option, environment variable, profile, running `penstock dev`, 127.0.0.1:9092. A
profile gives what the options leave open, one by one.
"""

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.clients import profiles, security, state_file
from deploy.errors import DeployError, KafkaFailed

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
_CONNECT_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Target:
    """Brokers. origin: what named them, in words for an error; empty for an option."""

    bootstrap: str
    origin: str


def find_brokers(given: str) -> Target:
    """Return the brokers to ask. given: the value of --bootstrap, empty if there is none.

    The clients of a running `penstock dev` connect as its state file says, unless
    --command-config or a profile says how.
    """
    if given:
        is_variable = os.environ.get("PENSTOCK_BOOTSTRAP") == given
        return Target(given, "$PENSTOCK_BOOTSTRAP" if is_variable else "")
    used = profiles.current_profile()
    if used.profile.bootstrap:
        return Target(used.profile.bootstrap, f"profile {used.name}")
    state = _dev_cluster()
    if state is None:
        return Target(DEFAULT_BOOTSTRAP, "the default address")
    if state.command_config and not security.is_chosen():
        security.use_file(Path(state.command_config))
    return Target(state.bootstrap, "the running `penstock dev`")


def find_store(state_path: Path | None = None) -> str:
    """Return the store of the profile, else that of the running `penstock dev`; empty without one.

    A store in the memory of its own process is none. Raises DeployError if the state file cannot be
    read.
    """
    used = profiles.current_profile().profile
    if state_path is None and used.store:
        return used.store
    state = state_file.read(state_path or state_file.default_path(os.environ))
    if state is None or state.store_url.startswith("memory:"):
        return ""
    return state.store_url


def check_reachable(target: Target) -> None:
    """Raise KafkaFailed if nothing listens at any of the addresses, at once where the connection is
    refused. librdkafka would try for as long as its timeout.
    """
    for address in target.bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S):
                return
        except (OSError, ValueError, OverflowError):
            continue
    raise no_broker(target)


def no_broker(target: Target) -> KafkaFailed:
    """Return the error for brokers that do not answer, with what to do."""
    origin = f" ({target.origin})" if target.origin else ""
    state = _dev_cluster()
    if state is None:
        advice = "start one with `penstock dev`, or name another with --bootstrap or --profile"
    elif state.bootstrap != target.bootstrap:
        advice = f"`penstock dev` runs with brokers at {state.bootstrap}: use --bootstrap"
    else:
        advice = "`penstock dev` runs, but its brokers do not answer: see its output"
    return KafkaFailed(f"no broker answers at {target.bootstrap}{origin}; {advice}")


def _dev_cluster() -> state_file.ClusterState | None:
    try:
        return state_file.read(state_file.default_path(os.environ))
    except DeployError:
        return None
