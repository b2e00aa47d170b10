"""The cost and speed of SSH into a job: the embedded server compared with OpenSSH's, in the same
image.

Both serve the same container from the same source on its loopback; the client is OpenSSH's, with
the ciphers of `fairlead ssh`. The tries take turns, so other load affects both.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.parts import Parts, running_parts
from bench.proofs._table import conclude
from fairlead.cli.openssh import CIPHERS
from tests.support import images
from tests.support.ssh_daemon import free_port
from tests.support.waiting import wait_until

MIB = 1 << 20
IMAGE = "bookworm-sshd:bench"
_SSH_PORT = 10022
_SOURCE_PORT = 8000
_MIN_SHARE = 0.5
_MAX_UNVISITED = 45.0
_SOURCE = (
    "use IO::Socket::INET; $s = IO::Socket::INET->new(Listen => 5, ReuseAddr => 1,"
    " LocalAddr => '127.0.0.1:8000'); $b = \"\\0\" x 1048576;"
    " while ($c = $s->accept) {{ for (1..{mib}) {{ print $c $b or last }} close $c }}"
)


@dataclass
class Served:
    """One job and how it is reached."""

    mode: str
    address: str
    options: list[str]
    pid: int
    rates: list[float] = field(default_factory=list)
    logins: list[float] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=5, help="per server (default: %(default)s)")
    parser.add_argument("--mib", type=int, default=300, help="per try (default: %(default)s)")
    given = parser.parse_args()
    with running_parts() as parts:
        archive = images.debian_archive("bookworm", "openssh-server")
        parts.docker.docker("import", archive, IMAGE)
        key = _make_key(parts.folder)
        own = _served(parts, "auto", key, given.mib)
        ours = _served(parts, "embedded", key, given.mib)
        unvisited = _resident(ours.pid)
        for _ in range(given.tries):
            for served in (own, ours):
                served.logins.append(_login(served))
                served.rates.append(_rate(served, given.mib))
        server = _server_memory(ours.pid)
    _conclude(own, ours, unvisited, server)


def _conclude(own: Served, ours: Served, unvisited: float, server: float) -> None:
    share = statistics.median(ours.rates) / statistics.median(own.rates)
    figures = [
        ("`ssh -L`, OpenSSH's sshd of the image", _spread(own.rates, "MiB/s", 0)),
        ("`ssh -L`, embedded server", _spread(ours.rates, "MiB/s", 0)),
        ("embedded / OpenSSH", f"{share:.2f}"),
        ("`ssh true`, OpenSSH's sshd", _spread(own.logins, "s", 2)),
        ("`ssh true`, embedded server (the first wakes it)", _spread(ours.logins, "s", 2)),
        ("first process of a job that nobody visits", f"{unvisited:.1f} MiB"),
        ("embedded server after its visits", f"{server:.1f} MiB"),
    ]
    broken = []
    if share < _MIN_SHARE:
        broken.append(f"the embedded server carries {share:.2f} of what OpenSSH does")
    if unvisited > _MAX_UNVISITED:
        broken.append(f"a job that nobody visits pays {unvisited:.1f} MiB for its first process")
    conclude("SSH into a job", figures, broken)


def _spread(values: list[float], unit: str, digits: int) -> str:
    least, middle, most = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} {unit} ({least:.{digits}f}-{most:.{digits}f})"


def _make_key(folder: Path) -> Path:
    key = folder / "key"
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key)]
    subprocess.run(command, check=True)
    os.environ["FAIRLEAD_SSH_KEY"] = str(key)
    return key


def _served(parts: Parts, mode: str, key: Path, mib: int) -> Served:
    name = f"ssh-{mode}"
    source = ["/usr/bin/perl", "-e", _SOURCE.format(mib=mib)]
    task = parts.write_task(name, source, image=IMAGE, ssh=mode)
    parts.controller.cli("apply", "-d", "-f", task, "-n", name).succeeded()

    def attempt() -> dict[str, str]:
        run = parts.controller.cli("inspect", name, "--json").succeeded().json
        found: dict[str, str] = run["jobs"][0]["attempts"][-1]
        return found if run["status"] == "running" else {}

    found = wait_until(attempt, 30, f"{name} to run")
    container = f"fairlead-{found['id']}"
    shown = "{{.State.Pid}} {{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    pid, address = parts.docker.docker("inspect", "--format", shown, container).split()
    known = parts.folder / f"{name}.known_hosts"
    known.write_text(f"[{address}]:{_SSH_PORT} {found['ssh_host_key']}\n")
    options = ["-F", "none", "-i", str(key), "-p", str(_SSH_PORT), "-l", "root"]
    options += [
        "-o",
        f"UserKnownHostsFile={known}",
        "-o",
        "BatchMode=yes",
        "-o",
        f"Ciphers={CIPHERS}",
    ]
    return Served(mode, address, options, int(pid))


def _login(served: Served) -> float:
    began = time.perf_counter()
    subprocess.run(["ssh", *served.options, served.address, "true"], check=True)
    return time.perf_counter() - began


def _rate(served: Served, mib: int) -> float:
    with _forwarded(served) as port, _connected(port) as client:
        began = time.perf_counter()
        got = 0
        while piece := client.recv(MIB):
            got += len(piece)
        seconds = time.perf_counter() - began
    if got < (mib - 1) * MIB:
        raise SystemExit(f"only {got} bytes came through {served.mode}")
    return got / MIB / seconds


@contextmanager
def _forwarded(served: Served) -> Iterator[int]:
    port = free_port()
    forward = ["-N", "-L", f"127.0.0.1:{port}:127.0.0.1:{_SOURCE_PORT}"]
    with subprocess.Popen(["ssh", *served.options, *forward, served.address]) as process:
        try:
            yield port
        finally:
            process.terminate()


@contextmanager
def _connected(port: int) -> Iterator[socket.socket]:
    def connect() -> socket.socket | None:
        with suppress(OSError):
            return socket.create_connection(("127.0.0.1", port), 30)
        return None

    client = wait_until(connect, 20, "the forwarded port")
    assert client is not None
    with client:
        yield client


def _server_memory(first: int) -> float:
    """Return the server's memory. The children of a container's first process are the job and, once
    visited, the server."""
    for child in psutil.Process(first).children():
        if "entrypoint.ssh.server" in child.cmdline():
            return _resident(child.pid)
    raise SystemExit("the embedded server does not run")


def _resident(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss) / MIB
