"""What submissions cost each process when they come to followers, over many connections at once.

Each connection sends its next run, with a client key, when it has the answer of the last one.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Sequence

import msgspec

from bench.runner_start import cpu_seconds
from bench.submissions import CONFIGURATION, answer_of
from tests.support.processes import ControllerProcess

_names = itertools.count()


def tell(
    leader: ControllerProcess,
    followers: Sequence[ControllerProcess],
    token: str,
    runs: int,
    connections: int,
) -> None:
    """Print the rate, and the CPU that each run costs the leader and the followers: submitted at
    the leader, and at all followers at once."""
    for asked, where in (([leader], "the leader"), (list(followers), "followers")):
        asyncio.run(_submit(asked, token, connections, connections))
        before, began = _used(leader, followers), time.monotonic()
        asyncio.run(_submit(asked, token, runs, connections))
        wall, after = time.monotonic() - began, _used(leader, followers)
        costs = [1000 * (end - start) / runs for start, end in zip(before, after, strict=True)]
        print(
            f"{runs} runs over {connections} connections to {where}: {runs / wall:.0f}/s; "
            f"{costs[0]:.2f} ms of CPU each at the leader, {costs[1]:.2f} ms at the followers "
            f"together; load {os.getloadavg()[0]:.1f}",
            flush=True,
        )


def _used(leader: ControllerProcess, followers: Sequence[ControllerProcess]) -> tuple[float, float]:
    return cpu_seconds(leader.daemon.pid), sum(cpu_seconds(one.daemon.pid) for one in followers)


async def _submit(
    asked: Sequence[ControllerProcess], token: str, runs: int, connections: int
) -> None:
    numbers = iter(range(runs))

    async def carry(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in numbers:
            name = f"f-{next(_names)}"
            writer.write(_request(token, {"name": name, "client_key": name}))
            async for _ in answer_of(reader):
                pass
        writer.close()

    ports = [one.port for one in asked]
    await asyncio.gather(*(carry(ports[n % len(ports)]) for n in range(connections)))


def _request(token: str, given: dict[str, str]) -> bytes:
    body = msgspec.json.encode({"configuration": CONFIGURATION, **given})
    return (
        f"POST /v1/runs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body
