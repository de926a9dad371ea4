"""Check records before they are appended: against the schemas of their topic, and for the keys that
a compacted topic needs.

Invariants: verdicts of one partition come in the order of its batches, so batches of a producer
keep theirs. What cannot be checked is refused, never let in: with INVALID_RECORD if that is the
fault of the records, else with NOT_ENOUGH_REPLICAS, which all clients repeat until their own
deadline.
Limits: a check takes at most CHECK_S, and PENDING_BYTES_MAX of batches wait for theirs; beyond
that they are refused like those that cannot be checked.
Must not: append.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import structlog

from penstock.base.client_tls import client_tls
from penstock.base.log_limit import LogLimit
from penstock.broker.config import BrokerConfig
from penstock.broker.errors import ErrorCode
from penstock.broker.partition.partition import Partition
from penstock.broker.partition.validation import Refusal
from penstock.broker.schemas import messages
from penstock.broker.schemas.known_schemas import KnownSchemas
from penstock.broker.schemas.messages import CheckBatch, CheckSchema, Verdict
from penstock.broker.schemas.process import CheckProcess
from penstock.broker.schemas.registry import RegistryError, SchemaRegistry
from penstock.broker.schemas.rules import FieldRule, SchemaRules, is_schema_config, schema_rules
from penstock.broker.security.tls import SecurityFileInvalid
from penstock.controller.metadata import topic_configs
from penstock.controller.metadata.topic_configs import KEY_SCHEMA, VALUE_SCHEMA, SchemaConfigs

_log = structlog.get_logger(__name__)

CHECK_S: Final = 25.0
"""Producers wait 30 s for an answer by default, and answers of a connection keep their order."""
PENDING_BYTES_MAX: Final = 64 << 20
Checked: TypeAlias = Callable[[Refusal | None], None]
"""Called once, on the loop. None: the records match."""

REASONS: Final = ("mismatch", "too_slow", "too_large", "corrupt", "unavailable")
"""Why batches are refused; labels of a metric."""


class _Check:
    __slots__ = ("checked", "is_done", "refusal")

    def __init__(self, checked: Checked) -> None:
        self.checked = checked
        self.is_done = False
        self.refusal: Refusal | None = None


class RecordChecks:
    """The checks of one broker."""

    def __init__(self, known: KnownSchemas | None) -> None:
        """known: None without a registry."""
        self._known = known
        self._process = CheckProcess()
        self._pending: dict[Partition, deque[_Check]] = {}
        self.pending_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.checked_count = 0
        """Batches that were checked, refused ones included."""
        self.refused: Counter[str] = Counter()
        """Refused batches, by REASONS."""
        self._log_limit = LogLimit()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._process.close()
        if self._known is not None:
            self._known.close()

    async def problem(self, configs: Mapping[str, str]) -> str:
        """Return why a topic cannot have the schemas of these configs; empty if it can. Other
        configs are not looked at.
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
                " schema.registry.url of every broker"
            )
        try:
            async with asyncio.timeout(CHECK_S):
                verdict = await self._process.call("", CheckSchema(rule))
        except TimeoutError:
            return f"config {names.schema}: this broker has no time to check it: try again"
        match verdict.kind:
            case messages.VALID:
                return ""
            case messages.MISMATCH:
                return f"config {names.schema} is not valid: {verdict.message}"
            case messages.TOO_SLOW:
                return f"config {names.schema}: it takes too much CPU or memory to compile"
            case _:
                return f"config {names.schema} cannot be used: {verdict.message}"

    def begin(self, partition: Partition, batch: memoryview | None, checked: Checked) -> None:
        """Check a batch behind those of the partition that are being checked. `checked` may be
        called before this returns.
        """
        check = _Check(checked)
        self._pending.setdefault(partition, deque()).append(check)
        partition.checks_count += 1
        rules = partition.log.rules
        schemas = rules.schemas
        # A batch without records or above the limit is refused without a look at it.
        if (
            batch is None
            or len(batch) > rules.message_bytes_max
            or (schemas is None and not rules.needs_keys)
        ):
            self._settle(partition, check, None)
            return
        if self.pending_bytes + len(batch) > PENDING_BYTES_MAX and self.pending_bytes:
            if schemas is not None:
                self._note(partition, messages.UNAVAILABLE)
            why = f"{self.pending_bytes} bytes of batches wait for that already"
            self._settle(partition, check, _unavailable(why))
            return
        self.pending_bytes += len(batch)
        task = asyncio.get_running_loop().create_task(self._run(partition, check, schemas, batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(
        self, partition: Partition, check: _Check, schemas: SchemaRules | None, batch: memoryview
    ) -> None:
        rules = partition.log.rules
        request = CheckBatch(
            partition.topic_name,
            schemas or SchemaRules(),
            batch,
            rules.decompressed_bytes_max,
            needs_keys=rules.needs_keys,
        )
        try:
            async with asyncio.timeout(CHECK_S):
                verdict = await self._verdict(request)
        except RegistryError as error:
            verdict = Verdict(messages.UNAVAILABLE, str(error))
        except TimeoutError:
            verdict = Verdict(messages.UNAVAILABLE, f"no verdict within {CHECK_S:g} s")
        except Exception as error:  # noqa: BLE001 - or the partition waits forever
            _log.exception("schema_check_failed", topic=partition.topic_name)
            verdict = Verdict(messages.UNAVAILABLE, repr(error))
        except asyncio.CancelledError:
            self._settle(partition, check, _unavailable("the broker stops"))
            raise
        finally:
            self.pending_bytes -= len(batch)
        refusal = _refusal(verdict)
        if schemas is not None:
            self.checked_count += 1
            if refusal is not None:
                self._note(partition, verdict.kind)
        self._settle(partition, check, refusal)

    def _note(self, partition: Partition, reason: str) -> None:
        self.refused[reason] += 1
        suppressed = self._log_limit.take(asyncio.get_running_loop().time())
        if suppressed is not None:
            _log.warning(
                "records_refused_by_schema",
                topic=partition.topic_name,
                partition=partition.index,
                reason=reason,
                suppressed=suppressed,
            )

    async def _verdict(self, request: CheckBatch) -> Verdict:
        """Raises RegistryError."""
        verdict = await self._process.call(request.topic, request)
        if verdict.kind != messages.UNKNOWN:
            return verdict
        if self._known is None:
            return Verdict(messages.UNAVAILABLE, "this broker has no schema.registry.url")
        request = CheckBatch(
            request.topic,
            request.rules,
            request.batch,
            request.decompressed_bytes_max,
            await self._known.find(verdict.ids),
            request.needs_keys,
        )
        verdict = await self._process.call(request.topic, request)
        if verdict.kind == messages.UNKNOWN:
            return Verdict(messages.UNAVAILABLE, "other batches took the place of its schemas")
        return verdict

    def _settle(self, partition: Partition, check: _Check, refusal: Refusal | None) -> None:
        check.is_done, check.refusal = True, refusal
        pending = self._pending[partition]
        while pending and pending[0].is_done:
            first = pending.popleft()
            partition.checks_count -= 1
            first.checked(first.refusal)
        if not pending and self._pending.get(partition) is pending:
            del self._pending[partition]


def record_checks(config: BrokerConfig) -> RecordChecks:
    """Return the checks of a broker with these settings. Raises SecurityFileInvalid."""
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
        timeout_s=config.schema_registry_timeout_ms / 1_000,
    )
    return RecordChecks(KnownSchemas(registry, asyncio.get_running_loop().time))


def _refusal(verdict: Verdict) -> Refusal | None:
    match verdict.kind:
        case messages.VALID:
            return None
        case messages.MISMATCH:
            return Refusal(ErrorCode.INVALID_RECORD, verdict.message, verdict.failures)
        case messages.TOO_SLOW:
            message = "the check of the records of this batch takes too much CPU or memory"
            return Refusal(ErrorCode.INVALID_RECORD, message)
        case messages.TOO_LARGE:
            # Java's producer splits the batch.
            message = f"{verdict.message}: lower batch.size of the producer"
            return Refusal(ErrorCode.MESSAGE_TOO_LARGE, message)
        case messages.CORRUPT:
            return Refusal(ErrorCode.CORRUPT_MESSAGE, verdict.message)
        case _:
            return _unavailable(verdict.message)


def _unavailable(why: str) -> Refusal:
    message = f"the records cannot be checked: {why}"
    return Refusal(ErrorCode.NOT_ENOUGH_REPLICAS, message)
