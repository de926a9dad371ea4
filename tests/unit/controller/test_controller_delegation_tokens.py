"""Delegation tokens in the metadata. tests/interop compares the responses with Kafka's."""

import msgspec
import pytest

from penstock.base.ids import Millis
from penstock.controller.api.messages import Status
from penstock.controller.api.token_messages import (
    RENEWERS_MAX,
    CreateDelegationToken,
    DelegationTokenReply,
    ExpireDelegationToken,
    RenewDelegationToken,
)
from penstock.controller.managers import delegation_tokens as managing
from penstock.controller.managers.delegation_tokens import (
    create_delegation_token,
    expire_delegation_token,
    remove_expired_tokens,
    renew_delegation_token,
)
from penstock.controller.managers.result import Result
from penstock.controller.metadata.delta import MetadataDelta
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import DelegationTokenRecord
from penstock.controller.metadata.snapshot import ImageCopy

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
NOW_MS = Millis(1_000_000)


def creation(token_id: str = "t", *renewers: str, **values: int) -> CreateDelegationToken:
    return CreateDelegationToken(
        token_id=token_id,
        owner="User:alice",
        requester="User:admin",
        renewers=renewers,
        lifetime_ms=values.get("lifetime_ms", 7 * DAY_MS),
        period_ms=values.get("period_ms", DAY_MS),
    )


def apply(
    image: MetadataImage, result: Result[DelegationTokenReply]
) -> DelegationTokenRecord | Status:
    image.apply_all(result.records)
    return result.value.token if result.value is not None else result.status


def create(image: MetadataImage, request: CreateDelegationToken) -> DelegationTokenRecord | Status:
    return apply(image, create_delegation_token(image, request, NOW_MS))


def renew(
    image: MetadataImage, principal: str, period_ms: int, now_ms: int = NOW_MS
) -> DelegationTokenRecord | Status:
    request = RenewDelegationToken(token_id="t", principal=principal, period_ms=period_ms)
    return apply(image, renew_delegation_token(image, request, Millis(now_ms)))


def expire(
    image: MetadataImage, principal: str, period_ms: int, now_ms: int = NOW_MS
) -> DelegationTokenRecord | Status:
    request = ExpireDelegationToken(token_id="t", principal=principal, period_ms=period_ms)
    return apply(image, expire_delegation_token(image, request, Millis(now_ms)))


def ends(outcome: DelegationTokenRecord | Status) -> int:
    assert isinstance(outcome, DelegationTokenRecord), outcome
    return outcome.expiry_ms - NOW_MS


def test_a_token_expires_after_its_period_and_at_the_latest_after_its_lifetime() -> None:
    image = MetadataImage()
    made = create(image, creation())
    assert ends(made) == DAY_MS
    assert isinstance(made, DelegationTokenRecord)
    assert (made.issue_ms, made.max_ms) == (NOW_MS, NOW_MS + 7 * DAY_MS)
    assert ends(create(image, creation("short", lifetime_ms=HOUR_MS))) == HOUR_MS
    assert ends(renew(image, "User:alice", 3 * DAY_MS)) == 3 * DAY_MS
    assert ends(renew(image, "User:alice", HOUR_MS)) == HOUR_MS
    assert ends(renew(image, "User:alice", 30 * DAY_MS)) == 7 * DAY_MS
    assert ends(expire(image, "User:alice", 2 * HOUR_MS)) == 2 * HOUR_MS


def test_only_the_owner_and_renewers_can_change_a_token() -> None:
    image = MetadataImage()
    create(image, creation("t", "User:bob"))
    for stranger in ("User:carol", "User:admin"):
        assert renew(image, stranger, HOUR_MS) is Status.TOKEN_OWNER_MISMATCH
        assert expire(image, stranger, -1) is Status.TOKEN_OWNER_MISMATCH
    assert ends(renew(image, "User:bob", HOUR_MS)) == HOUR_MS
    assert ends(expire(image, "User:bob", -1)) == 0
    assert renew(image, "User:bob", HOUR_MS) is Status.TOKEN_NOT_FOUND
    assert expire(image, "User:alice", -1) is Status.TOKEN_NOT_FOUND


def test_an_expired_token_cannot_be_renewed_and_is_removed_later() -> None:
    image = MetadataImage()
    create(image, creation(period_ms=HOUR_MS))
    later = NOW_MS + HOUR_MS + 1
    assert renew(image, "User:alice", DAY_MS, later) is Status.TOKEN_EXPIRED
    assert expire(image, "User:alice", DAY_MS, later) is Status.TOKEN_EXPIRED
    for now_ms, count in ((later, 0), (later + managing.EXPIRED_KEPT_MS, 1)):
        records = remove_expired_tokens(image, Millis(now_ms))
        assert len(records) == count
        image.apply_all(records)
    assert len(image.delegation_tokens) == 0


def test_a_repeated_creation_returns_the_same_token() -> None:
    image = MetadataImage()
    made = create(image, creation())
    again = create_delegation_token(image, creation(), Millis(NOW_MS + 5))
    assert (again.records, again.value) == ([], DelegationTokenReply(token=made))


def test_the_number_and_size_of_tokens_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(managing, "TOKENS_MAX", 4)
    monkeypatch.setattr(managing, "REQUESTER_TOKENS_MAX", 3)
    image = MetadataImage()
    for wrong in (
        creation("t", *(f"User:{number}" for number in range(RENEWERS_MAX + 1))),
        creation("x" * (managing.NAME_BYTES_MAX + 1)),
        creation(lifetime_ms=0),
        creation(period_ms=0),
    ):
        assert create(image, wrong) is Status.INVALID_REQUEST
    for number in range(managing.REQUESTER_TOKENS_MAX):
        create(image, creation(str(number)))
    assert create(image, creation("more")) is Status.INVALID_REQUEST
    of_another = msgspec.structs.replace(creation("another"), requester="User:bob")
    assert isinstance(create(image, of_another), DelegationTokenRecord)
    last = msgspec.structs.replace(creation("last"), requester="User:bob")
    assert create(image, last) is Status.INVALID_REQUEST
    assert len(image.delegation_tokens) == managing.TOKENS_MAX


def test_snapshots_and_deltas_contain_the_tokens() -> None:
    image, restored = MetadataImage(), MetadataImage()
    result = create_delegation_token(image, creation("t", "User:bob"), NOW_MS)
    assert MetadataDelta.of(result.records).token_ids == {"t"}
    image.apply_all(result.records)
    restored.load(ImageCopy.of(image).records())
    restored.loaded(image.end_offset)
    assert restored == image
    assert restored.delegation_tokens.get("t") == result.records[0]
