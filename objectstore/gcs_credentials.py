"""Find the credentials of Google Cloud: the file that the URL or the environment names, the one of
gcloud, or the service account of the pod or machine, which the client renews.

Source: Google Cloud, "How Application Default Credentials works".
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from penstock.objectstore.config import GcsConfig
from penstock.objectstore.errors import InvalidStoreConfig
from penstock.objectstore.loopback import is_loopback

_TYPES: Final = frozenset({"service_account", "authorized_user"})
_OF_GCLOUD: Final = ".config/gcloud/application_default_credentials.json"


def credentials(config: GcsConfig, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of the client. An emulator on this machine gets no real token.

    Raises InvalidStoreConfig for a file that cannot be used.
    """
    if config.credentials_file is not None:
        return _from_file(config.credentials_file, "credentials_file")
    if config.endpoint is not None and is_loopback(config.endpoint):
        return {"credential_provider": lambda: {"token": "local", "expires_at": None}}
    variable = "GOOGLE_APPLICATION_CREDENTIALS"
    if environ.get(variable):
        return _from_file(environ[variable], variable)
    of_gcloud = Path(environ.get("HOME") or "~").expanduser() / _OF_GCLOUD
    return _from_file(str(of_gcloud), "gcloud") if of_gcloud.exists() else {}


def _from_file(path: str, named_by: str) -> dict[str, Any]:
    try:
        kind = json.loads(Path(path).read_text("utf-8")).get("type")
    except OSError as error:
        fault = f"cannot be read: {error.strerror}"
    except (ValueError, AttributeError):
        fault = "is no JSON file of credentials"
    else:
        if kind in _TYPES:
            return {"application_credentials": path}
        fault = f"has credentials of type {kind!r}, which Penstock does not support"
    raise InvalidStoreConfig(
        f"{named_by} names {path!r}, which {fault}. Name the key file of a service account or the"
        " file of `gcloud auth application-default login`, or leave it out to use the service"
        " account of the pod (Workload Identity Federation for GKE) or machine"
    )
