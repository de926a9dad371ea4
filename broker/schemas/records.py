"""Check the records of a batch against the rules of its topic, in Confluent's wire format. Pure,
except for the libraries of the schema languages.

A batch is VALID if every non-null key and value matches its schema. Otherwise, the whole batch is
rejected.
"""

from collections import OrderedDict
from functools import lru_cache
from typing import Final

from penstock.broker.schemas import messages
from penstock.broker.schemas.language import (
    CompiledSchema,
    ReferencedSchema,
    Validator,
    compile_schema,
)
from penstock.broker.schemas.messages import (
    FAILURES_MAX,
    CheckBatch,
    CheckSchema,
    RegisteredSchema,
    Verdict,
)
from penstock.broker.schemas.rules import TOPIC_STRATEGY, FieldRule, subject_of
from penstock.protocol.batch.compression import ReusingInflater
from penstock.protocol.batch.errors import BatchCorrupt, BatchTooLarge
from penstock.protocol.batch.header import parse_header
from penstock.protocol.batch.records import RECORDS_SEARCHED_MAX, iter_records
from penstock.protocol.registry.model import CannotCheck, SchemaInvalid, brief

COMPILED_COUNT_MAX: Final = 200
"""Maximum number of compiled schemas in each of two caches."""
IDS_MAX: Final = 50
"""Maximum number of registered schemas in one batch. It is below COMPILED_COUNT_MAX, so that all of
them are cached.
"""
_MAGIC: Final = 0
_FRAME_BYTES: Final = 5


class _NeedsSchema(Exception):
    """Raised for a schema id that must be looked up."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class _Registered:
    """The compiled schemas of a registry, by id."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, tuple[RegisteredSchema, CompiledSchema | str]] = OrderedDict()

    def add(self, number: int, schema: RegisteredSchema) -> None:
        self._known[number] = schema, self._compiled(schema)
        self._known.move_to_end(number)
        if len(self._known) > COMPILED_COUNT_MAX:
            self._known.popitem(last=False)

    def find(self, number: int) -> tuple[RegisteredSchema, CompiledSchema | str] | None:
        """Return the schema as registered, and its compiled form or the reason why it cannot be
        compiled.
        """
        found = self._known.get(number)
        if found is not None:
            self._known.move_to_end(number)
        return found

    def clear(self) -> None:
        self._known.clear()

    @staticmethod
    def _compiled(schema: RegisteredSchema) -> CompiledSchema | str:
        if not schema.type:
            return ""
        try:
            return compile_schema(schema.type, schema.schema, schema.references)
        except SchemaInvalid as error:
            return f"its schema cannot be read: {error}"


class RecordCheck:
    """Handles requests. Caches compiled schemas."""

    def __init__(self) -> None:
        self._registered = _Registered()
        self._inflater = ReusingInflater()

    def check(self, request: CheckSchema | CheckBatch) -> Verdict:
        """Return the verdict. Never raises."""
        try:
            if isinstance(request, CheckSchema):
                _inline(request.rule)
                return Verdict(messages.VALID)
            return self._batch(request)
        except SchemaInvalid as error:
            kind = messages.MISMATCH if isinstance(request, CheckSchema) else messages.UNAVAILABLE
            return Verdict(kind, str(error))
        except CannotCheck as error:
            return Verdict(messages.UNAVAILABLE, str(error))
        except MemoryError:
            self._registered.clear()
            _compiled.cache_clear()
            return Verdict(messages.TOO_SLOW)
        except Exception as error:  # noqa: BLE001 - libraries raise what Python does with bad input
            return Verdict(messages.UNAVAILABLE, brief(repr(error)))

    def _batch(self, request: CheckBatch) -> Verdict:
        for number, schema in request.schemas.items():
            self._registered.add(number, schema)
        rules = request.rules
        for rule in (rules.key, rules.value):
            if rule is not None and not rule.strategy:
                _inline(rule)
        check = _BatchCheck(request, self._registered)
        try:
            if parse_header(request.batch).record_count > RECORDS_SEARCHED_MAX:
                message = f"the batch has more than {RECORDS_SEARCHED_MAX} records"
                return Verdict(messages.TOO_LARGE, message)
            check.run(self._inflater)
        except BatchTooLarge as error:
            message = f"{error} (decompressed.batch.max.bytes of the broker)"
            return Verdict(messages.TOO_LARGE, message)
        except BatchCorrupt as error:
            return Verdict(messages.CORRUPT, str(error))
        return check.verdict()


class _BatchCheck:
    """The check of one batch."""

    def __init__(self, request: CheckBatch, registered: _Registered) -> None:
        self._request = request
        self._registered = registered
        self._failures: list[tuple[int, str]] = []
        self._used: set[int] = set()
        self._wanted: set[int] = set()

    def verdict(self) -> Verdict:
        if self._wanted:
            return Verdict(messages.UNKNOWN, ids=tuple(sorted(self._wanted)))
        if self._failures:
            failures = tuple(self._failures[:FAILURES_MAX])
            return Verdict(messages.MISMATCH, failures[0][1], failures)
        return Verdict(messages.VALID)

    def run(self, inflater: ReusingInflater) -> None:
        """Check the records until there are enough failures. Raises BatchCorrupt, BatchTooLarge,
        MemoryError.
        """
        request = self._request
        key_rule, value_rule = request.rules.key, request.rules.value
        records = iter_records(request.batch, request.decompressed_bytes_max, inflater.decompress)
        for at, record in enumerate(records):
            if key_rule is not None and record.key is not None:
                self._check(at, "key", key_rule, record.key)
            if value_rule is not None and record.value is not None:
                self._check(at, "value", value_rule, record.value)
            if len(self._failures) >= FAILURES_MAX:
                break

    def _check(self, at: int, part: str, rule: FieldRule, data: bytes) -> None:
        if rule.strategy:
            try:
                problem = self._registered_problem(part, rule.strategy, data)
            except _NeedsSchema as needed:
                self._wanted.add(needed.number)
                return
        else:
            problem = _problem(_inline(rule), data)
        if problem:
            self._failures.append((at, f"{part}{problem} (record {at})"))

    def _registered_problem(self, part: str, strategy: str, data: bytes) -> str:
        """Return the reason why a key or value with a schema id is invalid, or "" if it is valid.
        Raises _NeedsSchema.
        """
        if len(data) < _FRAME_BYTES or data[0] != _MAGIC:
            return ": it does not begin with a zero byte and the id of a registered schema"
        number = int.from_bytes(data[1:_FRAME_BYTES], "big")
        self._used.add(number)
        if len(self._used) > IDS_MAX:
            return f": a batch may use at most {IDS_MAX} registered schemas"
        found = self._registered.find(number)
        if found is None:
            raise _NeedsSchema(number)
        schema, compiled = found
        if not schema.type:
            self._request_again(number)
            return f": the schema registry has no schema {number}"
        if isinstance(compiled, str):
            return f": schema {number}: {compiled}"
        try:
            validator, payload = compiled.framed(data[_FRAME_BYTES:])
        except SchemaInvalid as error:
            return f": schema {number}: {error}"
        subject = subject_of(self._request.topic, part, strategy, validator.record_name)
        if subject not in schema.subjects:
            self._request_again(number)
            return _not_under(number, subject, strategy, validator)
        return _problem(validator, payload)

    def _request_again(self, number: int) -> None:
        """Raise _NeedsSchema unless the broker has just looked up the schema, because another
        client may have registered it in the meantime.
        """
        if number not in self._request.schemas:
            raise _NeedsSchema(number)


def _problem(validator: Validator, data: bytes) -> str:
    """Return the reason why a value is invalid, or "". A value is also invalid if its check fails
    unexpectedly.
    """
    try:
        return validator.problem(data)
    except (MemoryError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - libraries in Rust panic with their own
        return f": it cannot be checked: {brief(repr(error))}"


def _not_under(number: int, subject: str, strategy: str, validator: Validator) -> str:
    if strategy != TOPIC_STRATEGY and not validator.record_name:
        return f": schema {number} has no record name, but {strategy} requires one"
    return f": schema {number} is not registered under the subject {brief(subject)}"


def _inline(rule: FieldRule) -> Validator:
    return _compiled(rule.type, rule.schema, ()).validator(rule.message)


@lru_cache(maxsize=COMPILED_COUNT_MAX)
def _compiled(kind: str, text: str, references: tuple[ReferencedSchema, ...]) -> CompiledSchema:
    return compile_schema(kind, text, references)
