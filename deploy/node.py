"""`penstock broker` and `penstock controller`: one node as a process.

Invariant: neither typer nor rich nor any Kafka client is imported on this way, so that a broker stays small and starts at once.
Must not hold logic of a node: `broker.main` and `controller.main` have it.
"""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from deploy import lifeline, logs

if TYPE_CHECKING:
    from controller.health import ServeHealth
    from deploy.config.definition import ProcessConfig, Role
    from deploy.config.effective import Effective


def run(role: "Role", arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Run one node until it ends; returns the exit code. Raises DeployError for what the user got wrong."""
    lifeline.hold(environment)
    logs.keep_rich_out()
    if {"-h", "--help"} & set(arguments):
        from deploy.config.docs import help_text

        print(help_text(role))
        return 0
    from deploy.config.definition import ProcessConfig
    from deploy.config.load import load

    config = load(role, arguments, environment)
    logs.configure(config.part(ProcessConfig).log_level)
    return _run_broker(config) if role == "broker" else _run_controller(config)


def _run_broker(config: "Effective") -> int:
    from broker.config import BrokerConfig
    from broker.main import run as run_broker
    from deploy.config.definition import ProcessConfig
    from deploy.traces.set_up import of_requests
    from stream.compaction.plan import CompactionConfig
    from stream.config import StreamConfig

    process = config.part(ProcessConfig)
    stream, compaction = config.part(StreamConfig), config.part(CompactionConfig)
    with of_requests(process) as tracing:
        return run_broker(config.part(BrokerConfig), process.store, stream, compaction, _serve_health(process), tracing=tracing)


def _run_controller(config: "Effective") -> int:
    from controller.config import ControllerConfig
    from controller.errors import ControllerError
    from controller.main import run as run_controller
    from deploy.config.definition import ProcessConfig
    from deploy.errors import DeployError
    from deploy.traces.set_up import of_moves
    from stream.setting import fields_of, renamed

    process = config.part(ProcessConfig)
    try:
        with of_moves(process) as moved:
            return run_controller(config.part(ControllerConfig), process.store, _serve_health(process), moved)
    except (ControllerError, OSError) as error:
        raise DeployError(renamed({field.field: field.name for field in fields_of(ControllerConfig)}, str(error))) from None


def _serve_health(process: "ProcessConfig") -> "ServeHealth":
    from controller.health import tell_nobody
    from controller.listeners import parse_listeners

    if not process.health_listener:
        return tell_nobody
    from deploy.health import serve_at
    from deploy.metrics.node import metrics_of

    listener = parse_listeners("health_listener", [process.health_listener])[0]
    return serve_at(listener.host, listener.port, metrics_of)
