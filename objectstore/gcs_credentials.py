"""Find Google Cloud credentials: a file given by the URL or the environment, gcloud's file, or the
service account of the pod or machine. obstore renews them, except for `external_account`.

Source: Google Cloud, "How Application Default Credentials works".
"""

import json
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, Final

from penstock.objectstore.config import GcsConfig
from penstock.objectstore.errors import InvalidStoreConfig
from penstock.objectstore.gcs_federation import ExternalAccount
from penstock.objectstore.metered import StoreMeter
from penstock.objectstore.own_network import is_loopback
from penstock.objectstore.renewal import RenewedCredentials

_READ_BY_OBSTORE: Final = ("service_account", "authorized_user")
_VARIABLE: Final = "GOOGLE_APPLICATION_CREDENTIALS"
_OF_GCLOUD: Final = ".config/gcloud/application_default_credentials.json"
_HIDDEN: Final = (
    "SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_BEARER_TOKEN",
    "GOOGLE_SKIP_SIGNATURE",
    "GOOGLE_BASE_URL",
    "GOOGLE_BUCKET",
    "GOOGLE_BUCKET_NAME",
)
"""Environment variables that only obstore reads, and that override the options of the client."""
_hiding: Final = Lock()


def credentials(
    config: GcsConfig, environ: Mapping[str, str], meter: StoreMeter | None = None
) -> dict[str, Any]:
    """Return the options of the client. An emulator on this machine receives a placeholder token.

    meter: counts each sign-in. Raises InvalidStoreConfig for an unusable file.
    """
    if config.credentials_file is not None:
        return _from_file(config.credentials_file, "credentials_file", config, meter)
    if config.endpoint is not None and is_loopback(config.endpoint):
        return {"credential_provider": lambda: {"token": "local", "expires_at": None}}
    if environ.get(_VARIABLE):
        return _from_file(environ[_VARIABLE], _VARIABLE, config, meter)
    of_gcloud = Path(environ.get("HOME") or "~").expanduser() / _OF_GCLOUD
    return _from_file(str(of_gcloud), "gcloud", config, meter) if of_gcloud.exists() else {}


@contextmanager
def hidden_variables() -> Generator[None, None, None]:
    """Hide the environment variables with which obstore would override `credentials` while a client
    is created.

    Other threads do not see these variables in the meantime.
    """
    with _hiding:
        names = [name for name in _HIDDEN if name in os.environ]
        if not os.environ.get(_VARIABLE, "unset"):
            names.append(_VARIABLE)  # otherwise, obstore would open the file ""
        hidden = {name: os.environ.pop(name) for name in names}
        try:
            yield
        finally:
            os.environ.update(hidden)


def _from_file(
    path: str, named_by: str, config: GcsConfig, meter: StoreMeter | None
) -> dict[str, Any]:
    try:
        content = json.loads(Path(path).read_text("utf-8"))
        kind = content.get("type")
        if kind == "external_account":
            account = ExternalAccount.parse(content)
            return {
                "credential_provider": RenewedCredentials(
                    account.sign_in, meter, wait_s=config.deadline_ms / 2_000
                )
            }
    except OSError as error:
        fault = f"cannot be read: {error.strerror}"
    except InvalidStoreConfig as error:
        fault = f"is not supported: {error}"
    except (ValueError, AttributeError):
        fault = "is no JSON file of credentials"
    else:
        if kind in _READ_BY_OBSTORE:
            return {"application_credentials": path}
        fault = f"has credentials of type {kind!r}, which Penstock does not support"
    raise InvalidStoreConfig(
        f"{named_by} names {path!r}, which {fault}. Name the key file of a service account, the"
        " configuration file of a workload identity pool or the file of `gcloud auth"
        " application-default login`, or omit it to use the service account of the pod"
        " (Workload Identity Federation for GKE) or machine"
    )
