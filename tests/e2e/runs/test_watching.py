"""`apply --watch` on the process engine: the job starts again in its container."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.lab import ControllerLab, PlainLab, RunLab
from tests.support.waiting import LONG, wait_until

pytestmark = pytest.mark.e2e


class Watching:
    """A command in the background, and what it has said so far."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.said = b""
        self._threads = [
            threading.Thread(target=self._read, args=(pipe,), daemon=True)
            for pipe in (process.stdout, process.stderr)
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, pipe: object) -> None:
        assert hasattr(pipe, "fileno")
        while piece := os.read(pipe.fileno(), 1 << 16):
            self.said += piece

    def hears(self, text: bytes, times: int = 1) -> None:
        wait_until(lambda: self.said.count(text) >= times, LONG, f"{text!r} in {self.said!r}")


@contextmanager
def watching(lab: ControllerLab, file: Path) -> Iterator[Watching]:
    with lab.controller.spawn_cli("apply", "--watch", "-f", file, "-n", "train") as process:
        try:
            yield Watching(process)
        finally:
            process.kill()


def test_a_change_starts_the_job_again_in_its_container_also_after_kills(
    plain_lab: PlainLab,
) -> None:
    lab, code = plain_lab, plain_lab.folder / "code"
    code.mkdir()
    (code / "a.sh").write_text("echo first; exit 3\n")
    (code / "gone").write_text("")
    commands = ["ls code; echo x >> made; wc -l < made", "sh code/a.sh"]
    file = lab.write(files=["code:code"], commands=commands)
    with watching(lab, file) as command:
        command.hears(b"exit code 3; its container waits at most 10 min for changed files")
        before = lab.attempts("train")
        (code / "gone").unlink()
        (code / "a.sh").write_text("echo second; sleep 1000\n")
        command.hears(b"started again in the same container")
        command.hears(b"second\n")

        lab.controller.restart()
        lab.shim.restart()
        (code / "a.sh").write_text("echo third; exit 5\n")
        command.hears(b"stopped to start again")
        command.hears(b"third\n")
        command.hears(b"exit code 5; its container waits")
        run = lab.inspect("train")
        (attempt,) = run["jobs"][0]["attempts"]
        assert attempt["id"] == before[0]["id"]
        starts = attempt["starts"]
        assert (starts["asked"], starts["begun"], starts["refused"]) == (2, 2, None)
        log = lab.log("train")
        for part in (b"\n1\nfirst\n", b"\n2\nsecond\n", b"\n3\nthird\n"):
            assert part in log, log
        assert log.count(b"gone\n") == 1

        file.write_text(file.read_text() + 'resources: {"cpu": 1}\n')
        command.hears(b"train gets a new container: ")
        command.hears(b"exit code 5; its container waits", 2)
        assert lab.inspect("train")["id"] != run["id"]
        command.process.send_signal(signal.SIGINT)
        command.process.wait(LONG)
    # Its container does not wait for anybody, and its result is the job's.
    (attempt,) = lab.wait_for("train", "failed")["jobs"][0]["attempts"]
    assert (attempt["termination_reason"], attempt["exit_code"]) == (
        "container_exited_with_error",
        5,
    )


def test_a_container_of_docker_is_kept_with_what_the_job_installed(lab: RunLab) -> None:
    code = lab.folder / "watched.sh"
    code.write_text("echo here > /opt-made; sleep 1000 & sleep 1000 & exit 3\n")
    commands = ["sh watched.sh"]
    file = lab.write(files=["watched.sh"], commands=commands)
    with watching(lab, file) as command:
        command.hears(b"exit code 3; its container waits")
        before = lab.container("train")
        code.write_text("cat /opt-made; ps; exit 4\n")
        command.hears(b"watched.sh changed: train starts again")
        command.hears(b"exit code 4; its container waits")
        assert lab.container("train") == before
        log = lab.log("train").partition(b"started again in the same container")[2]
        assert b"\nhere\n" in log
        assert b"sleep 1000" not in log
        command.process.send_signal(signal.SIGINT)
        command.process.wait(LONG)
    lab.end_runs()
