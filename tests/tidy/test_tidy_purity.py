"""Cores are pure: no I/O, no clock, no asyncio, no unseeded randomness. The list is the promise; imports are read from the syntax tree."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.tidy.repository import listed, shown, sources, tree

IMPURE = {
    "asyncio", "threading", "socket", "selectors", "subprocess", "time", "datetime", "os", "io", "tempfile", "logging", "structlog",
    "grpc", "aiobotocore", "botocore", "boto3", "uvloop", "secrets", "concurrent",
}  # fmt: skip

CORES = (
    "stream/ids.py",
    "stream/errors.py",
    "stream/setting.py",
    "stream/config.py",
    "stream/keys.py",
    "stream/batch",
    "stream/format",
    "stream/block_walk.py",
    "stream/read_ahead.py",
    "stream/stream.py",
    "stream/transaction_log.py",
    "stream/wal/core.py",
    "stream/wal/salvage.py",
    "stream/wal/slots.py",
    "stream/log_cache.py",
    "stream/reader/slices.py",
    "stream/reader/errors.py",
    "stream/reader/config.py",
    "stream/reader/parts.py",
    "stream/reader/columns.py",
    "stream/reader/decode.py",
    "stream/reader/decode_table.py",
    "stream/reader/decode_job.py",
    "stream/reader/decode_memory.py",
    "stream/reader/decode_kernel.py",
    "stream/reader/decode_numpy.py",
    "stream/reader/decode_layout.py",
    "stream/reader/decode_buffers.py",
    "stream/compaction/plan.py",
    "stream/manifest/errors.py",
    "stream/manifest/model.py",
    "stream/manifest/codec.py",
    "stream/manifest/plan.py",
    "stream/spark/errors.py",
    "stream/spark/offsets.py",
    "stream/spark/options.py",
    "stream/spark/ranges.py",
    "stream/spark/limits.py",
    "stream/spark/packing.py",
    "stream/spark/filters.py",
    "stream/spark/sink/errors.py",
    "stream/spark/sink/options.py",
    "stream/spark/sink/settings.py",
    "stream/spark/sink/rows.py",
    "stream/spark/compact/plan.py",
    "stream/spark/table/errors.py",
    "stream/spark/table/model.py",
    "stream/spark/table/plan.py",
    "stream/spark/table/settle.py",
    "stream/spark/table/rows.py",
    "stream/spark/table/values.py",
    "stream/spark/table/tables.py",
    "controller/manifest/changes.py",
    "controller/manifest/ledger.py",
    "controller/metadata",
    "controller/managers",
    "controller/balance/loads.py",
    "controller/balance/plan.py",
    "controller/balance/slow.py",
    "controller/balance/view.py",
    "controller/backup/layout.py",
    "controller/backup/new_streams.py",
    "controller/recover/plan.py",
    "controller/recover/report.py",
    "controller/sessions.py",
    "controller/timeline.py",
    "controller/listeners.py",
    "controller/raft/messages.py",
    "controller/raft/quorum.py",
    "controller/raft/progress.py",
    "controller/raft/log.py",
    "controller/raft/membership.py",
    "controller/raft/core.py",
    "controller/raft/core_config.py",
    "controller/raft/promises.py",
    "controller/raft/volume.py",
    "objectstore/errors.py",
    "deploy/config/definition.py",
    "deploy/config/sources.py",
    "deploy/config/effective.py",
    "deploy/config/docs.py",
    "deploy/config/schema.py",
    "broker/connection.py",
    "broker/connection_order.py",
    "broker/config.py",
    "broker/departed.py",
    "broker/load_meter.py",
    "broker/store_rates.py",
    "broker/log_limit.py",
    "broker/request_meter.py",
    "broker/wire/primitives.py",
    "broker/wire/framing.py",
    "broker/wire/produce.py",
    "broker/wire/fetch.py",
    "broker/partition/validation.py",
    "broker/partition/producer_state.py",
    "broker/partition/transactions.py",
    "broker/partition/leader_epochs.py",
    "broker/groups/classic.py",
    "broker/groups/model.py",
    "broker/groups/offsets.py",
    "broker/groups/records.py",
    "deploy/cluster/seed.py",
    "deploy/snippets.py",
    "deploy/doctor/findings.py",
    "deploy/doctor/facts.py",
    "deploy/doctor/seen.py",
    "deploy/doctor/inventory.py",
    "deploy/doctor/judge.py",
    "deploy/doctor/report.py",
    "deploy/doctor/docs.py",
    "deploy/top/cost.py",
    "deploy/top/view.py",
    "pytest_penstock/control.py",
    "pytest_penstock/options.py",
    "pytest_penstock/records.py",
    "broker/transactions/machine.py",
    "broker/transactions/model.py",
    "broker/transactions/records.py",
)


@cache
def core_files() -> tuple[Path, ...]:
    """Return the modules of the list; a name that leads to none is an error."""
    modules = {shown(path): path for path in sources()}
    found: list[Path] = []
    for core in CORES:
        of_core = [path for name, path in modules.items() if name == core or name.startswith(f"{core}/")]
        assert of_core, f"{core} is in the list of cores, and no module"
        found += of_core
    return tuple(found)


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the first part of everything that the module imports, with the line."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.lineno, node.module.split(".")[0]


def impurities(path: Path) -> Iterator[tuple[int, str]]:
    """Yield what waits, and calls of the random module's shared generator."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Await | ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith):
            yield node.lineno, "async code"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            called = f"{node.func.value.id}.{node.func.attr}"
            if called.startswith("random.") and not (called == "random.Random" and node.args):
                yield node.lineno, called


def test_cores_import_nothing_impure() -> None:
    offenders = [f"{shown(path, line)}: {name}" for path in core_files() for line, name in imported(path) if name in IMPURE]
    assert not offenders, listed(offenders)


def test_cores_await_nothing_and_roll_no_unseeded_dice() -> None:
    offenders = [f"{shown(path, line)}: {what}" for path in core_files() for line, what in impurities(path)]
    assert not offenders, listed(offenders)
