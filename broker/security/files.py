"""Keep what the files of the security settings say: PEM files and users. Read them again when they
change.

Invariants: files are read off the event loop. New contents are used as a whole or not at all: if
they cannot be used, the earlier ones stay, an error is logged once for these contents, and
`refused_count` grows.
"""

import asyncio
import hashlib
import secrets
from pathlib import Path
from typing import NamedTuple

import structlog

from base.scram import ScramCredential, ScramMechanism
from broker.security.config import SecurityConfig
from broker.security.tls import SecurityFileInvalid, TlsContexts, make_contexts
from broker.security.users import credentials_of
from broker.security.users_file import parse_users

log = structlog.get_logger(__name__)

_FILE_BYTES_MAX = 1 << 20


class FileContents(NamedTuple):
    """What the files say. tls: None without a keystore. passwords: of the users in the file.
    secret: the same for all brokers with the same users.
    """

    tls: TlsContexts | None
    passwords: dict[str, str]
    credentials: dict[tuple[ScramMechanism, str], ScramCredential]
    secret: bytes


class SecurityFiles:
    """Call `read` before the first use of `contents`, and run `watch` as a task."""

    def __init__(self, config: SecurityConfig) -> None:
        self._config = config
        self._paths = [
            Path(path)
            for path in (
                config.ssl_keystore_location,
                config.ssl_truststore_location,
                config.sasl_users_file,
            )
            if path
        ]
        self._random = secrets.token_bytes(32)
        self._stamp: object = None
        self._digest = b""
        self.contents = FileContents(None, {}, {}, self._random)
        self.reload_count = 0
        """How often changed files came into use."""
        self.refused_count = 0
        """How often changed files could not be used."""

    async def read(self) -> None:
        """Read all files. Raises SecurityFileInvalid."""
        self._stamp, self._digest, self.contents = await asyncio.to_thread(self._read)

    async def watch(self) -> None:
        """Look for changes until cancelled."""
        while self._paths:
            await asyncio.sleep(self._config.ssl_reload_interval_ms / 1_000)
            await self.refresh()

    async def refresh(self) -> None:
        """Use the files as they are now, if they have changed and can be used."""
        stamp = await asyncio.to_thread(self._look)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            digest = await asyncio.to_thread(self._digested)
            if digest == self._digest:
                return
            _, self._digest, self.contents = await asyncio.to_thread(self._read)
        except SecurityFileInvalid as error:
            self.refused_count += 1
            log.error("security_files_refused", reason=str(error), remedy="the old ones stay")
            return
        self.reload_count += 1
        log.info("security_files_reloaded", files=[str(path) for path in self._paths])

    def _look(self) -> object:
        """Return what changes whenever a file does."""
        found: list[object] = []
        for path in self._paths:
            try:
                status = path.stat()
            except OSError as error:
                found.append(error.errno)
            else:
                found.append((status.st_ino, status.st_mtime_ns, status.st_size))
        return found

    def _digested(self) -> bytes:
        parts = (hashlib.sha256(_contents(path)).digest() for path in self._paths)
        return b"".join(parts)

    def _read(self) -> tuple[object, bytes, FileContents]:
        stamp, digest = self._look(), self._digested()
        config = self._config
        passwords: dict[str, str] = {}
        secret = self._random
        if config.sasl_users_file:
            data = _contents(Path(config.sasl_users_file))
            passwords = _passwords(config, data)
            secret = hashlib.sha256(data).digest()
        tls = make_contexts(config) if config.ssl_keystore_location else None
        if self._digested() != digest:
            raise SecurityFileInvalid("a file changed while it was read")
        return stamp, digest, FileContents(tls, passwords, credentials_of(passwords), secret)


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
            f"sasl.users.file={config.sasl_users_file} has no user {own!r}, which"
            " sasl.inter.broker.username names"
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
