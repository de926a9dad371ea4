"""Run `penstock sql`: query topics with SQL, once or at a prompt."""

import sys
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base.collector import resume_collector
from penstock.deploy.cli.completing import (
    complete_snapshots,
    complete_topic_values,
    complete_topics,
)
from penstock.deploy.cli.input_files import read_schema, split_id
from penstock.deploy.cli.lake_errors import one_line_errors
from penstock.deploy.cli.options import ClusterId, OnError, Output, WalStore
from penstock.deploy.cli.registry_options import RegistryOptions
from penstock.deploy.errors import UsageError
from penstock.deploy.output import Format

if TYPE_CHECKING:
    from penstock.lake.sql.session import SessionOptions
    from penstock.lake.table.values import ValueFormat

_FORMATS = {
    ".avsc": "avro",
    ".json": "json",
    ".desc": "protobuf",
    ".pb": "protobuf",
    ".binpb": "protobuf",
    ".protoset": "protobuf",
}


@dataclass(frozen=True, kw_only=True)
class TopicOptions(RegistryOptions):
    """Options that select records and the format of their values."""

    as_of: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help=(
                "Read topics up to the first record at or after this ISO time (UTC if it has "
                "no offset)."
            ),
        ),
    ] = ""
    snapshot: Annotated[
        str,
        typer.Option(
            help="Read topics as they are in this snapshot.", autocompletion=complete_snapshots
        ),
    ] = ""
    schema: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC=[ID=]FILE",
            help="Schema for a topic whose values are not JSON, or whose columns should not be"
            " inferred: .avsc (Avro), .desc or .pb (Protobuf descriptor set), .json (JSON Schema)."
            " With --framed, give the schema of each id, or --schema-registry; the highest id, or"
            " FILE, defines the columns. Repeatable.",
            autocompletion=complete_topic_values,
        ),
    ] = None
    message: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC=NAME",
            help="Full name of the Protobuf message of a topic. Repeatable.",
            autocompletion=complete_topic_values,
        ),
    ] = None
    framed: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC",
            help="Values of this topic begin with the magic byte and schema id of a schema"
            " registry. Repeatable.",
            autocompletion=complete_topics,
        ),
    ] = None
    subject: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC=SUBJECT",
            help="Subject in the schema registry whose newest schema defines the columns of a"
            " topic; default: TOPIC-value. Repeatable.",
            autocompletion=complete_topic_values,
        ),
    ] = None
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Fail if a value does not fit its column, instead of returning NULL."
        ),
    ] = False

    on_error: OnError = "raise"

    def formats(self) -> "dict[str, ValueFormat]":
        """Return the formats of topics. Raise UsageError."""
        from penstock.lake.table.values import ValueFormat

        registry = self.registry()
        messages = dict(_pair("--message", item) for item in self.message or [])
        subjects = dict(_pair("--subject", item) for item in self.subject or [])
        names, schemas = self._schemas()
        found: dict[str, ValueFormat] = {}
        for topic in dict.fromkeys(chain(schemas, self.framed or [], messages, subjects)):
            given = schemas.get(topic, [])
            is_framed = topic in (self.framed or []) or topic in subjects or not given
            has_ids = any(number is not None for number, _ in given)
            if registry is not None and is_framed and not has_ids:
                if len(given) > 1:
                    raise UsageError(f"--schema for {topic}: specify one schema for the columns")
                found[topic] = ValueFormat.registered(
                    registry,
                    subjects.get(topic, f"{topic}-value"),
                    messages.get(topic, ""),
                    name=names.get(topic, ""),
                    schema=given[0][1] if given else b"",
                )
                continue
            if not given or topic in subjects:
                flags = {"--message": messages, "--subject": subjects, "--framed": self.framed}
                flag = next(name for name, topics in flags.items() if topic in (topics or ()))
                other = "" if topic in subjects else "--schema or "
                raise UsageError(f"{flag} for {topic} requires {other}--schema-registry")
            message = messages.get(topic, "")
            found[topic] = ValueFormat.of(names[topic], given, message, framed=is_framed)
        return found

    def _schemas(self) -> tuple[dict[str, str], dict[str, list[tuple[int | None, bytes]]]]:
        """Return format names and schemas by topic. Raise UsageError."""
        names: dict[str, str] = {}
        schemas: dict[str, list[tuple[int | None, bytes]]] = {}
        for item in self.schema or []:
            topic, file = _pair("--schema", item)
            name = _FORMATS.get(Path(split_id(file)[1]).suffix)
            if name is None:
                raise UsageError(
                    f"--schema {item!r}: the file must end with one of {', '.join(_FORMATS)}"
                )
            if names.setdefault(topic, name) != name:
                raise UsageError(
                    f"--schema {item!r}: the schemas of a topic must have the same format"
                )
            schemas.setdefault(topic, []).append(read_schema(file))
        return names, schemas


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options for the resources and the output of a statement."""

    max_rows: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum number of rows; default: 1,000 for tables, unlimited for other formats.",
            show_default=False,
        ),
    ] = None
    max_seconds: Annotated[
        float | None,
        typer.Option(min=0.1, help="Stop a statement after this time.", show_default=False),
    ] = None
    memory_limit: Annotated[
        str, typer.Option(help="Memory of DuckDB, such as 2GB; the default is 80 % of the machine.")
    ] = ""
    temp_directory: Annotated[str, typer.Option(help="Directory for DuckDB's temporary files.")] = (
        ""
    )

    output: Output = Format.TABLE
    parquet: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write rows to a Parquet file.", show_default=False),
    ] = None


def sql(
    statement: Annotated[
        str,
        typer.Argument(
            metavar="SQL",
            help="The statement; without it a prompt opens, or standard input is read.",
        ),
    ] = "",
    *,
    store: Annotated[
        str,
        typer.Option(
            envvar="PENSTOCK_STORE",
            help="Store of the brokers; default: that of the local cluster.",
        ),
    ] = "",
    wal_store: WalStore = "",
    cluster: ClusterId = "",
    topics: TopicOptions,
    run: RunOptions,
) -> None:
    """Query topics with SQL. Topics are tables, read from the store; no broker is contacted.

    Fields of JSON values are columns, as are _partition, _offset, _timestamp and _key. FROM orders
    AS OF TIMESTAMP '2026-03-01' reads an earlier state. SHOW TABLES lists topics.

    For example: penstock sql "SELECT carrier, avg(dep_delay) FROM flights GROUP BY carrier"
    """
    if run.output is not Format.TABLE and run.parquet is not None:
        raise UsageError("--output and --parquet are mutually exclusive")
    with one_line_errors("sql"):
        _hide_pandas()
        from penstock.deploy.clients.target import existing_store, find_store, find_wal_store
        from penstock.deploy.sql.command import Command, RowOutput
        from penstock.deploy.sql.prompt import run_prompt

        resume_collector()
        rows = RowOutput(run.output, run.parquet, run.max_rows)
        url = existing_store(store or find_store())
        options = _session_options(cluster, wal_store or find_wal_store(url), topics, run)
        with Command(url, options, rows, run.max_seconds) as command:
            if statement:
                command.run_all(statement)
            elif sys.stdin.isatty():
                run_prompt(command)
            else:
                command.run_all(sys.stdin.read())


def _session_options(
    cluster: str, wal_store: str, topics: TopicOptions, run: RunOptions
) -> "SessionOptions":
    from penstock.lake.sql.session import SessionOptions
    from penstock.lake.sql.tokens import moment_of

    return SessionOptions(
        cluster_id=cluster,
        wal_store=wal_store,
        as_of=moment_of(topics.as_of) if topics.as_of else None,
        snapshot=topics.snapshot,
        formats=topics.formats(),
        registry=topics.registry(),
        strict=topics.strict,
        on_error=topics.on_error,
        memory_limit=run.memory_limit,
        temp_directory=run.temp_directory,
    )


class _NoPandas:
    """Makes `import pandas` fail."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("penstock sql does not use pandas", name=name)


def _hide_pandas() -> None:
    """Prevent pyarrow from importing pandas, which takes a second of CPU time and is not needed."""
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _NoPandas())


def _pair(flag: str, item: str) -> tuple[str, str]:
    topic, separator, value = item.partition("=")
    if not separator or not topic or not value:
        raise UsageError(f"{flag} {item!r} is invalid: use TOPIC=VALUE")
    return topic, value
