"""Find Azure credentials in the URL or the environment, or use the identity of the machine.

Invariant: the credentials are selected here. obstore, which reads the same variables, is passed
only the selected type of credentials, and renews identity tokens. Source: obstore's AzureConfig;
Azure "Workload Identity" and "Service SAS".
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from penstock.objectstore.config import AzureConfig
from penstock.objectstore.own_network import is_loopback

AZURITE_KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""The well-known account key of the emulator, from its documentation."""

_KEYS: Final = (
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_MASTER_KEY",
)
_SAS_TOKENS: Final = ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY")
_CLIENT_IDS: Final = ("AZURE_CLIENT_ID", "AZURE_STORAGE_CLIENT_ID")
_CLIENT_SECRETS: Final = ("AZURE_CLIENT_SECRET", "AZURE_STORAGE_CLIENT_SECRET")
_TENANT_IDS: Final = (
    "AZURE_TENANT_ID",
    "AZURE_STORAGE_TENANT_ID",
    "AZURE_AUTHORITY_ID",
    "AZURE_STORAGE_AUTHORITY_ID",
)
_TOKEN_FILES: Final = ("AZURE_FEDERATED_TOKEN_FILE",)
_AUTHORITY_HOSTS: Final = ("AZURE_AUTHORITY_HOST", "AZURE_STORAGE_AUTHORITY_HOST")
_CLI_FLAGS: Final = ("AZURE_USE_AZURE_CLI",)
_TRUE: Final = frozenset({"1", "true", "on", "yes", "y"})
_EXPIRY: Final = re.compile(r"(?:^\??|&)se=([^&]+)")


def options_of(config: AzureConfig, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of the client."""
    return {
        "account_name": config.account,
        "endpoint": _endpoint(config),
        "skip_signature": False,
        "use_emulator": False,
        **_credentials(config, environ),
    }


def sas_token(config: AzureConfig, environ: Mapping[str, str]) -> str | None:
    """Return the SAS token that `options_of` selects, or None if it selects other credentials."""
    token: str | None = _credentials(config, environ).get("sas_key")
    return token


def sas_expiry(token: str) -> datetime | None:
    """Return the expiry of a SAS token, or None if it does not contain one, for example because of
    a stored access policy.
    """
    found = _EXPIRY.search(token)
    if found is None:
        return None
    try:
        expiry = datetime.fromisoformat(unquote(found[1]))
    except ValueError:
        return None
    return expiry if expiry.tzinfo else expiry.replace(tzinfo=UTC)


def _credentials(config: AzureConfig, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the options for the first credentials in the order of docs/reference/store-urls.md."""

    def value(names: Sequence[str]) -> str | None:
        return next((environ[name] for name in names if environ.get(name)), None)

    if config.account_key is not None:
        return _key(config.account_key)
    if config.sas_token is not None:
        return _sas(config.sas_token)
    if (key := value(_KEYS)) is not None:
        return _key(key)
    sas = value(_SAS_TOKENS)
    if config.endpoint is not None and is_loopback(config.endpoint):
        return _key(AZURITE_KEY) if sas is None else _sas(sas)
    client_id, tenant_id = value(_CLIENT_IDS), value(_TENANT_IDS)
    identity = {
        "client_id": client_id,
        "tenant_id": tenant_id,
        "authority_host": value(_AUTHORITY_HOSTS),
    }
    if client_id and tenant_id and (file := value(_TOKEN_FILES)) is not None:
        return {
            **identity,
            "federated_token_file": file,
            "credential_type": "workload_identity",
        }
    if client_id and tenant_id and (secret := value(_CLIENT_SECRETS)) is not None:
        return {**identity, "client_secret": secret, "credential_type": "client_secret"}
    if sas is not None:
        return _sas(sas)
    if (value(_CLI_FLAGS) or "").lower() in _TRUE:
        return {"credential_type": "azure_cli"}
    return {"client_id": client_id, "credential_type": "managed_identity"}


def _key(key: str) -> dict[str, Any]:
    return {"account_key": key, "credential_type": "access_key"}


def _sas(token: str) -> dict[str, Any]:
    return {"sas_key": token, "credential_type": "sas_token"}


def _endpoint(config: AzureConfig) -> str:
    """Return the URL of the account. For a server without DNS names, the account is in the path."""
    if config.endpoint is None:
        return f"https://{config.account}.blob.core.windows.net"
    endpoint = config.endpoint.rstrip("/")
    if is_loopback(endpoint) and not urlsplit(endpoint).path:
        return f"{endpoint}/{config.account}"
    return endpoint
