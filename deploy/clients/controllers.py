"""Connect commands to controllers: with TLS, if the environment has the variables of the settings
`controller.ssl.*`, as for nodes.

Must not import gRPC before it is needed.
"""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from base.settings import SettingInvalid, fields_of
from controller.api.tls import TlsConfig, TlsFiles, TlsFilesInvalid
from deploy.errors import DeployError, NoController, UsageError

if TYPE_CHECKING:
    from controller.api.client import ControllerClient


def connect(
    addresses: str | Sequence[str], environment: Mapping[str, str] = os.environ
) -> "ControllerClient":
    """Return a client of these controllers. addresses: host:port, in one text separated by commas.
    Raises DeployError if the files of TLS are wrong, UsageError if a variable is missing.
    """
    from controller.api.client import ControllerClient

    listed = addresses.split(",") if isinstance(addresses, str) else addresses
    return ControllerClient(listed, tls=_tls(environment))


def no_controller(client: "ControllerClient", controller: str, timeout_s: float) -> NoController:
    """Return the error for controllers that do not answer, with the reason if TLS is why."""
    why = f"; {client.trouble}" if client.trouble else ""
    return NoController(f"no controller answers at {controller} within {timeout_s:.0f} s{why}")


def _tls(environment: Mapping[str, str]) -> TlsFiles | None:
    fields = fields_of(TlsConfig)
    variables = {field.field: _variable(field.name) for field in fields}
    given = {name: environment.get(variable, "") for name, variable in variables.items()}
    try:
        return TlsFiles.open(TlsConfig(**given))
    except SettingInvalid as error:
        raise UsageError(
            f"the variable {variables[error.name]} is missing: {error.allowed}"
        ) from None
    except TlsFilesInvalid as error:
        raise DeployError(str(error)) from None


def _variable(name: str) -> str:
    """Return the environment variable of a setting, the same as for nodes."""
    return "PENSTOCK_" + name.replace(".", "_").upper()
