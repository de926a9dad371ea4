"""With `sasl.oauthbearer.required.scope`, a token must contain all of these scopes."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka.admin import AdminClient
from structlog.testing import capture_logs

from tests.support.clients import TIMEOUT_S
from tests.support.cluster import Cluster
from tests.support.secure_cluster import secure_cluster
from tests.support.token_issuer import TokenIssuer
from tests.support.waiting import until


def admin_with(cluster: Cluster, token: str, told: Callable[[str], None]) -> AdminClient:
    def refresh(_config: str) -> tuple[str, float]:
        return token, time.time() + 60

    return AdminClient(
        {
            "bootstrap.servers": cluster.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": refresh,
            "error_cb": lambda error: told(error.str()),
            "log_level": 0,
        }
    )


async def refusal(cluster: Cluster, token: str) -> str:
    """Return why a client with this token fails to authenticate."""
    reported: list[str] = []
    admin = admin_with(cluster, token, reported.append)

    def is_logged() -> bool:
        admin.poll(0)
        return bool(reported)

    await until(is_logged)
    return reported[0]


async def test_token_without_a_required_scope_is_rejected(tmp_path: Path) -> None:
    async with TokenIssuer() as issuer:
        settings = {
            "ssl_keystore_location": "",
            "ssl_truststore_location": "",
            "sasl_enabled_mechanisms": ("OAUTHBEARER", "SCRAM-SHA-512"),
            "sasl_jwks_endpoint_url": f"http://127.0.0.1:{issuer.port}/jwks",
            "sasl_oauth_expected_audience": ("kafka",),
            "sasl_oauth_required_scope": ("kafka", "orders:write"),
        }
        async with secure_cluster(tmp_path, "SASL_PLAINTEXT", security=settings) as cluster:
            for scope in ("orders:write extra kafka", ["kafka", "orders:write"]):
                admin = admin_with(cluster, issuer.token(scope=scope), print)
                found = await asyncio.to_thread(admin.list_topics, timeout=TIMEOUT_S)
                assert found.brokers
            with capture_logs() as logs:
                for changes in ({"scope": "kafka"}, {"scope": ["kafka", "orders"]}, {}):
                    refused = await refusal(cluster, issuer.token(**changes))
                    assert '"insufficient_scope","scope":"kafka orders:write"' in refused
            first = next(line for line in logs if line["event"] == "authentication_failed")
            assert first["reason"] == "the token lacks the scope orders:write"
