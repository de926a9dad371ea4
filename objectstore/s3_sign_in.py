"""Sign in to AWS through botocore, which does it as `aws` does.

Invariant: each sign-in is a new session, so that it reads changed files. An error says what to
type. Nothing asks for input: a profile with MFA uses the keys that `aws` cached. Must not be
imported before a profile or a role is needed.
Source: AWS SDKs and Tools Reference Guide, "Standardized credential providers".
"""

from bisect import bisect_left
from pathlib import Path
from typing import Any, Final, cast

import botocore.config
import botocore.exceptions
import botocore.session
from botocore.utils import JSONFileCache

from penstock.objectstore.errors import InvalidStoreConfig, SignInFailed
from penstock.objectstore.s3_renewal import SignedIn

_errors: Final[Any] = botocore.exceptions
_session: Final[Any] = botocore.session
_files: Final[Any] = JSONFileCache

_LIFETIME_MAX_S: Final = 86_400
_TEXT_MAX: Final = 500
_METADATA_TRIES: Final = 3
_CLI_CACHE: Final = "~/.aws/cli/cache"
_CLIENT: Final[Any] = cast("Any", botocore.config).Config(
    connect_timeout=5, read_timeout=10, retries={"mode": "standard", "total_max_attempts": 3}
)
_NOTHING: Final = (
    "no AWS credentials: neither the store URL, nor the environment, nor the profile has any, and"
    " this machine has no role. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a"
    " profile in AWS_PROFILE, or create one: aws configure, or aws configure sso"
)
_TRANSIENT: Final = (
    _errors.HTTPClientError,
    _errors.ConnectionError,
    _errors.MetadataRetrievalError,
)


def open_session(region: str | None) -> Any:  # noqa: ANN401 (botocore has no types)
    """Return a session of botocore. Reads files only. Raises InvalidStoreConfig."""
    session = _session.Session()
    try:
        session.get_scoped_config()
    except _errors.ProfileNotFound:
        known = ", ".join(sorted(session.available_profiles)) or "none"
        raise InvalidStoreConfig(
            f"AWS profile {session.profile!r} is not in the files of AWS, which contain: {known}."
            f" Name one of these in AWS_PROFILE, create it (aws configure --profile"
            f" {session.profile}), or unset AWS_PROFILE to use the role of the machine"
        ) from None
    except _errors.ConfigParseError as error:
        raise InvalidStoreConfig(f"{error}. It must be a file of AWS profiles") from None
    if region is not None:
        session.set_config_variable("region", region)
    session.set_default_client_config(_CLIENT)
    if session.get_config_variable("metadata_service_num_attempts") < _METADATA_TRIES:
        session.set_config_variable("metadata_service_num_attempts", _METADATA_TRIES)
    return session


def sign_in(region: str | None) -> SignedIn:
    """Return the credentials of the machine. May send requests, run a program, and block.

    Raises SignInFailed, or OSError if another try may succeed.
    """
    try:
        session = open_session(region or "us-east-1")
    except InvalidStoreConfig as error:
        raise SignInFailed(str(error)) from None
    try:
        _never_ask(session)
        found = session.get_credentials()
        if found is None:
            raise SignInFailed(_NOTHING)
        keys = found.get_frozen_credentials()
    except SignInFailed:
        raise
    except Exception as error:  # also whatever a file or a program contains
        raise _explained(error, session) from error
    return SignedIn(keys.access_key, keys.secret_key, keys.token, _left_s(found))


def _left_s(found: Any) -> float | None:  # noqa: ANN401
    """Return for how long the keys are valid; None: they do not expire. botocore only tells whether
    it is less than some time.
    """
    if not hasattr(found, "refresh_needed"):
        return None
    return bisect_left(range(_LIFETIME_MAX_S), True, key=found.refresh_needed) - 1


def _never_ask(session: Any) -> None:  # noqa: ANN401
    provider = session.get_component("credential_provider").get_provider("assume-role")
    provider.cache = _CachedByCli()
    provider._prompter = _refuse


class _CachedByCli:
    """The keys of assumed roles that `aws` has cached. Never writes."""

    def __init__(self) -> None:
        self._files = _files(str(Path(_CLI_CACHE).expanduser()))

    def __contains__(self, key: str) -> bool:
        return key in self._files

    def __getitem__(self, key: str) -> Any:  # noqa: ANN401
        return self._files[key]

    def __setitem__(self, key: str, value: object) -> None:
        """Store nothing."""


class _CodeNeeded(Exception):
    """A role needs an MFA code."""


def _refuse(prompt: str) -> str:
    raise _CodeNeeded(prompt)


def _explained(error: Exception, session: Any) -> Exception:  # noqa: ANN401
    """Return SignInFailed with what to type, or OSError if another try may succeed."""
    source = getattr(error, "kwargs", {}).get("provider")
    shown = " ".join(str(error).split())[:_TEXT_MAX].rstrip(".")  # a program may write any text
    text = f"cannot get AWS credentials{_for(session)}: {shown}"
    if isinstance(error, _TRANSIENT) or source == "container-role" or _is_of_server(error):
        return OSError(text)
    return SignInFailed(f"{text}. {_advice(error, source, session)}")


def _is_of_server(error: Any) -> bool:  # noqa: ANN401
    if not isinstance(error, _errors.ClientError):
        return False
    answer: Any = error
    status = answer.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status >= 500 or "Throttl" in str(error)


def _advice(error: Exception, source: str | None, session: Any) -> str:  # noqa: ANN401
    names = {each.__name__ for each in type(error).__mro__}
    if names & {"SSOError", "TokenRetrievalError"}:
        return f"Sign in: aws sso login{_flag(session, 'sso_session', 'sso_start_url')}"
    if "LoginError" in names:
        return f"Sign in: aws login{_flag(session, 'login_session')}"
    if "MissingDependencyException" in names:
        return 'Type: pip install "botocore[crt]"'
    check = f"aws sts get-caller-identity{_flag(session)}"
    if isinstance(error, _CodeNeeded):
        return f"Type the code in another program, whose keys Penstock then finds: {check}"
    if source == "custom-process" or not names & {"BotoCoreError", "ClientError"}:
        return f"Run its credential_process by hand, or see what AWS's own tool says: {check}"
    return f"See what AWS's own tool says: {check}"


def _for(session: Any) -> str:  # noqa: ANN401
    return f" for profile {session.profile!r}" if session.profile else ""


def _flag(session: Any, *options: str) -> str:  # noqa: ANN401
    """Return the flag of `aws` for the profile, or for that among its sources which has one of
    these options.
    """
    profiles: dict[str, dict[str, str]] = session.full_config.get("profiles", {})
    name, seen = session.profile or "default", set[str]()
    while name in profiles and name not in seen:
        if profiles[name].keys() & options:
            return f" --profile {name}"
        seen.add(name)
        name = profiles[name].get("source_profile", "")
    return f" --profile {session.profile}" if session.profile else ""
