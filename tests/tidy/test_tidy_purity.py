"""Check that the cores are pure: they use no I/O, no clock, no asyncio and no unseeded randomness.

CORES lists them. The tests read imports and calls from the syntax tree.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.tidy.repository import listed, shown, sources, tree

IMPURE = {
    "asyncio",
    "threading",
    "socket",
    "selectors",
    "subprocess",
    "time",
    "datetime",
    "os",
    "io",
    "tempfile",
    "logging",
    "structlog",
    "grpc",
    "obstore",
    "botocore",
    "boto3",
    "uvloop",
    "secrets",
    "concurrent",
}

CORES = (
    "base/ids.py",
    "stream/errors.py",
    "base/settings.py",
    "stream/config.py",
    "stream/format/keys.py",
    "protocol/batch",
    "stream/format",
    "stream/format/block_walk.py",
    "stream/read/read_ahead.py",
    "stream/stream.py",
    "stream/format/transaction_log.py",
    "stream/wal/core.py",
    "stream/wal/sender.py",
    "stream/recovery/salvage.py",
    "stream/wal/slots.py",
    "stream/cache/log_cache.py",
    "lake/fetch/slices.py",
    "lake/fetch/errors.py",
    "lake/fetch/limits.py",
    "lake/fetch/parts.py",
    "lake/arrow/columns.py",
    "lake/arrow/decode.py",
    "lake/arrow/decode_table.py",
    "lake/arrow/decode_job.py",
    "lake/arrow/decode_memory.py",
    "lake/arrow/decode_kernel.py",
    "lake/arrow/kernel_code.py",
    "lake/arrow/decode_numpy.py",
    "lake/arrow/decode_layout.py",
    "lake/arrow/decode_buffers.py",
    "stream/compaction/plan.py",
    "lake/manifest/errors.py",
    "stream/format/manifest/model.py",
    "stream/format/manifest/codec.py",
    "lake/manifest/plan.py",
    "lake/spark/errors.py",
    "lake/spark/offsets.py",
    "lake/spark/options.py",
    "lake/spark/ranges.py",
    "lake/spark/limits.py",
    "lake/spark/packing.py",
    "lake/spark/filters.py",
    "lake/spark/sink/errors.py",
    "lake/spark/sink/options.py",
    "lake/spark/sink/settings.py",
    "lake/spark/sink/rows.py",
    "lake/rewrite/plan.py",
    "lake/sql/errors.py",
    "lake/sql/inference.py",
    "lake/sql/pruning.py",
    "lake/table/errors.py",
    "lake/table/model.py",
    "lake/table/plan.py",
    "lake/table/settle.py",
    "lake/table/rows.py",
    "lake/table/values.py",
    "lake/table/tables.py",
    "controller/active/manifest/changes.py",
    "controller/active/manifest/ledger.py",
    "controller/api/callers.py",
    "controller/api/tls_errors.py",
    "controller/metadata",
    "controller/managers",
    "controller/active/mutation_quotas.py",
    "controller/active/balance/loads.py",
    "controller/active/balance/plan.py",
    "controller/active/balance/slow.py",
    "controller/active/balance/view.py",
    "controller/backup/layout.py",
    "controller/backup/new_streams.py",
    "controller/disaster_recovery/plan.py",
    "controller/disaster_recovery/report.py",
    "controller/active/sessions.py",
    "controller/active/record_ages.py",
    "base/listeners.py",
    "controller/raft/messages.py",
    "controller/raft/majority.py",
    "controller/raft/progress.py",
    "controller/raft/log.py",
    "controller/raft/membership.py",
    "controller/raft/core.py",
    "controller/raft/core_config.py",
    "controller/raft/promises.py",
    "controller/raft/volume.py",
    "objectstore/errors.py",
    "deploy/node/config/definition.py",
    "deploy/node/config/sources.py",
    "deploy/node/config/effective.py",
    "deploy/node/config/docs.py",
    "deploy/node/config/schema.py",
    "broker/network/connection.py",
    "broker/coordination/connection_order.py",
    "broker/config.py",
    "broker/dynamic_settings.py",
    "controller/metadata/acl_index.py",
    "base/acls.py",
    "broker/requests/recent_brokers.py",
    "broker/partition/load_meter.py",
    "broker/partition/producer_watch.py",
    "broker/background/store_rates.py",
    "base/log_limit.py",
    "broker/network/request_meter.py",
    "broker/quotas/clients.py",
    "broker/quotas/connections.py",
    "broker/quotas/rates.py",
    "protocol/throttle.py",
    "base/scram.py",
    "broker/network/tls_channel.py",
    "broker/security/config.py",
    "broker/security/distinguished_names.py",
    "broker/security/exchange.py",
    "broker/security/oauthbearer.py",
    "broker/security/plain.py",
    "broker/security/principal_rules.py",
    "broker/security/sasl.py",
    "broker/security/scram.py",
    "broker/security/tokens.py",
    "broker/security/users_file.py",
    "protocol/sasl/login.py",
    "protocol/sasl/mechanisms.py",
    "protocol/sasl/scram.py",
    "protocol/primitives.py",
    "protocol/framing.py",
    "protocol/produce.py",
    "protocol/fetch.py",
    "broker/partition/mirrored.py",
    "broker/partition/validation.py",
    "broker/partition/producer_state.py",
    "broker/partition/transactions.py",
    "broker/partition/verification.py",
    "broker/partition/leader_epochs.py",
    "broker/groups/classic/group.py",
    "broker/groups/coordinator/configs.py",
    "broker/groups/consumer",
    "broker/groups/common",
    "broker/groups/share/assignor.py",
    "broker/groups/share/group.py",
    "broker/groups/share/model.py",
    "broker/groups/share/records.py",
    "broker/groups/share/values.py",
    "broker/groups/classic/embedded.py",
    "broker/groups/classic/model.py",
    "broker/groups/offsets/offsets.py",
    "broker/groups/offsets/records.py",
    "deploy/local/seed.py",
    "deploy/local/client_dialects.py",
    "deploy/local/client_snippets.py",
    "deploy/node/config/exposure.py",
    "deploy/doctor/findings.py",
    "deploy/doctor/facts.py",
    "deploy/doctor/image_facts.py",
    "deploy/doctor/inventory.py",
    "deploy/doctor/checks.py",
    "deploy/doctor/report.py",
    "deploy/mirror/batches.py",
    "deploy/mirror/plan.py",
    "deploy/mirror/progress.py",
    "deploy/mirror/translation.py",
    "deploy/mirror/views.py",
    "deploy/admin/cost.py",
    "deploy/top/view.py",
    "penstock/testing/control.py",
    "penstock/testing/options.py",
    "penstock/testing/records.py",
    "broker/groups/share/partitions/batches.py",
    "broker/groups/share/partitions/sessions.py",
    "broker/groups/share/partitions/spans.py",
    "broker/groups/share/partitions/window.py",
    "broker/groups/share/state/combining.py",
    "broker/groups/share/state/records.py",
    "broker/groups/share/state/machine.py",
    "broker/transactions/machine.py",
    "broker/transactions/model.py",
    "broker/transactions/records.py",
)


@cache
def core_files() -> tuple[Path, ...]:
    """Return the modules listed in CORES. An entry without a module is an error."""
    modules = {shown(path): path for path in sources()}
    found: list[Path] = []
    for core in CORES:
        of_core = [
            path for name, path in modules.items() if name == core or name.startswith(f"{core}/")
        ]
        assert of_core, f"CORES names {core}, which does not exist"
        found += of_core
    return tuple(found)


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and top-level package of each import."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.lineno, node.module.split(".")[0]


def impurities(path: Path) -> Iterator[tuple[int, str]]:
    """Yield async code, and calls of the random module's shared generator."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Await | ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith):
            yield node.lineno, "async code"
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
        ):
            called = f"{node.func.value.id}.{node.func.attr}"
            if called.startswith("random.") and not (called == "random.Random" and node.args):
                yield node.lineno, called


def test_cores_import_nothing_impure() -> None:
    offenders = [
        f"{shown(path, line)}: {name}"
        for path in core_files()
        for line, name in imported(path)
        if name in IMPURE
    ]
    assert not offenders, listed(offenders)


def test_cores_have_no_async_code_and_no_unseeded_randomness() -> None:
    offenders = [
        f"{shown(path, line)}: {what}" for path in core_files() for line, what in impurities(path)
    ]
    assert not offenders, listed(offenders)
