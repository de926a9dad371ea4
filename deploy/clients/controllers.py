"""Connect commands to controllers, with TLS if the environment variables of `controller.ssl.*` are
set, as for nodes, or if the state file of the local cluster contains TLS settings.

gRPC is imported only when it is needed.
"""

import asyncio
import os
from collections.abc import Awaitable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.base.errors import ExpectedError
from penstock.base.settings import SettingInvalid, fields_of
from penstock.controller.api.tls import TlsConfig, TlsFiles, TlsFilesInvalid
from penstock.deploy.clients.controller_faults import advice, faults_of
from penstock.deploy.errors import NoController, UsageError

if TYPE_CHECKING:
    from penstock.controller.api.client import ControllerClient

LOCKED_OUT_S: Final = 2.0
"""How long all controllers must reject the connection, because a restarting controller may also do
so for a moment.
"""
FIRST_RESPONSE_S: Final = 5.0
"""Age of a request at which the addresses are checked: waiting longer for other services, or for
processes that are not running, would not help.
"""
_LOOK_S: Final = 0.2
_T = TypeVar("_T")
_of_cluster: Final[dict[str, str]] = {}
"""TLS settings of the cluster that the command has discovered."""


def use_tls(settings: Mapping[str, str]) -> None:
    """Use these settings for later connections unless the environment overrides them. settings: the
    TLS settings of the selected local cluster.
    """
    _of_cluster.update(settings)


def connect(
    addresses: str | Sequence[str], environment: Mapping[str, str] = os.environ
) -> "ControllerClient":
    """Return a client of these controllers. addresses: HOST:PORT, separated by commas. Raises
    ExpectedError for invalid TLS files, UsageError if a variable is missing.
    """
    from penstock.controller.api.client import ControllerClient

    listed = addresses.split(",") if isinstance(addresses, str) else addresses
    return ControllerClient(listed, tls=_tls(environment))


class NoAddress(TimeoutError):
    """No controller responds at any address. faults: by address."""

    def __init__(self, faults: Mapping[str, str]) -> None:
        super().__init__("no controller responds")
        self.faults = faults


async def response_of(
    client: "ControllerClient", controller: str, timeout_s: float, work: Awaitable[_T]
) -> _T:
    """Return the result of a request to controllers. work: raises TimeoutError after `timeout_s`.
    Raises NoController, including as soon as no address can respond.
    """
    try:
        return await unless_locked_out(client, work)
    except NoAddress as error:
        faults = error.faults
    except TimeoutError:
        faults = await faults_of(controller.split(","))
    raise no_controller(client, controller, timeout_s, faults) from None


async def unless_locked_out(client: "ControllerClient", work: Awaitable[_T]) -> _T:
    """Return the result of `work`. Raises TimeoutError if waiting longer would not help: once all
    controllers have rejected the connection for LOCKED_OUT_S because of TLS or the certificate, or
    NoAddress after FIRST_RESPONSE_S.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    locked_out_at: float | None = None
    check_at: float = loop.time() + FIRST_RESPONSE_S
    try:
        while not task.done():
            await asyncio.wait((task,), timeout=_LOOK_S)
            if loop.time() >= check_at:
                check_at = inf
                faults = await faults_of(client.addresses)
                if len(faults) == len(client.addresses):
                    raise NoAddress(faults)
            if not client.is_locked_out:
                locked_out_at = None
            elif locked_out_at is None:
                locked_out_at = loop.time()
            elif loop.time() - locked_out_at >= LOCKED_OUT_S:
                raise TimeoutError("all controllers reject the connection")
        return await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def no_controller(
    client: "ControllerClient",
    controller: str,
    timeout_s: float,
    faults: Mapping[str, str] | None = None,
) -> NoController:
    """Return the error for controllers that do not respond, with the reason and a remedy if they
    are known. faults: by address.
    """
    if faults:
        reasons = [f"{address}: {fault}" for address, fault in faults.items()]
        alone = next(iter(faults.values())) if controller in faults else "; ".join(reasons)
        return NoController(
            f"no controller responds at {controller}: {alone}; {advice(controller)}"
        )
    if client.problem:
        return NoController(f"no controller responds at {controller}: {client.problem}")
    return NoController(f"no controller responds at {controller} within {timeout_s:.0f} s")


def _tls(environment: Mapping[str, str]) -> TlsFiles | None:
    fields = fields_of(TlsConfig)
    variables = {field.field: _variable(field.name) for field in fields}
    given = {name: environment.get(variable, "") for name, variable in variables.items()}
    if not any(given.values()):
        given = {field.field: _of_cluster.get(field.name, "") for field in fields}
    try:
        return TlsFiles.open(TlsConfig(**given))
    except SettingInvalid as error:
        raise UsageError(
            f"the variable {variables[error.name]} is missing: {error.allowed}"
        ) from None
    except TlsFilesInvalid as error:
        raise ExpectedError(str(error)) from None


def _variable(name: str) -> str:
    """Return the environment variable of a setting, the same as for nodes."""
    return "PENSTOCK_" + name.replace(".", "_").upper()
