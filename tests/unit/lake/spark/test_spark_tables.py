"""A table stores its options in its schema, because Spark passes only the schema to a reader."""

import pytest
from pyspark.sql.types import StructType

from penstock.lake.spark.errors import InvalidOption
from penstock.lake.spark.schema import source_schema
from penstock.lake.spark.tables import check_insert, options_for
from pyspark_penstock import DefaultSource

OPTIONS = {"store": "s3://b/c", "subscribe": "t", "columns": "offset,key"}


def created(**options: str) -> StructType:
    """Return the schema of a table created with the options that Spark 4.0 to 4.3 pass
    to a source.
    """
    given = options | {f"option.{name}": value for name, value in options.items()}
    return DefaultSource({**given, "provider": "penstock", "owner": "root"}).schema()


def test_the_schema_of_a_table_contains_its_options() -> None:
    schema = StructType.fromJson(created(**OPTIONS).jsonValue())
    assert schema.fieldNames() == ["offset", "key"]
    assert options_for(schema, {}) == OPTIONS
    assert options_for(schema, {"minpartitions": "3"}) == OPTIONS | {"minpartitions": "3"}
    assert options_for(schema, {"subscribe": "u"}) == OPTIONS | {"subscribe": "u"}
    complete = {"store": "file:/x", "assign": "{}"}
    assert options_for(schema, complete) == complete
    assert DefaultSource({}).reader(schema).partitions


@pytest.mark.parametrize("name", [
    "kafka.sasl.oauthbearer.token.endpoint.url",
    "kafka.sasl.oauthbearer.assertion.private.key.file",
    "kafka.basic.auth.credentials.source",
    "kafka.ssl.truststore.certificates",
])  # fmt: skip
def test_options_without_secrets_are_stored(name: str) -> None:
    assert options_for(created(**OPTIONS, **{name: "x"}), {})[name] == "x"


def test_the_schema_of_a_query_contains_no_options() -> None:
    schema = DefaultSource({**OPTIONS, "option.store": "s3://x"}).schema()
    assert [field.metadata for field in schema.fields] == [{}, {}]
    assert options_for(schema, OPTIONS) == OPTIONS


@pytest.mark.parametrize(("options", "text"), [
    ({"subscribe": "t"}, "Option 'store' must be specified"),
    ({"store": "s3://b"}, "One of the following options must be specified"),
    (OPTIONS | {"columns": "nothing"}, "nothing"),
    (OPTIONS | {"kafka.ssl.key.password": "x"}, "secrets: kafka.ssl.key.password. Put"),
    (OPTIONS | {"kafka.sasl.jaas.config": "x"}, "secrets: kafka.sasl.jaas.config"),
    (OPTIONS | {"kafka.sasl.oauthbearer.client.credentials.client.secret": "x"}, "secrets: kafka"),
    (OPTIONS | {"kafka.ssl.keystore.key": "x"}, "secrets: kafka.ssl.keystore.key"),
    *(
        (OPTIONS | {name: "x"}, f"secrets: {name.lower()}")
        for name in (
            *("kafka.basic.auth.user.info", "kafka.schema.registry.basic.auth.user.info"),
            *("kafka.SASL.JAAS.Config", "kafka.ssl.truststore.password", "kafka.bearer.auth.token"),
            *("kafka.delegation.tokens", "kafka.token.id", "kafka.private.key", "kafka.api_key"),
            *("kafka.sasl.oauthbearer.assertion.private.key.passphrase", "kafka.aws.accessKeyId"),
        )
    ),
    (OPTIONS | {"store": "s3://key:secret@b/c"}, "secrets: store"),
    (OPTIONS | {"wal_store": "s3://b?endpoint=http://u:p@h"}, "secrets: wal_store"),
])  # fmt: skip
def test_invalid_tables_are_rejected(options: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidOption, match=text) as caught:
        created(**options)
    assert "key:secret" not in str(caught.value)


def test_the_error_explains_that_spark_does_not_pass_table_options() -> None:
    schema = source_schema(["offset"], include_headers=False)
    with pytest.raises(InvalidOption, match="with a list of columns: use CREATE TABLE"):
        DefaultSource({}).reader(schema)
    with pytest.raises(InvalidOption, match="with a list of columns: use CREATE TABLE"):
        DefaultSource({}).streamReader(schema)
    with pytest.raises(InvalidOption, match="use a temporary view USING penstock"):
        DefaultSource({}).writer(created(**OPTIONS), overwrite=False)
    check_insert({"topic": "t"})
