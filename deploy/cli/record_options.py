"""Define the format options of `penstock produce` and `penstock consume`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.deploy.errors import UsageError
from penstock.deploy.records.formats import RecordFormat

if TYPE_CHECKING:
    from penstock.deploy.records.formats import RecordCodec


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """Formats of keys and values."""

    value_format: Annotated[
        RecordFormat,
        typer.Option("--format", help="Format of values. Avro and Protobuf are shown as JSON."),
    ] = RecordFormat.TEXT
    key_format: Annotated[
        RecordFormat,
        typer.Option("--key-format", help="Format of keys; avro and protobuf are not supported."),
    ] = RecordFormat.TEXT
    schema: Annotated[
        Path | None,
        typer.Option(
            "--schema",
            help="File with an Avro schema (.avsc) or a Protobuf descriptor set.",
            show_default=False,
        ),
    ] = None
    message: Annotated[
        str, typer.Option("--message", help="Full name of the Protobuf message, as package.Name.")
    ] = ""
    schema_registry: Annotated[
        str,
        typer.Option(
            "--schema-registry",
            envvar="PENSTOCK_SCHEMA_REGISTRY",
            metavar="URL",
            help="Schema registry: values begin with Confluent's zero byte and schema id.",
        ),
    ] = ""

    def codecs(self, topic: str) -> "tuple[RecordCodec, RecordCodec]":
        """Return the codecs of keys and of values. Raises UsageError."""
        from penstock.broker.schemas.registry import RegistryUrlInvalid, SchemaRegistry
        from penstock.deploy.records.formats import codec

        if self.key_format in {RecordFormat.AVRO, RecordFormat.PROTOBUF}:
            raise UsageError(
                f"--key-format {self.key_format} is not allowed: text, json, hex, base64"
            )
        try:
            schema = None if self.schema is None else self.schema.read_bytes()
        except OSError as error:
            raise UsageError(f"--schema {self.schema}: {error.strerror}") from None
        # A registry in the environment does not apply to values without a schema.
        has_schema = self.value_format in {RecordFormat.AVRO, RecordFormat.PROTOBUF}
        try:
            registry = (
                SchemaRegistry(self.schema_registry)
                if self.schema_registry and has_schema
                else None
            )
        except RegistryUrlInvalid as error:
            raise UsageError(f"--schema-registry is not allowed: {error}") from None
        value = codec(
            self.value_format,
            schema=schema,
            message=self.message,
            registry=registry,
            subject=f"{topic}-value",
        )
        return codec(self.key_format), value
