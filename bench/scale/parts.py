"""The parts of the measurement; each returns rows of the table."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterable, Sequence

import msgspec

from bench.scale.lab import Api, ScaleLab, Swarm, add_nodes, all_of
from tests.support.waiting import eventually

STEADY_SECONDS = 60.0
SETTLING_SECONDS = 75.0
"""After this time the last work is over: a little output is acknowledged a minute after it came."""
GANG = 200
PROBE_SECONDS = 0.01


class Row(msgspec.Struct, frozen=True):
    """One row of the table. `met` None: there is no goal."""

    what: str
    figure: str
    goal: str = ""
    met: bool | None = None
    kind: str = ""
    """The name in `bench.history.KINDS`, if releases are compared by it."""
    value: float = 0.0


def p(values: Iterable[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


class Stopwatch:
    """Wall and controller's CPU seconds."""

    def __init__(self, lab: ScaleLab) -> None:
        self._lab = lab
        self._began, self._cpu = time.monotonic(), lab.cpu_seconds()

    @property
    def wall(self) -> float:
        return time.monotonic() - self._began

    @property
    def cpu(self) -> float:
        return self._lab.cpu_seconds() - self._cpu

    def __str__(self) -> str:
        return f"{self.wall:.1f} s ({self.cpu:.1f} s CPU)"


async def connect(lab: ScaleLab) -> list[Row]:
    watch = Stopwatch(lab)
    await add_nodes(lab)
    return [Row(f"{len(lab.node_names)} nodes added and connected", str(watch))]


async def submit(lab: ScaleLab, numbers: range) -> list[Row]:
    """Submit jobs with these numbers, where all before them run."""
    count = len(numbers)
    watch = Stopwatch(lab)
    async with lab.api() as api:
        placed = asyncio.create_task(_until_placed(lab, numbers.stop, watch))
        await all_of([api.submit(f"job-{number}") for number in numbers])
        accepted = str(watch)
        placed_at = await placed
        await lab.until("runs", "running", numbers.stop, 300)
    rate, of_cpu = count / placed_at[0], count / placed_at[1]
    return [
        Row(f"{count} runs submitted, all answered", accepted),
        Row(
            f"{count} runs submitted, all placed and committed",
            f"{rate:.0f} jobs/s ({of_cpu:.0f} per s of CPU)",
            "≥ 500 jobs/s",
            rate >= 500,
            "scale.submit",
            rate,
        ),
        Row(
            f"{count} runs submitted, all RUNNING",
            f"{watch}, {count / watch.wall:.0f} jobs/s",
        ),
    ]


async def _until_placed(lab: ScaleLab, count: int, watch: Stopwatch) -> tuple[float, float]:
    await lab.until("allocations", "held", count, 300)
    return watch.wall, watch.cpu


async def steady(lab: ScaleLab, base: int) -> list[Row]:
    """Measure the idle state. `base`: the memory before there was a node."""
    count = len(lab.node_names)
    await asyncio.sleep(SETTLING_SECONDS)
    watch = Stopwatch(lab)
    await asyncio.sleep(STEADY_SECONDS)
    share = watch.cpu / watch.wall
    each = (lab.rss() - base) / count
    return [
        Row(
            f"{count} jobs run: CPU",
            f"{share:.1%} of a core",
            "≤ 5 %",
            share <= 0.05,
            "scale.cpu",
            100 * share,
        ),
        Row(
            f"{count} jobs run: RSS",
            f"{each / 1024:.0f} KiB a node ({lab.rss() >> 20} MiB in all)",
            "≤ 100 KiB a node",
            each <= 100 * 1024,
            "scale.node",
            each / 1024,
        ),
    ]


def slope(lab: ScaleLab, base: int, at_half: int, half: int) -> list[Row]:
    """Measure the memory for each node: that with half of the nodes and with all."""
    later = len(lab.node_names) - half
    each = (lab.rss() - at_half) / later
    once = at_half - base - half * each
    return [
        Row(
            f"RSS of each of the last {later}",
            f"{each / 1024:.0f} KiB, besides {once / (1 << 20):.1f} MiB once",
            "≤ 100 KiB a node",
            each <= 100 * 1024,
            "scale.ssh_node",
            each / 1024,
        )
    ]


async def exits(lab: ScaleLab, tries: int = GANG, pause: float = 0.1) -> list[Row]:
    swarm = lab.swarms[0]
    names = [f"job-{number}" for number in range(len(lab.node_names))]
    ended: list[tuple[float, float]] = []
    async with lab.api() as api:
        watches: list[asyncio.Task[None]] = []
        for name in names:
            if len(watches) == tries:
                break
            watching = await _end_and_watch(lab, api, swarm, name, ended)
            watches += [watching] if watching else []
            await asyncio.sleep(pause)
        await asyncio.gather(*watches)
    reported, final = zip(*ended, strict=True)
    return [
        _latency(f"{tries} exits beside them → the attempt's end in the API", reported, True),
        _latency(f"{tries} exits beside them → DONE, all cleaned up", final, False),
    ]


def _latency(what: str, seconds: Sequence[float], has_goal: bool) -> Row:
    middle, worst = statistics.median(seconds) * 1000, p(seconds, 99) * 1000
    goal = "p50 ≤ 50 ms, p99 ≤ 250 ms" if has_goal else ""
    met = (middle <= 50 and worst <= 250) if has_goal else None
    kind = "scale.exit" if has_goal else ""
    return Row(what, f"p50 {middle:.0f} ms, p99 {worst:.0f} ms", goal, met, kind, worst)


async def _end_and_watch(
    lab: ScaleLab, api: Api, swarm: Swarm, name: str, ended: list[tuple[float, float]]
) -> asyncio.Task[None] | None:
    """End a run and watch it; None: it is on a node of another process."""
    ready = asyncio.Event()
    seen: list[float] = []

    async def watch() -> None:
        async with api.session.get(f"/v1/runs/{name}/watch") as answer:
            async for line in answer.content:
                run = msgspec.json.decode(line)["run"]
                ready.set()
                if run and run["jobs"][0]["attempts"][-1]["termination_reason"] and not seen:
                    seen.append(time.time())
                if run and run["status"] == "done":
                    seen.append(time.time())

    watching = asyncio.create_task(watch())
    await ready.wait()
    ending = await lab.tell_nodes(swarm, f"/end/{name}")
    if ending is None:
        watching.cancel()
        return None

    async def take() -> None:
        await watching
        ended.append((seen[0] - ending["at"], seen[-1] - ending["at"]))

    return asyncio.create_task(take())


async def gang(lab: ScaleLab) -> list[Row]:
    before = lab.count("runs", "running")
    watch = Stopwatch(lab)
    async with lab.api() as api:
        await api.submit("gang", nodes=GANG)
        await lab.until("runs", "running", before + 1, 60)
    return [
        Row(
            f"a gang of {GANG} → RUNNING",
            str(watch),
            "≤ 2 s and the nodes'",
            watch.wall <= 2.0,
            "scale.gang",
            watch.wall,
        )
    ]


async def reconnect(lab: ScaleLab, count: int = 1000) -> list[Row]:
    """Measure a reconnect of all nodes.

    The lag is measured from outside: the time of a trivial API request, which is the loop's lag and
    the request itself.
    """
    swarm, total = lab.swarms[0], len(lab.node_names)
    count = min(count, len(swarm.nodes))
    lags: list[float] = []
    async with lab.api() as api:
        probing = asyncio.create_task(_probe(api, lags))
        await asyncio.sleep(5.0)
        quiet, before = list(lags), lab.restarts()
        lags.clear()
        watch = Stopwatch(lab)
        await lab.tell_nodes(swarm, f"/cut/{count}")
        await eventually(lambda: lab.count("nodes", "connected") < total, 10)
        await lab.until("nodes", "connected", total, 120)
        back = str(watch)
        took = watch.wall
        probing.cancel()
    assert lab.restarts() == before, "jobs were restarted"
    return [
        Row(f"{count} nodes reconnect at once: all back", back, "≤ 60 s", took <= 60),
        Row(
            "meanwhile a request that asks for nothing",
            f"p50 {p(lags, 50) * 1000:.0f} ms, p99 {p(lags, 99) * 1000:.0f} ms "
            f"(before: p50 {p(quiet, 50) * 1000:.0f} ms, p99 {p(quiet, 99) * 1000:.0f} ms)",
            "p99 ≤ 100 ms",
            p(lags, 99) <= 0.1,
            "scale.reconnect",
            1000 * p(lags, 99),
        ),
    ]


async def _probe(api: Api, lags: list[float]) -> None:
    while True:
        began = time.monotonic()
        async with api.session.get("/v1/health") as answer:
            await answer.read()
        lags.append(time.monotonic() - began)
        await asyncio.sleep(PROBE_SECONDS)
