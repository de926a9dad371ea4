"""Public keys that verify tokens. They are read from a URL or a file, and read again when they are
outdated or a token has an unknown key id.

Unlike in Kafka, redirects are not followed, so that only the configured address determines who can
authenticate.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import structlog

from penstock.base.tls_faults import reason_of
from penstock.broker.security.tokens import (
    Key,
    TokenRules,
    UnknownKey,
    VerifiedToken,
    parse_keys,
    verify,
)

log = structlog.get_logger(__name__)

UNKNOWN_INTERVAL_S: Final = 10.0
READ_TIMEOUT_S: Final = 5.0
DOCUMENT_BYTES_MAX: Final = 1 << 20
_OK: Final = 200


class TokenKeys:
    """Reads the keys, and verifies tokens with them. Only one read runs at a time, limited in time
    and size, and it continues if the client that caused it disconnects. Tokens with unknown key ids
    cause at most one read per `unknown_interval_s`. After an error, the known keys stay in use. A
    single thread verifies all tokens, so that a flood of forged tokens cannot occupy every core.

    url: https://, http:// or file:PATH. now_ms: wall clock.
    """

    def __init__(
        self,
        url: str,
        rules: TokenRules,
        *,
        refresh_ms: int,
        now_ms: Callable[[], int],
        unknown_interval_s: float = UNKNOWN_INTERVAL_S,
        read_timeout_s: float = READ_TIMEOUT_S,
    ) -> None:
        self._url = url
        self._rules = rules
        self._refresh_s = refresh_ms / 1_000
        self._now_ms = now_ms
        self._unknown_interval_s = unknown_interval_s
        self._read_timeout_s = read_timeout_s
        self._keys: list[Key] = []
        self._reading: asyncio.Task[None] | None = None
        self._tried_at: float | None = None
        self._read_at: float | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="token")

    async def close(self) -> None:
        """Stop reading and verifying."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def verify(self, token: str) -> VerifiedToken:
        """Verify a token. Raises AuthenticationFailed."""
        loop = asyncio.get_running_loop()
        if self._read_at is None or loop.time() - self._read_at > self._refresh_s:
            await self._read()
        try:
            return await self._verified(token)
        except UnknownKey:
            await self._read()
            return await self._verified(token)

    async def _verified(self, token: str) -> VerifiedToken:
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, verify, token, self._keys, self._rules, self._now_ms()
        )

    async def _read(self) -> None:
        """Read the keys, unless a read was attempted recently."""
        loop = asyncio.get_running_loop()
        if self._reading is None or self._reading.done():
            tried_at = self._tried_at
            if tried_at is not None and loop.time() - tried_at < self._unknown_interval_s:
                return
            self._tried_at = loop.time()
            self._reading = loop.create_task(self._read_once())
        # If a client disconnects, the read must continue, because others may be waiting for it.
        await asyncio.shield(self._reading)

    async def _read_once(self) -> None:
        try:
            async with asyncio.timeout(self._read_timeout_s):
                document = await read_document(self._url)
                keys = await asyncio.to_thread(parse_keys, document)
        except TimeoutError:
            self._log_failure(f"no complete document within {self._read_timeout_s} s")
        except Exception as error:  # noqa: BLE001 - the boundary: the old keys stay, whatever the endpoint responds
            reason = str(error) or type(error).__name__
            self._log_failure(reason_of(reason, self._url, ca_setting="SSL_CERT_FILE"))
        else:
            self._keys = keys
            self._read_at = asyncio.get_running_loop().time()

    def _log_failure(self, reason: str) -> None:
        log.error(
            "jwks_fetch_failed", url=self._url, reason=reason[:500], kept_count=len(self._keys)
        )


async def read_document(url: str) -> bytes:
    """Read the JWKS document. Raises OSError, ValueError, or the exceptions of aiohttp."""
    if url.startswith("file:"):
        return await asyncio.to_thread(
            _from_file, Path(url.removeprefix("file:").removeprefix("//"))
        )
    return await _from_http(url)


def _from_file(path: Path) -> bytes:
    if not path.is_file():
        raise ValueError("the file does not exist")
    with path.open("rb") as file:
        document = file.read(DOCUMENT_BYTES_MAX + 1)
    _check_size(document)
    return document


async def _from_http(url: str) -> bytes:
    # Imported here, because only brokers with OAUTHBEARER or S3 need aiohttp.
    import aiohttp

    document = bytearray()
    async with (
        aiohttp.ClientSession(
            trust_env=True,  # uses the proxies in the environment variables
            auto_decompress=False,
            headers={"Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
        ) as session,
        session.get(url, allow_redirects=False) as response,
    ):
        if response.status != _OK:
            where = response.headers.get("Location")
            raise ValueError(
                f"HTTP status {response.status} instead of 200"
                + (f"; redirects, here to {where[:200]!r}, are not followed" if where else "")
            )
        async for part in response.content.iter_any():
            document += part
            _check_size(document)
    return bytes(document)


def _check_size(document: bytes | bytearray) -> None:
    """Raise ValueError if the document is too large."""
    if len(document) > DOCUMENT_BYTES_MAX:
        raise ValueError(f"the document is larger than {DOCUMENT_BYTES_MAX} bytes")
