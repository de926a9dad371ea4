"""Which keys the port accepts, the same for every backend.

Invariant: a key that passes can be stored by S3, by MinIO and below a directory, and cannot leave
that directory. The rules are stricter than S3's: `.`/`..` segments are rewritten by some HTTP
proxies, control characters cannot be listed in XML. Python compares strings by code point, which is
the order of their UTF-8 bytes: sorting `str` keys is S3's list order.
"""

import re

from objectstore.errors import InvalidKey
from objectstore.ports import KEY_BYTES_MAX

_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\ufffe\uffff]|\A/|/\Z|//|(?:\A|/)\.\.?(?:/|\Z)")


def check_key(key: str) -> None:
    """Raise InvalidKey for a key that not every backend can hold. About 0.6 us."""
    if not key:
        raise InvalidKey(key, "it is empty")
    if _FORBIDDEN.search(key):
        raise InvalidKey(
            key, "control characters, empty segments, '.' and '..' segments are not allowed"
        )
    try:
        encoded = key.encode()
    except UnicodeEncodeError:
        raise InvalidKey(key, "it is not valid Unicode") from None
    if len(encoded) > KEY_BYTES_MAX:
        raise InvalidKey(key, f"it has {len(encoded)} bytes, {KEY_BYTES_MAX} are allowed")
