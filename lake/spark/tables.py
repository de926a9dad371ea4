"""The options of `CREATE TABLE t USING penstock OPTIONS (...)`.

Spark passes them to a Python source only when it creates the table, but the stored schema at each
read, so they are kept in the metadata of the first column.
Source: Spark `V2SessionCatalog#createTable`, `PythonTable`.
"""

import re
from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import StructField, StructType

from penstock.lake.spark.errors import InvalidOption
from penstock.objectstore.url import redact_url

_METADATA: Final = "penstock.options"
_PREFIX: Final = "option."
"""Spark adds each option of a table once more with this prefix, besides properties of its own."""

_SECRET: Final = re.compile(
    r"password|passphrase|passwd|secret|jaas|token(?!\.endpoint)|user[._-]?info|credentials?$"
    r"|private[._-]?key(?!\.file)|(?:access|api)[._-]?key|keystore\.key$|key\.pem$"
    r"|bearer\.config$",
    re.IGNORECASE,
)
"""Parts of the names of options with secrets."""


def table_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a new table, or none if these are not the options of a table."""
    if "provider" not in options:
        return {}
    return {
        name.removeprefix(_PREFIX): value
        for name, value in options.items()
        if name.startswith(_PREFIX)
    }


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema of a table with its options. Raise InvalidOption for secrets, because
    Spark shows and writes schemas everywhere, for example to the files of a query's result.
    """
    secrets = [
        name
        for name, value in sorted(options.items())
        if _SECRET.search(name) or (":" in value and redact_url(value) != value)
    ]
    if secrets:
        raise InvalidOption(
            f"a table must not contain secrets: {', '.join(secrets)}. Put credentials of the store"
            " in the environment of driver and executors"
        )
    first, *others = schema.fields
    metadata = {**first.metadata, _METADATA: dict(options)}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def options_for(schema: StructType, given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a read: those of its table, if the schema is that of a table, and
    those given for this query. With `store`, the given ones are complete. Raise InvalidOption if
    there are none.
    """
    if "store" in given:
        return dict(given)
    stored = [field.metadata[_METADATA] for field in schema.fields if _METADATA in field.metadata]
    found = {name: value for options in stored for name, value in options.items()} | dict(given)
    if not found:
        raise InvalidOption(
            "there are no options. Spark does not pass the options of a table that was created"
            " with a list of columns: use CREATE TABLE ... USING penstock OPTIONS (store '...',"
            " subscribe '...', columns 'partition,offset') without a list, or SELECT ... FROM t"
            " WITH (store '...', subscribe '...')"
        )
    return found


def check_insert(given: Mapping[str, str]) -> None:
    """Raise InvalidOption for an INSERT into a table: the schema of a write is that of the rows,
    which may come from another table, so it must not be searched for options.
    """
    if not given:
        raise InvalidOption(
            "there are no options. Spark does not pass the options of a table to writers: use a"
            " temporary view USING penstock OPTIONS (store '...', subscribe '...',"
            " `kafka.bootstrap.servers` '...', topic '...'), or df.writeTo('t') with options"
        )
