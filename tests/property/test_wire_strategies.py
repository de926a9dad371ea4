"""Hypothesis strategies for messages of any API and version, built from the schemas of the codec,
and conversions from kio's classes.
"""

import dataclasses
import datetime
import functools
import importlib
from types import ModuleType
from typing import Any

from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as KioErrorCode

from penstock.protocol.apis import APIS, ApiSpec
from tools.protocol.kio_schema import (
    OWN_TAGS_FROM,
    Field,
    Kind,
    Struct,
    class_name,
    load_message,
)

_INTS = {Kind.INT8: 8, Kind.INT16: 16, Kind.INT32: 32, Kind.INT64: 64}
_TEXT = st.text(st.characters(codec="utf-8"), max_size=20) | st.just("x" * 200)
_ERRORS = st.sampled_from([int(code) for code in KioErrorCode])
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MS = datetime.timedelta(milliseconds=1)


def module_of(api: ApiSpec) -> ModuleType:
    return importlib.import_module(f"penstock.protocol.gen.{api.module}")


@functools.cache
def structs_of(api: ApiSpec, direction: str) -> dict[str, Struct]:
    return {struct.name: struct for struct in load_message(api, direction)}


def root_name(api: ApiSpec, direction: str) -> str:
    return api.name + direction.capitalize()


@functools.cache
def messages(api: ApiSpec, direction: str, version: int) -> st.SearchStrategy[Any]:
    """Return a strategy for the messages that a peer with this version can send. Fields that the
    version lacks keep their default.
    """
    return _struct(api, direction, version, root_name(api, direction))


def _struct(api: ApiSpec, direction: str, version: int, name: str) -> st.SearchStrategy[Any]:
    fields = structs_of(api, direction)[name].fields
    present = [
        field
        for field in fields
        if field.first <= version <= field.last and (field.tag or 0) < OWN_TAGS_FROM
    ]
    values = {field.name: _field(api, direction, version, field) for field in present}
    return st.builds(getattr(module_of(api), name), **values)


def _field(api: ApiSpec, direction: str, version: int, field: Field) -> st.SearchStrategy[Any]:
    value = (
        _struct(api, direction, version, field.struct)
        if field.kind is Kind.STRUCT
        else _scalar(field)
    )
    if field.is_array:
        value = st.lists(value, max_size=3)
    elif field.kind is Kind.STRUCT and (field.tag is not None or field.null_from is not None):
        absent = getattr(module_of(api), field.struct)()
        return st.none() | value.filter(lambda struct: struct != absent)
    if field.null_from is not None and version >= field.null_from:
        return st.none() | value
    return value


def _scalar(field: Field) -> st.SearchStrategy[Any]:
    if field.name == "log_append_time_ms":
        # kio keeps whole seconds only and reads -1 as None.
        return st.just(-1) | st.integers(0, 2**31).map(lambda seconds: seconds * 1000)
    if field.name in {
        "transaction_start_time_ms",
        "issue_timestamp_ms",
        "expiry_timestamp_ms",
        "max_timestamp_ms",
    }:
        return st.integers(0, 2**31).map(lambda seconds: seconds * 1000)
    if field.name in {
        "retention_time_ms",
        "session_lifetime_ms",
        "max_lifetime_ms",
        "renew_period_ms",
        "expiry_time_period_ms",
    }:
        # kio uses timedelta, which cannot represent every number.
        return st.integers(-(10**12), 10**12)
    if field.name.endswith("error_code"):
        return _ERRORS
    if field.kind in _INTS:
        half = 2 ** (_INTS[field.kind] - 1)
        return st.integers(-half, half - 1)
    if field.kind is Kind.UUID:
        return st.none() | st.uuids(version=4)
    if field.kind is Kind.UINT16:
        return st.integers(0, 2**16 - 1)
    return {
        Kind.BOOL: st.booleans(),
        Kind.FLOAT64: st.floats(allow_nan=False),
        Kind.STRING: _TEXT,
        Kind.BYTES: st.binary(),
        Kind.RECORDS: st.binary(),
    }[field.kind]


def kio_type(api: ApiSpec, direction: str, version: int) -> type[Any]:
    module = importlib.import_module(f"kio.schema.{api.module}.v{version}.{direction}")
    found: type[Any] = getattr(module, root_name(api, direction))
    return found


def from_kio(api: ApiSpec, direction: str, entity: Any) -> Any:
    """Convert kio's entity to a message of `protocol.gen`."""
    fields = {
        field.kio_name: field
        for field in structs_of(api, direction)[
            class_name(api, direction, type(entity).__name__)
        ].fields
    }
    values: dict[str, Any] = {}
    for one in dataclasses.fields(entity):
        field = fields[one.name]
        value = getattr(entity, one.name)
        if field.kind is Kind.STRUCT and not field.is_array:
            converted = None if value == one.default else from_kio(api, direction, value)
        else:
            converted = _from_kio_value(api, direction, field, value)
        values[field.name] = converted
    return getattr(module_of(api), class_name(api, direction, type(entity).__name__))(**values)


def _from_kio_value(api: ApiSpec, direction: str, field: Field, value: Any) -> Any:
    if isinstance(value, tuple):
        return [
            from_kio(api, direction, one) if field.kind is Kind.STRUCT else one for one in value
        ]
    if isinstance(value, datetime.timedelta):
        return value // _MS
    if isinstance(value, datetime.datetime):
        return (value - _EPOCH) // _MS
    if value is None and field.name == "log_append_time_ms":
        return -1
    return value


def test_messages_can_be_generated_for_every_version() -> None:
    for api in APIS.values():
        for version in range(api.served_min, api.max + 1):
            for direction in ("request", "response"):
                messages(api, direction, version).validate()
