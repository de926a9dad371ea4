"""A process that ends right after an answer of S3 ends with its own exit code."""

import asyncio
import os
import sys
from typing import Final

from tests.unit.objectstore.test_objectstore_s3 import answer, raw_store

_RUNS: Final = 48
"""Without the wait of `objectstore.remote_exit`, one process in 6 to 20 is aborted: most test runs
fail."""
_AT_ONCE: Final = 4

_PROGRAM: Final = """
import asyncio, sys
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

asyncio.run(main())
"""


async def test_no_process_is_aborted_at_its_end() -> None:
    async with raw_store(*[answer(404, "NoSuchBucket")] * _RUNS) as (raw, _):
        turns = asyncio.Semaphore(_AT_ONCE)

        async def exit_code() -> int:
            async with turns:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-P", "-c", _PROGRAM, raw.endpoint, env=os.environ.copy()
                )
                return await process.wait()

        codes = await asyncio.gather(*(exit_code() for _ in range(_RUNS)))
    assert set(codes) == {3}
