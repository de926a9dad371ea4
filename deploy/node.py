"""`penstock broker` and `penstock controller`: one node as a process.

Invariant: neither typer nor rich nor any Kafka client is imported on this way, so that a broker stays small and starts at once.
Must not hold logic of a node: `broker.main` and `controller.main` have it.
"""

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from deploy import lifeline, logs
from deploy.errors import UsageError
from deploy.settings import COMMON, LOG_LEVEL, STORE, Field, build, docs_of, fields_of, from_environment, from_file, from_flags, merge

ROLES: Final = ("broker", "controller")
CONFIG_FLAG: Final = "config"


def run(role: str, arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Run one node until it ends; returns the exit code. Raises DeployError for what the user got wrong."""
    lifeline.hold(environment)
    logs.keep_rich_out()
    config_type, invalid, start = _broker() if role == "broker" else _controller()
    fields = fields_of(config_type)
    if {"-h", "--help"} & set(arguments):
        print(_help(role, config_type, fields))
        return 0
    names = [*COMMON, *(field.name for field in fields)]
    flags = from_flags(arguments, [*names, CONFIG_FLAG])
    path = str(flags.pop(CONFIG_FLAG, environment.get("PENSTOCK_CONFIG", "")))
    content = from_file(_read(path), role, names, path, ROLES) if path else {}
    settings = merge(fields, content, from_environment(environment, names), flags)
    config = build(config_type, settings, invalid)
    if settings.store is None:
        raise UsageError("store is missing: give --store URL (s3://BUCKET?endpoint=URL or file:DIR), PENSTOCK_STORE or store in the file")
    if settings.log_level not in logs.LEVELS:
        raise UsageError(f"log_level={settings.log_level!r} is not allowed: {', '.join(logs.LEVELS)}")
    logs.configure(settings.log_level)
    return start(config, settings.store)


def _broker() -> tuple[type[Any], tuple[type[Exception], ...], Callable[[Any, str], int]]:
    from broker.config import BrokerConfig, ConfigInvalid

    def start(config: BrokerConfig, store: str) -> int:
        from broker.main import run as run_broker

        return run_broker(config, store)

    return BrokerConfig, (ConfigInvalid,), start


def _controller() -> tuple[type[Any], tuple[type[Exception], ...], Callable[[Any, str], int]]:
    from controller.config import ControllerConfig
    from controller.errors import InvalidConfig

    def start(config: ControllerConfig, store: str) -> int:
        from controller.main import run as run_controller

        return run_controller(config, store)

    return ControllerConfig, (InvalidConfig,), start


def _read(path: str) -> Mapping[str, object]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise UsageError(f"config file {path}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"config file {path} is not TOML: {error}") from None


def _help(role: str, config_type: type[Any], fields: Sequence[Field]) -> str:
    docs = docs_of(config_type)
    commands = ["Or: penstock controller status|add|remove|transfer, each with --help: show and change the quorum.", ""]
    lines = [
        f"Usage: penstock {role} --store URL [--config FILE] [--SETTING VALUE ...]",
        "",
        *(commands if role == "controller" else ()),
        f"Run one {role}. Every setting is a flag, a variable (PENSTOCK_{fields[0].name.upper()}) or a key of the TOML file, at its top",
        f"or in a table [{role}]; flags win over variables, variables over the file.",
        "",
        "  --config FILE (PENSTOCK_CONFIG)",
        f"  --{STORE} URL",
        "      s3://BUCKET[/PREFIX]?endpoint=URL&region=NAME or file:DIR; the same for all nodes of a cluster.",
        f"  --{LOG_LEVEL.replace('_', '-')} {'|'.join(logs.LEVELS)}  (default: info)",
    ]
    for field in fields:
        lines.append(f"  {field.flag}  " + ("(required)" if field.required else f"(default: {field.default or 'none'})"))
        if field.name in docs:
            lines.append(f"      {docs[field.name]}")
    return "\n".join(lines)
