"""The client metrics of one broker: subscriptions from the metadata, clients, and the sender."""

from collections.abc import Mapping, Sequence
from uuid import UUID

from penstock.broker.client_metrics.instances import ClientInstances
from penstock.broker.client_metrics.sender import MetricsSender
from penstock.broker.client_metrics.subscriptions import (
    ClientIdentity,
    ClientSubscription,
    wanted_of,
)
from penstock.controller.metadata.configs import CLIENT_METRICS_RESOURCE
from penstock.controller.metadata.delta import MetadataDelta
from penstock.controller.metadata.image import MetadataImage


class ClientMetrics:
    def __init__(self, sender: MetricsSender) -> None:
        self.sender = sender
        self.instances = ClientInstances(self._wanted)
        self._subscriptions: Sequence[Mapping[str, str]] = ()

    def on_batch(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Apply the subscriptions that changed in this batch."""
        if delta.everything or any(kind == CLIENT_METRICS_RESOURCE for kind, _ in delta.configs):
            configs = image.configs
            self._subscriptions = [
                configs.client_metrics(name) for name in configs.names(CLIENT_METRICS_RESOURCE)
            ]
            self.instances.subscriptions_changed()

    def _wanted(self, identity: ClientIdentity, instance: UUID) -> ClientSubscription:
        return wanted_of(self._subscriptions, identity, instance)
