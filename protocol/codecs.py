"""The generated codecs by API key, for code that handles any API: dispatchers, probes, tests.

Importing this module imports all codecs. Messages have type `Any` here.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from penstock.protocol.apis import APIS
from penstock.protocol.primitives import Reader, Writer


class Codec(NamedTuple):
    """The four functions of one API. A broker uses the first (decode request) and the last (encode
    response).
    """

    decode_request: Callable[[Reader, int], Any]
    encode_request: Callable[[Writer, Any, int], None]
    decode_response: Callable[[Reader, int], Any]
    encode_response: Callable[[Writer, Any, int], None]


CODECS: Final = {
    api.key: Codec(
        api.codec.decode_request,
        api.codec.encode_request,
        api.codec.decode_response,
        api.codec.encode_response,
    )
    for api in APIS.values()
}
