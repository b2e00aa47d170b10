"""Leaders that die with their disks: the bucket has each log, upload and output.

Three controllers share a PostgreSQL and a bucket for everything. Jobs on one node print numbered
lines. Again and again the leader is killed and its folder removed; the keys are put back from
another controller. A reader follows one job all the time. At the end each log, and what the reader
got, equals what the job printed. Jobs whose file was uploaded to the first leader, and which start
when it is gone, got each byte; their outputs, and those of a job that ended before, are whole.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.proofs._peers import Parts, parts_of_peers
from bench.proofs._table import conclude
from tests.support.processes import run_cli
from tests.support.waiting import wait_until

_LINES = 1_500_000
_COMMAND = "for round in $(seq {rounds}); do seq -w 1 {lines}; sleep 3; done"
_CARRIED = 3 << 20
"""Bytes of the file that is uploaded, and that a job leaves as its output."""
_CARRYING = (
    "type: task\nname: {name}\nresources: {{cpu: 0.1, memory: 64MB}}\n"
    "files: [{{local_path: {file}, path: carried}}]\n"
    "{after}commands: ['cp carried $FAIRLEAD_OUTPUT_DIR/carried']\n"
)
_JOB = (
    "type: task\nname: j{number}\nresources: {{cpu: 0.1, memory: 64MB}}\ncommands: ['{command}']\n"
)


class Lab:
    """The controllers, their bucket and a node with jobs."""

    def __init__(self, parts: Parts, rounds: int) -> None:
        self.storage = parts.storage
        self.controllers = parts.controllers()
        self._folder = folder = parts.folder
        self._rounds = rounds
        printed = b"".join(b"%07d\n" % number for number in range(1, _LINES + 1)) * rounds
        self._printed = hashlib.sha256(printed).digest()
        self._carried = os.urandom(_CARRIED)
        (folder / "carried").write_bytes(self._carried)

    @property
    def env(self) -> dict[str, str]:
        urls = ",".join(one.url for one in self.controllers.all)
        return {"FAIRLEAD_URL": urls, "FAIRLEAD_TOKEN": self.controllers.token}

    def submit(self, number: int) -> None:
        file = self._folder / f"j{number}.yaml"
        command = _COMMAND.format(rounds=self._rounds, lines=_LINES)
        file.write_text(_JOB.format(number=number, command=command))
        run_cli("apply", "-d", "-f", file, env=self.env).succeeded()

    def lose_a_disk(self, parts: int) -> float:
        """Wait for so many parts, then take leader and disk; return the seconds until the next one
        leads."""
        wait_until(lambda: self._parts() >= parts, what="parts in the bucket", timeout=300)
        leader = self.controllers.leader()
        leader.kill9()
        shutil.rmtree(leader.data)
        began = time.monotonic()
        other = self.controllers.leader()
        seconds = time.monotonic() - began
        self.controllers.give_keys(other, leader)
        leader.start()
        return seconds

    def carry(self, name: str, after: str = "") -> None:
        """Submit a job with an upload, whose output equals it."""
        file = self._folder / f"{name}.yaml"
        file.write_text(_CARRYING.format(name=name, after=after, file=self._folder / "carried"))
        run_cli("apply", "-d", "-f", file, env=self.env).succeeded()

    def has_outputs(self, name: str) -> bool:
        target = self._folder / f"of-{name}"
        run_cli("outputs", name, "--pull", target, env=self.env).succeeded()
        return any(path.read_bytes() == self._carried for path in target.rglob("carried"))

    def _parts(self) -> int:
        return sum(key.endswith(".seg") for key in self.storage.objects())

    def wait_for(self, name: str) -> str:
        def ended() -> str | None:
            shown = run_cli("inspect", name, "--json", env=self.env)
            status = shown.json["status"] if shown.status == 0 else None
            return status if status in ("done", "failed", "terminated") else None

        return str(wait_until(ended, what=f"the end of {name}", timeout=600))

    def is_whole(self, log: Path) -> bool:
        with log.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest() == self._printed

    def read(self, number: int, *options: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Begin to read a log into a file."""
        file = self._folder / f"j{number}{''.join(options)}.log"
        argv = [str(Path(sys.executable).parent / "fairlead"), "logs", *options, f"j{number}"]
        env = {**os.environ, **self.env}
        with file.open("wb") as out:
            return subprocess.Popen(argv, env=env, stdout=out, stderr=subprocess.DEVNULL), file


def _violations(lab: Lab, jobs: int, follower: subprocess.Popen[bytes], log: Path) -> list[str]:
    broken = []
    for number in range(jobs):
        status = lab.wait_for(f"j{number}")
        reader, whole = lab.read(number)
        reader.wait()
        if status != "done" or not lab.is_whole(whole):
            broken.append(f"j{number} is {status}, its log has {whole.stat().st_size} bytes")
    for name in ("before", *(f"after{number}" for number in range(jobs))):
        status = lab.wait_for(name)
        if status != "done" or not lab.has_outputs(name):
            broken.append(f"{name} is {status}, or its outputs are not what was uploaded")
    if follower.wait(timeout=120) != 0 or not lab.is_whole(log):
        broken.append(f"who followed j0 got {log.stat().st_size} bytes")
    return broken


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="./dev prove lost_disk", description=__doc__)
    for name, count in (("jobs", 4), ("rounds", 6), ("losses", 2)):
        parser.add_argument(f"--{name}", type=int, default=count, help="default: %(default)s")
    given = parser.parse_args(argv)
    with ExitStack() as closing:
        parts = closing.enter_context(parts_of_peers())
        lab = Lab(parts, given.rounds)
        closing.callback(lab.controllers.close)
        lab.controllers.start()
        run_cli("node", "add", "here", "--local", parts.node.socket, env=lab.env).succeeded()
        lab.carry("before")
        lab.wait_for("before")
        for number in range(given.jobs):
            lab.submit(number)
            lab.carry(f"after{number}", f"after: [{{run: j{number}, when: done}}]\n")
        follower, log = lab.read(0, "-f")
        closing.callback(follower.kill)
        waits = [lab.lose_a_disk(3 * (number + 1)) for number in range(given.losses)]
        broken = _violations(lab, given.jobs, follower, log)
    size = given.jobs * given.rounds * _LINES * 8
    figures = [
        ("jobs", given.jobs),
        ("bytes of logs", f"{size:,}"),
        ("jobs with an upload that started after that", given.jobs),
        ("leaders killed with their disks", given.losses),
        ("seconds until the next one led", ", ".join(f"{wait:.2f}" for wait in waits)),
        ("load of the machine at the end", f"{os.getloadavg()[0]:.1f}"),
    ]
    conclude("logs, uploads and outputs of leaders that die with their disks", figures, broken)
