"""Change the cluster's key/value store, which is intended for a few cluster-wide values, not for
data.
"""

from penstock.controller.api.messages import (
    DeleteKeyValue,
    GetKeyValue,
    KeyValue,
    PutKeyValue,
    Status,
)
from penstock.controller.managers.result import Result
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import KeyValueRecord

KEY_CHARS_MAX = 512
VALUE_BYTES_MAX = 65_536
KEYS_MAX = 10_000


def put_key_value(image: MetadataImage, request: PutKeyValue) -> Result[KeyValue]:
    """Set a value. If `if_absent` is set and a different value exists, reject the request with
    KEY_EXISTS and that value. Setting the current value succeeds, so the request may be repeated
    after a lost reply.
    """
    if not 1 <= len(request.key) <= KEY_CHARS_MAX or len(request.value) > VALUE_BYTES_MAX:
        detail = (
            f"keys have 1 to {KEY_CHARS_MAX} characters, values at most {VALUE_BYTES_MAX} bytes"
        )
        return Result(status=Status.INVALID_REQUEST, detail=detail)
    present = image.kv.get(request.key)
    if present == request.value:
        return Result(value=KeyValue(key=request.key, value=present))
    if present is None and len(image.kv) >= KEYS_MAX:
        return Result(
            status=Status.INVALID_REQUEST, detail=f"there are {KEYS_MAX} keys, the maximum"
        )
    if present is not None and request.if_absent:
        current = KeyValue(key=request.key, value=present)
        return Result(
            status=Status.KEY_EXISTS, detail=f"key {request.key!r} has another value", value=current
        )
    return Result(
        [KeyValueRecord(request.key, request.value)],
        value=KeyValue(key=request.key, value=request.value),
    )


def get_key_value(image: MetadataImage, request: GetKeyValue) -> Result[KeyValue]:
    """Return the value of a key, or None."""
    return Result(value=KeyValue(key=request.key, value=image.kv.get(request.key)))


def delete_key_value(image: MetadataImage, request: DeleteKeyValue) -> Result[KeyValue]:
    """Delete a key and return its last value."""
    present = image.kv.get(request.key)
    if present is None:
        return Result(
            status=Status.KEY_NOT_EXIST, detail=f"there is no key {request.key[:KEY_CHARS_MAX]!r}"
        )
    return Result(
        [KeyValueRecord(request.key, None)], value=KeyValue(key=request.key, value=present)
    )
