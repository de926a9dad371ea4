"""The statuses of table runners in the store."""

from itertools import count

from penstock.lake.manifest.table_status import (
    RUNNERS_MAX,
    RunnerStatus,
    read_statuses,
    write_status,
)
from penstock.objectstore.memory import MemoryStore


async def test_statuses_of_old_runner_names_do_not_hide_new_ones() -> None:
    store = MemoryStore(count(1_000, 1_000).__next__)
    for number in range(RUNNERS_MAX + 5):
        name = f"runner-{RUNNERS_MAX + 5 - number:03}"
        status = RunnerStatus(runner=name, version="1", started_ms=0, updated_ms=number)
        await write_status(store, "c", status)
    found = [status.runner for status in await read_statuses(store, "c")]
    assert found == [f"runner-{number:03}" for number in range(1, RUNNERS_MAX + 1)]
