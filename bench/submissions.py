"""How many runs a controller takes per second: one by one over kept connections, and in batches.

The runs wait: no node is there, so nothing is measured but the way from a request to its committed
answer. The client is a process of its own with bare sockets, because the machine has few cores.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import psutil

from bench import history, report
from tests.support.processes import ControllerProcess

CONNECTIONS = 16
BATCH = 250
CONFIGURATION = {
    "type": "task",
    "image": "busybox",
    "commands": ["sleep 1d"],
    "resources": {"cpu": 8, "memory": "1GiB"},
}


def main() -> None:
    given = _parser().parse_args()
    machine = report.machine()
    folder = Path(tempfile.mkdtemp(prefix="fl-bench-", dir="/tmp"))
    controller = ControllerProcess(folder / "c", "--log-level", "error")
    if given.profile:
        controller.daemon.argv[:0] = [sys.executable, "-m", "cProfile", "-o", str(given.profile)]
    try:
        controller.start()
        figures = {}
        if given.only != "batches":
            figures["submissions.one"] = _tell("one by one", controller, given.runs, 1)
        if given.only != "one":
            what = f"in batches of {BATCH}"
            figures["submissions.batch"] = _tell(what, controller, given.runs, BATCH)
        history.conclude(figures, given.release, machine)
        if given.profile:
            controller.daemon.stop(60)
    finally:
        controller.close()
        shutil.rmtree(folder, ignore_errors=True)


def _tell(what: str, controller: ControllerProcess, runs: int, batch: int) -> float:
    """Measure, print, and return the milliseconds of the controller's CPU for each run."""
    process = psutil.Process(controller.pid)
    before, began = process.cpu_times(), time.monotonic()
    connections = CONNECTIONS if batch == 1 else 2
    asyncio.run(submit_all(controller, runs, batch, connections))
    wall, after = time.monotonic() - began, process.cpu_times()
    cpu = after.user + after.system - before.user - before.system
    print(
        f"{runs} runs {what}: {runs / wall:.0f}/s, {1000 * cpu / runs:.2f} ms of the controller's "
        f"CPU each; load {os.getloadavg()[0]:.1f}"
    )
    return float(1000 * cpu / runs)


async def submit_all(
    controller: ControllerProcess, runs: int, batch: int, connections: int
) -> None:
    """Submit runs; each connection sends its next request when it has the answer of the last."""
    numbers = iter(range(0, runs, batch))

    async def carry() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", controller.port)
        for first in numbers:
            writer.write(_request(controller, first, batch))
            async for piece in answer_of(reader):
                _require(piece, batch)
        writer.close()

    await asyncio.gather(*(carry() for _ in range(connections)))


def _request(controller: ControllerProcess, first: int, batch: int) -> bytes:
    names = [f"b{batch}-{number}" for number in range(first, first + batch)]
    runs = [{"configuration": CONFIGURATION, "name": name, "client_key": name} for name in names]
    body = msgspec.json.encode(runs[0] if batch == 1 else {"runs": runs})
    path = "/v1/runs" if batch == 1 else "/v1/runs:batch"
    return (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {controller.token}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


async def answer_of(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the body of the answer that comes, if it is a good one."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length:")
    )
    body = await reader.readexactly(length)
    if head.split(b" ", 2)[1][:1] != b"2":
        raise SystemExit(f"bench: {body[:300]!r}")
    yield body


def _require(body: bytes, batch: int) -> None:
    if batch > 1:
        statuses = [one["status"] for one in msgspec.json.decode(body)["results"]]
        assert statuses == [201] * batch, statuses


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev bench submissions", description=__doc__)
    add = parser.add_argument
    add("--runs", type=int, default=5000, metavar="N", help="default: %(default)s")
    add("--only", choices=("one", "batches"), help="default: both")
    add("--profile", type=Path, metavar="FILE", help="of the controller, by cProfile")
    history.add_option(parser)
    return parser


if __name__ == "__main__":
    main()
