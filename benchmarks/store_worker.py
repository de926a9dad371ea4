"""Write and read objects of an S3 store, for `benchmarks.store_pairs`, which counts the
instructions. `store_worker.py URL` reads object counts from standard input, and prints each count
when that many objects are done.
"""

import asyncio
import sys
from itertools import count

from penstock.objectstore.url import open_store

_BODY = bytes(1024)


async def main(url: str) -> None:
    store = open_store(url)
    keys = (f"pairs/{number:012d}" for number in count())
    try:
        while line := await asyncio.to_thread(sys.stdin.readline):
            for _ in range(int(line)):
                key = next(keys)
                await store.put_if_absent(key, _BODY)
                assert len(await store.get(key)) == len(_BODY)
            sys.stdout.write(line)
            sys.stdout.flush()
    finally:
        await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
