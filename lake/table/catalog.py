"""Open catalogs of Iceberg tables and explain their failures.

Requests to a REST catalog have timeouts, unless pyiceberg signs them with SigV4. Only reads are
retried; if a commit receives no response, its outcome is looked up (`commits`).
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast
from urllib.parse import urlsplit

from pydantic import ValidationError
from pyiceberg.catalog import Catalog, CatalogType, infer_catalog_type, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    BadRequestError,
    CommitStateUnknownException,
    ForbiddenError,
    OAuthError,
    RESTError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
)
from pyiceberg.utils.config import Config, merge_config
from requests import PreparedRequest, RequestException, Response, Session
from requests.adapters import HTTPAdapter
from requests.exceptions import InvalidSchema, InvalidURL, MissingSchema
from urllib3 import Retry

from penstock.base.tls_faults import explain
from penstock.lake.table.errors import CatalogRefused, CatalogUnavailable, InvalidTable, TableError

TIMEOUT: Final = "penstock.timeout-s"
"""The property that limits how long a request to a REST catalog waits for a response."""

TIMEOUT_S: Final = 60.0
_CONNECT_S: Final = 10.0
_OPEN_TRIES: Final = 5
_REASON_CHARACTERS_MAX: Final = 300
_AGAIN: Final = Retry(
    total=3,
    read=1,
    backoff_factor=0.2,
    status_forcelist={429, 502, 503, 504},
    allowed_methods={"GET", "HEAD"},
    raise_on_status=False,
    respect_retry_after_header=False,
)
"""Retries of reads. Refused connections are retried for all requests, because nothing was sent."""

_REFUSALS: Final = (UnauthorizedError, AuthorizationExpiredError, ForbiddenError, OAuthError)
_FAILURES: Final = (
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    CommitStateUnknownException,
)


class _LimitedRestCatalog(RestCatalog):
    """pyiceberg's client with a timeout, which pyiceberg does not set."""

    def _config_headers(self, session: Session) -> None:
        """Set up a new session before its first request."""
        super()._config_headers(session)
        adapter = _LimitedAdapter(_timeout_s(self.properties))
        session.mount("https://", adapter)
        session.mount("http://", adapter)


class _LimitedAdapter(HTTPAdapter):
    def __init__(self, timeout_s: float) -> None:
        super().__init__(max_retries=_AGAIN)
        self._timeouts_s = (_CONNECT_S, timeout_s)

    def send(self, request: PreparedRequest, *arguments: Any, **named: Any) -> Response:  # noqa: ANN401 - requests'
        """Send a request with a timeout, because pyiceberg adds none."""
        return super().send(request, *arguments, **named | {"timeout": self._timeouts_s})


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """Open a catalog like pyiceberg's `load_catalog`. Raise InvalidTable or CatalogUnavailable if
    that fails.
    """
    configured = cast("Any", Config().get_catalog_config(name) or {})
    config = cast("dict[str, str]", merge_config(configured, cast("Any", dict(properties))))
    for attempt in range(_OPEN_TRIES):
        try:
            with catalog_errors(config.get("uri", "")):
                if _is_rest(name, config):
                    return _rest_catalog(name, config)
                return load_catalog(name, **dict(properties))
        except TableError:
            raise
        except Exception as error:
            # If two runs create the tables of a database concurrently, one may fail; at its next
            # attempt, the tables exist.
            if attempt == _OPEN_TRIES - 1 or isinstance(error, ValueError):
                raise InvalidTable(f"the catalog cannot be opened: {_reason(error)}") from error
    raise AssertionError("the last attempt raises")


def _rest_catalog(name: str, config: dict[str, str]) -> Catalog:
    if not config.get("uri"):
        raise InvalidTable(
            "--catalog-type rest needs --catalog-uri (PENSTOCK_CATALOG_URI), such as"
            " https://HOST/PATH"
        )
    if config.get("credential"):
        # pyiceberg's default is deprecated and causes a warning.
        tokens = f"{config['uri'].rstrip('/')}/v1/oauth/tokens"
        config = {"oauth2-server-uri": tokens} | config
    return _LimitedRestCatalog(name, **config)


def _is_rest(name: str, config: Mapping[str, str]) -> bool:
    if "py-catalog-impl" in config:
        return False
    if given := config.get("type"):
        return given.lower() == CatalogType.REST.value
    return "uri" in config and infer_catalog_type(name, cast("Any", config)) is CatalogType.REST


def names_in(catalog: Catalog) -> list[str]:
    """Return the names of all tables in namespaces of one level."""
    with catalog_errors(address_of(catalog)):
        return [
            ".".join(table)
            for namespace in catalog.list_namespaces()
            for table in catalog.list_tables(namespace)
        ]


def address_of(catalog: Catalog) -> str:
    """Return the URI of a catalog, if it has one."""
    return str(catalog.properties.get("uri", ""))


@contextmanager
def catalog_errors(uri: str) -> Generator[None, None, None]:
    """Convert errors of a REST catalog at `uri` or of the network to InvalidTable, CatalogRefused
    or CatalogUnavailable, whose messages contain a remedy. Other errors are not converted.
    """
    shown = f"the catalog at {_without_password(uri)}"
    try:
        yield
    except _REFUSALS as error:
        raise CatalogRefused(
            f"{shown} denies access: {_reason(error)}; set the credentials of a principal that may"
            " create, read and write tables in the environment, as"
            " PYICEBERG_CATALOG__PENSTOCK__CREDENTIAL=ID:SECRET or"
            " PYICEBERG_CATALOG__PENSTOCK__TOKEN=TOKEN for the catalog name penstock"
        ) from error
    except _FAILURES as error:
        raise CatalogUnavailable(
            f"{shown} failed: {_reason(error)}; see the log of its server, and try again"
        ) from error
    except RESTError as error:
        kind = CatalogRefused if isinstance(error, BadRequestError) else InvalidTable
        raise kind(
            f"{shown} rejects the request: {_reason(error)}; check --catalog-uri, and"
            " --catalog-property warehouse=NAME if the catalog has several warehouses"
        ) from error
    except (MissingSchema, InvalidSchema, InvalidURL) as error:
        raise InvalidTable(
            f"--catalog-uri {uri!r}: use the address of a REST catalog, such as https://HOST/PATH"
        ) from error
    except RequestException as error:
        fault = explain(str(error), ca_setting="REQUESTS_CA_BUNDLE")
        if fault and uri.startswith("https:"):
            raise CatalogUnavailable(f"TLS with {shown} failed: {fault}") from error
        raise CatalogUnavailable(
            f"{shown} does not respond: {_reason(_origin(error))}; check --catalog-uri, and that"
            " its server is running"
        ) from error
    except ValidationError as error:
        if not uri.startswith("http"):
            raise
        raise InvalidTable(
            f"{shown} does not respond like an Iceberg REST catalog: check --catalog-uri"
        ) from error


def _timeout_s(properties: Mapping[str, str]) -> float:
    given = properties.get(TIMEOUT, TIMEOUT_S)
    try:
        timeout_s = float(given)
    except ValueError:
        timeout_s = 0
    if not timeout_s > 0:
        raise InvalidTable(
            f"--catalog-property {TIMEOUT}={given}: use a positive number of seconds, such as 60"
        )
    return timeout_s


def _without_password(uri: str) -> str:
    found = urlsplit(uri)
    return found._replace(netloc=found.netloc.rpartition("@")[2]).geturl()


def _origin(error: BaseException) -> BaseException:
    """Return the operating system's message, which urllib3 and requests wrap in their errors."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error


def _reason(error: BaseException) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0][:_REASON_CHARACTERS_MAX]
