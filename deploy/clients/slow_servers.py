"""Report to the user of a command that it is waiting for an object store or a schema registry."""

from penstock.base.slow_calls import SLOW_S, report_slow_calls
from penstock.deploy.output import remark


def report_slow_servers() -> None:
    """Print a line on stderr for each server that does not complete a call in time. Applies to
    servers that are used later.
    """
    report_slow_calls(_report)


def _report(server: str) -> None:
    remark(f"penstock: waiting for {server}, which has not completed a request for {SLOW_S:g} s")
