"""How fast a job's output reaches a WebSocket client: `python -m bench.runner_logs [MiB]`.

A real entrypoint process, a job that writes as fast as it can, and a client that only counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp

from fairlead.wire.job import JobSpec, SubmitRequest
from runner.client import BASE_URL, RunnerClient
from tests.support.dialling import dial_to

DEFAULT_MIB = 1024
_START_LIMIT = 10.0


@contextlib.asynccontextmanager
async def entrypoint_client() -> AsyncIterator[RunnerClient]:
    """Yield a client of a new entrypoint without isolation; it ends with its folder."""
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="fairlead-bench-"))
    socket = folder / "runner.sock"
    arguments = ("--task", str(folder / "task"), "--socket", str(socket), "--peers", "any")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "entrypoint.main", *arguments, "--linger", "1"
    )
    try:
        connector = aiohttp.UnixConnector(str(socket))
        async with aiohttp.ClientSession(base_url=BASE_URL, connector=connector) as session:
            await _until_listening(socket)
            yield RunnerClient(session, dial_answer=dial_to(socket))
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
        await asyncio.to_thread(shutil.rmtree, folder)


async def _until_listening(socket: Path) -> None:
    async with asyncio.timeout(_START_LIMIT):
        while not await asyncio.to_thread(socket.exists):  # noqa: ASYNC110 (another process's)
            await asyncio.sleep(0.01)


def job(command: str) -> SubmitRequest:
    spec = JobSpec(
        run_id="bench",
        run_name="bench",
        job_id="bench-0",
        attempt_id="bench-0-0",
        group="main",
        cookie=0,
        index=0,
        job_count=1,
        group_job_count=1,
        commands=(command,),
    )
    return SubmitRequest(job=spec)


async def measure(command: str) -> tuple[int, float]:
    """Return the bytes of frames, and the seconds from run to the last of them, for one job."""
    async with entrypoint_client() as client:
        await client.submit(job(command))
        begin = time.perf_counter()
        await client.run()
        received = 0
        async for frames in client.follow_logs(0):
            received += len(frames)
        seconds = time.perf_counter() - begin
        await client.ack((await client.health()).log_end)
        return received, seconds


async def main() -> None:
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_MIB
    commands = {
        "large writes": f"head -c {mib << 20} /dev/zero",
        "lines": f"yes 'a line of a training log, step 12345 loss 0.123' | head -c {mib << 20}",
    }
    for name, command in commands.items():
        received, seconds = await measure(command)
        sys.stdout.write(f"{name}: {received / seconds / (1 << 20):.0f} MiB/s\n")


if __name__ == "__main__":
    asyncio.run(main())
