"""Check batches before they are appended: first as Kafka does (`broker.partition.validation`),
inline or in a thread, then with the schemas of their topic.

Verdicts are returned in the order of the partition's batches. Batches that cannot be checked are
rejected, with the retriable NOT_ENOUGH_REPLICAS unless the records are the cause.
"""

import asyncio
import os
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, TypeAlias

import structlog

from penstock.base.client_tls import client_tls
from penstock.base.ids import Millis
from penstock.base.log_limit import LogLimit
from penstock.broker.config import BrokerConfig
from penstock.broker.errors import ErrorCode
from penstock.broker.partition.partition import Partition
from penstock.broker.partition.record_check import NO_KEY, RecordCheck, TakesLong, plain_bytes_max
from penstock.broker.partition.refusal import Refusal
from penstock.broker.partition.validation import TopicRules, validate_batch
from penstock.broker.schemas import messages
from penstock.broker.schemas.known_schemas import KnownSchemas
from penstock.broker.schemas.messages import CheckBatch, CheckSchema
from penstock.broker.schemas.messages import Verdict as SchemaVerdict
from penstock.broker.schemas.process import CheckProcess
from penstock.broker.schemas.rules import FieldRule, SchemaRules, is_schema_config, schema_rules
from penstock.broker.security.tls import SecurityFileInvalid
from penstock.controller.metadata import topic_configs
from penstock.controller.metadata.topic_configs import (
    KEY_SCHEMA,
    VALIDATES_SAMPLES,
    VALUE_SCHEMA,
    SchemaConfigs,
)
from penstock.protocol.batch.header import HEADER, HEADER_BYTES, BatchHeader
from penstock.protocol.batch.walk import IS_NATIVE
from penstock.protocol.registry.client import SchemaRegistry
from penstock.protocol.registry.model import RegistryError

_log = structlog.get_logger(__name__)

CHECK_S: Final = 25.0
"""Timeout of a schema check. By default, producers wait 30 s for a response, and the responses of a
connection are sent in order.
"""
PENDING_BYTES_MAX: Final = 64 << 20
INLINE_BYTES_MAX: Final = 1 << 20
"""Maximum number of bytes per request that are checked on the event loop, which takes 0.1 ms, or
0.6 ms with the smallest records.
"""
INLINE_PLAIN_BYTES_MAX: Final = 1 << 20
"""Maximum decompressed size of a batch that is checked on the event loop, which takes 0.2 ms, or
0.4 ms with gzip. Using a thread costs the same amount again, because the batch moves to another
core and two threads take turns.
"""
INLINE_RECORDS_MAX: Final = 500
"""Maximum number of records that are checked on the event loop without native code, which takes 1
ms.
"""
THREADS_COUNT: Final = min(4, os.cpu_count() or 1)
SUSPECTS_MAX: Final = 1_000
SUSPECT_BATCHES: Final = 1_000
"""If batches are sampled, the next this many batches of a client are checked after an invalid
one.
"""
_ZSTD_FROM: Final = 7

Verdict: TypeAlias = BatchHeader | Refusal
"""The resulting batch header, or the reason for rejecting the batch."""
Checked: TypeAlias = Callable[[Verdict, Refusal | None], None]
"""Called once, on the event loop, with the verdict and the schema violation, if any."""

_NOT_CHECKED: Final = Refusal(ErrorCode.NOT_ENOUGH_REPLICAS, "the batch was not checked")

REASONS: Final = ("mismatch", "too_slow", "too_large", "corrupt", "unavailable")
"""Reasons why batches fail the schema check, as metric labels."""
_REASON_OF_CODE: Final = {
    ErrorCode.INVALID_RECORD: "records",
    ErrorCode.CORRUPT_MESSAGE: "checksum",
    ErrorCode.INVALID_TIMESTAMP: "timestamp",
    ErrorCode.MESSAGE_TOO_LARGE: "too_large",
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "compression",
    ErrorCode.NOT_ENOUGH_REPLICAS: "unavailable",
}
_OTHER_REASON: Final = "other"
BATCH_REASONS: Final = (*_REASON_OF_CODE.values(), NO_KEY, _OTHER_REASON)
"""Reasons why batches are rejected because of their contents, as metric labels."""


class CheckRequest(NamedTuple):
    """A batch of a client, with the rules of the topic at the time of its arrival."""

    records: memoryview | None
    rules: TopicRules
    now_ms: Millis
    client_id: str
    api_version: int
    allows_transactions: bool
    """Whether the request contains a transactional id."""


class InlineLimits:
    """The remaining budget for inline checks of one request."""

    __slots__ = ("left_bytes", "left_count")

    def __init__(self) -> None:
        self.left_bytes = INLINE_BYTES_MAX
        self.left_count = INLINE_RECORDS_MAX

    def allows(self, records: memoryview | None, rules: TopicRules) -> bool:
        """Return whether this batch may be checked inline, and deduct it from the budget if so."""
        if records is None or not HEADER_BYTES <= len(records) <= rules.message_bytes_max:
            return True  # the batch is invalid because of its size alone
        header = BatchHeader._make(HEADER.unpack_from(records))
        size_bytes = len(records)
        if header.compression:
            size_bytes = min(plain_bytes_max(size_bytes), self.left_bytes)
        if not 0 < size_bytes <= self.left_bytes:
            return False
        if not IS_NATIVE:
            if header.record_count > self.left_count:
                return False
            self.left_count -= header.record_count
        self.left_bytes -= size_bytes
        return True


class Suspects:
    """Clients that have sent invalid batches. Above SUSPECTS_MAX, the oldest are dropped."""

    def __init__(self) -> None:
        self._left: OrderedDict[str, int] = OrderedDict()

    def add(self, client_id: str) -> None:
        self._left[client_id] = SUSPECT_BATCHES
        self._left.move_to_end(client_id)
        if len(self._left) > SUSPECTS_MAX:
            self._left.popitem(last=False)

    def take(self, client_id: str) -> bool:
        """Count a batch of this client. Return whether the batch must be checked."""
        left = self._left.get(client_id)
        if left is None:
            return False
        if left <= 1:
            del self._left[client_id]
        else:
            self._left[client_id] = left - 1
        return True


class _Check:
    __slots__ = ("checked", "is_done", "refusal", "verdict")

    def __init__(self, checked: Checked) -> None:
        self.checked = checked
        self.is_done = False
        self.verdict: Verdict = _NOT_CHECKED
        self.refusal: Refusal | None = None


class RecordChecks:
    """The checks of one broker."""

    def __init__(self, known: KnownSchemas | None) -> None:
        """known: the known schemas, or None without a schema registry."""
        self._known = known
        self._process = CheckProcess()
        self._pending: dict[Partition, deque[_Check]] = {}
        self.pending_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.checked_count = 0
        """Batches checked with schemas, including rejected ones."""
        self.refused: Counter[str] = Counter()
        """Batches rejected by the schema check, by reason (REASONS)."""
        self.refused_batches: Counter[str] = Counter()
        """Batches rejected for their header, checksum or records, by reason (BATCH_REASONS)."""
        self._log_limit = LogLimit()
        self._inline = RecordCheck(INLINE_PLAIN_BYTES_MAX)
        self._threads = ThreadPoolExecutor(THREADS_COUNT, thread_name_prefix="record-checks")
        self._of_thread = threading.local()
        self._suspects = Suspects()

    def check_inline(self, request: CheckRequest, budget: InlineLimits) -> Verdict | None:
        """Return the verdict, or None if the check would block the event loop for too long."""
        if not budget.allows(request.records, request.rules):
            return None
        try:
            verdict = self._validate(request, self._inline)
        except TakesLong:
            return None
        self._record_bad(request, verdict)
        return verdict

    def _validate(self, request: CheckRequest, check: RecordCheck) -> Verdict:
        is_sampled = request.rules.validation == VALIDATES_SAMPLES
        return validate_batch(
            request.records,
            request.rules,
            request.now_ms,
            check=check,
            is_suspect=is_sampled and self._suspects.take(request.client_id),
            allows_zstd=request.api_version >= _ZSTD_FROM,
            allows_transactions=request.allows_transactions,
        )

    def _validate_in_thread(self, request: CheckRequest) -> Verdict:
        check: RecordCheck | None = getattr(self._of_thread, "check", None)
        if check is None:
            check = self._of_thread.check = RecordCheck()
        return self._validate(request, check)

    def _record_bad(self, request: CheckRequest, verdict: Verdict) -> None:
        if not isinstance(verdict, Refusal):
            return
        reason = verdict.reason or _REASON_OF_CODE.get(verdict.code, _OTHER_REASON)
        self.refused_batches[reason] += 1
        if request.rules.validation == VALIDATES_SAMPLES:
            self._suspects.add(request.client_id)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._process.close()
        self._threads.shutdown(cancel_futures=True)
        if self._known is not None:
            self._known.close()

    async def problem(self, configs: Mapping[str, str]) -> str:
        """Return the reason why a topic cannot use the schemas in these configs, or "" if it can.
        Other configs are ignored.
        """
        given = {name: value for name, value in configs.items() if is_schema_config(name)}
        for name, value in given.items():
            if found := topic_configs.problem(name, value):
                return found
        if found := topic_configs.conflict(given):
            return found
        rules = schema_rules(
            {name: topic_configs.canonical(name, value) for name, value in given.items()}
        )
        if rules is None:
            return ""
        return await self._rule_problem(KEY_SCHEMA, rules.key) or await self._rule_problem(
            VALUE_SCHEMA, rules.value
        )

    async def _rule_problem(self, names: SchemaConfigs, rule: FieldRule | None) -> str:
        if rule is None:
            return ""
        if rule.strategy:
            if self._known is not None:
                return ""
            return (
                f"config {names.is_registered}=true needs a schema registry: set"
                " schema.registry.url on every broker"
            )
        try:
            async with asyncio.timeout(CHECK_S):
                verdict = await self._process.call("", CheckSchema(rule))
        except TimeoutError:
            return f"config {names.schema}: this broker is too busy to check it: try again"
        match verdict.kind:
            case messages.VALID:
                return ""
            case messages.MISMATCH:
                return f"config {names.schema} is not valid: {verdict.message}"
            case messages.TOO_SLOW:
                return f"config {names.schema}: it takes too much CPU or memory to compile"
            case _:
                return f"config {names.schema} cannot be used: {verdict.message}"

    def begin(self, partition: Partition, request: CheckRequest | None, checked: Checked) -> None:
        """Check a batch after pending batches of the partition. `checked` may be called before this
        returns. request: None for mirrored batches, which only wait for earlier batches.
        """
        check = _Check(checked)
        self._pending.setdefault(partition, deque()).append(check)
        partition.checks_count += 1
        if request is None:
            self._settle(partition, check)
            return
        verdict = self.check_inline(request, InlineLimits())
        if verdict is not None:
            self._begin_schemas(partition, check, request, verdict)
            return

        def validated(done: "asyncio.Future[Verdict]") -> None:
            if done.cancelled():
                verdict: Verdict = _unavailable("the broker stops")
            elif (error := done.exception()) is not None:
                _log.error("record_check_failed", topic=partition.topic_name, exc_info=error)
                verdict = _unavailable(repr(error))
            else:
                verdict = done.result()
            self._record_bad(request, verdict)
            self._begin_schemas(partition, check, request, verdict)

        loop = asyncio.get_running_loop()
        loop.run_in_executor(self._threads, self._validate_in_thread, request).add_done_callback(
            validated
        )

    def _begin_schemas(
        self, partition: Partition, check: _Check, request: CheckRequest, verdict: Verdict
    ) -> None:
        check.verdict = verdict
        schemas, batch = request.rules.schemas, request.records
        if isinstance(verdict, Refusal) or schemas is None or batch is None:
            self._settle(partition, check)
            return
        if self.pending_bytes + len(batch) > PENDING_BYTES_MAX and self.pending_bytes:
            self._note(partition, messages.UNAVAILABLE)
            why = f"{self.pending_bytes} bytes of batches are already waiting"
            self._settle(partition, check, _unavailable(why))
            return
        self.pending_bytes += len(batch)
        task = asyncio.get_running_loop().create_task(
            self._run(partition, check, request.rules, schemas, batch)
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(
        self,
        partition: Partition,
        check: _Check,
        rules: TopicRules,
        schemas: SchemaRules,
        batch: memoryview,
    ) -> None:
        request = CheckBatch(partition.topic_name, schemas, batch, rules.decompressed_bytes_max)
        try:
            async with asyncio.timeout(CHECK_S):
                verdict = await self._verdict(request)
        except RegistryError as error:
            verdict = SchemaVerdict(messages.UNAVAILABLE, str(error))
        except TimeoutError:
            verdict = SchemaVerdict(messages.UNAVAILABLE, f"no verdict within {CHECK_S:g} s")
        except Exception as error:  # noqa: BLE001 - or the partition waits forever
            _log.exception("schema_check_failed", topic=partition.topic_name)
            verdict = SchemaVerdict(messages.UNAVAILABLE, repr(error))
        except asyncio.CancelledError:
            self._settle(partition, check, _unavailable("the broker stops"))
            raise
        finally:
            self.pending_bytes -= len(batch)
        refusal = _refusal(verdict)
        self.checked_count += 1
        if refusal is not None:
            self._note(partition, verdict.kind)
        self._settle(partition, check, refusal)

    def _note(self, partition: Partition, reason: str) -> None:
        self.refused[reason] += 1
        suppressed = self._log_limit.take(asyncio.get_running_loop().time())
        if suppressed is not None:
            _log.warning(
                "records_rejected_by_schema",
                topic=partition.topic_name,
                partition=partition.index,
                reason=reason,
                suppressed=suppressed,
            )

    async def _verdict(self, request: CheckBatch) -> SchemaVerdict:
        """Return the verdict of the schema check. Raises RegistryError."""
        verdict = await self._process.call(request.topic, request)
        if verdict.kind != messages.UNKNOWN:
            return verdict
        if self._known is None:
            return SchemaVerdict(messages.UNAVAILABLE, "this broker has no schema.registry.url")
        request = CheckBatch(
            request.topic,
            request.rules,
            request.batch,
            request.decompressed_bytes_max,
            await self._known.find(verdict.ids),
        )
        verdict = await self._process.call(request.topic, request)
        if verdict.kind == messages.UNKNOWN:
            return SchemaVerdict(
                messages.UNAVAILABLE, "other batches displaced its schemas in the cache"
            )
        return verdict

    def _settle(self, partition: Partition, check: _Check, refusal: Refusal | None = None) -> None:
        check.is_done, check.refusal = True, refusal
        pending = self._pending[partition]
        while pending and pending[0].is_done:
            first = pending.popleft()
            partition.checks_count -= 1
            first.checked(first.verdict, first.refusal)
        if not pending and self._pending.get(partition) is pending:
            del self._pending[partition]


def record_checks(config: BrokerConfig) -> RecordChecks:
    """Return the record checks for a broker with these settings. Raises SecurityFileInvalid."""
    if not config.schema_registry_url:
        return RecordChecks(None)
    location = config.schema_registry_ssl_truststore_location
    try:
        tls = client_tls(location)
    except (OSError, ValueError) as error:
        raise SecurityFileInvalid(
            f"schema.registry.ssl.truststore.location={location}: {error}; it must be a PEM file"
            " with the certificates of CAs"
        ) from None
    registry = SchemaRegistry(
        config.schema_registry_url,
        user_info=config.schema_registry_basic_auth_user_info,
        tls=tls,
        ca_setting="schema.registry.ssl.truststore.location",
        timeout_s=config.schema_registry_timeout_ms / 1_000,
    )
    return RecordChecks(KnownSchemas(registry, asyncio.get_running_loop().time))


def _refusal(verdict: SchemaVerdict) -> Refusal | None:
    match verdict.kind:
        case messages.VALID:
            return None
        case messages.MISMATCH:
            return Refusal(ErrorCode.INVALID_RECORD, verdict.message, verdict.failures)
        case messages.TOO_SLOW:
            message = "the check of the records of this batch takes too much CPU or memory"
            return Refusal(ErrorCode.INVALID_RECORD, message)
        case messages.TOO_LARGE:
            # After this error, the Java producer splits the batch.
            message = f"{verdict.message}: lower batch.size of the producer"
            return Refusal(ErrorCode.MESSAGE_TOO_LARGE, message)
        case messages.CORRUPT:
            return Refusal(ErrorCode.CORRUPT_MESSAGE, verdict.message)
        case _:
            return _unavailable(verdict.message)


def _unavailable(why: str) -> Refusal:
    message = f"the records cannot be checked: {why}"
    return Refusal(ErrorCode.NOT_ENOUGH_REPLICAS, message)
