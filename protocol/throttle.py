"""Write the throttle time into an encoded response (KIP-124, KIP-219).

The throttle time is known only after the response has been encoded. Nearly all responses contain it
as their first or last field, so it can be patched; the Produce handler writes it itself. The tables
agree with the generated codecs (property-tested).
"""

import struct
from typing import Final

from penstock.protocol import apis
from penstock.protocol.apis import ApiSpec

_BODY_AT: Final = 8
"""After the size and the correlation id."""
_I32: Final = struct.Struct(">i")

FIRST_FROM: Final[dict[int, int]] = {
    apis.LIST_OFFSETS.key: 2,
    apis.METADATA.key: 3,
    apis.OFFSET_COMMIT.key: 3,
    apis.OFFSET_FETCH.key: 3,
    apis.FIND_COORDINATOR.key: 1,
    apis.JOIN_GROUP.key: 2,
    apis.HEARTBEAT.key: 1,
    apis.LEAVE_GROUP.key: 1,
    apis.SYNC_GROUP.key: 1,
    apis.DESCRIBE_GROUPS.key: 1,
    apis.LIST_GROUPS.key: 1,
}
"""The first version with the field, for APIs that do not always have it."""

_ELSEWHERE: Final[dict[int, int]] = {apis.OFFSET_DELETE.key: 2}
"""The position of the field in the body, if it is not the first one."""

_LAST: Final = frozenset(
    {
        apis.CREATE_DELEGATION_TOKEN.key,
        apis.RENEW_DELEGATION_TOKEN.key,
        apis.EXPIRE_DELEGATION_TOKEN.key,
        apis.DESCRIBE_DELEGATION_TOKEN.key,
    }
)
"""APIs with the field at the end of the body, before the empty tagged fields of flexible
versions.
"""

WITHOUT: Final = frozenset(
    {
        apis.PRODUCE.key,
        apis.API_VERSIONS.key,
        apis.SASL_HANDSHAKE.key,
        apis.SASL_AUTHENTICATE.key,
        apis.WRITE_TXN_MARKERS.key,
        apis.DESCRIBE_QUORUM.key,
        apis.INITIALIZE_SHARE_GROUP_STATE.key,
        apis.READ_SHARE_GROUP_STATE.key,
        apis.WRITE_SHARE_GROUP_STATE.key,
        apis.DELETE_SHARE_GROUP_STATE.key,
        apis.READ_SHARE_GROUP_STATE_SUMMARY.key,
    }
)
"""APIs without the field or, for Produce and ApiVersions, without a fixed position for it."""


def write_throttle(api: ApiSpec, version: int, head: bytearray, throttle_ms: int) -> None:
    """Write the time into the first buffer of a complete frame, if the version has the field."""
    if api.key in WITHOUT or version < FIRST_FROM.get(api.key, 0):
        return
    if api.key in _LAST:
        at = len(head) - api.is_flexible(version) - _I32.size
    else:
        at = _BODY_AT + api.is_flexible(version) + _ELSEWHERE.get(api.key, 0)
    _I32.pack_into(head, at, throttle_ms)
