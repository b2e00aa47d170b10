"""The log survives its readers: 1 GiB with the reader killed 100 times is whole, and a hundred
followers, some of them stalled, cost the runner little memory and the job little time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from array import array
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import msgspec

from bench.proofs._table import conclude
from bench.runner_logs import job
from fairlead.wire.frames import Decoder, Stream
from fairlead.wire.runner import RunnerState
from runner.client import BASE_URL, RunnerClient
from tests.support.dialling import dial_to

MIB = 1 << 20
QUOTA = 8 << 30
MAX_RSS_MIB = 32.0
MAX_SLOWDOWN = 0.05
_START_LIMIT = 10.0
KEPT = 64
_COUNTERS = MIB // 8

COUNTS = """
import os, time
from array import array
from itertools import count
BLOCK = [array("Q", range(n * {counters}, (n + 1) * {counters})).tobytes() for n in range({kept})]
begin = time.monotonic()
for n in range({blocks}):
    data = memoryview(BLOCK[n % {kept}])
    while data:
        data = data[os.write(1, data):]
    if {pause}:
        time.sleep(max(0.0, begin + (n + 1) * {pause} - time.monotonic()))
with open("TOOK", "w") as file:
    file.write(str(time.monotonic() - begin))
"""
"""Writes MiB blocks of growing numbers, `kept` different ones and then the first again; finally it
writes the seconds that this took to a file."""


class Entrypoint(msgspec.Struct, frozen=True):
    client: RunnerClient
    folder: Path
    pid: int

    @property
    def socket(self) -> str:
        return str(self.folder / "runner.sock")


@contextlib.asynccontextmanager
async def entrypoint(linger: int = 3600) -> AsyncIterator[Entrypoint]:
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="fairlead-proof-"))
    socket = folder / "runner.sock"
    arguments = ("--task", str(folder / "task"), "--socket", str(socket), "--peers", "any")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "entrypoint.main", *arguments, "--linger", str(linger)
    )
    try:
        async with asyncio.timeout(_START_LIMIT):
            while not await asyncio.to_thread(socket.exists):  # noqa: ASYNC110 (another process's)
                await asyncio.sleep(0.01)
        connector = aiohttp.UnixConnector(str(socket))
        async with aiohttp.ClientSession(base_url=BASE_URL, connector=connector) as session:
            client = RunnerClient(session, dial_answer=dial_to(socket))
            yield Entrypoint(client, folder, process.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await asyncio.to_thread(shutil.rmtree, folder)


def counting(blocks: int, *, pause: float = 0.0) -> str:
    kept = min(KEPT, blocks)
    code = COUNTS.format(counters=_COUNTERS, kept=kept, blocks=blocks, pause=pause)
    return f"exec {sys.executable} -c '{code}'"


async def start(runner: Entrypoint, command: str) -> None:
    request = job(command)
    spec = msgspec.structs.replace(request.job, log_quota=QUOTA, working_dir=str(runner.folder))
    await runner.client.submit(msgspec.structs.replace(request, job=spec))
    await runner.client.run()


async def ended(runner: Entrypoint) -> None:
    async for event in runner.client.status_events():
        if event.state is RunnerState.SERVING_LOGS:
            if event.exit is None or event.exit.exit_code != 0:
                raise RuntimeError(f"the job failed: {event.exit}")
            return


# -- a reader that is killed ----------------------------------------------------------------


class Reading(msgspec.Struct, frozen=True):
    kills: int
    lost: int
    doubled: int
    wrong: int
    seconds: float


async def with_kills(mebibytes: int, kills: int, seed: int) -> Reading:
    chance = random.Random(seed)
    most = max(1, mebibytes * 3 // (2 * (kills + 1)))
    with tempfile.TemporaryDirectory(prefix="fairlead-proof-") as folder:
        path, begin = Path(folder) / "frames", time.monotonic()
        async with entrypoint() as runner:
            await start(runner, counting(mebibytes))
            killed = 0
            for _ in range(kills):
                killed += await _read(runner.socket, path, chance.randint(1, most))
            await _read(runner.socket, path, None)
        seconds = time.monotonic() - begin
        lost, doubled, wrong = await asyncio.to_thread(_compare, path, mebibytes)
    return Reading(kills=killed, lost=lost, doubled=doubled, wrong=wrong, seconds=seconds)


async def _read(socket: str, path: Path, kill_after: int | None) -> bool:
    """Run one life of the reader, which is killed after so many MiB; return whether it was
    killed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.proofs._reader", socket, str(path)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    received, killed = 0, False
    while piece := await process.stdout.read(1024):
        received += len(piece)
        if kill_after is not None and received >= kill_after and not killed:
            os.kill(process.pid, signal.SIGKILL)
            killed = True
    status = await process.wait()
    if not killed and status != 0:
        raise RuntimeError(f"the reader failed: {status}")
    return killed


def _compare(path: Path, mebibytes: int) -> tuple[int, int, int]:
    """Return the bytes that are lost, doubled and wrong in the file of all frames."""
    decoder, end, position, lost, doubled, wrong = Decoder(), 0, 0, 0, 0, 0
    counters = array("Q", range(KEPT * _COUNTERS)).tobytes()
    with path.open("rb") as file:
        while piece := file.read(8 * MIB):
            for frame in decoder.feed(piece):
                lost += frame.dropped + max(0, frame.offset - end)
                doubled += max(0, end - frame.offset)
                end = frame.end
                if frame.stream is Stream.STDOUT:
                    wrong += frame.payload != _at(counters, position, len(frame.payload))
                    position += len(frame.payload)
    return lost + max(0, mebibytes * MIB - position), doubled, wrong


def _at(repeated: bytes, offset: int, size: int) -> bytes:
    begin = offset % len(repeated)
    found = repeated[begin : begin + size]
    return found + repeated[: size - len(found)]


# -- a hundred followers --------------------------------------------------------------------


class Crowded(msgspec.Struct, frozen=True):
    job_seconds: float
    rss_mib: float
    """The largest growth of memory, in MiB."""


async def with_followers(command: str, followers: int, stalled: int) -> Crowded:
    """Return the time that the job took until its last write was accepted."""
    async with entrypoint() as runner:
        await runner.client.health()
        before = await asyncio.to_thread(_rss_mib, runner.pid, "VmRSS")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.proofs._crowd"),
            *(runner.socket, str(followers), str(stalled)),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        await process.stdout.readline()
        await start(runner, command)
        await ended(runner)
        after = await asyncio.to_thread(_rss_mib, runner.pid, "VmHWM")
        seconds = float(await asyncio.to_thread((runner.folder / "TOOK").read_text))
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    return Crowded(job_seconds=seconds, rss_mib=after - before)


def _rss_mib(pid: int, kind: str) -> float:
    """Return the memory. `kind` VmRSS: now; VmHWM: the maximum."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"the kernel does not tell {kind}")


async def slowdown(
    command: str, followers: int, stalled: int, rounds: int
) -> tuple[float, float, list[Crowded]]:
    """Return the seconds with one follower and with all, and the runs with all.

    The tries take turns and the best of each counts, because other load can only add to the time.
    """
    alone, crowded = [], []
    for _ in range(rounds):
        alone.append((await with_followers(command, 1, 0)).job_seconds)
        crowded.append(await with_followers(command, followers, stalled))
    return min(alone), min(c.job_seconds for c in crowded), crowded


def main() -> None:
    given = _parser().parse_args()
    figures: list[tuple[str, object]] = []
    broken: list[str] = []
    reading = asyncio.run(with_kills(given.mebibytes, given.kills, given.seed))
    figures += [
        ("log", f"{given.mebibytes} MiB"),
        ("kills of the reader", reading.kills),
        ("bytes lost", reading.lost),
        ("bytes doubled", reading.doubled),
        ("frames wrong", reading.wrong),
        ("time", f"{reading.seconds:.0f} s"),
    ]
    if reading.lost or reading.doubled or reading.wrong:
        broken.append("the reader's log is not what the job wrote")
    if reading.kills < given.kills:
        broken.append(f"the reader was killed only {reading.kills} times")
    paced = counting(given.pace * given.seconds, pause=1 / given.pace)
    _check_crowd(f"{given.pace} MiB/s", paced, given, figures, broken.append)
    flood = counting(given.flood)
    _check_crowd(f"{given.flood} MiB at full speed", flood, given, figures, broken.append)
    conclude("logs", figures, broken)


def _check_crowd(
    name: str,
    command: str,
    given: argparse.Namespace,
    figures: list[tuple[str, object]],
    broken: Callable[[str], None],
) -> None:
    work = slowdown(command, given.followers, given.stalled, given.rounds)
    alone, all_of_them, crowded = asyncio.run(work)
    slower, rss = all_of_them / alone - 1, max(c.rss_mib for c in crowded)
    who = f"{given.followers} followers, {given.stalled} stalled"
    figures += [
        (f"{name}: the job with one follower", f"{alone:.2f} s"),
        (f"{name}: with {who}", f"{all_of_them:.2f} s"),
        (f"{name}: slower by", f"{slower:+.1%}"),
        (f"{name}: runner's RSS at its most", f"+{rss:.1f} MiB"),
    ]
    if slower > MAX_SLOWDOWN:
        broken(f"{name}: {who} slow the job by {slower:.1%}")
    if rss > MAX_RSS_MIB:
        broken(f"{name}: {who} cost the runner {rss:.1f} MiB")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--mebibytes", type=int, default=1024, metavar="N", help="read while being killed")
    add("--kills", type=int, default=100, metavar="N")
    add("--seed", type=int, default=1, metavar="N")
    add("--followers", type=int, default=100, metavar="N")
    add("--stalled", type=int, default=10, metavar="N", help="of them")
    add("--rounds", type=int, default=5, metavar="N", help="of both, with and without")
    add("--pace", type=int, default=20, metavar="N", help="MiB per second of a busy job")
    add("--seconds", type=int, default=5, metavar="N", help="of a busy job")
    add("--flood", type=int, default=1024, metavar="N", help="MiB of a job at full speed")
    return parser


if __name__ == "__main__":
    main()
