"""The options of `CREATE TABLE t USING penstock OPTIONS (...)`.

Spark passes the options to a Python source only when it creates the table, but it passes the stored
schema at each read. The options are therefore stored in the metadata of the first column. Source:
Spark `V2SessionCatalog#createTable`, `PythonTable`.
"""

import re
from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import StructField, StructType

from penstock.lake.spark.errors import InvalidOption
from penstock.objectstore.url import redact_url

_METADATA: Final = "penstock.options"
_PREFIX: Final = "option."
"""Spark adds properties of its own to the options of a table, and repeats each option with this
prefix.
"""

_SECRET: Final = re.compile(
    r"password|passphrase|passwd|secret|jaas|token(?!\.endpoint)|user[._-]?info|credentials?$"
    r"|private[._-]?key(?!\.file)|(?:access|api)[._-]?key|keystore\.key$|key\.pem$"
    r"|bearer\.config$",
    re.IGNORECASE,
)
"""Matches names of options that may contain secrets."""


def table_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a new table, or an empty dict if Spark is not creating a table."""
    if "provider" not in options:
        return {}
    return {
        name.removeprefix(_PREFIX): value
        for name, value in options.items()
        if name.startswith(_PREFIX)
    }


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema of a table with its options. Raise InvalidOption for secrets, because Spark
    displays schemas and writes them to many places, for example to the files of a query's result.
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
    """Return the options of a read: the options stored in the schema, if it is the schema of a
    table, and the options specified for this query. If `store` is given, the stored ones are
    ignored. Raise InvalidOption if there are no options.
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
    """Raise InvalidOption for an INSERT into a table. Spark passes the schema of the rows, which
    may come from another table, so the options of the target are unknown.
    """
    if not given:
        raise InvalidOption(
            "there are no options. Spark does not pass the options of a table to writers: use a"
            " temporary view USING penstock OPTIONS (store '...', subscribe '...',"
            " `kafka.bootstrap.servers` '...', topic '...'), or df.writeTo('t') with options"
        )
