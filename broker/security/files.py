"""Load the PEM files and the users file of the security settings, and reload them when they
change.
"""

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import structlog

from penstock.base.scram import ScramCredential, ScramMechanism
from penstock.broker.security.config import AUTH_NONE, SecurityConfig
from penstock.broker.security.tls import SecurityFileInvalid, TlsContexts, make_contexts
from penstock.broker.security.users import credentials_of
from penstock.broker.security.users_file import parse_users

log = structlog.get_logger(__name__)

_FILE_BYTES_MAX = 1 << 20
_SECRET_ROUNDS = 100_000
_Contents = TypeVar("_Contents")


class FileUsers(NamedTuple):
    """The contents of the users file. secret: generates the salts of users in the file and of
    unknown users. It is the same on all brokers with the same users file or delegation token key.
    """

    passwords: dict[str, str]
    credentials: dict[tuple[ScramMechanism, str], ScramCredential]
    secret: bytes


class WatchedFiles(Generic[_Contents]):
    """A group of files that are used together. Call `read` before using `contents`.

    New contents replace the old ones atomically. If they are invalid, the previous files stay in
    use, an error is logged once for these contents, and `refused_count` increases.

    parse: reads and returns the contents; called in a thread, and may raise SecurityFileInvalid.
    """

    def __init__(self, paths: Sequence[str], parse: Callable[[], _Contents]) -> None:
        self.paths = [Path(path) for path in paths if path]
        self._parse = parse
        self._stamp: object = None
        self._digest = b""
        self._contents: _Contents | None = None
        self.reload_count = 0
        """Number of successful reloads."""
        self.refused_count = 0
        """Number of failed reloads."""

    @property
    def contents(self) -> _Contents:
        assert self._contents is not None, "read() comes first"
        return self._contents

    async def read(self) -> None:
        """Read all files. Raises SecurityFileInvalid."""
        await asyncio.to_thread(self.read_now)

    def read_now(self) -> None:
        """Read all files in the current thread. Raises SecurityFileInvalid."""
        self._stamp, self._digest, self._contents = self._read()

    async def refresh(self) -> None:
        """Reload the files if they have changed and are valid."""
        if not self.paths:
            return
        stamp = await asyncio.to_thread(self._look)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            digest = await asyncio.to_thread(self._digested)
            if digest == self._digest:
                return
            _, self._digest, self._contents = await asyncio.to_thread(self._read)
        except SecurityFileInvalid as error:
            self.refused_count += 1
            log.error(
                "security_files_rejected",
                reason=str(error),
                remedy="the previous files stay in use",
            )
            return
        self.reload_count += 1
        log.info("security_files_reloaded", files=[str(path) for path in self.paths])

    def _look(self) -> object:
        """Return a value that changes whenever one of the files changes."""
        found: list[object] = []
        for path in self.paths:
            try:
                status = path.stat()
            except OSError as error:
                found.append(error.errno)
            else:
                found.append((status.st_ino, status.st_mtime_ns, status.st_size))
        return found

    def _digested(self) -> bytes:
        parts = (hashlib.sha256(_contents(path)).digest() for path in self.paths)
        return b"".join(parts)

    def _read(self) -> tuple[object, bytes, _Contents]:
        stamp, digest = self._look(), self._digested()
        contents = self._parse()
        if self._digested() != digest:
            raise SecurityFileInvalid("a file changed during the read")
        return stamp, digest, contents


class SecurityFiles:
    """All files of the security settings. Call `read` first, and run `watch` as a task.

    The users file and the PEM files of each listener with its own settings are reloaded separately.
    Other listeners share the general PEM files.
    """

    def __init__(self, config: SecurityConfig) -> None:
        self._interval_s = config.ssl_reload_interval_ms / 1_000
        random = secrets.token_bytes(32)
        self._users = WatchedFiles([config.sasl_users_file], lambda: _users(config, random))
        self._tls = _pem_files(config) if config.ssl_keystore_location else None
        self._own_tls = {
            listener: _pem_files(config, listener)
            for listener in config.listeners_with_tls()
            if config.of_listener(listener).ssl_keystore_location
        }
        self._all: list[WatchedFiles[FileUsers] | WatchedFiles[TlsContexts]] = [
            self._users,
            *([] if self._tls is None else [self._tls]),
            *self._own_tls.values(),
        ]
        self._watched = [files for files in self._all if files.paths]

    @property
    def users(self) -> FileUsers:
        return self._users.contents

    def tls(self, listener: str) -> TlsContexts:
        """Return the TLS contexts of a listener, by its name."""
        found = self._own_tls.get(listener, self._tls)
        assert found is not None, "SecurityConfig.protocols has checked that there is a keystore"
        return found.contents

    @property
    def reload_count(self) -> int:
        return sum(files.reload_count for files in self._all)

    @property
    def refused_count(self) -> int:
        return sum(files.refused_count for files in self._all)

    async def read(self) -> None:
        """Read all files. Raises SecurityFileInvalid."""
        for files in self._all:
            await files.read()

    async def watch(self) -> None:
        """Check the files for changes until cancelled."""
        while self._watched:
            await asyncio.sleep(self._interval_s)
            await self.refresh()

    async def refresh(self) -> None:
        """Reload files that have changed and are valid."""
        for files in self._watched:
            await files.refresh()


def _pem_files(config: SecurityConfig, listener: str = "") -> WatchedFiles[TlsContexts]:
    """Return the PEM files of a listener with its own settings; if `listener` is empty, return
    those of the general settings.
    """
    own = config.of_listener(listener) if listener else config
    sasl_client_auth = config.client_auth(listener) if listener else AUTH_NONE

    def parse() -> TlsContexts:
        try:
            return make_contexts(own, sasl_client_auth=sasl_client_auth)
        except SecurityFileInvalid as error:
            if not listener:
                raise
            raise SecurityFileInvalid(f"listener {listener}: {error}") from None

    return WatchedFiles([own.ssl_keystore_location, own.ssl_truststore_location], parse)


def _users(config: SecurityConfig, random: bytes) -> FileUsers:
    """Read the users file. random: the secret to use if no setting contains one that all brokers
    share.
    """
    shared = b""
    if config.delegation_token_secret_key:
        shared = hmac.digest(config.delegation_token_secret_key.encode(), b"SCRAM salts", "sha256")
    if not config.sasl_users_file:
        return FileUsers({}, {}, shared or random)
    data = _contents(Path(config.sasl_users_file))
    passwords = _passwords(config, data)
    # Clients see the salts, so deriving the salts must be as expensive as guessing the passwords in
    # the file.
    secret = shared or hashlib.pbkdf2_hmac("sha256", data, b"SCRAM salts", _SECRET_ROUNDS)
    return FileUsers(passwords, credentials_of(passwords, secret), secret)


def _passwords(config: SecurityConfig, data: bytes) -> dict[str, str]:
    try:
        users = parse_users(data.decode())
    except UnicodeDecodeError:
        raise SecurityFileInvalid(
            f"sasl.users.file={config.sasl_users_file} is not UTF-8"
        ) from None
    except ValueError as error:
        raise SecurityFileInvalid(f"sasl.users.file={config.sasl_users_file}: {error}") from None
    own = config.sasl_inter_broker_username
    if own and own not in users:
        raise SecurityFileInvalid(
            f"sasl.users.file={config.sasl_users_file} has no user {own!r}, the value of"
            " sasl.inter.broker.username"
        )
    return users


def _contents(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SecurityFileInvalid(f"{path}: {error.strerror}") from None
    if len(data) > _FILE_BYTES_MAX:
        raise SecurityFileInvalid(f"{path}: more than {_FILE_BYTES_MAX} bytes")
    return data
