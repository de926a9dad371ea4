"""Find AWS credentials, the region and CA certificates.

Invariant: keys in the store URL take precedence over keys in the environment, and both over the
sources of botocore: profiles, SSO, assumed roles, programs, web identity, containers and EC2. If
there are keys, botocore is not imported, because it uses 12 to 20 MB.
"""

import os
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from penstock.objectstore.config import S3Config
from penstock.objectstore.errors import InvalidStoreConfig
from penstock.objectstore.metered import StoreMeter
from penstock.objectstore.renewal import AwsKeys, RenewedCredentials

_KEY: Final = "AWS_ACCESS_KEY_ID"
_SECRET: Final = "AWS_SECRET_ACCESS_KEY"  # noqa: S105 (a name)
_REGION: Final = "AWS_DEFAULT_REGION"


class AwsSettings:
    """Settings from the store URL, the environment and the AWS configuration files."""

    def __init__(self, config: S3Config, meter: StoreMeter | None = None) -> None:
        """meter: counts each sign-in. Raises InvalidStoreConfig for an unusable profile, key or CA
        bundle.
        """
        environ = os.environ
        is_url, is_environment = config.access_key is not None, bool(environ.get(_KEY))
        self.region = config.region or environ.get("AWS_REGION") or environ.get(_REGION)
        """None to use the client's default, us-east-1."""
        ca_file = environ.get("AWS_CA_BUNDLE")
        self.credentials: Callable[[], Any] | None = None
        """Provider of access keys for the client; None if the client reads them from the
        environment.
        """
        if is_url:
            self.credentials = _keys(config)
        elif is_environment and not environ.get(_SECRET):
            raise InvalidStoreConfig(
                f"{_KEY} is set, but {_SECRET} is not. Set both, or unset {_KEY} to use a profile"
                " or a role"
            )
        if not (is_url or is_environment) or (self.region is None and _has_profiles(environ)):
            open_session, sign_in = _botocore()
            session = open_session(self.region)
            self.region = session.get_config_variable("region")
            ca_file = session.get_config_variable("ca_bundle")
            if not (is_url or is_environment):
                self.credentials = RenewedCredentials(
                    partial(sign_in, self.region), meter, wait_s=config.deadline_ms / 2_000
                )
        self.certificates = _certificates(ca_file) if ca_file else None
        """PEM certificates, trusted in addition to the CAs of the system."""


def _botocore() -> tuple[Callable[..., Any], Callable[..., AwsKeys]]:
    try:
        from penstock.objectstore.s3_sign_in import open_session, sign_in
    except ModuleNotFoundError as error:  # a Spark executor may lack botocore
        raise InvalidStoreConfig(
            f"AWS profiles and roles need the package {error.name}, which is missing: pip install"
            f" botocore, or set {_KEY} and {_SECRET}"
        ) from None
    return open_session, sign_in


def _keys(config: S3Config) -> Callable[[], dict[str, Any]]:
    found = {
        "access_key_id": config.access_key,
        "secret_access_key": config.secret_key or "",
        "token": config.session_token,
        "expires_at": None,
    }
    return lambda: found


def _has_profiles(environ: Mapping[str, str]) -> bool:
    file = environ.get("AWS_CONFIG_FILE") or "~/.aws/config"
    return Path(file).expanduser().exists()


def _certificates(path: str) -> bytes:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
        return Path(path).read_bytes()
    except ssl.SSLError:
        fault = "has no valid certificates"
    except OSError as error:
        fault = f"cannot be read: {error.strerror}"
    raise InvalidStoreConfig(
        f"AWS_CA_BUNDLE names {path!r}, which {fault}. It must be a file of certificates (PEM)"
    )
