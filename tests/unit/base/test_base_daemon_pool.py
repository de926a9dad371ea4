"""Calls in daemon threads: results, errors, and behavior after calls that hang."""

import asyncio
from threading import Event, current_thread

import pytest

from penstock.base.daemon_pool import DaemonPool, PoolFull


async def test_calls_return_or_raise_in_daemon_threads() -> None:
    pool = DaemonPool("test", threads_max=2, waiting_max=10)
    threads = await asyncio.gather(*(pool.run(current_thread) for _ in range(8)))
    assert all(thread.daemon for thread in threads)
    assert len(set(threads)) <= 2
    with pytest.raises(ZeroDivisionError):
        await pool.run(lambda: 1 // 0)
    pool.close()


async def test_calls_wait_up_to_a_limit_if_all_threads_hang() -> None:
    pool = DaemonPool("test", threads_max=1, waiting_max=2)
    responds, ran = Event(), list[str]()
    hanging = asyncio.ensure_future(pool.run(lambda: responds.wait(60)))
    given_up = asyncio.ensure_future(pool.run(lambda: ran.append("given up")))
    waiting = asyncio.ensure_future(pool.run(lambda: ran.append("waited")))
    try:
        await asyncio.sleep(0)
        with pytest.raises(PoolFull, match="3 calls to test"):
            await pool.run(lambda: ran.append("too many"))
        given_up.cancel()
        await asyncio.wait([given_up])
    finally:
        responds.set()
    await waiting
    assert await hanging
    assert ran == ["waited"]
    assert await pool.run(lambda: "again") == "again"
    pool.close()
