"""Use Penstock with Spark: a data source, and functions that decode values with the schemas of a
registry. This needs the `spark` extra and Java 17 or newer.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener, StreamingQueryProgress

    from penstock.lake.spark.progress import Report, SourceLag

__all__ = ["from_avro", "from_json", "from_protobuf", "lag", "lag_listener", "register"]

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


def lag(progress: "StreamingQueryProgress | Mapping[str, Any] | str | None") -> "list[SourceLag]":
    """Return how far a streaming query is behind its topics.

    For Python sources, Spark's progress contains neither metrics nor a readable description, so
    this compares its `endOffset` with its `latestOffset`. Spark 4.0 and 4.1 read to the end in
    every micro-batch, so the lag is always 0 there.

    Args:
        progress: `query.lastProgress`, or its JSON.

    Returns:
        A dictionary for each source with the offsets behind the latest ones: `partitions` by topic
        and partition, and `avgOffsetsBehindLatest`, `maxOffsetsBehindLatest` and
        `minOffsetsBehindLatest` as in the metrics of Spark's Kafka source. It is empty before the
        first micro-batch.

    Raises:
        ImportError: The `spark` extra is not installed.

    Example:
        >>> from penstock.spark import lag
        >>> lag(query.lastProgress)[0]["maxOffsetsBehindLatest"]
        1200
    """
    with _install_hints("spark"):
        from penstock.lake.spark.progress import lags_of
    return lags_of(progress)


def lag_listener(report: "Report") -> "StreamingQueryListener":
    """Return a listener that reports the lag after every micro-batch.

    Args:
        report: Called with the name (or else the id) of a query, and the `lag` of a source.

    Returns:
        A listener for `spark.streams.addListener`.

    Raises:
        ImportError: The `spark` extra is not installed.

    Example:
        >>> from penstock.spark import lag_listener
        >>> gauge = prometheus_client.Gauge("lag", "offsets behind latest", ["query"])
        >>> def report(query, lag):
        ...     gauge.labels(query).set(lag["maxOffsetsBehindLatest"])
        >>> spark.streams.addListener(lag_listener(report))
    """
    with _install_hints("spark"):
        from penstock.lake.spark.progress import LagListener
    return LagListener(report)


def from_avro(
    data: "Column | str",
    subject: str,
    schema_registry: str | Mapping[str, str] = "",
    *,
    headers: "Column | str | None" = None,
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
        headers: The column of headers, if they may contain the schema (`__value_schema_id`).
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
    return _decoded(data, subject, schema_registry, name="avro", headers=headers, mode=mode)


def from_protobuf(
    data: "Column | str",
    subject: str,
    schema_registry: str | Mapping[str, str] = "",
    *,
    message: str = "",
    headers: "Column | str | None" = None,
    mode: Mode = "FAILFAST",
) -> "Column":
    """Decode Protobuf values that begin with the schema ids of a registry, as `from_avro` does.

    Args:
        data: The column, or its name.
        subject: The subject whose newest schema defines the fields.
        schema_registry: URL or properties of the registry.
        message: The full name of the message; by default, the first one of the schema.
        headers: The column of headers, if they may contain the schema.
        mode: `FAILFAST` or `PERMISSIVE`.

    Returns:
        A column of structs, NULL for NULL.

    Raises:
        ImportError: The extras `spark` and `schemas` are not installed.
        ValueError: `schema_registry` is not allowed.
        StreamError: The subject has no schema of this type, or the registry does not respond.
    """
    return _decoded(
        data,
        subject,
        schema_registry,
        name="protobuf",
        message=message,
        headers=headers,
        mode=mode,
    )


def from_json(
    data: "Column | str",
    subject: str,
    schema_registry: str | Mapping[str, str] = "",
    *,
    headers: "Column | str | None" = None,
    mode: Mode = "FAILFAST",
) -> "Column":
    """Decode JSON values that begin with the schema ids of a registry, as `from_avro`.

    Args:
        data: The column, or its name.
        subject: The subject whose newest JSON Schema defines the fields.
        schema_registry: URL or properties of the registry.
        headers: The column of headers, if they may contain the schema.
        mode: `FAILFAST` or `PERMISSIVE`.

    Returns:
        A column of structs, NULL for NULL.

    Raises:
        ImportError: The `spark` extra is not installed.
        ValueError: `schema_registry` is not allowed.
        StreamError: The subject has no schema of this type, or the registry does not respond.
    """
    return _decoded(data, subject, schema_registry, name="json", headers=headers, mode=mode)


def _decoded(
    data: "Column | str",
    subject: str,
    schema_registry: str | Mapping[str, str],
    *,
    name: str,
    message: str = "",
    headers: "Column | str | None",
    mode: Mode,
) -> "Column":
    with _install_hints("spark", "schemas"):
        from penstock.lake.table.spark_columns import decoded_column

        return decoded_column(
            data,
            subject,
            schema_registry,
            name=name,
            message=message,
            mode=mode,
            headers=headers,
        )


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
