"""Store the profiles of the command line: named clusters with their addresses.

They are stored in the file `penstock/profiles.toml` in $XDG_CONFIG_HOME or ~/.config, which is
readable only by its owner. It contains paths of files with secrets, but no secrets.
"""

import re
import tomllib
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Final

import msgspec

from penstock.base.own_directory import user_directory
from penstock.deploy.errors import UsageError, near_hint
from penstock.deploy.private_files import write_private

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The addresses of a cluster. Empty strings are unset.

    command_config: absolute path of a file of client properties.
    """

    bootstrap: str = ""
    command_config: str = ""
    controller: str = ""
    store: str = ""


class Profiles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file. active: name of the profile that is used without --profile; empty for none."""

    active: str = ""
    profiles: dict[str, Profile] = {}


class NamedProfile(msgspec.Struct, frozen=True):
    """The profile that a command uses. name: empty if it uses none."""

    name: str = ""
    profile: Profile = Profile()


_NONE: Final = NamedProfile()
_current: ContextVar[NamedProfile] = ContextVar("profile", default=_NONE)


def current_profile() -> NamedProfile:
    """Return the profile of this command."""
    return _current.get()


def use(name: str, environment: Mapping[str, str]) -> NamedProfile:
    """Select the profile of this command: the named one, or the active one for an empty name.

    Raises UsageError.
    """
    path = default_path(environment)
    found = read(path)
    name = name or found.active
    used = NamedProfile(name, named(found, name, path)) if name else NamedProfile()
    _current.set(used)
    return used


def named(found: Profiles, name: str, path: Path) -> Profile:
    """Return one profile. Raises UsageError."""
    if name not in found.profiles:
        hint = near_hint(name, found.profiles, "`penstock profile list` lists the profiles")
        raise UsageError(f"profile {name!r} does not exist in {path}; {hint}")
    return found.profiles[name]


def check_name(name: str) -> None:
    """Raises UsageError."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"profile {name!r} is not allowed: 1 to 64 characters from a-z, A-Z, 0-9, '_', '-'"
        )


def default_path(environment: Mapping[str, str]) -> Path:
    """Return the path of the file."""
    return user_directory(environment, "XDG_CONFIG_HOME", ".config") / "profiles.toml"


def read(path: Path) -> Profiles:
    """Return the profiles, which are empty if there is no file. Raises UsageError."""
    try:
        return msgspec.convert(tomllib.loads(path.read_text()), Profiles)
    except FileNotFoundError:
        return Profiles()
    except (OSError, ValueError) as error:  # this includes errors of TOML, UTF-8 and msgspec
        raise UsageError(f"the profiles file {path} cannot be read: {error}") from None


def write(path: Path, profiles: Profiles) -> None:
    """Write the file with mode 0600. Raises UsageError."""
    text = _encoded(profiles)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, text.encode())
    except OSError as error:
        raise UsageError(f"cannot write the profiles to {path}: {error.strerror}") from None


def _encoded(found: Profiles) -> str:
    lines = [f"active = {_quoted(found.active)}"] if found.active else []
    for name, profile in sorted(found.profiles.items()):
        lines += ["", f"[profiles.{name}]"]
        lines += [
            f"{key} = {_quoted(value)}"
            for key, value in msgspec.structs.asdict(profile).items()
            if value
        ]
    return "\n".join(lines).lstrip("\n") + "\n"


def _quoted(text: str) -> str:
    """Return a TOML basic string."""
    if _CONTROL.search(text):
        raise UsageError(f"{text!r} has control characters")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
