"""How long a user waits for the first byte of output, compared with `docker run` of the same
command.

Our tries and Docker's alternate, so that other load affects both.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench import api
from bench.parts import Parts

WORDS = "hello"
_ARGV = ["/bin/busybox", "echo", WORDS]


class Starts(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, one figure for each try.

    `docker` and `command`: from the start of the process to the first byte on its stdout. `api`:
    from POST to the first byte at a WebSocket client. `final`: from the start of the process to its
    end; `docker_final`: the same for `docker run --rm`.
    """

    docker: list[float]
    command: list[float]
    api: list[float]
    final: list[float]
    docker_final: list[float]


def measure(parts: Parts, tries: int) -> Starts:
    task = parts.write_task("start", _ARGV)
    names = (f"start-{number}" for number in itertools.count())
    docker: list[tuple[float, float]] = []
    command: list[tuple[float, float]] = []
    through_api: list[float] = []

    def apply() -> None:
        argv = [parts.fairlead, "apply", "-f", str(task), "-n", next(names)]
        command.append(of_process(argv, parts.env))

    turns: tuple[Callable[[], None], ...] = (
        lambda: docker.append(of_process(parts.docker_run("--rm", argv=_ARGV), parts.env)),
        apply,
        lambda: through_api.append(of_api(parts, task, next(names))),
    )
    every: tuple[list[Any], ...] = (docker, command, through_api)
    for number in range(tries + 1):
        for turn in turns:
            turn()
            parts.wait_until_idle()
        if number == 0:  # caches are warm from here on, for both
            for figures in every:
                figures.clear()
    return Starts(
        docker=[first for first, _ in docker],
        command=[first for first, _ in command],
        api=through_api,
        final=[final for _, final in command],
        docker_final=[final for _, final in docker],
    )


def of_process(argv: Sequence[str], env: dict[str, str]) -> tuple[float, float]:
    begin = time.perf_counter()
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        output = os.read(process.stdout.fileno(), 1 << 16)
        first = time.perf_counter() - begin
        output += process.stdout.read()
        errors = process.stderr.read()
    final = time.perf_counter() - begin
    if process.returncode or output.decode().strip() != WORDS:
        raise RuntimeError(f"{argv} ended with {process.returncode}: {output!r} {errors!r}")
    return first, final


def of_api(parts: api.Bed, task: Path, name: str) -> float:
    begin = time.perf_counter()
    run_id = api.submit(parts, task, name)
    messages = api.log_messages(parts, run_id, api.first_attempt(parts, run_id))
    next(messages)
    first = time.perf_counter() - begin
    for _ in messages:
        continue
    if (status := api.wait_final(parts, run_id)) != "done":
        raise RuntimeError(f"run {name} is {status}")
    return first
