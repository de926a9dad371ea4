"""Log levels of this broker's loggers, for DescribeConfigs and IncrementalAlterConfigs (KIP-412).
Each package has a logger. A restart resets the levels to the `log.level` setting.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

import structlog

from penstock.base.log_levels import LEVELS, LOG_LEVELS, ROOT
from penstock.broker.errors import ErrorCode
from penstock.broker.handlers.configs.config_entry import DYNAMIC_BROKER_LOGGER, ConfigEntry
from penstock.controller.metadata.topic_configs import ConfigType
from penstock.protocol.gen.incremental_alter_configs import AlterableConfig

LOGGERS: Final = (
    ROOT,
    "penstock.broker",
    "penstock.broker.background",
    "penstock.broker.coordination",
    "penstock.broker.groups",
    "penstock.broker.handlers",
    "penstock.broker.network",
    "penstock.broker.partition",
    "penstock.broker.requests",
    "penstock.broker.schemas",
    "penstock.broker.security",
    "penstock.broker.tail",
    "penstock.broker.transactions",
    "penstock.controller",
    "penstock.deploy",
    "penstock.objectstore",
    "penstock.stream",
    "penstock.stream.compaction",
    "penstock.stream.read",
    "penstock.stream.recovery",
    "penstock.stream.upload",
    "penstock.stream.wal",
)
_SET: Final = 0
_DELETE: Final = 1
_NOT_ALLOWED: Final = {2: "APPEND", 3: "SUBTRACT"}
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,10}")
_log = structlog.get_logger(__name__)


class LoggerRefused(Exception):
    """Raised with the error of a rejected change."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def described_broker_problem(node_id: int, name: str) -> str:
    """Return the reason why this broker cannot describe the given broker's loggers, or "" if it
    can.
    """
    if not name:
        return "Broker id must not be empty"
    if _INTEGER.fullmatch(name) is None:
        return f"Broker id must be an integer, but it is: {name[:100]}"
    if int(name) != node_id:
        return f"Unexpected broker id, expected {node_id} but received {name[:100]}"
    return ""


def logger_entries() -> list[ConfigEntry]:
    """Return the levels of all loggers. As in Kafka, they have no synonyms."""
    return [
        ConfigEntry(
            logger,
            ((logger, LOG_LEVELS.of(logger), DYNAMIC_BROKER_LOGGER),),
            ConfigType.UNKNOWN,
            doc="",
            has_synonyms=False,
        )
        for logger in LOGGERS
    ]


def alter_loggers(
    node_id: int, name: str, changes: Sequence[AlterableConfig], *, validate_only: bool
) -> None:
    """Apply all changes, or none if one is invalid. name: the broker id in the request. Raises
    LoggerRefused.
    """
    if any(count > 1 for count in Counter(change.name for change in changes).values()):
        raise LoggerRefused(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    null = next((change for change in changes if _lacks_value(change)), None)
    if null is not None:
        problem = f"Null value not supported for : {null.name[:100]}"
        raise LoggerRefused(ErrorCode.INVALID_REQUEST, problem)
    if _INTEGER.fullmatch(name) is None:
        problem = f"Node id must be an integer, but it is: {name[:100]}"
        raise LoggerRefused(ErrorCode.INVALID_REQUEST, problem)
    if int(name) != node_id:
        problem = f"Unexpected node id. Expected {node_id}, but received {int(name)}"
        raise LoggerRefused(ErrorCode.INVALID_REQUEST, problem)
    for change in changes:
        _check(change)
    if not validate_only:
        for change in changes:
            _apply(change)


def _lacks_value(change: AlterableConfig) -> bool:
    return change.value is None and change.config_operation != _DELETE


def _check(change: AlterableConfig) -> None:
    """Check one change. Raises LoggerRefused."""
    operation, logger = change.config_operation, change.name
    if operation in _NOT_ALLOWED:
        word = _NOT_ALLOWED[operation]
        problem = f"{word} operation is not allowed for the BROKER_LOGGER resource"
        raise LoggerRefused(ErrorCode.INVALID_REQUEST, problem)
    if operation not in {_SET, _DELETE}:
        problem = f"logger {logger[:100]}: operation {operation} does not exist"
        raise LoggerRefused(ErrorCode.INVALID_REQUEST, problem)
    if logger not in LOGGERS:
        raise LoggerRefused(ErrorCode.INVALID_CONFIG, f"Logger {logger[:100]} does not exist!")
    if operation == _DELETE and logger == ROOT:
        problem = f"Removing the log level of the {ROOT} logger is not allowed"
        raise LoggerRefused(ErrorCode.INVALID_REQUEST, problem)
    if operation == _SET and change.value not in LEVELS:
        problem = (
            f"Cannot set the log level of {logger} to {(change.value or '')[:100]} as it is not a"
            f" supported log level. Valid log levels are {', '.join(sorted(LEVELS))}"
        )
        raise LoggerRefused(ErrorCode.INVALID_CONFIG, problem)


def _apply(change: AlterableConfig) -> None:
    if change.config_operation == _DELETE or change.value is None:
        LOG_LEVELS.unset(change.name)
    else:
        LOG_LEVELS.set(change.name, change.value)
    _log.info("log_level_changed", logger=change.name, log_level=LOG_LEVELS.of(change.name))
