"""Penstock in tests: the fixtures `penstock_cluster` and `penstock` (docs/reference/pytest.md).
This module exports the types for annotations in tests.

Invariant: importing this module is cheap, because pytest loads the plugin in every run; names are
imported on first use. This module must not import pytest: only `penstock.testing.plugin` does,
which `pyspark_penstock.pytest_plugin` loads.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.base.errors import ExpectedError as PenstockError
    from penstock.testing.cluster import PenstockCluster, StoreFaults
    from penstock.testing.penstock import Penstock
    from penstock.testing.records import Position, Record

__all__ = ["Penstock", "PenstockCluster", "PenstockError", "Position", "Record", "StoreFaults"]


def __getattr__(name: str) -> object:
    if name == "Penstock":
        from penstock.testing import penstock

        return penstock.Penstock
    if name in {"PenstockCluster", "StoreFaults"}:
        from penstock.testing import cluster

        return getattr(cluster, name)
    if name in {"Record", "Position"}:
        from penstock.testing import records

        return getattr(records, name)
    if name == "PenstockError":
        from penstock.base.errors import ExpectedError

        return ExpectedError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
