"""What a runner costs until its first request is answered: `python -m bench.runner_start [TRIES]`.

Each try is a new entrypoint process, started as a container does it (`-I -S`), and one request.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from statistics import median

import msgspec

from tests.support.ssh_daemon import CHECKOUT

TRIES = 10
_REQUEST = b"GET /v1/health HTTP/1.1\r\nHost: runner\r\n\r\n"
_LIMIT = 10.0
_START = """
import sys
sys.path[:0] = {folders!r}
from entrypoint.main import main
main()
"""


class RunnerStart(msgspec.Struct, frozen=True, kw_only=True):
    """`cpu` and `wall`: seconds from the start of the process to its first answer. `pss` and `rss`:
    MiB after it."""

    cpu: float
    wall: float
    pss: float
    rss: float


async def measure_once() -> RunnerStart:
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="fairlead-bench-"))
    socket = folder / "runner.sock"
    folders = [sysconfig.get_path("purelib"), str(CHECKOUT)]
    program = (sys.executable, "-I", "-S", "-X", "utf8=1", "-c", _START.format(folders=folders))
    arguments = ("--task", str(folder / "task"), "--socket", str(socket), "--peers", "any")
    begin = time.perf_counter()
    process = await asyncio.create_subprocess_exec(*program, *arguments)
    try:
        async with asyncio.timeout(_LIMIT):
            await ask(socket)
        return _measured(process.pid, time.perf_counter() - begin)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await asyncio.to_thread(shutil.rmtree, folder)


async def ask(socket: Path) -> None:
    """Wait for a runner's socket and ask it once."""
    while not await asyncio.to_thread(socket.exists):  # noqa: ASYNC110 (another process's)
        await asyncio.sleep(0.001)
    reader, writer = await asyncio.open_unix_connection(socket)
    writer.write(_REQUEST)
    status = await reader.readline()
    writer.close()
    if b" 200 " not in status:
        raise RuntimeError(f"the runner answered {status!r}")


def _measured(pid: int, wall: float) -> RunnerStart:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kibibytes = {
        name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in rollup)
    }
    return RunnerStart(
        cpu=cpu_seconds(pid), wall=wall, pss=kibibytes["Pss"] / 1024, rss=kibibytes["Rss"] / 1024
    )


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that all threads of the process have used."""
    nanoseconds = (
        int(file.read_text().split()[0]) for file in Path(f"/proc/{pid}/task").glob("*/schedstat")
    )
    return sum(nanoseconds) / 1e9


async def measure(tries: int = TRIES) -> RunnerStart:
    """Return the medians of so many tries, after one that fills the caches."""
    await measure_once()
    found = [await measure_once() for _ in range(tries)]
    return RunnerStart(
        **{
            name: median(getattr(one, name) for one in found)
            for name in RunnerStart.__struct_fields__
        }
    )


def main() -> None:
    found = asyncio.run(measure(int(sys.argv[1]) if len(sys.argv) > 1 else TRIES))
    sys.stdout.write(
        f"first answer after {found.cpu * 1e3:.0f} ms CPU, {found.wall * 1e3:.0f} ms; "
        f"{found.rss:.1f} MiB RSS, {found.pss:.1f} MiB PSS\n"
    )


if __name__ == "__main__":
    main()
