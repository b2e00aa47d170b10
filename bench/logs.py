"""How fast a job's output reaches its readers, compared with `docker logs -f` of the same output.

Each reader follows from the start while the job writes. The time runs from its first byte to its
last, so the start of the container does not count.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import psutil

from bench import api
from bench.parts import Parts

MIB = 1 << 20
LINE = "step 12345: loss 0.123, 6 examples per second, learning rate 3e-4"
_READ = 1 << 20
_DOCKERS_SHARE = 8
"""`docker logs` needs minutes for what we read in seconds, so it gets this part of the bytes."""


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """MiB per second of the job's own bytes, one figure for each try.

    `copied` is `websocket` for a job that only copies a file: the two programs of the other jobs
    take as much CPU time as all of ours. `cpu` is the controller's for it, in ms for each MiB.
    """

    websocket: list[float]
    copied: list[float]
    cpu: list[float]
    command: list[float]
    docker: list[float]


def measure(parts: Parts, mebibytes: int, tries: int) -> Throughput:
    argv, share = _argv(mebibytes), max(1, mebibytes // _DOCKERS_SHARE)
    controller = psutil.Process(parts.controller.pid)
    websocket, copied, cpu, command, docker = [], [], [], [], []
    for number in range(tries):
        docker.append(_of_docker(parts, _argv(share), share))
        websocket.append(_of_websocket(parts, argv, mebibytes, f"ws-{number}"))
        before = sum(controller.cpu_times()[:2])
        copied.append(_of_websocket(parts, _copying(mebibytes), mebibytes, f"copy-{number}"))
        cpu.append((sum(controller.cpu_times()[:2]) - before) * 1000 / mebibytes)
        command.append(_of_command(parts, argv, mebibytes, f"cli-{number}"))
    return Throughput(websocket=websocket, copied=copied, cpu=cpu, command=command, docker=docker)


def _argv(mebibytes: int) -> list[str]:
    return ["/bin/busybox", "sh", "-c", f"yes '{LINE}' | head -c {mebibytes * MIB}"]


def _copying(mebibytes: int) -> list[str]:
    prepared = f"yes '{LINE}' | head -c {MIB} > /lines"
    names = " ".join(["/lines"] * mebibytes)
    return ["/bin/busybox", "sh", "-c", f"{prepared}; exec cat {names}"]


def _of_websocket(parts: Parts, argv: Sequence[str], mebibytes: int, name: str) -> float:
    run_id = api.submit(parts, parts.write_task("logs", argv), name)
    messages = api.log_messages(parts, run_id, api.first_attempt(parts, run_id))
    try:
        return _rate(map(api.payload_size, messages), mebibytes)
    finally:
        api.wait_final(parts, run_id)
        parts.wait_until_idle()


def _of_command(parts: Parts, argv: Sequence[str], mebibytes: int, name: str) -> float:
    run_id = api.submit(parts, parts.write_task("logs", argv), name)
    api.first_attempt(parts, run_id)
    try:
        return _rate(_sizes_of_output([parts.fairlead, "logs", "-f", name], parts.env), mebibytes)
    finally:
        api.wait_final(parts, run_id)
        parts.wait_until_idle()


def _of_docker(parts: Parts, argv: Sequence[str], mebibytes: int) -> float:
    run = parts.docker_run("-d", argv=argv)
    container = parts.docker.docker(*run[1:])
    try:
        return _rate(_sizes_of_output(["docker", "logs", "-f", container], parts.env), mebibytes)
    finally:
        parts.docker.docker("rm", "-f", container)


def _sizes_of_output(argv: Sequence[str], env: dict[str, str]) -> Iterator[int]:
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=env
    ) as process:
        assert process.stdout is not None
        while data := os.read(process.stdout.fileno(), _READ):
            yield len(data)


def _rate(sizes: Iterable[int], mebibytes: int) -> float:
    """Return the rate. Raises RuntimeError when some bytes are missing."""
    total, begin = 0, 0.0
    for size in sizes:
        begin = begin or time.perf_counter()
        total += size
    seconds = time.perf_counter() - begin
    if total != mebibytes * MIB:
        raise RuntimeError(f"{total} bytes came instead of {mebibytes * MIB}")
    return mebibytes / seconds
