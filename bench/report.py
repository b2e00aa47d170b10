"""The table of the README, and the same figures for programs."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from statistics import median

import msgspec

from bench.logs import Throughput
from bench.memory import Memory
from bench.starts import Starts
from tests.support.daemons import run


class Report(msgspec.Struct, frozen=True, kw_only=True):
    command: str
    measured_at: str
    machine: str
    starts: Starts
    memory: Memory
    throughput: Throughput


def machine() -> str:
    """Return the machine's description. Call it before anything is measured: other load is part of
    what explains a figure."""
    docker = run(["docker", "--version"]).split(",")[0].removeprefix("Docker version ")
    return (
        f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}, "
        f"Docker {docker}, load average {os.getloadavg()[0]:.1f} before"
    )


def machine_without_docker() -> str:
    """Return the machine's description as `machine` does, without asking for Docker."""
    return (
        f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}, "
        f"load average {os.getloadavg()[0]:.1f} before"
    )


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def markdown(report: Report) -> str:
    starts, memory, logs = report.starts, report.memory, report.throughput
    docker_start, docker_logs = median(starts.docker), median(logs.docker)
    tries = len(starts.docker)
    rows = [
        ("", "Fairlead", "Docker alone", "ratio", "aim"),
        ("---", "---:", "---:", "---:", "---:"),
        (
            "`fairlead apply` → first log line (beside `docker run`)",
            *_seconds(median(starts.command), docker_start),
            "≤ 2",
        ),
        (
            "`POST /v1/runs` → first log line at a WebSocket client",
            *_seconds(median(starts.api), docker_start),
            "≤ 2",
        ),
        (
            "`fairlead apply` → job over, all cleaned up (beside `docker run --rm`)",
            *_seconds(median(starts.final), median(starts.docker_final)),
            "",
        ),
        ("shim, idle", f"{memory.shim:.0f} MiB", "", "", "≤ 60 MiB"),
        ("runner, idle", f"{memory.runner:.0f} MiB", "", "", "≤ 45 MiB"),
        ("controller, idle", f"{memory.controller:.0f} MiB", "", "", "≤ 120 MiB"),
        (
            "job's stdout → WebSocket client (beside `docker logs -f`)",
            *_rates(median(logs.websocket), docker_logs),
            "≥ 100 MiB/s or ≥ 2",
        ),
        (
            "job's stdout → `fairlead logs -f`",
            *_rates(median(logs.command), docker_logs),
            "",
        ),
    ]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return (
        f"`{report.command}` on one machine ({report.machine}), through a real sshd; medians of "
        f"{tries} starts and {len(logs.docker)} logs:\n\n{table}\n"
    )


def _seconds(ours: float, theirs: float) -> tuple[str, str, str]:
    return f"{ours:.2f} s", f"{theirs:.2f} s", f"{ours / theirs:.2f}"


def _rates(ours: float, theirs: float) -> tuple[str, str, str]:
    return f"{ours:.0f} MiB/s", f"{theirs:.0f} MiB/s", f"{ours / theirs:.1f}"
