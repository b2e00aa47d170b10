"""A port of the job, reached through the runner's relay, carries at least 200 MiB/s in each
direction.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import threading
import time
from statistics import median

from bench.proofs._table import conclude
from bench.proofs.logs import entrypoint

MIB = 1 << 20
LEAST = 200.0
_BLOCK = bytes(MIB)


def _pour(connection: socket.socket, mebibytes: int) -> None:
    for _ in range(mebibytes):
        connection.sendall(_BLOCK)
    connection.shutdown(socket.SHUT_WR)


def _drain(connection: socket.socket) -> int:
    buffer, total = bytearray(MIB), 0
    while count := connection.recv_into(buffer):
        total += count
    return total


def _connect(path: str | None, port: int) -> socket.socket:
    """Connect through the relay at `path`, or directly."""
    if path is None:
        return socket.create_connection(("127.0.0.1", port))
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(path)
    connection.sendall(b"CONNECT /v1/ports/%d HTTP/1.1\r\n\r\n" % port)
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += connection.recv(1)
    if not head.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"not connected: {head!r}")
    return connection


def _rate(path: str | None, mebibytes: int, *, to_job: bool) -> float:
    """Return MiB/s from the first byte sent to the end seen on the other side."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = _connect(path, server.getsockname()[1])
        theirs, _ = server.accept()
    source, sink = (ours, theirs) if to_job else (theirs, ours)
    with ours, theirs:
        begin = time.perf_counter()
        pouring = threading.Thread(target=_pour, args=(source, mebibytes))
        pouring.start()
        total = _drain(sink)
        seconds = time.perf_counter() - begin
        pouring.join()
    if total != mebibytes * MIB:
        raise RuntimeError(f"{total} bytes came instead of {mebibytes * MIB}")
    return mebibytes / seconds


async def _measure(mebibytes: int, tries: int) -> dict[str, float]:
    found: dict[str, float] = {}
    async with entrypoint() as runner:
        for name, path in (("relayed", runner.socket), ("direct", None)):
            for way in ("to the job", "from the job"):
                rates = [
                    await asyncio.to_thread(_rate, path, mebibytes, to_job=way == "to the job")
                    for _ in range(tries)
                ]
                found[f"{name}, {way}"] = median(rates)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=1024, metavar="N")
    parser.add_argument("--tries", type=int, default=3, metavar="N")
    given = parser.parse_args()
    found = asyncio.run(_measure(given.mebibytes, given.tries))
    slow = [name for name, rate in found.items() if name.startswith("relayed") and rate < LEAST]
    figures = [(name, f"{rate:.0f} MiB/s") for name, rate in found.items()]
    conclude("a job's port", figures, [f"{name}: below {LEAST:.0f} MiB/s" for name in slow])


if __name__ == "__main__":
    main()
