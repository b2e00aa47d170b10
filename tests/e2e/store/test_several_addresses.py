"""Clients that know several controllers go on when the leader, which they talk to, is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from fairlead import Client
from tests.e2e.store.process_lab import ProcessLab
from tests.e2e.store.test_leaders import Controllers
from tests.support.processes import ControllerProcess, run_cli
from tests.support.ssh_daemon import free_port
from tests.support.testbed import ShimFactory
from tests.support.waiting import LONG, wait_until

pytestmark = pytest.mark.e2e
_FAIRLEAD = Path(sys.executable).parent / "fairlead"


class Bed:
    """Three controllers, of which the first leads, on one node; a client of a dead address and of
    all three."""

    def __init__(self, controllers: Controllers, folder: Path, closing: ExitStack) -> None:
        self.controllers = controllers
        self.first, self.second, _ = controllers.all
        self.lab = ProcessLab(self.first, folder)
        self.go = folder / "go"
        self._closing = closing
        dead = f"http://127.0.0.1:{free_port()}"
        self.urls = ",".join([dead, *(one.url for one in controllers.all)])
        self.env = {"FAIRLEAD_URL": self.urls, "FAIRLEAD_TOKEN": controllers.token}

    @property
    def counting(self) -> str:
        """A command that prints numbered lines until it may end."""
        loop = "i=0; while [ ! -e {} ]; do echo line $i; i=$((i+1)); sleep 0.02; done"
        return loop.format(self.go)

    def command(
        self, *arguments: str | Path, at: Sequence[ControllerProcess] = ()
    ) -> subprocess.Popen[bytes]:
        """`at`: those that it knows; by default the dead address and all."""
        known = {"FAIRLEAD_URL": ",".join(one.url for one in at)} if at else {}
        process = subprocess.Popen(
            [str(_FAIRLEAD), *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,  # `communicate` reads past a buffer
            env={**os.environ, **self.env, **known},
        )
        self._closing.callback(_end, process)
        return process

    def lead_by_another(self) -> None:
        self.first.kill9()
        leader = self.controllers.leader(self.second)
        self.lab = ProcessLab(leader, self.lab.folder)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def _read(process: subprocess.Popen[bytes], count: int) -> list[bytes]:
    assert process.stdout is not None
    return [process.stdout.readline() for _ in range(count)]


@pytest.fixture
def bed(database_url: str, tmp_path: Path, shim_process: ShimFactory) -> Iterator[Bed]:
    shim = shim_process("process")
    with ExitStack() as closing:
        controllers = Controllers(tmp_path, database_url)
        closing.callback(controllers.close)
        controllers.start()
        bed = Bed(controllers, tmp_path, closing)
        bed.lab.cli("node", "add", "here", "--local", shim.socket).succeeded()
        bed.lab.wait_for_node(lambda node: node["status"] == "connected", "here")
        yield bed


def test_logs_apply_and_wait_go_on_and_no_line_is_lost_or_comes_twice(bed: Bed) -> None:
    apply = bed.command("apply", "-f", bed.lab.write(commands=[bed.counting]), "-n", "job")
    lines = _read(apply, 10)
    logs = bed.command("logs", "-f", "job")
    followed = _read(logs, 30)

    bed.lead_by_another()
    lines += _read(apply, 100)
    followed += _read(logs, 100)
    run = Client(bed.urls, bed.controllers.token, tell=lambda _: None).run("job")
    bed.go.touch()
    assert run.wait(timeout=LONG).status == "done"
    rest, told = apply.communicate(timeout=LONG)
    rest_of_log, told_by_logs = logs.communicate(timeout=LONG)

    assert (apply.returncode, logs.returncode) == (0, 0), told + told_by_logs
    whole = b"".join([*followed, rest_of_log])
    count = whole.count(b"\n")
    assert whole.splitlines() == [f"line {number}".encode() for number in range(count)]
    assert b"".join([*lines, rest]) == whole
    assert bed.lab.log("job") == whole
    for sentences in (told, told_by_logs):
        assert b" is passed over: Connection refused; http://" in sentences
        assert b"the controller is back" in sentences


def test_logs_go_on_when_the_leader_stops_and_a_follower_is_killed(bed: Bed) -> None:
    first, second, third = bed.controllers.all
    bed.lab.start("job", commands=[bed.counting])
    readers = [
        bed.command("logs", "-f", "job", at=(ending, third)) for ending in (first, second, third)
    ]
    came = [_read(reader, 30) for reader in readers]
    second.kill9()
    assert first.stop() == 0
    for lines, reader in zip(came, readers, strict=True):
        lines += _read(reader, 100)
    bed.go.touch()
    wholes = []
    for lines, reader in zip(came, readers, strict=True):
        rest, told = reader.communicate(timeout=LONG)
        assert reader.returncode == 0, told
        wholes.append(b"".join([*lines, rest]))
    count = wholes[0].count(b"\n")
    assert wholes == [b"".join(b"line %d\n" % number for number in range(count))] * 3


def test_a_forwarded_port_takes_connections_again(bed: Bed) -> None:
    port = free_port()
    serve = f"{sys.executable} -m http.server --bind 127.0.0.1 {port}"
    bed.lab.start("web", commands=[serve])
    client = Client(bed.urls, bed.controllers.token, tell=lambda _: None)
    with client.run("web").forward(port) as local:

        def answers() -> bool:
            with suppress(OSError), urllib.request.urlopen(f"http://{local.address}/") as got:
                return bool(got.status == 200)
            return False

        wait_until(answers, what="the job to serve")
        bed.lead_by_another()
        assert wait_until(answers, what="the port to lead to the job again")
    bed.lab.cli("stop", "--abort", "web").succeeded()


def test_a_request_finds_the_leader_by_whichever_address_is_left(bed: Bed) -> None:
    first, second, third = bed.controllers.all
    bed.lead_by_another()
    third.kill9() if bed.lab.controller is second else second.kill9()
    file = bed.lab.write(commands=["true"])
    applied = run_cli("apply", "-d", "-f", file, "-n", "once", env=bed.env).succeeded()
    assert first.url in applied.errors
    # All: it may have ended by now.
    assert [run["name"] for run in bed.lab.get("/v1/runs", all=True)["runs"]] == ["once"]
