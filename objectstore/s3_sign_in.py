"""Sign in to AWS through botocore, as the AWS CLI does.

Invariant: each sign-in opens a new session, which reads changed files. There is no prompt: a
profile with MFA uses the keys cached by the AWS CLI. Import this module only when a profile or a
role is needed. Source: AWS SDKs and Tools Reference Guide, "Standardized credential providers".
"""

import os
import signal
import subprocess
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

import botocore.config
import botocore.credentials
import botocore.exceptions
import botocore.session
from botocore.utils import JSONFileCache

from penstock.objectstore.errors import InvalidStoreConfig, SignInFailed
from penstock.objectstore.renewal import RETRIABLE_STATUSES, AwsKeys

_errors: Final[Any] = botocore.exceptions
_session: Final[Any] = botocore.session
_files: Final[Any] = JSONFileCache
_providers: Final[Any] = botocore.credentials

PROGRAM_LIMIT_S: Final = 60.0
"""Maximum run time of a credential_process."""

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
_THROTTLING_CODES: Final = frozenset(
    {
        "LimitExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
"""Throttling codes that some services send with status 400."""
_TRANSIENT: Final = (
    _errors.HTTPClientError,
    _errors.ConnectionError,
    _errors.MetadataRetrievalError,
)


def open_session(region: str | None) -> Any:  # noqa: ANN401 (botocore has no types)
    """Return a botocore session. Reads files only. Raises InvalidStoreConfig."""
    session = _session.Session()
    try:
        session.get_scoped_config()
    except _errors.ProfileNotFound:
        known = ", ".join(sorted(session.available_profiles)) or "none"
        raise InvalidStoreConfig(
            f"AWS profile {session.profile!r} is not in the AWS config files, which contain:"
            f" {known}."
            f" Set AWS_PROFILE to one of these, create it (aws configure --profile"
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


def sign_in(region: str | None) -> AwsKeys:
    """Return the credentials of the machine. This may send requests, run a program, and block.

    Raises SignInFailed, or OSError if a retry may succeed.
    """
    try:
        session = open_session(region or "us-east-1")
    except InvalidStoreConfig as error:
        raise SignInFailed(str(error)) from None
    try:
        _restrict(session)
        found = session.get_credentials()
        if found is None:
            raise SignInFailed(_NOTHING)
        keys = found.get_frozen_credentials()
    except SignInFailed:
        raise
    except Exception as error:  # also covers errors in files and programs
        raise _explained(error, session) from error
    return AwsKeys(keys.access_key, keys.secret_key, keys.token, _left_s(found))


def _left_s(found: Any) -> float | None:  # noqa: ANN401
    """Return how long the keys are valid, in seconds; None if they do not expire. botocore reports
    only whether the remaining time is less than a given time.
    """
    if not hasattr(found, "refresh_needed"):
        return None
    return bisect_left(range(_LIFETIME_MAX_S), True, key=found.refresh_needed) - 1


def _restrict(session: Any) -> None:  # noqa: ANN401
    """Prevent botocore from prompting, writing files, and running programs without a timeout."""
    resolver = session.get_component("credential_provider")
    resolver.get_provider("custom-process")._popen = _Program
    roles = resolver.get_provider("assume-role")
    roles.cache = _CachedByCli()
    roles._prompter = _refuse

    def provider_of(profile: str) -> Any:  # noqa: ANN401
        return _providers.ProcessProvider(
            profile_name=profile, load_config=lambda: session.full_config, popen=_Program
        )

    # Used for profiles that have a source profile.
    roles._profile_provider_builder._create_process_provider = provider_of


class _Program(subprocess.Popen[bytes]):
    """A credential_process, without a terminal or other input."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:  # noqa: ANN401
        super().__init__(command, stdin=subprocess.DEVNULL, start_new_session=True, **options)

    def communicate(
        self,
        input: bytes | None = None,  # noqa: A002 (the base's name)
        timeout: float | None = None,
    ) -> tuple[bytes, bytes]:
        """Return the output of the program. At the time limit, kill it together with its child
        processes.
        """
        try:
            return super().communicate(input, timeout or PROGRAM_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.pid, signal.SIGKILL)
            super().communicate()
            raise _errors.CredentialRetrievalError(
                provider="custom-process",
                error_msg=f"the program did not end within {PROGRAM_LIMIT_S:g} s",
            ) from None


class _CachedByCli:
    """The keys of assumed roles that `aws` has cached. Read-only."""

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
    """Return SignInFailed with the command to run, or OSError if a retry may succeed."""
    source = getattr(error, "kwargs", {}).get("provider")
    shown = " ".join(str(error).split())[:_TEXT_MAX].rstrip(".")  # a program may print anything
    text = f"cannot get AWS credentials{_for(session)}: {shown}"
    if isinstance(error, _TRANSIENT) or source == "container-role" or _is_of_server(error):
        return OSError(text)
    return SignInFailed(f"{text}. {_advice(error, source, session)}")


def _is_of_server(error: Any) -> bool:  # noqa: ANN401
    """Return whether AWS responded with an error that the request did not cause."""
    if not isinstance(error, _errors.ClientError):
        return False
    response: Any = error.response
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    code = response.get("Error", {}).get("Code")
    return status >= 500 or status in RETRIABLE_STATUSES or code in _THROTTLING_CODES


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
        return f"Enter the code in the AWS CLI, which caches the keys for Penstock: {check}"
    if source == "custom-process" or not names & {"BotoCoreError", "ClientError"}:
        return f"Run its credential_process by hand, or compare the output of the AWS CLI: {check}"
    return f"Compare the output of the AWS CLI: {check}"


def _for(session: Any) -> str:  # noqa: ANN401
    return f" for profile {session.profile!r}" if session.profile else ""


def _flag(session: Any, *options: str) -> str:  # noqa: ANN401
    """Return the --profile flag for the first profile that has one of the options, among the
    current profile and its source profiles; by default, for the current profile.
    """
    profiles: dict[str, dict[str, str]] = session.full_config.get("profiles", {})
    name, seen = session.profile or "default", set[str]()
    while name in profiles and name not in seen:
        if profiles[name].keys() & options:
            return f" --profile {name}"
        seen.add(name)
        name = profiles[name].get("source_profile", "")
    return f" --profile {session.profile}" if session.profile else ""
