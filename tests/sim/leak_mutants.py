"""Planted bugs that leak bytes in the bucket, for `tests.sim.mutants`."""

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.controller.active.janitor import Janitor
from penstock.stream.wal.slots import SlotTable

Patch = tuple[Any, str, Any]


def _slots_of_deleted_streams_kept() -> list[Patch]:
    """The broker assumes that every slot it has listed as an object belongs to the controller."""
    real = SlotTable.commit
    return [(SlotTable, "commit", lambda self, end, _: real(self, end, lambda _: True))]


def _fences_never_go() -> list[Patch]:
    async def remove_old_wals(self: Janitor) -> int:
        return 0

    return [(Janitor, "remove_old_wals", remove_old_wals)]


def _fences_go_at_once() -> list[Patch]:
    """Fences are deleted immediately, so a broker that was paused finds its next slot free."""
    real = Janitor.remove_old_wals

    async def remove_old_wals(self: Janitor) -> int:
        config = self._config
        self._config = msgspec.structs.replace(config, late_put_grace_ms=1)
        now_ms, self._now_ms = self._now_ms, lambda: now_ms() + config.fence_kept_ms
        try:
            return await real(self)
        finally:
            self._config, self._now_ms = config, now_ms

    return [(Janitor, "remove_old_wals", remove_old_wals)]


LEAK_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "slots_of_deleted_streams_kept": _slots_of_deleted_streams_kept,
    "fences_never_go": _fences_never_go,
    "fences_go_at_once": _fences_go_at_once,
}
