"""Keep the public keys that verify tokens: read them from a URL or a file, and again when they are
old or when a token names an unknown one.

Invariants: keys are read off the event loop, with a time limit and a size limit, and one read runs
at a time. Tokens with made up key ids cause at most one read every `unknown_interval_s`. If reading
fails, the keys that are known stay in use.
Source: Kafka's RefreshingHttpsJwks.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import structlog

from broker.security.tokens import Key, TokenRules, UnknownKey, VerifiedToken, parse_keys, verify

log = structlog.get_logger(__name__)

UNKNOWN_INTERVAL_S: Final = 10.0
_READ_TIMEOUT_S: Final = 5.0
_DOCUMENT_BYTES_MAX: Final = 1 << 20


class TokenKeys:
    """url: https://, http:// or file:PATH. now_ms: wall clock."""

    def __init__(
        self,
        url: str,
        rules: TokenRules,
        *,
        refresh_ms: int,
        now_ms: Callable[[], int],
        unknown_interval_s: float = UNKNOWN_INTERVAL_S,
    ) -> None:
        self._url = url
        self._rules = rules
        self._refresh_s = refresh_ms / 1_000
        self._now_ms = now_ms
        self._unknown_interval_s = unknown_interval_s
        self._keys: list[Key] = []
        self._reading = asyncio.Lock()
        self._tried_at: float | None = None
        self._read_at: float | None = None

    async def verify(self, token: str) -> VerifiedToken:
        """Verify a token. Raises AuthenticationFailed."""
        loop = asyncio.get_running_loop()
        if self._read_at is None or loop.time() - self._read_at > self._refresh_s:
            await self._read()
        try:
            return verify(token, self._keys, self._rules, self._now_ms())
        except UnknownKey:
            await self._read()
            return verify(token, self._keys, self._rules, self._now_ms())

    async def _read(self) -> None:
        """Read the keys, unless that was tried just now."""
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        async with self._reading:
            tried_at = self._tried_at
            if tried_at is not None and (
                tried_at >= asked_at or loop.time() - tried_at < self._unknown_interval_s
            ):
                return
            self._tried_at = loop.time()
            try:
                document = await asyncio.to_thread(read_document, self._url)
                self._keys = parse_keys(document)
            except (OSError, ValueError) as error:
                log.error("token_keys_not_read", url=self._url, reason=str(error))
                return
            self._read_at = loop.time()


def read_document(url: str) -> bytes:
    """Read the document. Raises OSError or ValueError."""
    if url.startswith("file:"):
        with Path(url.removeprefix("file:").removeprefix("//")).open("rb") as file:
            document = file.read(_DOCUMENT_BYTES_MAX + 1)
    else:
        with urlopen(url, timeout=_READ_TIMEOUT_S) as answer:  # noqa: S310  # checked: http or https
            document = answer.read(_DOCUMENT_BYTES_MAX + 1)
    if len(document) > _DOCUMENT_BYTES_MAX:
        raise ValueError(f"the document has more than {_DOCUMENT_BYTES_MAX} bytes")
    return bytes(document)
