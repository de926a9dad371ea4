"""The health of a table runner, for the probes of `deploy.node.health`."""

import time
from typing import Final

from penstock.lake.manifest.table_status import RunnerState

STUCK_S: Final = 600.0
"""Time without activity after which the runner counts as stuck. It exceeds every wait in the main
thread, whose deadlines are 300 s.
"""


class RunnerHealth:
    """The health of a runner. A failing topic does not make the runner unhealthy, because a restart
    would not help and would interrupt other exports.
    """

    def __init__(self, state: RunnerState) -> None:
        self.state = state

    def not_started(self) -> list[str]:
        if self.state.is_started:
            return []
        return [self.state.status.error or "the topics of the cluster have not been read yet"]

    def not_alive(self) -> list[str]:
        age_s = time.monotonic() - self.state.turned_at_s
        return [f"the runner has been stuck for {age_s:.0f} s"] if age_s > STUCK_S else []

    async def not_ready(self) -> list[str]:
        error = self.state.status.error
        return self.not_started() or ([f"topics cannot be discovered: {error}"] if error else [])
