"""Complete names of topics, groups and other resources in a shell.

Invariant: a completion returns within DEADLINE_S plus the start of Python, prints only names, and
is empty after any failure. Names are cached for CACHE_S in the user's cache directory, by broker
address, user and type of name.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import typer

DEADLINE_S: Final = 1.0
CACHE_S: Final = 10.0
NAMES_MAX: Final = 10_000
"""Maximum number of cached names, because shells do not display more."""


def complete_topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a topic."""
    return _complete(ctx, incomplete, "topics")


def complete_topic_values(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the TOPIC= part of an option value."""
    return [f"{name}=" for name in complete_topics(ctx, incomplete)]


def complete_deleted_topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a deleted topic; with --records, of a topic with deleted records."""
    return _complete(ctx, incomplete, "topics" if ctx.params.get("records") else "deleted topics")


def complete_partitions(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete TOPIC-PARTITION."""
    return _complete(ctx, incomplete, "partitions")


def complete_groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the id of a group."""
    return _complete(ctx, incomplete, "groups")


def complete_brokers(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the id of a broker."""
    return _complete(ctx, incomplete, "brokers")


def complete_snapshots(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a snapshot."""
    return _complete(ctx, incomplete, "snapshots")


def complete_client_metrics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a client metrics subscription."""
    return _complete(ctx, incomplete, "client metrics")


def complete_topic_configs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete NAME= of a config of topics."""
    return [f"{name}=" for name in _complete(ctx, incomplete, "topic configs")]


def complete_config_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a config of the selected resource."""
    return _complete(ctx, incomplete, _kind_of_configs(ctx))


def complete_config_values(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete NAME= of a config of the selected resource."""
    return [f"{name}=" for name in complete_config_names(ctx, incomplete)]


def complete_profiles(_ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a profile."""
    from penstock.base.errors import ExpectedError
    from penstock.deploy.clients import profiles

    try:
        found = profiles.read(profiles.default_path(os.environ))
    except ExpectedError:
        return []
    return [name for name in sorted(found.profiles) if name.startswith(incomplete)]


def _kind_of_configs(ctx: typer.Context) -> str:
    if ctx.params.get("group"):
        return "group configs"
    if ctx.params.get("client_metrics"):
        return "client metrics configs"
    if ctx.params.get("broker_logger") is not None:
        return "broker loggers"
    is_broker = ctx.params.get("all_brokers") or ctx.params.get("broker") is not None
    return "broker configs" if is_broker else "topic configs"


def _complete(ctx: typer.Context, incomplete: str, kind: str) -> list[str]:
    try:
        names = _names(ctx, kind)
    except Exception:  # noqa: BLE001 - a message in the middle of a command line helps no one
        return []
    return [name for name in names if name.startswith(incomplete) and name.isprintable()]


def _names(ctx: typer.Context, kind: str) -> list[str]:
    from penstock.deploy.clients import profiles, security
    from penstock.deploy.clients.target import find_brokers

    given = ctx.find_root().params
    profiles.use(given.get("profile") or "", os.environ)
    if given.get("command_config"):
        security.use_file(given["command_config"])
    # Commands that read the store or contact a controller have no --bootstrap.
    requested = ctx.params.get("bootstrap") or os.environ.get("PENSTOCK_BOOTSTRAP", "")
    brokers = find_brokers(requested).bootstrap
    properties = security.current_security()
    path = _cache_path(f"{brokers}\n{properties.username}\n{properties.certificate}\n{kind}")
    known = _read_cache(path)
    if known is None:
        known = _within_deadline(lambda: _send_request(brokers, kind))
        _write_cache(path, known)
    return known


def _within_deadline(send_request: Callable[[], list[str]]) -> list[str]:
    """Return the result of a call in a thread. Raises TimeoutError, in which case the thread ends
    with the process.
    """
    from contextvars import copy_context
    from queue import Empty, SimpleQueue
    from threading import Thread

    results: SimpleQueue[list[str] | BaseException] = SimpleQueue()
    context = copy_context()

    def run() -> None:
        try:
            results.put(context.run(send_request))
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            results.put(error)

    Thread(target=run, daemon=True).start()
    try:
        found = results.get(timeout=DEADLINE_S)
    except Empty:
        raise TimeoutError from None
    if isinstance(found, BaseException):
        raise found
    return found


def _send_request(brokers: str, kind: str) -> list[str]:
    from penstock.deploy.cli.names import request_names

    return request_names(brokers, kind)[:NAMES_MAX]


def _cache_path(key: str) -> Path:
    from hashlib import sha256

    from penstock.base.own_directory import user_directory

    directory = user_directory(os.environ, "XDG_CACHE_HOME", ".cache")
    return directory / "completion" / sha256(key.encode()).hexdigest()[:32]


def _read_cache(path: Path) -> list[str] | None:
    try:
        if not 0 <= time.time() - path.stat().st_mtime <= CACHE_S:
            return None
        return path.read_text().splitlines()
    except (OSError, ValueError):
        return None


def _write_cache(path: Path, names: list[str]) -> None:
    beside: Any = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write("\n".join(names))
        beside.replace(path)
    except OSError:
        return
