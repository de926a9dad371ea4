"""Use Penstock with Spark: its data source, and functions that decode values by a schema registry.
This needs the `spark` extra and Java 17 or newer.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

__all__ = ["from_avro", "from_json", "from_protobuf", "register"]

Mode = Literal["FAILFAST", "PERMISSIVE"]


def register(spark: "SparkSession") -> None:
    """Register the data source `penstock` in a Spark session, and enable filter pushdown.

    Spark finds the source without this call, but filter pushdown is disabled by default.

    Args:
        spark: The session.

    Raises:
        ImportError: The `spark` extra is not installed.

    Example:
        >>> import penstock.spark
        >>> penstock.spark.register(spark)
        >>> reader = spark.read.format("penstock").option("store", "s3://my-bucket")
        >>> reader.option("subscribe", "orders").load().count()
        1000
    """
    with _install_hints("spark"):
        from penstock.lake.spark import source
    source.register(spark)


def from_avro(
    data: "Column | str",
    subject: str,
    schema_registry: str | Mapping[str, str] = "",
    *,
    mode: Mode = "FAILFAST",
) -> "Column":
    """Decode Avro values that begin with the schema ids of a registry.

    Executors look up the schema of each id, and convert values to the newest schema of the subject
    at the time of this call. Unlike Spark's `from_avro`, it needs no schema.

    Args:
        data: The column, or its name.
        subject: The subject whose newest schema defines the fields, such as `orders-value`.
        schema_registry: URL or properties of the registry; by default, executors and driver use
            their environment (`PENSTOCK_SCHEMA_REGISTRY`, `PENSTOCK_SCHEMA_REGISTRY_CONFIG`).
        mode: `FAILFAST` raises for a value that cannot be decoded. `PERMISSIVE` adds the field
            `_error` with the reason, and the other fields are NULL.

    Returns:
        A column of structs, NULL for NULL.

    Raises:
        ImportError: The extras `spark` and `schemas` are not installed.
        ValueError: `schema_registry` is not allowed.
        StreamError: The subject has no schema of this type, or the registry does not respond.

    Example:
        >>> from penstock.spark import from_avro
        >>> orders.select(from_avro("value", "orders-value", url).alias("order")).select("order.*")
    """
    return _decoded(data, subject, schema_registry, name="avro", mode=mode)


def from_protobuf(
    data: "Column | str",
    subject: str,
    schema_registry: str | Mapping[str, str] = "",
    *,
    message: str = "",
    mode: Mode = "FAILFAST",
) -> "Column":
    """Decode Protobuf values that begin with the schema ids of a registry, as `from_avro`.

    Args:
        data: The column, or its name.
        subject: The subject whose newest schema defines the fields.
        schema_registry: URL or properties of the registry.
        message: The full name of the message; by default, the first one of the schema.
        mode: `FAILFAST` or `PERMISSIVE`.

    Returns:
        A column of structs, NULL for NULL.

    Raises:
        ImportError: The extras `spark` and `schemas` are not installed.
        ValueError: `schema_registry` is not allowed.
        StreamError: The subject has no schema of this type, or the registry does not respond.
    """
    return _decoded(data, subject, schema_registry, name="protobuf", message=message, mode=mode)


def from_json(
    data: "Column | str",
    subject: str,
    schema_registry: str | Mapping[str, str] = "",
    *,
    mode: Mode = "FAILFAST",
) -> "Column":
    """Decode JSON values that begin with the schema ids of a registry, as `from_avro`.

    Args:
        data: The column, or its name.
        subject: The subject whose newest JSON Schema defines the fields.
        schema_registry: URL or properties of the registry.
        mode: `FAILFAST` or `PERMISSIVE`.

    Returns:
        A column of structs, NULL for NULL.

    Raises:
        ImportError: The `spark` extra is not installed.
        ValueError: `schema_registry` is not allowed.
        StreamError: The subject has no schema of this type, or the registry does not respond.
    """
    return _decoded(data, subject, schema_registry, name="json", mode=mode)


def _decoded(
    data: "Column | str",
    subject: str,
    schema_registry: str | Mapping[str, str],
    *,
    name: str,
    message: str = "",
    mode: Mode,
) -> "Column":
    with _install_hints("spark", "schemas"):
        from penstock.lake.table.spark_columns import decoded_column

        return decoded_column(data, subject, schema_registry, name=name, message=message, mode=mode)


@contextmanager
def _install_hints(*extras: str) -> Generator[None]:
    """Raise ImportError for a missing package, with the command that installs its extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in {"numpy", "pyarrow", "pyspark", "fastavro", "google"}:
            raise
        from penstock.base.extras import install_hint

        raise ImportError(
            f"penstock.spark needs the package {package}: {install_hint(*extras)}", name=package
        ) from error
