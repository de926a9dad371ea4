"""The store temporarily loses or damages objects under running brokers.

Invariant: only objects that committed metadata references are affected, and each is restored, so
that all acknowledged records can be read at the end. Meanwhile readers may get errors, but, as the
checkers of every run verify, no wrong records and no gaps between records.
"""

from random import Random
from typing import TYPE_CHECKING

from penstock.stream.format.keys import parse_wal_key

if TYPE_CHECKING:
    from tests.sim.world import World


def strike_object(world: "World", rng: Random) -> None:
    """Temporarily remove an object from the bucket, or change one of its bytes."""
    bucket = world.bucket
    keys = sorted(
        state.key
        for state in world.metadata.image.objects
        if state.refs and state.key not in bucket.struck
    )
    keys = [key for key in keys if not _may_be_put_again(world, key)]
    whole = {key: data for key in keys if (data := bucket.peek(key)) is not None}
    if not whole:
        return
    key = rng.choice(list(whole))
    spoiled = None
    if rng.random() < 0.5:
        spoiled = bytearray(whole[key])
        spoiled[rng.randrange(len(spoiled))] ^= 1 << rng.randrange(8)
    world.trace("strike_object", key, "gone" if spoiled is None else "corrupt")
    bucket.strike(key, None if spoiled is None else bytes(spoiled))
    world.later(rng.choice((0.5, 3.0, 12.0)), bucket.restore, key)


def _may_be_put_again(world: "World", key: str) -> bool:
    """Return whether a late copy of its PUT could replace a lost slot in a WAL that continues."""
    slot = parse_wal_key(key)
    record = world.metadata.image.nodes.wal(slot.writer) if slot is not None else None
    return (
        slot is not None
        and record is not None
        and not record.ended
        and slot.sequence >= record.committed
    )
