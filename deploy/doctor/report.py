"""All that was found, and what the process ends with.

Invariant: pure. Exit codes: 0 all is well, 1 something needs somebody to act, 2 nothing found but
something that was asked for could not be looked at.
"""

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from deploy.doctor.findings import CheckResult, Finding, Level

EXIT_OK: Final = 0
EXIT_FINDINGS: Final = 1
EXIT_NOT_CHECKED: Final = 2


class Report(msgspec.Struct, frozen=True):
    """What `--json` prints. accepted: findings that the caller wants to live with. deleted:
    orphans.
    """

    cluster_id: str
    checked_ms: int
    exit_code: int
    verdict: str
    checks: list[CheckResult]
    accepted: list[Finding]
    deleted: int = 0


def report(
    cluster_id: str,
    checked_ms: int,
    checks: Sequence[CheckResult],
    accept: Collection[str],
    deleted: int = 0,
) -> Report:
    """accept: codes."""
    accepted = [finding for check in checks for finding in check.findings if finding.code in accept]
    kept = [_without(check, accept) for check in checks]
    acting = sum(finding.level.needs_action for check in kept for finding in check.findings)
    failed = [check.name for check in kept if check.failed]
    skipped = [check.name for check in kept if check.level is Level.UNCHECKED and not check.failed]
    if acting:
        code, verdict = (
            EXIT_FINDINGS,
            f"{acting} finding{'s need' if acting > 1 else ' needs'} action",
        )
    elif failed:
        code, verdict = EXIT_NOT_CHECKED, "nothing found"
    else:
        code, verdict = EXIT_OK, "all is well"
    if failed or skipped:
        verdict += f"; not checked: {', '.join((*failed, *skipped))}"
    return Report(cluster_id, checked_ms, code, verdict, kept, accepted, deleted)


def _without(check: CheckResult, accept: Collection[str]) -> CheckResult:
    kept = [finding for finding in check.findings if finding.code not in accept]
    if len(kept) == len(check.findings):
        return check
    levels = [finding.level for finding in kept]
    return msgspec.structs.replace(
        check, findings=kept, level=max(levels, key=list(Level).index, default=Level.OK)
    )
