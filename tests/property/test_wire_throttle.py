"""The throttle time is written in place, at the position that the codecs use, in every version of
every API.
"""

import importlib
from typing import Any

import pytest

from penstock.protocol import apis, framing
from penstock.protocol.apis import ApiSpec
from penstock.protocol.codecs import CODECS
from penstock.protocol.throttle import WITHOUT, write_throttle

CASES = [
    (api, version) for api in apis.APIS.values() for version in range(api.served_min, api.max + 1)
]


@pytest.mark.parametrize(("api", "version"), CASES, ids=lambda case: getattr(case, "name", case))
def test_the_throttle_time_is_written_in_place(api: ApiSpec, version: int) -> None:
    module = importlib.import_module(f"penstock.protocol.gen.{api.module}")
    response: Any = getattr(module, f"{api.name}Response")

    def frame(throttle_ms: int) -> bytearray:
        fields = response.__struct_fields__
        message = response(throttle_time_ms=throttle_ms) if has_field(fields) else response()
        encode = CODECS[api.key].encode_response
        return framing.encode_response_frame(api, version, 7, encode, message)

    written = frame(0)
    write_throttle(api, version, written, 123_456)
    assert written == frame(0 if api.key in WITHOUT else 123_456)


def has_field(fields: tuple[str, ...]) -> bool:
    return "throttle_time_ms" in fields
