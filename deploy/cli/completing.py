"""Complete names of topics, groups and other resources in a shell.

Invariant: a completion returns within DEADLINE_S plus the start of Python, prints only names, and
is empty after any failure. Names are cached for CACHE_S in the user's cache directory, by broker
address, user and type of name.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

import typer

DEADLINE_S: Final = 1.0
CACHE_S: Final = 10.0
NAMES_MAX: Final = 10_000
"""Maximum number of cached names, because shells do not display more."""
Completion: TypeAlias = Callable[[typer.Context, str], list[str]]


def _completion(kind: str | Callable[[typer.Context], str], suffix: str = "") -> Completion:
    """Return a function that completes names. kind: a key of `names.KINDS`. suffix: text after each
    name.
    """

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        try:
            names = _names(ctx, kind if isinstance(kind, str) else kind(ctx))
        except Exception:  # noqa: BLE001 - a message in the middle of a command line helps no one
            return []
        matches = [name for name in names if name.startswith(incomplete) and name.isprintable()]
        return [name + suffix for name in matches]

    return complete


def _kind_of_deleted(ctx: typer.Context) -> str:
    """Return the kind of the completed names. --records restores records of existing topics."""
    return "topics" if ctx.params.get("records") else "deleted topics"


def _kind_of_configs(ctx: typer.Context) -> str:
    if ctx.params.get("group"):
        return "group configs"
    if ctx.params.get("client_metrics"):
        return "client metrics configs"
    if ctx.params.get("broker_logger") is not None:
        return "broker loggers"
    is_broker = ctx.params.get("all_brokers") or ctx.params.get("broker") is not None
    return "broker configs" if is_broker else "topic configs"


complete_topics = _completion("topics")
complete_topic_values = _completion("topics", "=")
complete_deleted_topics = _completion(_kind_of_deleted)
complete_partitions = _completion("partitions")
complete_groups = _completion("groups")
complete_brokers = _completion("brokers")
complete_snapshots = _completion("snapshots")
complete_client_metrics = _completion("client metrics")
complete_topic_configs = _completion("topic configs", "=")
complete_config_names = _completion(_kind_of_configs)
complete_config_values = _completion(_kind_of_configs, "=")


def complete_profiles(_ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a profile."""
    from penstock.base.errors import ExpectedError
    from penstock.deploy.clients import profiles

    try:
        found = profiles.read(profiles.default_path(os.environ))
    except ExpectedError:
        return []
    return [name for name in sorted(found.profiles) if name.startswith(incomplete)]


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
    from penstock.deploy.cli.names import KINDS

    return sorted(KINDS[kind](brokers))[:NAMES_MAX]


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
    from penstock.deploy.private_files import write_private

    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, "\n".join(names).encode())
