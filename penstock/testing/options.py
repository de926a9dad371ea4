"""Validated options of the cluster of a test run, from command line and ini file.

Invariant: every `Options` object is valid. Pure, and cheap to import, because every run creates
one.
"""

from dataclasses import dataclass
from typing import Final

BROKERS_MAX: Final = 9
LATENCY_MAX_MS: Final = 60_000.0
LEVELS: Final = ("debug", "info", "warning", "error")


class InvalidOption(ValueError):
    """The message contains the option, its value, and the allowed values."""

    def __init__(self, option: str, value: object, allowed: str) -> None:
        super().__init__(f"{option} {value} is not allowed: {allowed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`port`: the port of the first broker; the others use the following ones. 0 means any free
    ports. The latencies of PUTs to the store are lognormal, given by two quantiles. `secure`:
    clients must use TLS and SCRAM.
    """

    brokers: int = 2
    port: int = 0
    latency_p50_ms: float = 0.0
    latency_p99_ms: float = 0.0
    log_level: str = "warning"
    secure: bool = False

    @classmethod
    def parse(
        cls, *, brokers: str, port: str, latency: str, log_level: str, secure: str
    ) -> "Options":
        """Parse the given strings; empty strings select the defaults. Raise InvalidOption."""
        default = cls()
        p50_ms, p99_ms = _latency(latency) if latency else (0.0, 0.0)
        level = log_level or default.log_level
        if level not in LEVELS:
            raise InvalidOption("--penstock-log-level", level, ", ".join(LEVELS))
        if secure.lower() not in {"", "true", "false"}:
            raise InvalidOption("penstock_secure", secure, "true, false")
        return cls(
            brokers=_number("--penstock-brokers", brokers, 1, BROKERS_MAX)
            if brokers
            else default.brokers,
            port=_number("--penstock-port", port, 0, 65_535 - BROKERS_MAX)
            if port
            else default.port,
            latency_p50_ms=p50_ms,
            latency_p99_ms=p99_ms,
            log_level=level,
            secure=secure.lower() == "true",
        )


def _number(option: str, text: str, low: int, high: int) -> int:
    if not text.strip().isdecimal() or not low <= int(text) <= high:
        raise InvalidOption(option, text, f"{low} to {high}")
    return int(text)


def _latency(text: str) -> tuple[float, float]:
    parts = text.split(",")
    try:
        p50_ms, p99_ms = float(parts[0]), float(parts[-1])
    except ValueError:
        p50_ms, p99_ms = -1.0, -1.0
    if len(parts) > 2 or not 0 <= p50_ms <= p99_ms <= LATENCY_MAX_MS:
        raise InvalidOption(
            "--penstock-latency",
            text,
            "P50 or P50,P99 in ms, the second not less than the first, as in 20,100",
        )
    return p50_ms, p99_ms
