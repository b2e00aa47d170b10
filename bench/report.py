"""The table of the README, and the same figures for programs."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from statistics import median

import msgspec

from bench.logs import Throughput
from bench.memory import Memory
from bench.starts import Starts
from tests.support.docker_daemon import DockerDaemon


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
    return (
        f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}, "
        f"load average {os.getloadavg()[0]:.1f} before"
    )


def engine(docker: DockerDaemon) -> str:
    """Return the versions of what starts containers: the server's, not those of the command."""
    found = json.loads(docker.docker("version", "--format", "{{json .Server}}"))
    parts = {one["Name"]: one["Version"] for one in found.get("Components", ())}
    names = {"Engine": "dockerd", "containerd": "containerd", "runc": "runc"}
    return ", ".join(f"{name} {parts.get(part, 'unknown')}" for part, name in names.items())


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
            "≤ 1.2",
        ),
        (
            "`POST /v1/runs` → first log line at a WebSocket client",
            *_seconds(median(starts.api), docker_start),
            "≤ 0.9",
        ),
        (
            "`fairlead apply` → job over, all cleaned up (beside `docker run --rm`)",
            *_seconds(median(starts.final), median(starts.docker_final)),
            "≤ 1.2",
        ),
        ("shim, idle", f"{memory.shim:.0f} MiB", "", "", "≤ 60 MiB"),
        (
            "runner, idle (PSS)",
            f"{memory.runner:.0f} MiB ({memory.runner_alone:.0f})",
            "",
            "",
            "≤ 20 MiB",
        ),
        (
            "runner: CPU time until its first answer",
            f"{memory.to_answer * 1000:.0f} ms",
            "",
            "",
            "≤ 80 ms",
        ),
        (
            "… and until its job runs and its log is followed",
            f"{memory.runner_cpu * 1000:.0f} ms",
            "",
            "",
            "",
        ),
        ("controller, idle", f"{memory.controller:.0f} MiB", "", "", "≤ 120 MiB"),
        (
            "job's stdout → WebSocket client (beside `docker logs -f`)",
            *_rates(median(logs.websocket), docker_logs),
            "≥ 150 MiB/s",
        ),
        (
            "… of a job that only copies a file",
            *_rates(median(logs.copied), docker_logs),
            "≥ 150 MiB/s",
        ),
        ("… CPU of the controller for each MiB", f"{median(logs.cpu):.1f} ms", "", "", ""),
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


def figures(report: Report) -> dict[str, float]:
    """Return the figures that releases are compared by."""
    starts, memory, logs = report.starts, report.memory, report.throughput
    docker = median(starts.docker)
    return {
        "start.command": median(starts.command) / docker,
        "start.api": median(starts.api) / docker,
        "start.final": median(starts.final) / median(starts.docker_final),
        "memory.shim": memory.shim,
        "memory.runner": memory.runner,
        "memory.controller": memory.controller,
        "logs.websocket": median(logs.websocket),
        "logs.copied": median(logs.copied),
        "logs.cpu": median(logs.cpu),
        "logs.command": median(logs.command),
    }


def _seconds(ours: float, theirs: float) -> tuple[str, str, str]:
    return f"{ours:.2f} s", f"{theirs:.2f} s", f"{ours / theirs:.2f}"


def _rates(ours: float, theirs: float) -> tuple[str, str, str]:
    return f"{ours:.0f} MiB/s", f"{theirs:.0f} MiB/s", f"{ours / theirs:.1f}"
