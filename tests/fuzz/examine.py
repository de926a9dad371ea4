"""Run one input of a target and report its findings."""

import time
import traceback
import tracemalloc

from tests.fuzz.targets import Target

WAIT_MAX_S = 100.0
"""CPU time does not include waiting, and a busy machine can stretch one second to several."""
TRACED_SLOWER = 5.0
_LOOP_COUNT = 1_000_000
_LOOP_S = 0.02
"""CPU seconds of a loop of _LOOP_COUNT iterations on a machine of the usual speed."""


def examine(target: Target, data: bytes, *, traced: bool = False) -> str | None:
    """Return the finding for this input; None if the parser behaves as documented.

    traced: measure memory, which makes the run several times slower. Processes that do not measure
    it limit their address space instead.
    """
    for each in target.inputs(data):
        wrong = _traced(target, each) if traced else _run(target, each)
        if wrong is not None:
            return wrong
    return None


def _traced(target: Target, data: bytes) -> str | None:
    tracemalloc.start()
    try:
        wrong = _run(target, data, slower=TRACED_SLOWER)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    if wrong is None and peak_bytes > target.memory_bytes_max:
        return f"it allocates {peak_bytes} bytes, {target.memory_bytes_max} are allowed"
    return wrong


def _run(target: Target, data: bytes, *, slower: float = 1.0) -> str | None:
    before_s, begun_s = time.thread_time(), time.monotonic()
    try:
        target.read(data)
    except target.allowed:
        pass
    except Exception:  # noqa: BLE001 - that is what fuzzing looks for
        return traceback.format_exc()
    took_s = time.thread_time() - before_s
    time_max_s = slower * target.time_max_s
    if took_s > time_max_s and took_s > (time_max_s := time_max_s * _slowness()):
        return f"it takes {took_s:.1f} s of CPU, {time_max_s:.1f} are allowed"
    waited_s = time.monotonic() - begun_s
    if waited_s > WAIT_MAX_S:
        return f"it takes {waited_s:.1f} s, {WAIT_MAX_S} are allowed"
    return None


def _slowness() -> float:
    """Return how many times slower than usual this machine is now, at least 1."""
    before_s = time.thread_time()
    for _ in range(_LOOP_COUNT):
        pass
    return max(1.0, (time.thread_time() - before_s) / _LOOP_S)
