"""Tell the user of a command that it waits for an object store."""

from penstock.deploy.output import remark
from penstock.objectstore.slow_calls import SLOW_S, report_slow_calls


def report_slow_stores() -> None:
    """Print a line on stderr once a store that is opened later does not complete a call in time."""
    report_slow_calls(_report)


def _report(store: str) -> None:
    remark(
        f"penstock: waiting for the object store {store}, which has not completed a request for"
        f" {SLOW_S:g} s"
    )
