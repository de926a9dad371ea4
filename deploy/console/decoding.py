"""Decode keys and values with the schemas of the topic's configs or of a schema registry.

Values that cannot be decoded are shown as bytes, with the reason. Decoding runs in a separate
process (`deploy.records.decode_process`); after `FAILURES_MAX` killed processes or `DECODE_S_MAX`,
the rest of a page is shown as bytes. The methods block.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import msgspec

from penstock.broker.schemas.language import ReferencedSchema
from penstock.broker.schemas.rules import FieldRule, schema_rules
from penstock.deploy.console.formats import SHOWN_BYTES_MAX, BytesView, shown_bytes
from penstock.deploy.records.decode_process import DecodeProcess
from penstock.deploy.records.decode_worker import DecodeValue
from penstock.protocol.registry.client import SchemaRegistry
from penstock.protocol.registry.model import NotRegistered, RegistryError, StoredSchema
from penstock.protocol.registry.settings import RegistrySettings
from penstock.protocol.registry.wire_format import FRAME_BYTES, MAGIC, SchemaKey, split_value

VALUE_BYTES_MAX: Final = 1 << 20
FAILURES_MAX: Final = 3
DECODE_S_MAX: Final = 10.0
SCHEMAS_MAX: Final = 200
REGISTRY_MS: Final = 3_000
_NAMES: Final[Mapping[str, str]] = {"avro": "Avro", "protobuf": "Protobuf", "json": "JSON"}


class _NotDecoded(Exception):
    """Raised if a value cannot be decoded. The message contains the reason."""


class SchemaCache:
    """The schemas of a registry by id; the schema with a given id never changes."""

    def __init__(self, registry: RegistrySettings | None) -> None:
        self._registry: SchemaRegistry | None = None
        if registry is not None:
            quick = msgspec.structs.replace(registry, timeout_ms=REGISTRY_MS)
            self._registry = quick.connect()
        self._known: dict[SchemaKey, StoredSchema] = {}

    @property
    def has_registry(self) -> bool:
        return self._registry is not None

    def find(self, key: SchemaKey) -> StoredSchema:
        """Return the schema with an id or a GUID in the registry. Raises RegistryError."""
        found = self._known.get(key)
        if found is None:
            registry = self._registry
            assert registry is not None
            found = registry.by_guid(key) if isinstance(key, str) else registry.by_id(key)
            if len(self._known) >= SCHEMAS_MAX:
                self._known.clear()
            self._known[key] = found
        return found


class TopicDecoder:
    """Decodes the keys and values of one topic for one page. configs: the configs set for the
    topic.
    """

    def __init__(
        self, configs: Mapping[str, str], schemas: SchemaCache, process: DecodeProcess
    ) -> None:
        rules = schema_rules(configs)
        self._rules = {} if rules is None else {"key": rules.key, "value": rules.value}
        self._schemas = schemas
        self._process = process
        self._unknown: dict[SchemaKey, str] = {}
        """The reasons why schemas are unknown, by id, so that each is requested only once."""
        self._silent = ""
        """The reason why the registry does not respond. This page then sends no more requests to
        it.
        """
        self._ends_at = 0.0
        self._failures_left = FAILURES_MAX

    def show(self, part: str, data: bytes | None, header: bytes | None = None) -> BytesView:
        """Decode a key or a value. part: "key" or "value". header: the record's header with the
        schema of the value, if there is one.
        """
        plain = shown_bytes(data)
        if not data:
            return plain
        rule = self._rules.get(part)
        try:
            if rule is not None and not rule.strategy:
                return self._by_config(rule, part, data, plain)
            is_framed = header is not None or _looks_framed(data)
            if rule is not None or (self._schemas.has_registry and is_framed):
                return self._registered(part, data, header)
        except _NotDecoded as error:
            return replace(plain, note=str(error))
        return plain

    def _by_config(self, rule: FieldRule, part: str, data: bytes, plain: BytesView) -> BytesView:
        where = f"{_NAMES.get(rule.type, rule.type)}, by the topic's schema"
        if rule.type == "json":
            try:
                msgspec.json.decode(data)
            except (msgspec.DecodeError, RecursionError) as error:
                raise _NotDecoded(f"not JSON, as required by the topic's schema: {error}") from None
            return replace(plain, note=where)
        request = DecodeValue(
            rule.type, rule.schema, (), rule.message, False, data, SHOWN_BYTES_MAX
        )
        return self._decoded(request, part, where)

    def _registered(self, part: str, data: bytes, header: bytes | None) -> BytesView:
        if header is None and not _looks_framed(data):
            raise _NotDecoded("does not begin with a zero byte and the id of a registered schema")
        try:
            key, rest = split_value(data, header)
        except ValueError as error:
            raise _NotDecoded(str(error)) from None
        if not self._schemas.has_registry:
            raise _NotDecoded(f"schema {key}: start the console with --schema-registry URL")
        schema = self._schema(key)
        kind = schema.type.lower()
        where = f"{_NAMES.get(kind, kind)}, schema {key}"
        if kind == "json":
            return replace(shown_bytes(rest), size_bytes=len(data), note=where)
        references = tuple(ReferencedSchema(name, text) for name, text in schema.references)
        request = DecodeValue(kind, schema.text, references, "", True, rest, SHOWN_BYTES_MAX)
        return replace(self._decoded(request, part, where), size_bytes=len(data))

    def _schema(self, key: SchemaKey) -> StoredSchema:
        if key not in self._unknown and not self._silent:
            try:
                return self._schemas.find(key)
            except NotRegistered as error:
                self._unknown[key] = str(error)
            except RegistryError as error:
                self._silent = str(error)
        raise _NotDecoded(self._unknown.get(key, self._silent))

    def _decoded(self, request: DecodeValue, part: str, where: str) -> BytesView:
        if len(request.data) > VALUE_BYTES_MAX:
            raise _NotDecoded(f"not decoded: it has more than {VALUE_BYTES_MAX >> 20} MiB")
        now = time.monotonic()
        self._ends_at = self._ends_at or now + DECODE_S_MAX
        if now > self._ends_at or not self._failures_left:
            raise _NotDecoded(
                "not decoded: other records on this page exceeded the limits; show fewer records"
            )
        before = self._process.ended_count
        response = self._process.decode(request)
        self._failures_left -= min(self._failures_left, self._process.ended_count - before)
        if response.problem:
            raise _NotDecoded(f"not decoded ({where}): {part}{response.problem}")
        return BytesView(request.kind, response.text, len(request.data), response.is_cut, where)


def _looks_framed(data: bytes) -> bool:
    return data[0] == MAGIC and len(data) >= FRAME_BYTES
