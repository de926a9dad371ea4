"""Define the options of commands that use a schema registry."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from penstock.deploy.errors import UsageError
from penstock.protocol.registry.model import RegistrySettingInvalid
from penstock.protocol.registry.settings import (
    CONFIG_VARIABLE,
    URL_VARIABLE,
    RegistrySettings,
    read_settings,
)


@dataclass(frozen=True, kw_only=True)
class RegistryOptions:
    """Options for the connection to a schema registry."""

    schema_registry: Annotated[
        str,
        typer.Option(
            "--schema-registry",
            envvar=URL_VARIABLE,
            metavar="URL",
            help="Schema registry with Confluent's API, for values that begin with its zero byte"
            " and schema id.",
            show_default=False,
        ),
    ] = ""
    schema_registry_config: Annotated[
        Path | None,
        typer.Option(
            "--schema-registry-config",
            envvar=CONFIG_VARIABLE,
            metavar="FILE",
            help="Properties of the schema registry: credentials and TLS.",
            show_default=False,
        ),
    ] = None

    def registry(self) -> RegistrySettings | None:
        """Return the settings of the registry, or None if none is given. Raises UsageError."""
        try:
            return read_settings(self.schema_registry_config, self.schema_registry)
        except RegistrySettingInvalid as error:
            option = "--schema-registry-config" if self.schema_registry_config else ""
            raise UsageError(f"{option or '--schema-registry'} is not allowed: {error}") from None
