"""The same figures from both versions of cgroups, and who counts as a visitor."""

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import psutil
import pytest

from runner import metrics
from runner.client import BASE_URL, RunnerClient
from runner.metrics import count_visitors, measure
from tests.unit.runner.harness import a_job, a_runner, until_output

V2 = {
    "cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
    "memory.current": "1000\n",
    "memory.peak": "1500\n",
    "memory.max": "4096\n",
    "memory.stat": "anon 1\ninactive_file 300\n",
    "memory.events": "oom 1\noom_kill 1\n",
}
V1 = {
    "cpuacct/docker/x/cpuacct.usage": "2500000000\n",
    "memory/docker/x/memory.usage_in_bytes": "1000\n",
    "memory/docker/x/memory.max_usage_in_bytes": "1500\n",
    "memory/docker/x/memory.limit_in_bytes": "4096\n",
    "memory/docker/x/memory.stat": "inactive_file 1\ntotal_inactive_file 300\n",
    "memory/docker/x/memory.oom_control": "under_oom 0\noom_kill 1\n",
}


def a_machine(root: Path, membership: str, files: Mapping[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(membership)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("membership", "files"),
    [
        ("0::/\n", V2),
        ("0::/a/b\n", {f"a/b/{name}": text for name, text in V2.items()}),
        ("5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n0::/\n", V1),
    ],
)
def test_both_versions_of_cgroups_give_the_same(
    tmp_path: Path, membership: str, files: Mapping[str, str]
) -> None:
    found = measure(root=a_machine(tmp_path, membership, files))
    assert found.cpu_seconds == 2.5
    assert (found.memory, found.memory_working_set) == (1000, 700)
    assert (found.memory_peak, found.memory_limit, found.oom_kills) == (1500, 4096, 1)


@pytest.mark.parametrize(
    ("membership", "name", "text"),
    [
        ("0::/\n", "memory.max", "max\n"),
        ("4:memory:/\n", "memory/memory.limit_in_bytes", "9223372036854771712\n"),
    ],
)
def test_no_limit_is_none(tmp_path: Path, membership: str, name: str, text: str) -> None:
    assert measure(root=a_machine(tmp_path, membership, {name: text})).memory_limit is None


def test_a_value_that_nobody_counts_is_none(tmp_path: Path) -> None:
    found = measure(root=a_machine(tmp_path, "0::/\n", {}), relayed={8888: 1, 22: 1})
    assert (found.cpu_seconds, found.memory, found.memory_peak) == (None, None, None)
    assert found.connections == 2


def tcp(*rows: tuple[str, str, str, int]) -> str:
    lines = ["  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt uid ..."]
    lines += [f"0: {local} {remote} {state} 0:0 0:0 0 0 0 {i}" for local, remote, state, i in rows]
    return "\n".join(lines) + "\n"


def test_only_connections_from_outside_to_listening_sockets_of_ours_count(tmp_path: Path) -> None:
    net, fd = tmp_path / "proc/net", tmp_path / "proc/7/fd"
    net.mkdir(parents=True)
    fd.mkdir(parents=True)
    any_address, ours, gateway = "00000000", "020011AC", "010011AC"
    rows = [
        (f"{any_address}:0016", f"{any_address}:0000", "0A", 1),
        (f"{ours}:0016", f"{gateway}:9C40", "01", 2),
        (f"{ours}:0016", f"{gateway}:9C41", "06", 3),
        (f"{ours}:0016", f"{ours}:9C42", "01", 4),
        (f"{ours}:9C42", f"{ours}:0016", "01", 5),
        (f"{ours}:9C43", f"{gateway}:01BB", "01", 6),
        (f"{ours}:0016", f"{gateway}:9C44", "01", 99),
    ]
    (net / "tcp").write_text(tcp(*rows))
    for inode in range(1, 7):
        os.symlink(f"socket:[{inode}]", fd / str(inode))
    assert count_visitors(tmp_path) == 1


def test_a_connection_within_this_machines_processes_is_no_visitor() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        before = count_visitors()
        with socket.create_connection(server.getsockname()), server.accept()[0]:
            assert count_visitors() == before


BUSY = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"
LARGE = 64 << 20
"""Bytes: more than the tests' own process gives back by itself in a moment."""
BUSY_AND_LARGE = f"sum(range(3 * 10**7)); kept = b'x' * {LARGE}; print(flush=True); input()"

BESIDE = 0.15
"""Seconds: what measuring costs itself, and figures that the kernel tells in hundredths."""


def seconds_of(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def test_without_a_container_only_the_jobs_processes_count() -> None:
    """Those that have ended and those that live; not what others of the machine use."""
    whoever = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    before, then = metrics.measure_own_use(), sum(map(seconds_of, whoever))
    subprocess.run(["/bin/sh", "-c", BUSY], check=True)
    alive = [sys.executable, "-c", BUSY_AND_LARGE]
    with subprocess.Popen(alive, stdin=-1, stdout=-1) as child:
        assert child.stdout is not None
        child.stdout.readline()
        living = sum(psutil.Process(child.pid).cpu_times()[:2])
        after, now = metrics.measure_own_use(), sum(map(seconds_of, whoever))
        child.communicate(b"end\n")
    assert living > BESIDE
    assert after.pids - before.pids == {child.pid}
    assert after.cpu_seconds - before.cpu_seconds == pytest.approx(now - then + living, abs=BESIDE)
    assert 0 < before.memory < after.memory - LARGE / 2


def test_without_a_container_a_visitor_of_others_on_the_machine_does_not_count(
    tmp_path: Path,
) -> None:
    fd, net = tmp_path / "proc/7/fd", tmp_path / "proc/net"
    fd.mkdir(parents=True)
    net.mkdir()
    rows = [
        ("00000000:0016", "00000000:0000", "0A", 1),
        ("020011AC:0016", "010011AC:9C40", "01", 2),
    ]
    (net / "tcp").write_text(tcp(*rows))
    for inode in (1, 2):
        os.symlink(f"socket:[{inode}]", fd / str(inode))
    assert [count_visitors(tmp_path, pids) for pids in (None, {7}, {8})] == [1, 1, 0]


async def test_the_runner_tells_what_its_job_uses(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        await client.submit(a_job(f"{BUSY}; echo done"))
        before = await client.metrics()
        await client.run()
        await until_output(client, b"done\n")
        after = await client.metrics()
    assert before.cpu_seconds is not None
    assert after.cpu_seconds is not None
    assert after.cpu_seconds > before.cpu_seconds
    assert (after.memory_peak, after.memory_limit, after.oom_kills) == (None, None, 0)


async def test_asking_for_metrics_leaves_no_connection_open(tmp_path: Path) -> None:
    opened = []

    async def note(*_: object) -> None:
        opened.append(True)

    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(note)
    async with a_runner(tmp_path):
        connector = aiohttp.UnixConnector(str(tmp_path / "runner.sock"))
        async with aiohttp.ClientSession(
            BASE_URL, connector=connector, trace_configs=[trace]
        ) as session:
            client = RunnerClient(session)
            await client.health()
            await client.health()
            assert len(opened) == 1
            await client.metrics()
            await client.metrics()
            assert len(opened) == 2, "the first takes what is open, and closes it"
