"""Keep the enforced quotas in sync with the metadata."""

from collections.abc import Callable, Coroutine
from typing import Any

from penstock.broker.config import BrokerConfig
from penstock.broker.network.hosts import resolve
from penstock.broker.quotas.clients import ClientQuotas
from penstock.broker.quotas.connections import Connections
from penstock.broker.quotas.rates import Window
from penstock.controller.metadata.delta import MetadataDelta
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.quotas import CONNECTION_CREATION_RATE, IP


class QuotaDuty:
    """Applies changed quotas. `clients` enforces user and client id quotas, `connections` enforces
    address quotas.
    """

    def __init__(
        self,
        config: BrokerConfig,
        connections: Connections,
        run: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """run: starts a coroutine in the background."""
        self.clients = ClientQuotas(
            Window(config.quota_window_num, config.quota_window_size_seconds * 1_000)
        )
        self._connections = connections
        self._run = run
        self._change_count = 0

    def on_batch(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Apply the quotas that changed in this batch."""
        if delta.everything:
            self.clients.reset(image.quotas)
        elif delta.quotas:
            self.clients.change(image.quotas, delta.quotas)
        if delta.everything or any(part.type == IP for item in delta.quotas for part in item):
            self._change_count += 1
            wanted = {
                entity[0].name: values[CONNECTION_CREATION_RATE]
                for entity, values in image.quotas.items()
                if entity[0].type == IP
            }
            self._run(self._set_address_quotas(wanted, self._change_count))

    async def _set_address_quotas(self, wanted: dict[str | None, float], change: int) -> None:
        """Resolve the hosts and apply their quotas, unless the quotas have changed again
        meanwhile.
        """
        default = wanted.pop(None, None)
        found = await resolve(host for host in wanted if host is not None)
        if change == self._change_count:
            quotas = {address: wanted[host] for host in found for address in found[host]}
            self._connections.set_address_quotas(quotas, default)
