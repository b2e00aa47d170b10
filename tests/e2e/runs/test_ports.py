"""A port of a job, also one on its loopback, is reached from the user's machine: through
controller, SSH and runner, with nothing published on the node."""

from __future__ import annotations

import contextlib
import hashlib
import re
import signal
import socket
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.support.lab import UNTIL_ASKED, RunLab
from tests.support.processes import ControllerProcess, ShimProcess
from tests.support.ssh_daemon import free_port
from tests.support.waiting import LONG, wait_until

pytestmark = pytest.mark.e2e

WEB, DIGEST, NOBODY = 8000, 9000, 7000
SERVERS = [
    "mkdir /tmp/www; echo welcome > /tmp/www/index.html",
    f"httpd -p 127.0.0.1:{WEB} -h /tmp/www",
    f"nc -ll -p {DIGEST} -e sha256sum &",
    f"until cat /proc/net/tcp /proc/net/tcp6 | grep -q :{DIGEST:04X}; do sleep 0.05; done",
    "echo listening",
    UNTIL_ASKED,
]
MIB = 1 << 20


@contextlib.contextmanager
def forwarding(lab: RunLab, run: str, *ports: int) -> Iterator[dict[int, int]]:
    """port of the job → local port."""
    command = lab.controller.spawn_cli("port-forward", run, *(f"{port}:0" for port in ports))
    assert command.stderr is not None
    try:
        found = {}
        for _ in ports:
            line = command.stderr.readline().decode()
            told = re.search(r"127\.0\.0\.1:(\d+) leads to port (\d+) of", line)
            assert told is not None, line
            found[int(told[2])] = int(told[1])
        yield found
    finally:
        command.send_signal(signal.SIGINT)
        _, errors = command.communicate(timeout=LONG)
        assert b"Traceback" not in errors


def digest_of(port: int, data: bytes) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=LONG) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answer = connection.makefile("rb").read()
    return answer.decode().split()[0]


def page_at(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=LONG) as page:
        return bytes(page.read())


def test_http_and_half_closed_streams_reach_the_jobs_loopback(lab: RunLab) -> None:
    lab.start("ports", commands=SERVERS)
    lab.wait_for_log("ports", b"listening\n")
    texts = [bytes([number]) * (number * MIB) for number in (0, 1, 3, 7)]
    with forwarding(lab, "ports", WEB, DIGEST) as local, ThreadPoolExecutor() as threads:
        pages = list(threads.map(page_at, [local[WEB]] * 8))
        digests = list(threads.map(lambda text: digest_of(local[DIGEST], text), texts))
    lab.let_go("ports")
    lab.wait_for("ports", "done")
    assert set(pages) == {b"welcome\n"}
    assert digests == [hashlib.sha256(text).hexdigest() for text in texts]


def test_a_port_that_nobody_listens_on_breaks_the_connection(lab: RunLab) -> None:
    lab.start("silent", commands=["echo listening", UNTIL_ASKED])
    with (
        forwarding(lab, "silent", NOBODY) as local,
        socket.create_connection(("127.0.0.1", local[NOBODY]), timeout=LONG) as connection,
        pytest.raises(ConnectionResetError),
    ):
        connection.recv(1)
    lab.let_go("silent")
    lab.wait_for("silent", "done")


def test_a_port_of_a_job_on_this_machine_is_its_own_and_is_not_forwarded_to_itself(
    testbed_folder: Path, numbers: Iterator[int], tmp_path: Path
) -> None:
    """The process engine's jobs have this machine's network. A listener there would keep the job
    from listening, and each connection to it would open another one without end."""
    folder = testbed_folder / f"own{next(numbers)}"
    controller, shim = ControllerProcess(folder / "c"), ShimProcess(folder / "n", "process")
    shim.start()
    controller.start()
    port, another = free_port(), free_port()
    try:
        controller.cli("node", "add", "here", "--local", shim.socket).succeeded()
        job = tmp_path / "job.yaml"
        job.write_text(
            f"type: task\nname: web\nports: [{port}, '{another}:{port}']\ncommands:\n"
            f"- echo welcome > index.html\n- exec python3 -m http.server -b 127.0.0.1 {port}\n"
        )
        command = controller.spawn_cli("apply", "-f", str(job))
        assert command.stderr is not None
        told = ""
        while f"{another} leads to port {port} of web" not in told:
            line = command.stderr.readline().decode()
            assert line, f"the command ended: {told}"
            told += line
        assert f"port {port} of web is 127.0.0.1:{port} itself: its node is here" in told
        wait_until(partial(_answers, port), what="the job's server")
        assert page_at(another) == b"welcome\n"
        command.send_signal(signal.SIGINT)
        command.communicate(timeout=LONG)
    finally:
        controller.close()
        shim.close()


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError):
        return page_at(port) == b"welcome\n"
    return False
