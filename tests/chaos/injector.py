"""Apply scheduled faults to processes, links and the store, and log one line per fault.

Invariant: when `inject` returns, the fault is over and healed. Processes that it stopped may still
be starting.
"""

import asyncio
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tests.chaos.processes import Processes
from tests.chaos.record import Record
from tests.chaos.schedule import CONTROLLERS, LEADER, Fault, Kind

LEAVE_TIMEOUT_S: Final = 60.0
"""Time limit for a process to exit after SIGTERM, also while controllers are down."""


class Injector:
    def __init__(self, processes: Processes, record: Record, say: Callable[[str], None]) -> None:
        self._processes = processes
        self._record = record
        self._say = say

    async def inject(self, fault: Fault) -> None:
        if LEADER in fault.whom:
            leader = await self._processes.leading_controller()
            fault = replace(
                fault, whom=tuple(leader if name == LEADER else name for name in fault.whom)
            )
        self._record.faults[fault.kind] += 1
        line = str(fault)
        self._record.tell(f"fault {line}", now=True)
        self._say(f"{self._record.now():7.1f} s  {line}")
        match fault.kind:
            case Kind.KILL:
                await self._kill(fault)
            case Kind.PAUSE:
                await self._pause(fault)
            case Kind.TERMINATE:
                await self._terminate(fault)
            case Kind.CUT:
                await self._cut([(fault.whom[0], fault.whom[1])], fault)
            case Kind.HOLD:
                await self._hold(fault)
            case Kind.ISOLATE:
                name = fault.whom[0]
                others = [other for other in CONTROLLERS if other != name]
                await self._cut(
                    [pair for other in others for pair in ((name, other), (other, name))], fault
                )
            case Kind.RESET:
                self._processes.network.reset_node(fault.whom[0])
            case Kind.SLOW_LINK:
                await self._slow_link(fault)
            case _:
                await self._store(fault)
        self._record.tell(f"fault over {line}")

    async def _kill(self, fault: Fault) -> None:
        nodes = [self._processes.node(name) for name in fault.whom]
        for node in nodes:
            node.held_down = True
            self._processes.signal(node, signal.SIGKILL)
        try:
            await asyncio.sleep(fault.for_s)
        finally:
            for node in nodes:
                node.held_down = False

    async def _pause(self, fault: Fault) -> None:
        node = self._processes.node(fault.whom[0])
        process = node.process
        self._processes.signal(node, signal.SIGSTOP)
        try:
            await asyncio.sleep(fault.for_s)
        finally:
            if node.process is process:
                self._processes.signal(node, signal.SIGCONT)

    async def _terminate(self, fault: Fault) -> None:
        node = self._processes.node(fault.whom[0])
        node.held_down = True
        try:
            self._processes.signal(node, signal.SIGTERM)
            if not await self._processes.until_gone(node, LEAVE_TIMEOUT_S):
                self._record.violate(
                    f"{node.name} did not leave within {LEAVE_TIMEOUT_S:.0f} s of SIGTERM"
                )
                self._processes.signal(node, signal.SIGKILL)
            await asyncio.sleep(fault.for_s)
        finally:
            node.held_down = False

    async def _cut(self, pairs: list[tuple[str, str]], fault: Fault) -> None:
        network = self._processes.network
        for pair in pairs:
            network.cut(*pair)
        try:
            await asyncio.sleep(fault.for_s)
        finally:
            for pair in pairs:
                network.heal(*pair, late=fault.late)

    async def _hold(self, fault: Fault) -> None:
        network = self._processes.network
        hold = network.hold(fault.whom[0], fault.whom[1])
        try:
            await asyncio.sleep(fault.for_s)
        finally:
            network.release(hold)

    async def _slow_link(self, fault: Fault) -> None:
        self._processes.network.slow(fault.whom[0], fault.delay_ms)
        try:
            await asyncio.sleep(fault.for_s)
        finally:
            self._processes.network.slow(fault.whom[0], 0.0)

    async def _store(self, fault: Fault) -> None:
        self._processes.store.begin(fault)
        try:
            await asyncio.sleep(fault.for_s)
        finally:
            self._processes.store.end(fault)
