"""Read the settings of a process: arguments, environment, file and host name."""

import os
import socket
import tomllib
from collections.abc import Mapping, Sequence

from penstock.base.listeners import pod_values
from penstock.deploy.errors import UsageError
from penstock.deploy.node.config.definition import Role
from penstock.deploy.node.config.effective import Effective, resolve
from penstock.deploy.node.config.sources import (
    CONFIG_VARIABLE,
    Given,
    from_environment,
    from_file,
    from_flags,
)


def load(
    role: Role,
    arguments: Sequence[str],
    environment: Mapping[str, str] = os.environ,
    *,
    hostname: str | None = None,
    complete: bool = True,
) -> Effective:
    """Load the configuration of one process. complete: see `resolve`. Raises UsageError for invalid
    input.
    """
    flags = from_flags(role, arguments)
    given = given_outside_flags([role], environment, flags.config) | flags.given
    return resolve(
        role,
        given,
        pod_values(socket.gethostname() if hostname is None else hostname),
        complete=complete,
    )


def given_outside_flags(
    roles: Sequence[Role], environment: Mapping[str, str], path: str = ""
) -> dict[str, Given]:
    """Return the settings of these roles in the environment and the file. path: the file that a
    flag specifies.
    """
    path = path or environment.get(CONFIG_VARIABLE, "")
    content: Mapping[str, object] = read_file(path) if path else {}
    given: dict[str, Given] = {}
    for role in roles:
        given |= from_file(role, content, path) | from_environment(role, environment)
    return given


def read_file(path: str) -> Mapping[str, object]:
    """Read the TOML file. Raises UsageError if it is missing or not TOML."""
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise UsageError(f"config file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"config file {path} is not TOML: {error}") from None
