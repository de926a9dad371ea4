"""Penstock in tests: the fixtures `penstock_cluster` and `penstock` (docs/reference/pytest.md).
This module has the types that tests name.

Invariant: importing this costs nothing, because pytest loads the plugin in every run of every user
of Penstock; names are imported on first use. Must not import pytest: only `pytest_penstock.plugin`
does, and only pytest imports that.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deploy.errors import DeployError as PenstockError
    from pytest_penstock.cluster import PenstockCluster, StoreFaults
    from pytest_penstock.penstock import Penstock
    from pytest_penstock.records import Position, Record

__all__ = ["Penstock", "PenstockCluster", "PenstockError", "Position", "Record", "StoreFaults"]


def __getattr__(name: str) -> object:
    if name == "Penstock":
        from pytest_penstock import penstock

        return penstock.Penstock
    if name in {"PenstockCluster", "StoreFaults"}:
        from pytest_penstock import cluster

        return getattr(cluster, name)
    if name in {"Record", "Position"}:
        from pytest_penstock import records

        return getattr(records, name)
    if name == "PenstockError":
        from deploy.errors import DeployError

        return DeployError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
