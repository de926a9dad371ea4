"""Quotas in the metadata. tests/interop compares the responses with Kafka's."""

import pytest

from penstock.controller.api.messages import Status
from penstock.controller.api.quota_messages import (
    ALTERATIONS_MAX,
    AlterQuotas,
    QuotaAlteration,
    QuotaChange,
    QuotasAltered,
)
from penstock.controller.managers import quotas
from penstock.controller.managers.quotas import alter_quotas
from penstock.controller.metadata.delta import MetadataDelta
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import QuotaRecord, QuotaTarget
from penstock.controller.metadata.snapshot import ImageCopy

ALICE = (QuotaTarget("user", "alice"),)
ADDRESS = (QuotaTarget("ip", "10.0.0.1"),)
RATE = "producer_byte_rate"


def change(entity: tuple[QuotaTarget, ...] = ALICE, **values: float | None) -> QuotaAlteration:
    return QuotaAlteration(
        entity=entity,
        changes=[QuotaChange(key=key, value=value) for key, value in values.items()],
    )


def alter(image: MetadataImage, *items: QuotaAlteration, validate_only: bool = False) -> list[str]:
    """Send a request. Return the error of each entity."""
    request = AlterQuotas(alterations=list(items), validate_only=validate_only)
    result = alter_quotas(image, request)
    assert isinstance(result.value, QuotasAltered)
    image.apply_all(result.records)
    return [item.detail for item in result.value.results]


def test_quotas_are_set_changed_and_removed() -> None:
    image = MetadataImage()
    assert alter(image, change(producer_byte_rate=5, request_percentage=0.5)) == [""]
    assert image.quotas.of(ALICE) == {RATE: 5, "request_percentage": 0.5}
    assert alter(image, change(producer_byte_rate=6, request_percentage=None)) == [""]
    assert image.quotas.of(ALICE) == {RATE: 6}
    assert alter(image, change(producer_byte_rate=None, nope=None)) == [""]
    assert len(image.quotas) == 0
    assert list(image.quotas.records()) == []


def test_unchanged_values_write_no_record() -> None:
    image = MetadataImage()
    alter(image, change(producer_byte_rate=5))
    request = AlterQuotas(alterations=[change(producer_byte_rate=5, consumer_byte_rate=None)])
    assert alter_quotas(image, request).records == []


def test_validation_changes_nothing() -> None:
    image = MetadataImage()
    assert alter(image, change(producer_byte_rate=5), validate_only=True) == [""]
    assert len(image.quotas) == 0


def test_an_invalid_quota_leaves_its_entity_unchanged() -> None:
    image = MetadataImage()
    wrong = change(producer_byte_rate=5, nope=1)
    assert alter(image, wrong, change(ADDRESS, connection_creation_rate=1)) == [
        "Invalid configuration key nope",
        "",
    ]
    assert [entity for entity, _ in image.quotas.items()] == [ADDRESS]


def test_a_repeated_entity_is_ignored() -> None:
    image = MetadataImage()
    twice = change(producer_byte_rate=5), change(producer_byte_rate=6)
    assert alter(image, *twice) == [
        "Ignoring duplicate entity ClientQuotaEntity(entries={user=alice})"
    ]
    assert image.quotas.of(ALICE) == {RATE: 5}


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_a_quota_must_be_positive(value: float) -> None:
    found = alter(MetadataImage(), change(request_percentage=value))
    assert found == ["Quota request_percentage must be greater than 0"]


def test_the_number_of_quotas_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    image = MetadataImage()
    items = [change((QuotaTarget("user", str(at)),)) for at in range(ALTERATIONS_MAX + 1)]
    assert alter_quotas(image, AlterQuotas(alterations=items)).status is Status.INVALID_REQUEST
    monkeypatch.setattr(quotas, "ENTITIES_MAX", 1)
    assert alter(image, change(producer_byte_rate=1)) == [""]
    (refusal,) = alter(image, change(ADDRESS, connection_creation_rate=1))
    assert refusal.startswith("1 entities have quotas already")
    assert alter(image, change(producer_byte_rate=2)) == [""]
    (refusal,) = alter(image, change((QuotaTarget("user", "x" * 40_000),), producer_byte_rate=1))
    assert refusal == "The name of the user has more than 32767 bytes"


def test_snapshots_and_deltas_contain_quotas() -> None:
    image = MetadataImage()
    default = (QuotaTarget("client-id", None), QuotaTarget("user", "alice"))
    alter(image, change(default, consumer_byte_rate=7), change(producer_byte_rate=5))
    loaded = MetadataImage()
    loaded.load(ImageCopy.of(image).records())
    assert loaded.quotas == image.quotas
    assert MetadataDelta.of([QuotaRecord(default, RATE, None)]).quotas == {default}
