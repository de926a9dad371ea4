"""Send client metrics (KIP-714) to an OpenTelemetry receiver over HTTP.

Source: OTLP 1.x, "OTLP/HTTP".
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import structlog

from penstock.base.log_limit import LogLimit
from penstock.base.tls_faults import reason_of
from penstock.broker.client_metrics.otlp import MetricsInvalid, read_response
from penstock.broker.client_metrics.sender import SentCounts
from penstock.broker.config import BrokerConfig
from penstock.broker.security.files import WatchedFiles
from penstock.broker.security.tls import SecurityFileInvalid
from penstock.deploy.errors import UsageError
from penstock.deploy.node.otlp import METRICS, PREFIX, ReceiverFiles, headers_of, url_of

if TYPE_CHECKING:
    import aiohttp

WAITING_BYTES_MAX: Final = 16 << 20
REQUEST_BYTES_MAX: Final = 4 << 20
TIMEOUT_S: Final = 10.0
PAUSE_S_MIN: Final = 1.0
PAUSE_S_MAX: Final = 30.0
"""Maximum pause after a failure. The pause doubles with each failure."""
RESPONSE_BYTES_MAX: Final = 256 << 10
"""Maximum size of a response; the response to a partial success has a few hundred bytes."""
PARTIAL_SUCCESS_LOG_S: Final = 60.0
_REFUSAL_BYTES: Final = 200
_DATA_POINT_BYTES_MIN: Final = 2
"""Size of the smallest data point: tag and size of a NumberDataPoint without fields."""
_PATH: Final = "/v1/metrics"
_PROTOBUF: Final = "application/x-protobuf"
_TRY_AGAIN: Final = frozenset({429, 502, 503, 504})
"""Retriable statuses, as defined by OTLP."""

_log = structlog.get_logger(__name__)


def sender_of(config: BrokerConfig, environment: Mapping[str, str]) -> "OtlpMetrics | None":
    """Return the sender for the configured receiver, or None. Raises UsageError."""
    endpoint = config.client_metrics_otlp_endpoint
    return OtlpMetrics(endpoint, environment) if endpoint else None


class _Refused(Exception):
    """Raised when the receiver permanently rejects these metrics."""


class _Unavailable(Exception):
    """Raised when the receiver may accept the same metrics later."""


class OtlpMetrics:
    """endpoint: http://HOST:PORT of a receiver; the default path of OTLP is added if there is none.

    Invariants: accepting a push never blocks. One request is in flight; pushes that arrive in the
    meantime share the next one. Metrics are resent to a receiver that is down or overloaded. Only
    rejected metrics are dropped: the pushes of a rejected request are resent one by one. A partial
    success is not resent, as OTLP requires. An unreadable response body is ignored, because the
    status is sufficient. Limits: at most `WAITING_BYTES_MAX` are queued; beyond that, the oldest
    are dropped. A request takes at most `TIMEOUT_S`. At most `RESPONSE_BYTES_MAX` of each response
    are read. Logs one line when sending starts to fail, one when it succeeds again, and one per
    minute about partial successes.
    """

    def __init__(
        self,
        endpoint: str,
        environment: Mapping[str, str],
        *,
        pause_s_min: float = PAUSE_S_MIN,
    ) -> None:
        """Raises UsageError for invalid variables."""
        self._url = url_of(endpoint, _PATH)
        self._headers = headers_of(environment, METRICS)
        self._tls = _watched(ReceiverFiles.of(environment, METRICS))
        self._pause_s_min = pause_s_min
        self._waiting: deque[bytes] = deque()
        self._arrived = asyncio.Event()
        self._is_failing = False
        self._log_limit = LogLimit()
        self._partial_success_limit = LogLimit(burst_count=1, interval_s=PARTIAL_SUCCESS_LOG_S)
        self.counts = SentCounts()

    def offer(self, metrics: bytes) -> None:
        counts = self.counts
        self._waiting.append(metrics)
        counts.waiting_bytes += len(metrics)
        while counts.waiting_bytes > WAITING_BYTES_MAX:
            self._take()
            counts.dropped += 1
        self._arrived.set()

    async def run(self) -> None:
        # Imported only by brokers that have this setting.
        import aiohttp

        async with aiohttp.ClientSession(
            trust_env=True,  # use the proxies in the environment
            # Responses are not decompressed, so a small one cannot become large.
            headers={"Content-Type": _PROTOBUF, "Accept-Encoding": "identity"} | self._headers,
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
        ) as session:
            while True:
                await self._arrived.wait()
                self._arrived.clear()
                while self._waiting:
                    await self._deliver(session, self._take_together())

    def _take(self) -> bytes:
        metrics = self._waiting.popleft()
        self.counts.waiting_bytes -= len(metrics)
        return metrics

    def _take_together(self) -> list[bytes]:
        """Return the pushes for the next request, at least one."""
        taken = [self._take()]
        size = len(taken[0])
        while self._waiting and size + len(self._waiting[0]) <= REQUEST_BYTES_MAX:
            taken.append(self._take())
            size += len(taken[-1])
        return taken

    async def _deliver(self, session: "aiohttp.ClientSession", pushes: list[bytes]) -> None:
        try:
            await self._send(session, pushes)
        except _Refused as refused:
            if len(pushes) > 1:
                for push in pushes:
                    await self._deliver(session, [push])
                return
            self.counts.dropped += 1
            suppressed = self._log_limit.take(asyncio.get_running_loop().time())
            if suppressed is not None:
                _log.warning(
                    "client_metrics_rejected",
                    endpoint=self._url,
                    reason=str(refused),
                    suppressed_count=suppressed,
                )
        else:
            self.counts.sent += len(pushes)
            self.counts.sent_bytes += sum(map(len, pushes))

    async def _send(self, session: "aiohttp.ClientSession", pushes: list[bytes]) -> None:
        """Send until the receiver accepts or rejects the metrics. Raises _Refused."""
        pause_s = self._pause_s_min
        while True:
            try:
                await self._post(session, b"".join(pushes))
            except _Unavailable as error:
                self._note(str(error))
            else:
                self._note("")
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    async def _post(self, session: "aiohttp.ClientSession", body: bytes) -> None:
        """Raises _Refused, _Unavailable."""
        import aiohttp

        await self._tls.refresh()
        said = b""
        try:
            async with session.post(
                self._url, data=body, ssl=self._tls.contents, allow_redirects=False
            ) as response:
                status = response.status
                if not 200 <= status < 300:
                    said = await response.content.read(_REFUSAL_BYTES)
                elif response.content_type == _PROTOBUF:
                    said = await _body_of(response)
        except aiohttp.ClientConnectorCertificateError as error:
            raise _Unavailable(self._reason(error.certificate_error)) from None
        except aiohttp.ClientConnectorError as error:
            raise _Unavailable(self._reason(error.os_error)) from None
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise _Unavailable(self._reason(error)) from None
        if status in _TRY_AGAIN:
            raise _Unavailable(f"HTTP status {status}")
        if not 200 <= status < 300:
            raise _Refused(f"HTTP status {status}: {said.decode(errors='replace')}")
        self._record_partial_success(said, len(body))

    def _reason(self, error: Exception) -> str:
        text = str(error) or type(error).__name__
        return reason_of(text, self._url, ca_setting=f"{PREFIX}CERTIFICATE")

    def _record_partial_success(self, response: bytes, sent_bytes: int) -> None:
        """Count and log the metrics that were rejected in a request of `sent_bytes`."""
        try:
            rejected_count, message = read_response(response)
        except MetricsInvalid:
            return
        # The receiver cannot have rejected more than it received.
        rejected_count = min(rejected_count, sent_bytes // _DATA_POINT_BYTES_MIN)
        self.counts.rejected_data_points += rejected_count
        if not rejected_count and not message:
            return
        suppressed = self._partial_success_limit.take(asyncio.get_running_loop().time())
        if suppressed is not None:
            _log.warning(
                "client_metrics_partial_success",
                endpoint=self._url,
                rejected_data_points=rejected_count,
                reason=message,
                suppressed_count=suppressed,
            )

    def _note(self, failure: str) -> None:
        if bool(failure) == self._is_failing:
            return
        self._is_failing = bool(failure)
        if failure:
            _log.warning(
                "client_metrics_delayed",
                endpoint=self._url,
                reason=failure,
                next="retrying; beyond 16 MiB, the oldest metrics are dropped",
            )
        else:
            _log.info("client_metrics_resumed", endpoint=self._url)


def _watched(receiver: ReceiverFiles) -> WatchedFiles[ssl.SSLContext]:
    """Return the TLS context of these files. Raises UsageError."""

    def parse() -> ssl.SSLContext:
        try:
            return receiver.context()
        except UsageError as error:
            raise SecurityFileInvalid(str(error)) from None

    files = WatchedFiles(receiver.paths, parse)
    receiver.context()  # first, because its errors contain the variables
    try:
        files.read_now()
    except SecurityFileInvalid as error:
        raise UsageError(str(error)) from None
    return files


async def _body_of(response: "aiohttp.ClientResponse") -> bytes:
    """Return the response body for accepted metrics; empty if it is too long or does not arrive.
    Neither is treated as an error, because resending the metrics would duplicate them.
    """
    import aiohttp

    said = bytearray()
    try:
        while part := await response.content.read(RESPONSE_BYTES_MAX + 1 - len(said)):
            said += part
            if len(said) > RESPONSE_BYTES_MAX:
                return b""
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return b""
    return bytes(said)
