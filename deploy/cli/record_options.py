"""Define the format options of `penstock produce` and `penstock consume`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.deploy.cli.input_files import read_file
from penstock.deploy.cli.registry_options import RegistryOptions
from penstock.deploy.errors import UsageError
from penstock.deploy.records.formats import RecordFormat

if TYPE_CHECKING:
    from penstock.deploy.records.formats import RecordCodec


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions(RegistryOptions):
    """Options for the formats of keys and values."""

    value_format: Annotated[
        RecordFormat,
        typer.Option(
            "--format",
            help="Format of values. JSON, Avro and Protobuf are printed and read as JSON, with"
            " quoted strings.",
        ),
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

    def codecs(self, topic: str) -> "tuple[RecordCodec, RecordCodec]":
        """Return the codecs of keys and of values. Raises UsageError."""
        from penstock.deploy.clients.slow_servers import report_slow_servers
        from penstock.deploy.records.formats import codec
        from penstock.protocol.registry.by_id import schemas_of

        if self.key_format in {RecordFormat.AVRO, RecordFormat.PROTOBUF}:
            raise UsageError(
                f"--key-format {self.key_format} is not allowed: text, json, hex, base64"
            )
        given = self.schema
        schema = None if given is None else read_file(given, f"--schema {given}")
        registry = self.registry()
        report_slow_servers()
        value = codec(
            self.value_format,
            schema=schema,
            message=self.message,
            registry=None if registry is None else schemas_of(registry),
            subject=f"{topic}-value",
        )
        return codec(self.key_format), value
