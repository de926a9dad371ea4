"""Address and credentials of an OTLP/HTTP receiver.

Headers and certificates come from OpenTelemetry's variables `OTEL_EXPORTER_OTLP_*`; variables for
one signal, such as `OTEL_EXPORTER_OTLP_METRICS_HEADERS`, take precedence.
"""

import ssl
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote

from penstock.base.client_tls import client_tls
from penstock.deploy.errors import UsageError

METRICS: Final = "METRICS"
TRACES: Final = "TRACES"
"""Names of signals in the variables."""
PREFIX: Final = "OTEL_EXPORTER_OTLP_"


class VariableValue(NamedTuple):
    """The value of a variable. name: the variable that is set, or the variable for all signals if
    neither is set.
    """

    name: str
    value: str


def variable_of(environment: Mapping[str, str], signal: str, name: str) -> VariableValue:
    """Return the values of OpenTelemetry's variables; an empty value counts as unset."""
    for variable in (f"{PREFIX}{signal}_{name}", f"{PREFIX}{name}"):
        if value := environment.get(variable, ""):
            return VariableValue(variable, value)
    return VariableValue(PREFIX + name, "")


def url_of(endpoint: str, path: str) -> str:
    """Return the URL of a signal. path: the default path of OTLP, for an endpoint without one."""
    _, _, rest = endpoint.partition("://")
    return endpoint if "/" in rest.rstrip("/") else endpoint.rstrip("/") + path


def headers_of(environment: Mapping[str, str], signal: str) -> dict[str, str]:
    """Return the headers of `name=value,name=value`, with percent-encoded values. Raises
    UsageError.
    """
    variable, value = variable_of(environment, signal, "HEADERS")
    headers: dict[str, str] = {}
    for item in filter(None, value.split(",")):
        name, equals, value = item.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{variable} has an item without '=': use NAME=VALUE,NAME=VALUE")
        headers[name.strip()] = unquote(value.strip())
    return headers


class ReceiverFiles(NamedTuple):
    """PEM files for connections to a receiver."""

    ca: VariableValue
    certificate: VariableValue
    key: VariableValue

    @classmethod
    def of(cls, environment: Mapping[str, str], signal: str) -> "ReceiverFiles":
        return cls(
            variable_of(environment, signal, "CERTIFICATE"),
            variable_of(environment, signal, "CLIENT_CERTIFICATE"),
            variable_of(environment, signal, "CLIENT_KEY"),
        )

    @property
    def paths(self) -> list[str]:
        return [variable.value for variable in self if variable.value]

    def context(self) -> ssl.SSLContext:
        """Read the files. Raises UsageError with the variable, the file and a remedy."""
        if self.key.value and not self.certificate.value:
            raise UsageError(
                f"{self.key.name} is set, but {self.certificate.name} is not: set both or neither"
            )
        for variable in self:
            _check_readable(variable)
        try:
            context = client_tls(self.ca.value)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{self.ca.name}={self.ca.value}: {_reason(error)}; it must be a PEM file with the"
                " certificates of CAs"
            ) from None
        if self.certificate.value:
            self._load_certificate(context)
        return context

    def _load_certificate(self, context: ssl.SSLContext) -> None:
        # Without a password, OpenSSL would prompt on the terminal.
        try:
            context.load_cert_chain(
                self.certificate.value, self.key.value or None, password=lambda: ""
            )
        except (OSError, ValueError) as error:
            files = (self.certificate, self.key) if self.key.value else (self.certificate,)
            named = ", ".join(f"{variable.name}={variable.value}" for variable in files)
            raise UsageError(
                f"{named}: {_reason(error)}; there must be a PEM file with the certificate, and"
                f" its private key without a password, there or in the file of {self.key.name}"
            ) from None


def _check_readable(variable: VariableValue) -> None:
    """Raise UsageError if a file is not readable, because OpenSSL's error does not contain the file
    name.
    """
    if not variable.value:
        return
    try:
        with open(variable.value, "rb") as file:
            file.read(1)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{variable.name}={variable.value} cannot be read: {_reason(error)}; specify a "
            "PEM file that this process can read"
        ) from None


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "no PEM file that TLS can use"
    return getattr(error, "strerror", None) or str(error)
