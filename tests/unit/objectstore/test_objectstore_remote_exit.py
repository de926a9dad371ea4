"""A process that exits right after an S3 response exits with its own code."""

import asyncio
import sys
from typing import Final

from tests.unit.objectstore.test_objectstore_s3 import error_response, raw_store

_RUNS: Final = 24
"""Without the wait of `objectstore.remote_exit`, one process in five aborts, so most runs of this
test fail.
"""

_PROGRAM: Final = """
import asyncio, os, sys
from penstock.objectstore.config import S3Config
from penstock.objectstore.s3 import S3Store

async def main():
    config = S3Config(
        bucket="b", endpoint=sys.argv[1], region="us-east-1", access_key="a", secret_key="b"
    )
    try:
        await S3Store(config).get("key")
    finally:
        sys.exit(3)

AT_ONCE, runs = 4, int(sys.argv[2])
for number in range(runs + AT_ONCE):
    if number >= AT_ONCE:
        print(os.waitstatus_to_exitcode(os.wait()[1]))
    if number < runs and not os.fork():  # imports only once
        asyncio.run(main())
"""


async def test_no_process_aborts_at_exit() -> None:
    async with raw_store(*[error_response(404, "NoSuchBucket")] * _RUNS) as (raw, _):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-c", _PROGRAM, raw.endpoint, str(_RUNS)),
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
    assert output.split() == [b"3"] * _RUNS
