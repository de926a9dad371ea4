"""Record what clients sent, what was acknowledged and what they read, and check it. Pure.

An offset contains one record, a record of an idempotent producer has one offset, and at the end all
acknowledged records are readable, contiguous and in order. Values start with a unique id and a
space; ids of producers without idempotence start with "-".
"""

from collections.abc import Callable, Iterable, Mapping

from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.objects import ObjectPhase
from penstock.stream.format.keys import parse_data_key

Part = tuple[str, int]
"""Topic name and partition."""


class History:
    def __init__(self, fail: Callable[[str], None]) -> None:
        self._fail = fail
        self._sent: dict[bytes, Part] = {}
        self._at: dict[Part, dict[int, bytes]] = {}
        self._where: dict[bytes, int] = {}
        self._acked: dict[Part, dict[bytes, int]] = {}
        self.acked_count = 0
        self.read_count = 0

    def sent(self, part: Part, identities: Iterable[bytes]) -> None:
        for identity in identities:
            self._sent[identity] = part

    def acknowledged(self, part: Part, offset: int, identity: bytes) -> None:
        """Record that the record is durable. offset -1: the broker recognized a duplicate and did
        not return its offset.
        """
        if offset >= 0:
            self._place(part, offset, identity)
        self._acked.setdefault(part, {})[identity] = offset
        self.acked_count += 1

    def read(self, part: Part, offset: int, identity: bytes) -> None:
        self._place(part, offset, identity)
        self.read_count += 1

    def _place(self, part: Part, offset: int, identity: bytes) -> None:
        if self._sent.get(identity) != part:
            self._fail(f"{part} offset {offset} holds {identity!r}, which nobody sent there")
        known = self._at.setdefault(part, {}).setdefault(offset, identity)
        if known != identity:
            self._fail(f"{part} offset {offset} is {known!r} and {identity!r}")
        if not identity.startswith(b"-") and self._where.setdefault(identity, offset) != offset:
            self._fail(f"{part}: {identity!r} lies at {self._where[identity]} and at {offset}")

    def offset_of(self, identity: bytes) -> int | None:
        """Return the offset of an idempotent producer's record if a client received it."""
        return self._where.get(identity)

    def acked(self, part: Part) -> dict[bytes, int]:
        """Return the offsets of the records that have been acknowledged so far."""
        return dict(self._acked.get(part, {}))

    def check_all_read(
        self,
        part: Part,
        log_start: int,
        high_watermark: int,
        acked: Mapping[bytes, int] | None = None,
    ) -> None:
        """Check records that were just read from the start of the partition to its end.

        acked: the records that were acknowledged when the reader began, if a repeated request may
        still add a record after its end; default: all.
        """
        at = self._at.get(part, {})
        for offset in range(log_start, high_watermark):
            if offset not in at:
                self._fail(
                    f"{part}: offset {offset} of [{log_start}, {high_watermark}) cannot be read"
                )
        lost: list[bytes] = []
        for identity, offset in (self._acked.get(part, {}) if acked is None else acked).items():
            if offset >= high_watermark:
                self._fail(
                    f"{part}: {identity!r} was acknowledged at {offset}, the log ends at"
                    f" {high_watermark}"
                )
            elif offset < 0 and not identity.startswith(b"-") and identity not in self._where:
                lost.append(identity)
        # Records may have been deleted before anyone read them.
        if len(lost) > log_start - sum(offset < log_start for offset in at):
            self._fail(f"{part}: {lost[0]!r} was acknowledged and is nowhere")

    def check_order(self, part: Part, producer: bytes) -> None:
        """Check that the records of an idempotent producer are in the order in which they were
        sent. Their ids end with "/" and their number.
        """
        last = -1
        for offset, identity in sorted(self._at.get(part, {}).items()):
            if identity.startswith(producer + b"/"):
                number = int(identity.rpartition(b"/")[2])
                if number <= last:
                    self._fail(f"{part}: {identity!r} at offset {offset} follows number {last}")
                last = number


def missing_objects(image: MetadataImage, is_there: Callable[[str], bool]) -> list[str]:
    """Return the keys that the metadata refers to but the bucket does not contain."""
    return [
        f"{state.key} is referred to {state.refs} times and does not exist"
        for state in image.objects
        if state.phase == ObjectPhase.COMMITTED and state.refs and not is_there(state.key)
    ]


def orphaned_objects(image: MetadataImage, keys: Iterable[str]) -> list[str]:
    """Return the keys of unreferenced data objects in the bucket."""
    found: list[str] = []
    for key in keys:
        object_id = parse_data_key(key)
        state = image.objects.get(object_id) if object_id is not None else None
        if object_id is not None and (state is None or not state.refs):
            found.append(f"{key} {state}")
    return found
