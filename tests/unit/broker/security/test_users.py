"""The first message of a SCRAM exchange does not tell users of the file from unknown ones."""

from pathlib import Path

import pytest

from penstock.base.scram import ScramMechanism
from penstock.broker.security.config import SecurityConfig
from penstock.broker.security.files import SecurityFiles
from penstock.broker.security.users import Users

NAMES = ("alice", "nobody")
KEY = "a key that all brokers share"


async def first_messages(mechanism: ScramMechanism, file: str, key: str = "") -> list[object]:
    """Return the salts and iterations that a broker that starts now sends for `NAMES`."""
    files = SecurityFiles(SecurityConfig(sasl_users_file=file, delegation_token_secret_key=key))
    await files.read()
    users = Users(lambda: files.users.credentials, lambda *_: None, lambda: files.users.secret)
    try:
        found = [users.find(mechanism, name) or users.pretend(mechanism, name) for name in NAMES]
    finally:
        users.close()
    return [(credential.salt, credential.iterations) for credential in found]


@pytest.mark.parametrize("mechanism", ScramMechanism)
async def test_salts_are_the_same_on_each_broker_and_after_each_start(
    mechanism: ScramMechanism, tmp_path: Path
) -> None:
    path = tmp_path / "users"
    path.write_text("alice:secret\n")
    alice, nobody = known = await first_messages(mechanism, str(path))
    assert await first_messages(mechanism, str(path)) == known
    assert alice != nobody
    with_key = await first_messages(mechanism, str(path), KEY)
    assert set(with_key).isdisjoint(known)
    path.write_text("bob:secret\n")
    assert await first_messages(mechanism, str(path), KEY) == with_key, "alice was removed"
    assert await first_messages(mechanism, "", KEY) == with_key, "without a file"
