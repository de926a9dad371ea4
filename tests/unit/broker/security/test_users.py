"""Neither the first SCRAM message nor the CPU time of PLAIN reveals whether a user exists."""

import hashlib
import secrets
from collections import Counter
from pathlib import Path

import pytest

from penstock.base.scram import CredentialShape, ScramMechanism, shape_of
from penstock.broker.security.config import SecurityConfig
from penstock.broker.security.delegation_tokens import DelegationTokens
from penstock.broker.security.files import SecurityFiles
from penstock.broker.security.users import Users
from penstock.controller.metadata.records import (
    DelegationTokenRecord,
    ScramCredentialRecord,
    ScramCredentialRemoved,
)
from penstock.controller.metadata.scram import ScramImage
from penstock.protocol.sasl.mechanisms import AuthenticationFailed

NAMES = ("alice", "nobody")
KEY = "a key that all brokers share"


async def first_messages(mechanism: ScramMechanism, file: str, key: str = "") -> list[object]:
    """Return the salts and iterations that a newly started broker sends for `NAMES`."""
    files = SecurityFiles(SecurityConfig(sasl_users_file=file, delegation_token_secret_key=key))
    await files.read()
    users = Users(lambda: files.users.credentials, ScramImage, lambda: files.users.secret)
    try:
        found = [users.find(mechanism, name) or users.pretend(mechanism, name) for name in NAMES]
    finally:
        users.close()
    return [(credential.salt, credential.iterations) for credential in found]


@pytest.mark.parametrize("mechanism", ScramMechanism)
async def test_salts_are_the_same_on_each_broker_and_after_restarts(
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


def image_of(*shapes: CredentialShape) -> ScramImage:
    """Return a metadata image with users whose credentials have these shapes: `real-0`
    and so on.
    """
    image = ScramImage()
    for number, shape in enumerate(shapes):
        text = f"{'r' if number % 2 else '1'}{number:x}"
        salt = secrets.token_bytes(shape.salt_bytes) if shape.salt_bytes else text.encode()
        image.set(
            ScramCredentialRecord(
                f"real-{number}", shape.mechanism, salt, b"k", b"k", shape.iterations
            )
        )
    return image


@pytest.mark.parametrize("mechanism", ScramMechanism)
@pytest.mark.parametrize(
    "existing",
    [
        (26, 8_192),  # as `penstock users add --iterations 8192`
        (0, 4_096),  # as kafka-configs.sh
        (64, 16_384),  # as librdkafka
        (12, 5_000),
    ],
)
def test_unknown_users_get_the_salt_length_and_iterations_of_existing_users(
    mechanism: ScramMechanism, existing: tuple[int, int]
) -> None:
    """Most users have the first shape, so most unknown users get it, too, and each gets the same
    one at each attempt.
    """
    shape = CredentialShape(mechanism, *existing)
    image = image_of(*50 * [shape], CredentialShape(mechanism, 30, 6_000))
    users = Users(dict, lambda: image, lambda: b"secret")
    try:
        pretended = {name: users.pretend(mechanism, name) for name in map(str, range(500))}
        again = {name: users.pretend(mechanism, name) for name in pretended}
        image.set(ScramCredentialRecord("new", mechanism, b"x" * 40, b"k", b"k", 7_000))
        changed = {name for name in pretended if users.pretend(mechanism, name) != again[name]}
    finally:
        users.close()
    assert again == pretended
    shapes = Counter(shape_of(mechanism, credential) for credential in pretended.values())
    assert shapes[shape] > 400
    assert shapes[CredentialShape(mechanism, 30, 6_000)] > 0
    assert len(changed) < 50, "others keep what they had"
    salts = [credential.salt for credential in pretended.values()]
    if not shape.salt_bytes:
        text = [salt for salt in salts if salt.isalnum()]
        assert {len(salt) for salt in text} >= {25, 26}
        assert {salt[:1] for salt in text if len(salt) == 26} == {b"1"}, "below 2^130"


def test_credential_shapes_follow_the_existing_users() -> None:
    image = image_of(CredentialShape(1, 26, 8_192), CredentialShape(2, 26, 8_192))
    image.set(ScramCredentialRecord("real-0", 2, b"1abc", b"k", b"k", 4_096))
    first, second = CredentialShape(1, 26, 8_192), CredentialShape(2, 26, 8_192)
    third = CredentialShape(2, 0, 4_096)
    assert image.shapes == {first: 1, second: 1, third: 1}
    assert image.strongest_shapes == {second: 1, third: 1}
    image.remove(ScramCredentialRemoved("real-0", 2))
    image.remove(ScramCredentialRemoved("real-9", 2))
    assert image.shapes == image.strongest_shapes == {first: 1, second: 1}
    image.remove(ScramCredentialRemoved("real-0", 1))
    image.remove(ScramCredentialRemoved("real-1", 2))
    assert not image.shapes
    assert not image.strongest_shapes


async def test_plain_does_the_same_work_for_unknown_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All users have only SCRAM-SHA-256 credentials with 9,000 iterations, so most unknown users
    cost the same.
    """
    done: Counter[tuple[str, int]] = Counter()
    derive = hashlib.pbkdf2_hmac

    def counting(name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        done[name, iterations] += 1
        return derive(name, password, salt, 1)

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", counting)
    image = image_of(*50 * [CredentialShape(ScramMechanism.SCRAM_SHA_256, 26, 9_000)])
    users = Users(dict, lambda: image, lambda: b"secret")
    try:
        for name in range(40):
            with pytest.raises(AuthenticationFailed):
                await users.check_password(str(name), "password")
    finally:
        users.close()
    assert done["sha256", 9_000] > 30


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_unknown_tokens_are_treated_like_expired_ones(mechanism: ScramMechanism) -> None:
    known = {"t": DelegationTokenRecord("t", "User:a", "User:a", (), 0, 1_000, 1_000)}
    now_ms = 0
    tokens = DelegationTokens("key", known.get, lambda: now_ms)
    login = tokens.login(mechanism, "t")
    assert login is not None
    seen = login.credential.salt, login.credential.iterations
    now_ms = 2_000
    assert tokens.login(mechanism, "t") is None
    ended = tokens.pretend(mechanism, "t")
    assert (ended.salt, ended.iterations) == seen
    other = tokens.pretend(mechanism, "u")
    assert (len(other.salt), other.iterations) == (len(ended.salt), ended.iterations)
    assert other.salt != ended.salt
