"""Report to the user of a command that it is waiting for an object store or a schema registry."""

from penstock.base.slow_calls import SLOW_S, report_slow_calls
from penstock.deploy.output import remark


def report_slow_servers() -> None:
    """Print a line on stderr for each server that does not complete a call in time. Applies to
    servers that are used later.
    """
    late = f"has not completed a request for {SLOW_S:g} s"
    report_slow_calls(lambda server: remark(f"penstock: waiting for {server}, which {late}"))
