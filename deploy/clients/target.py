"""Determine the cluster that a command uses, and describe it in errors if it does not respond."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from penstock.deploy.clients import profiles, security, state_file
from penstock.deploy.errors import UsageError
from penstock.protocol.client.errors import NoResponse

BOOTSTRAP_VARIABLE: Final = "PENSTOCK_BOOTSTRAP"


@dataclass(frozen=True, slots=True)
class Target:
    """Bootstrap brokers. origin: the source of the addresses, for errors; empty for an option.
    cluster_id: the id of the expected cluster; empty if it is unknown.
    """

    bootstrap: str
    origin: str
    cluster_id: str = ""


# The order of precedence is: option, environment variable, profile, running `penstock dev`. There
# is no default address, because it could belong to another user's cluster. A profile supplies each
# value that no option sets. Invariant: values missing in a profile are taken from the running
# `penstock dev` only if it is the cluster of the profile, so that no command mixes two clusters.
def find_brokers(given: str) -> Target:
    """Return the bootstrap brokers. given: the value of --bootstrap; empty if there is none.

    Clients of a running `penstock dev` use the security settings in its state file, even if an
    option contains its addresses, unless --command-config or a profile overrides them.

    Raises UsageError if no cluster is selected, ExpectedError if the state file cannot be read.
    """
    if given:
        dev = dev_cluster_at(given, "bootstrap")
        if dev is not None:
            connect_as(dev)
        is_variable = os.environ.get(BOOTSTRAP_VARIABLE) == given
        return Target(given, f"${BOOTSTRAP_VARIABLE}" if is_variable else "")
    used = profiles.current_profile()
    if used.profile.bootstrap:
        return Target(used.profile.bootstrap, f"profile {used.name}")
    state = dev_cluster()
    if state is None:
        missing = f"no brokers given, and no running cluster in {_default_path()}"
        if used.name:
            missing = f"profile {used.name} names no brokers"
        raise UsageError(
            f"{missing}: pass --bootstrap HOST:PORT ({BOOTSTRAP_VARIABLE}), or start a cluster with"
            " `penstock dev`"
        )
    connect_as(state)
    return Target(state.bootstrap, "the running `penstock dev`", state.cluster_id)


def connect_as(dev: state_file.ClusterState) -> None:
    """Use the security settings of a local cluster, unless others are selected."""
    if dev.command_config and not security.is_chosen():
        security.use_file(Path(dev.command_config))


def find_store(state_path: Path | None = None) -> str:
    """Return the store of the profile or, if there is none, of the running `penstock dev`.
    state_path: its state file, if given by an option.

    Raises UsageError if other processes cannot read the store, ExpectedError if the state file
    cannot be read.
    """
    used = profiles.current_profile()
    if state_path is None and used.profile.store:
        return used.profile.store
    state = dev_cluster(state_path)
    if state is not None and not state.store_url.startswith("memory:"):
        return state.store_url
    if state is not None:
        why = "the store of the running `penstock dev` is in its own memory"
    elif used.name:
        why = f"profile {used.name} names no store (`penstock profile add --replace` adds one)"
    else:
        why = "no store given, and no `penstock dev` runs"
    raise UsageError(f"{why}: specify the brokers' store with --store URL (PENSTOCK_STORE)")


def existing_store(url: str, option: str = "--store") -> str:
    """Return the URL of a store with a cluster. Raises UsageError if it is a directory that does
    not exist: opening it would create it, so that a typo looks like an empty store.
    """
    from penstock.objectstore.config import DirectoryConfig
    from penstock.objectstore.errors import InvalidStoreUrl
    from penstock.objectstore.url import parse_store_url

    try:
        config = parse_store_url(url)
    except InvalidStoreUrl:  # reported when the store is opened
        return url
    if isinstance(config, DirectoryConfig) and not Path(config.directory).exists():
        raise UsageError(
            f"{option} {url}: the directory does not exist; specify the store of the brokers"
        )
    return url


def find_wal_store(store_url: str, state_path: Path | None = None) -> str:
    """Return the WAL store of the running `penstock dev` if this is its store; otherwise an empty
    string. Raises ExpectedError if the state file cannot be read.
    """
    state = dev_cluster(state_path)
    return state.wal_store_url if state is not None and state.store_url == store_url else ""


def dev_cluster(state_path: Path | None = None) -> state_file.ClusterState | None:
    """Return the running `penstock dev`, unless the profile selects another cluster. state_path:
    its state file, if given by an option.

    Raises ExpectedError if the state file cannot be read.
    """
    state = state_file.read(state_path or _default_path())
    if state is None or state_path is not None:
        return state
    return None if is_elsewhere(profiles.current_profile().profile, state) else state


def dev_cluster_at(
    addresses: str, role: Literal["bootstrap", "controller"]
) -> state_file.ClusterState | None:
    """Return the running `penstock dev` if all these addresses belong to its brokers or
    controllers.
    """
    state = state_file.of_user()
    if state is None:
        return None
    known = state.bootstrap if role == "bootstrap" else state.controller
    return state if _addresses(addresses) <= _addresses(known) else None


def is_elsewhere(profile: profiles.Profile, state: state_file.ClusterState) -> bool:
    """Return whether a profile selects a cluster other than this one."""
    named = (profile.bootstrap, profile.controller, profile.store)
    dev = (state.bootstrap, state.controller, state.store_url)
    return any(named) and not any(
        _addresses(one) & _addresses(other) for one, other in zip(named, dev, strict=True)
    )


def _addresses(text: str) -> set[str]:
    found = {part.strip() for part in text.split(",")} - {""}
    return {re.sub(r"^localhost:", "127.0.0.1:", address) for address in found}


def no_broker(target: Target, reason: str = "") -> NoResponse:
    """Return the error for brokers that do not respond, with a remedy. reason: the reason, if
    known.
    """
    origin = f" ({target.origin})" if target.origin else ""
    state = state_file.of_user()
    if state is None:
        advice = "start one with `penstock dev`, or name another with --bootstrap or --profile"
    elif state.bootstrap != target.bootstrap:
        advice = f"for the running `penstock dev`, use --bootstrap {state.bootstrap}"
        reason = _other_service(target.bootstrap, state) or reason
    else:
        advice = "`penstock dev` runs, but its brokers do not respond: see its output"
    reason = _malformed(target.bootstrap) or reason
    why = f": {reason}" if reason else ""
    return NoResponse(f"no broker responds at {target.bootstrap}{origin}{why}; {advice}")


def _other_service(bootstrap: str, state: state_file.ClusterState) -> str:
    """Return the other process of a local cluster that has one of these addresses, or ""."""
    services = {
        "a controller": {f"{each.host}:{each.port}" for each in state.of_role("controller")},
        "the object store": {f"{each.host}:{each.port}" for each in state.of_role("store")},
        "the web console": {state.console.rpartition("/")[2]},
    }
    for service, addresses in services.items():
        if _addresses(bootstrap) & addresses:
            return f"it is the address of {service}, not of a broker"
    return ""


def _malformed(bootstrap: str) -> str:
    """Return an error message for malformed addresses, or ""."""
    for address in (part.strip() for part in bootstrap.split(",")):
        host, _, port = address.rpartition(":")
        if not (host and port.isdecimal()):
            return f"{address!r} is not HOST:PORT, as in {host or address}:9092"
    return ""


def _default_path() -> Path:
    return state_file.default_path(os.environ)
