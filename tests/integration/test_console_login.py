"""Console users log in at a real broker with mechanisms that hide the password from it, unless the
console is configured for PLAIN.
"""

import asyncio
from pathlib import Path

import pytest

from penstock.base.listeners import SecurityProtocol
from penstock.base.scram import SCRAM_BY_NAME
from penstock.deploy.clients.security import ClientSecurity
from penstock.deploy.console.rights import log_in
from penstock.deploy.top.offsets import EndOffsets
from penstock.protocol.client.errors import AuthenticationRefused, KafkaFailed, NoResponse
from penstock.protocol.sasl.mechanisms import OAUTHBEARER, PLAIN
from tests.support.secure_cluster import BROKER_PASSWORD, BROKER_USER, secure_cluster

LISTENER = SecurityProtocol.SASL_PLAINTEXT


@pytest.mark.parametrize(
    ("enabled", "expected"),
    [
        ((PLAIN,), {PLAIN: PLAIN}),
        (("SCRAM-SHA-512",), dict.fromkeys((*SCRAM_BY_NAME, OAUTHBEARER), "SCRAM-SHA-512")),
    ],
)
async def test_console_sends_no_password_unless_it_is_configured_for_plain(
    tmp_path: Path, enabled: tuple[str, ...], expected: dict[str, str]
) -> None:
    """`expected`: the mechanism of the user's login for each mechanism of the console; with all
    others, the login fails.
    """
    security = {
        "sasl_enabled_mechanisms": enabled,
        "sasl_mechanism_inter_broker_protocol": enabled[0],
    }
    async with secure_cluster(tmp_path, LISTENER.value, security=security) as cluster:
        address = f"127.0.0.1:{cluster.broker.server.ports[LISTENER.value]}"
        found: dict[str, str] = {}
        for mechanism in (*SCRAM_BY_NAME, PLAIN, OAUTHBEARER):
            base = ClientSecurity(LISTENER, mechanism, "console", "secret of the console")
            try:
                user = await asyncio.to_thread(log_in, address, base, BROKER_USER, BROKER_PASSWORD)
            except KafkaFailed:
                continue
            found[mechanism] = user.mechanism
        assert found == expected


async def test_rejected_console_login_is_reported_as_a_refusal(tmp_path: Path) -> None:
    mechanism = "SCRAM-SHA-512"
    security = {
        "sasl_enabled_mechanisms": (mechanism,),
        "sasl_mechanism_inter_broker_protocol": mechanism,
    }
    async with secure_cluster(tmp_path, LISTENER.value, security=security) as cluster:
        address = f"127.0.0.1:{cluster.broker.server.ports[LISTENER.value]}"
        refused = ClientSecurity(LISTENER, mechanism, BROKER_USER, "not the password")
        found = await asyncio.to_thread(EndOffsets(refused).of_broker, address, {})
        assert (found.responded, BROKER_USER in found.refusal) == (False, True)
        with pytest.raises(AuthenticationRefused):
            await asyncio.to_thread(log_in, address, refused, BROKER_USER, "not the password")
    found = await asyncio.to_thread(EndOffsets(refused).of_broker, address, {})
    assert (found.responded, found.refusal) == (False, "")
    with pytest.raises(NoResponse):
        await asyncio.to_thread(log_in, address, refused, BROKER_USER, BROKER_PASSWORD)
