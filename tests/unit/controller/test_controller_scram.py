"""SCRAM credentials in the metadata. tests/interop compares the responses with Kafka's."""

from penstock.base.scram import ScramCredential, ScramMechanism
from penstock.controller.api.messages import Status
from penstock.controller.api.scram_messages import (
    ALTERATIONS_MAX,
    AlterScramCredentials,
    ScramAltered,
    ScramDeletion,
    ScramUpsertion,
)
from penstock.controller.managers.scram import alter_scram_credentials
from penstock.controller.metadata.delta import MetadataDelta
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.snapshot import ImageCopy

SHA_256 = ScramMechanism.SCRAM_SHA_256
SHA_512 = ScramMechanism.SCRAM_SHA_512
CREDENTIAL = ScramCredential(b"salt", b"stored", b"server", 4_096)


def setting(user: str, mechanism: int = SHA_512, iterations: int = 4_096) -> ScramUpsertion:
    return ScramUpsertion(
        user=user,
        mechanism=mechanism,
        salt=b"salt",
        stored_key=b"stored",
        server_key=b"server",
        iterations=iterations,
    )


def alter(
    image: MetadataImage, *items: ScramUpsertion | ScramDeletion
) -> dict[str, tuple[Status, int]]:
    """Send a request. Returns the status of each user, and the total number of records."""
    request = AlterScramCredentials(
        deletions=[item for item in items if isinstance(item, ScramDeletion)],
        upsertions=[item for item in items if isinstance(item, ScramUpsertion)],
    )
    result = alter_scram_credentials(image, request)
    assert isinstance(result.value, ScramAltered)
    image.apply_all(result.records)
    return {item.user: (item.status, len(result.records)) for item in result.value.results}


def test_users_are_set_changed_and_deleted() -> None:
    image = MetadataImage()
    assert alter(image, setting("a"), setting("b", SHA_256)) == {
        "a": (Status.OK, 2),
        "b": (Status.OK, 2),
    }
    alter(image, setting("a", SHA_256, 8_192))
    assert image.scram.get("a", SHA_512) == CREDENTIAL
    assert image.scram.get("a", SHA_256) == CREDENTIAL._replace(iterations=8_192)
    assert image.scram.get("b", SHA_512) is None
    for mechanism in ScramMechanism:
        alter(image, ScramDeletion(user="a", mechanism=mechanism))
    assert image.scram.users() == ["b"]


def test_a_repeated_request_writes_no_record() -> None:
    image = MetadataImage()
    alter(image, setting("a"))
    assert alter(image, setting("a")) == {"a": (Status.OK, 0)}


def test_a_rejected_user_does_not_affect_the_others() -> None:
    image = MetadataImage()
    found = alter(
        image,
        ScramDeletion(user="ghost", mechanism=SHA_512),
        setting("few", iterations=4_095),
        setting("many", iterations=16_385),
        setting("unknown", 7),
        setting("twice"),
        setting("twice", SHA_256),
        setting(""),
        setting("x" * 1_001),
        setting("good"),
    )
    assert {user: status for user, (status, _) in found.items()} == {
        "good": Status.OK,
        "ghost": Status.UNKNOWN_RESOURCE,
        "few": Status.UNACCEPTABLE_CREDENTIAL,
        "many": Status.UNACCEPTABLE_CREDENTIAL,
        "unknown": Status.UNSUPPORTED_MECHANISM,
        "twice": Status.DUPLICATE_RESOURCE,
        "": Status.UNACCEPTABLE_CREDENTIAL,
        "x" * 1_001: Status.UNACCEPTABLE_CREDENTIAL,
    }
    assert image.scram.users() == ["good"]


def test_a_request_that_is_too_large_is_rejected() -> None:
    request = AlterScramCredentials(upsertions=[setting(str(at)) for at in range(1_001)])
    assert len(request.upsertions) > ALTERATIONS_MAX
    result = alter_scram_credentials(MetadataImage(), request)
    assert (result.status, result.records) == (Status.INVALID_REQUEST, [])


def test_a_snapshot_contains_all_users() -> None:
    image = MetadataImage()
    alter(image, setting("a"), setting("b"))
    alter(image, setting("a", SHA_256), ScramDeletion(user="b", mechanism=SHA_512))
    again = MetadataImage()
    again.load(ImageCopy.of(image).records())
    assert again.scram == image.scram
    assert again.scram.users() == ["a"]


def test_subscribers_are_notified_of_changed_users() -> None:
    image = MetadataImage()
    result = alter_scram_credentials(image, AlterScramCredentials(upsertions=[setting("a")]))
    assert MetadataDelta.of(result.records).users == {"a"}


def test_keys_are_not_in_the_repr() -> None:
    assert "stored" not in repr(setting("a")).replace("stored_key", "")
    assert "server" not in repr(CREDENTIAL)
