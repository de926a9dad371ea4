"""Collect all findings and determine the exit code.

Invariant: pure. Exit codes: 0 no problem, 1 a finding needs action, 2 no such finding but a
requested check could not be performed.
"""

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from penstock.deploy.doctor.findings import CheckResult, Finding, Level

EXIT_OK: Final = 0
EXIT_FINDINGS: Final = 1
EXIT_NOT_CHECKED: Final = 2


class Report(msgspec.Struct, frozen=True):
    """The output of `--json`. accepted: findings that the caller accepts. deleted: number of
    orphans.
    """

    cluster_id: str
    checked_ms: int
    exit_code: int
    verdict: str
    checks: list[CheckResult]
    accepted: list[Finding]
    deleted: int = 0


def build_report(
    cluster_id: str,
    checked_ms: int,
    checks: Sequence[CheckResult],
    accept: Collection[str],
    deleted: int = 0,
) -> Report:
    """Build the report. accept: codes of findings."""
    accepted = [finding for check in checks for finding in check.findings if finding.code in accept]
    remaining = [_without_accepted(check, accept) for check in checks]
    acting = sum(finding.level.needs_action for check in remaining for finding in check.findings)
    failed = [check.name for check in remaining if check.failed]
    skipped = [
        check.name for check in remaining if check.level is Level.UNCHECKED and not check.failed
    ]
    if acting:
        code, verdict = (
            EXIT_FINDINGS,
            f"{acting} finding{'s need' if acting > 1 else ' needs'} action",
        )
    elif failed:
        code, verdict = EXIT_NOT_CHECKED, "no problem found"
    else:
        code, verdict = EXIT_OK, "no problem found"
    if failed or skipped:
        verdict += f"; not checked: {', '.join((*failed, *skipped))}"
    return Report(cluster_id, checked_ms, code, verdict, remaining, accepted, deleted)


def _without_accepted(check: CheckResult, accept: Collection[str]) -> CheckResult:
    remaining = [finding for finding in check.findings if finding.code not in accept]
    if len(remaining) == len(check.findings):
        return check
    levels = [finding.level for finding in remaining]
    return msgspec.structs.replace(
        check, findings=remaining, level=max(levels, key=list(Level).index, default=Level.OK)
    )
