"""The settings of the pipeline, in one place. Each is an environment variable, so that the same
code runs on a laptop, on a standalone cluster and on Kubernetes.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

RAW = "flights.raw"
CLEAN = "flights.clean"
DEAD = "flights.dead"
CARRIERS = "carriers"

SPARK = "4.1.1"
ICEBERG = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
"""The newest Spark that Iceberg supports, and its runtime."""


@dataclass(frozen=True, kw_only=True)
class Config:
    store: str
    """The store URL of the Penstock cluster, which contains the topics."""

    bootstrap: str
    """Bootstrap servers for the topics that the pipeline writes to. It reads only from the
    store.
    """

    warehouse: str
    """The location of the Iceberg tables: a directory or URL to which Spark can write."""

    checkpoints: str
    """The location of query checkpoints: a directory or URL that every driver can access."""

    catalog_type: str = "hadoop"
    """`hadoop` needs a file system with atomic renames; use `rest` or `glue` on object stores."""

    catalog_uri: str = ""

    schema_registry: str = ""
    """URL of the schema registry whose ids begin the values of the raw topic. If empty, values are
    plain JSON as in `schemas/flight.json`.
    """

    master: str = "local[2]"
    """The Spark master. Empty for `spark-submit` and the Spark operator, which set it
    themselves.
    """

    trigger: str = "5 seconds"
    watermark: str = "6 hours"
    """How late a flight may arrive and still be counted in its window. Later flights are only
    counted by a backfill.
    """

    lag_max: int = 50_000
    """Lag of a query, in records, above which the lag alert fires."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Read `PIPELINE_STORE` and so on. Raise SystemExit with the names of missing variables."""
        given = {item.name: environment.get(variable(item.name)) for item in fields(cls)}
        missing = [variable(name) for name in _REQUIRED if not given[name]]
        if missing:
            raise SystemExit(f"set {', '.join(missing)}")
        found: dict[str, str | int] = {k: v for k, v in given.items() if v is not None}
        if "lag_max" in found:
            found["lag_max"] = int(found["lag_max"])
        return cls(**found)  # type: ignore[arg-type]

    def to_environment(self) -> dict[str, str]:
        return {variable(item.name): str(getattr(self, item.name)) for item in fields(self)}


def variable(name: str) -> str:
    return f"PIPELINE_{name.upper()}"


_REQUIRED = ("store", "bootstrap", "warehouse", "checkpoints")
