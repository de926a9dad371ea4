"""Choose the metrics of a process by its role."""

from contextlib import AbstractAsyncContextManager

from penstock.base.health import Health
from penstock.broker.health import BrokerHealth
from penstock.deploy.node.health import Route
from penstock.deploy.node.metrics.exposition import Exposition


def metrics_of(health: Health) -> AbstractAsyncContextManager[dict[str, Route]]:
    """Serve the metrics for `deploy.node.health.serve_at`. Imports only the reader for the role of
    the process: importing the controller's reader would add 93 modules to a broker.
    """
    if isinstance(health, BrokerHealth):
        from penstock.deploy.node.metrics.broker import BrokerReader

        return Exposition("broker", BrokerReader(health)).serve()
    from penstock.controller.main import ControllerHealth
    from penstock.deploy.node.metrics.controller import ControllerReader

    assert isinstance(health, ControllerHealth), health
    return Exposition("controller", ControllerReader(health)).serve()
