"""A real shim over a stand-in for NVIDIA's library: how soon broken and hanging GPUs are withdrawn,
and what its API reports meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from bench.proofs._table import conclude
from fairlead.wire.node import GpuInfo
from shim.client import ShimClient
from tests.support import nvml
from tests.support.nvml import StandIn
from tests.support.processes import ShimProcess

GPUS = 8
WITHIN = 2.0
ANSWERS_WITHIN = 0.5
GIVES_UP = 10.0

SIGNS: dict[str, dict[str, object]] = {
    "lost": {"lost": 1},
    "recovery action": {"recovery": 1},
    "remapping failed": {"failed": 1},
}


class Machine:
    """The shim, its driver's state, and how long each question took."""

    def __init__(self, standin: StandIn, client: ShimClient) -> None:
        self.standin = standin
        self.slowest = 0.0
        self.broken: list[str] = []
        self._client = client

    async def gpu(self, index: int) -> GpuInfo:
        started = time.monotonic()
        node = await self._client.node()
        self.slowest = max(self.slowest, time.monotonic() - started)
        (found,) = [gpu for gpu in node.gpus if gpu.index == index]
        return found

    async def until(self, index: int, wanted: Callable[[GpuInfo], bool], what: str) -> float:
        started = time.monotonic()
        while not wanted(await self.gpu(index)):
            if time.monotonic() - started > GIVES_UP:
                self.broken.append(f"GPU {index}: not {what} within {GIVES_UP:g} s")
                break
            await asyncio.sleep(0.005)
        return time.monotonic() - started

    async def repair(self, index: int) -> None:
        self.standin.gpus[index] |= {"lost": 0, "recovery": 0, "failed": 0}
        self.standin.tell()
        gpu = await self.gpu(index)
        if (gpu.message or "").startswith("cordoned"):
            await self._client.clear_gpu(gpu.uuid)
        await self.until(index, lambda one: one.healthy and not one.held, "offered again")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, metavar="N")
    asyncio.run(_prove(parser.parse_args().rounds))


async def _prove(rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="fp-", dir="/tmp") as name:
        async with _machine(Path(name)) as machine:
            times = await _rounds(machine, rounds)
    broken = machine.broken
    for what, seconds in times.items():
        if max(seconds) > WITHIN:
            broken.append(f"{what}: withdrawn after {max(seconds):.2f} s")
    if machine.slowest > ANSWERS_WITHIN:
        broken.append(f"an answer of the API took {machine.slowest:.2f} s")
    figures: list[tuple[str, object]] = [
        (f"{what}: withdrawn after (median, worst)", _spread(seconds))
        for what, seconds in times.items()
    ]
    figures.append(("slowest answer of the API", f"{machine.slowest * 1000:.0f} ms"))
    conclude(f"NVML, {GPUS} GPUs, {rounds} rounds", figures, broken)


async def _rounds(machine: Machine, rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {}
    for number in range(rounds):
        index = number % GPUS
        machine.standin.raise_xid(index, 79)
        times.setdefault("XID 79", []).append(await _withdrawn(machine, index))
        await machine.repair(index)
        for what, sign in SIGNS.items():
            machine.standin.change(index, **sign)
            times.setdefault(what, []).append(await _withdrawn(machine, index))
            await machine.repair(index)
        machine.standin.tell(f"hang nvmlDeviceGetMemoryInfo_v2 {index}")
        times.setdefault("hanging call", []).append(await _withdrawn(machine, index))
        await machine.repair(index)
        machine.standin.raise_xid(index, 13)
        if not (await machine.gpu(index)).healthy:
            machine.broken.append("XID 13, which is the application's, withdrew a GPU")
    return times


async def _withdrawn(machine: Machine, index: int) -> float:
    return await machine.until(index, lambda one: not one.healthy, "withdrawn")


@asynccontextmanager
async def _machine(folder: Path) -> AsyncIterator[Machine]:
    library = await asyncio.to_thread(nvml.build, folder)
    standin = StandIn(folder / "state", GPUS)
    env = {"LD_LIBRARY_PATH": str(library.parent), nvml.STATE: str(standin.state)}
    shim = ShimProcess(folder / "n", "process", env=env)
    await asyncio.to_thread(shim.start)
    try:
        connector = aiohttp.UnixConnector(str(shim.socket))
        async with aiohttp.ClientSession(connector=connector) as session:
            machine = Machine(standin, ShimClient(session))
            await machine.until(0, lambda one: one.healthy and not one.held, "offered")
            yield machine
    finally:
        await asyncio.to_thread(shim.close)


def _spread(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    return f"{ordered[len(ordered) // 2]:.2f} s, {ordered[-1]:.2f} s"
