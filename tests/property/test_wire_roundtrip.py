"""Compare the codecs of every API, version and direction with kio. kio decodes only bytes written
by Penstock's codec, because hostile bytes can abort it.
"""

import io

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from penstock.protocol.apis import APIS, ApiSpec
from penstock.protocol.codecs import CODECS
from penstock.protocol.primitives import Reader, Writer
from tests.property.test_wire_strategies import from_kio, kio_type, messages

CASES = [
    pytest.param(api, way, id=f"{api.name}-{way}")
    for api in APIS.values()
    for way in ("request", "response")
]


@pytest.mark.parametrize(("api", "direction"), CASES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_penstock_and_kio_encode_and_decode_the_same_bytes(
    api: ApiSpec, direction: str, data: st.DataObject
) -> None:
    version = data.draw(st.integers(api.served_min, api.max), label="version")
    message = data.draw(messages(api, direction, version), label="message")
    codec = CODECS[api.key]._asdict()

    writer = Writer()
    codec[f"encode_{direction}"](writer, message, version)
    ours = bytes(writer)

    reader = Reader(ours)
    assert codec[f"decode_{direction}"](reader, version) == message
    reader.expect_end()

    theirs_type = kio_type(api, direction, version)
    entity, read_bytes = entity_reader(theirs_type)(ours, 0)
    assert read_bytes == len(ours)
    assert from_kio(api, direction, entity) == message

    theirs = io.BytesIO()
    entity_writer(theirs_type)(theirs, entity)
    assert theirs.getvalue() == ours


@pytest.mark.parametrize(("api", "direction"), CASES)
def test_defaults_survive_a_round_trip_in_every_version(api: ApiSpec, direction: str) -> None:
    codec = CODECS[api.key]._asdict()
    for version in range(api.served_min, api.max + 1):
        theirs_type = kio_type(api, direction, version)
        writer = Writer()
        module = __import__(f"penstock.protocol.gen.{api.module}", fromlist=["x"])
        codec[f"encode_{direction}"](writer, getattr(module, theirs_type.__name__)(), version)
        reader = Reader(writer)
        codec[f"decode_{direction}"](reader, version)
        reader.expect_end()
        assert theirs_type.__flexible__ is api.is_flexible(version)
