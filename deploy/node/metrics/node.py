"""The route `/metrics` of a process, by what its health knows."""

from contextlib import AbstractAsyncContextManager

from base.health import Health
from controller.main import ControllerHealth
from deploy.node.health import Route
from deploy.node.metrics.exposition import Exposition


def metrics_of(health: Health) -> AbstractAsyncContextManager[dict[str, Route]]:
    """For `deploy.node.health.serve_at`. A process imports the reader of its own role only."""
    if isinstance(health, ControllerHealth):
        from deploy.node.metrics.controller import ControllerReader

        return Exposition("controller", ControllerReader(health)).serve()
    from broker.health import BrokerHealth
    from deploy.node.metrics.broker import BrokerReader

    assert isinstance(health, BrokerHealth), health
    return Exposition("broker", BrokerReader(health)).serve()
