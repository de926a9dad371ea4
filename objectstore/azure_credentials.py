"""Find the credentials of Azure: a key or a SAS token of the URL, what the environment has, or the
managed identity of the machine. The client renews tokens of identities.

Invariant: what the URL has excludes the environment. Azurite, the emulator, gets its public key.
Source: obstore's AzureConfig; Azure "Workload Identity" and "Service SAS".
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from penstock.objectstore.config import AzureConfig
from penstock.objectstore.loopback import is_loopback

AZURITE_KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""The key that the documentation of Azurite publishes."""

_SAS_VARIABLES: Final = ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY")
_KEY_VARIABLES: Final = (
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_MASTER_KEY",
)
_EXPIRY: Final = re.compile(r"(?:^\??|&)se=([^&]+)")


def options_of(config: AzureConfig, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of the client."""
    options = {"account_name": config.account, "endpoint": _endpoint(config)}
    if config.account_key is not None:
        return {**options, "account_key": config.account_key, "credential_type": "access_key"}
    if config.sas_token is not None:
        return {**options, "sas_key": config.sas_token, "credential_type": "sas_token"}
    in_environment = any(environ.get(name) for name in (*_KEY_VARIABLES, *_SAS_VARIABLES))
    if config.endpoint is not None and is_loopback(config.endpoint) and not in_environment:
        return {**options, "account_key": AZURITE_KEY, "credential_type": "access_key"}
    return options


def sas_expiry(config: AzureConfig, environ: Mapping[str, str]) -> datetime | None:
    """Return until when the SAS token is valid; None if there is none, or it has no expiry."""
    token = config.sas_token
    if token is None and config.account_key is None:
        token = next((environ[name] for name in _SAS_VARIABLES if environ.get(name)), None)
    found = None if token is None else _EXPIRY.search(token)
    if found is None:
        return None
    try:
        expiry = datetime.fromisoformat(unquote(found[1]))
    except ValueError:
        return None
    return expiry if expiry.tzinfo else expiry.replace(tzinfo=UTC)


def _endpoint(config: AzureConfig) -> str | None:
    """Return the URL of the account: a server without DNS names has the account in the path."""
    if config.endpoint is None:
        return None
    endpoint = config.endpoint.rstrip("/")
    if is_loopback(endpoint) and not urlsplit(endpoint).path:
        return f"{endpoint}/{config.account}"
    return endpoint
