"""Look up the schemas of values in a schema registry."""

from penstock.lake.table.errors import InvalidSchema
from penstock.lake.table.values import ValueDecoder, ValueFormat
from penstock.protocol.registry.by_id import schemas_of
from penstock.protocol.registry.model import NotRegistered


def with_newest(value_format: ValueFormat) -> ValueFormat:
    """Return a format with the columns of the newest schema of its subject, as currently
    registered. A format without a registry, or with a fixed schema for the columns, is returned
    unchanged. Raise InvalidSchema, RegistryError or RegistrySettingInvalid.
    """
    registry, subject = value_format.registry, value_format.subject
    if registry is None or value_format.schema:
        return value_format
    try:
        _, newest = schemas_of(registry).newest(subject)
    except NotRegistered as error:
        raise InvalidSchema(
            f"choose the subject of the columns, {subject!r} has no schema: {error}"
        ) from None
    name = newest.type.lower()
    if name not in {"avro", "json", "protobuf"}:
        raise InvalidSchema(f"subject {subject!r} has a schema of the unknown type {newest.type!r}")
    if value_format.name not in {"", name}:
        raise InvalidSchema(
            f"subject {subject!r} has a schema of format {name}, not {value_format.name}"
        )
    return value_format._replace(name=name, newest=newest)


def decoder_of(value_format: ValueFormat) -> ValueDecoder:
    """Return a decoder for records that already exist, which looks up schemas in the registry of
    the format. Raise InvalidSchema or RegistrySettingInvalid.
    """
    registry = value_format.registry
    return ValueDecoder(value_format, None if registry is None else schemas_of(registry).finder())
