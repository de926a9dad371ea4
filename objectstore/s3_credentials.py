"""Find what AWS's own tools find on a machine: credentials, region and CA certificates.

Invariant: the store URL comes first, then the environment, then the profile (AWS_PROFILE, else
`default`) of the files of AWS. Web identity, containers and the role of the machine are left to the
client, which also renews them. SSO and credential_process are programs of the AWS CLI, and not run.
Source: AWS SDKs and Tools Reference Guide, "shared config and credentials files".
"""

import os
import ssl
from collections.abc import Callable, Mapping
from configparser import ConfigParser
from configparser import Error as ParserError
from pathlib import Path
from typing import Any, Final

from penstock.objectstore.config import S3Config
from penstock.objectstore.errors import InvalidStoreConfig

_ROLES: Final = ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
_OF_PROGRAMS: Final = ("sso_session", "sso_start_url", "credential_process", "role_arn")


def credentials(
    config: S3Config, environ: Mapping[str, str] = os.environ
) -> Callable[[], dict[str, Any]] | None:
    """Return what gives the client its credentials, or None where it finds them itself.

    Raises InvalidStoreConfig for a profile that is missing or has no keys.
    """
    if config.access_key is not None:
        return _keys(config.access_key, config.secret_key, config.session_token)
    if "AWS_ACCESS_KEY_ID" in environ:
        return None
    name = environ.get("AWS_PROFILE")
    if name is None and any(role in environ for role in _ROLES):
        return None
    profile = _profile(environ)
    if "aws_access_key_id" in profile:
        return _keys(
            profile["aws_access_key_id"],
            profile.get("aws_secret_access_key"),
            profile.get("aws_session_token"),
        )
    if name is None and not any(option in profile for option in _OF_PROGRAMS):
        return None
    shown = name or "default"
    why = "is not in the files of AWS" if not profile else "has no aws_access_key_id"
    raise InvalidStoreConfig(
        f"profile {shown!r} {why}. Penstock reads keys from profiles and does not sign in: export"
        f" the credentials (aws configure export-credentials --profile {shown} --format env), or"
        " unset AWS_PROFILE to use the role of the machine"
    )


def region(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the region of the environment or the profile; None leaves the client's default,
    us-east-1.
    """
    return (
        environ.get("AWS_REGION")
        or environ.get("AWS_DEFAULT_REGION")
        or _profile(environ).get("region")
    )


def ca_bundle(environ: Mapping[str, str] = os.environ) -> bytes | None:
    """Return the certificates of AWS_CA_BUNDLE (PEM), which are trusted beside those of the system.

    Raises InvalidStoreConfig if the file cannot be read, or has no certificates.
    """
    path = environ.get("AWS_CA_BUNDLE")
    if not path:
        return None
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


def _keys(
    access_key: str, secret_key: str | None, token: str | None
) -> Callable[[], dict[str, Any]]:
    found = {
        "access_key_id": access_key,
        "secret_access_key": secret_key or "",
        "token": token,
        "expires_at": None,
    }
    return lambda: found


def _profile(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the options of the profile from both files; those of the credentials file win."""
    name = environ.get("AWS_PROFILE") or "default"
    home = Path(environ.get("HOME") or "~").expanduser() / ".aws"
    config = environ.get("AWS_CONFIG_FILE") or str(home / "config")
    shared = environ.get("AWS_SHARED_CREDENTIALS_FILE") or str(home / "credentials")
    section = name if name == "default" else f"profile {name}"
    return _section(config, section) | _section(shared, name)


def _section(path: str, section: str) -> dict[str, str]:
    parser = ConfigParser(interpolation=None, default_section="")
    try:
        parser.read(Path(path).expanduser(), encoding="utf-8")
    except (ParserError, OSError, UnicodeDecodeError) as error:
        raise InvalidStoreConfig(f"{path} is no file of AWS profiles: {error}") from None
    return dict(parser[section]) if parser.has_section(section) else {}
