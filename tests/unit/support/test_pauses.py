"""The hunt for tests that race with time stops a command for moments, and changes nothing else."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys

import psutil
import pytest

from tests.support.pauses import STANDS_STILL, pause, run
from tests.support.waiting import LONG, wait_until

GAP = """
import sys, time
longest, last, until = 0.0, time.monotonic(), time.monotonic() + 60
while longest < float(sys.argv[1]) and last < until:
    time.sleep(0.001)
    now = time.monotonic()
    longest, last = max(longest, now - last), now
sys.exit(7 if longest >= float(sys.argv[1]) else 1)
"""


def test_a_command_stands_still_for_a_moment_and_keeps_its_exit_status() -> None:
    assert run([sys.executable, "-c", GAP, str(min(STANDS_STILL))], random.Random(1)) == 7


AS_NSENTER = """
import os, signal, subprocess, sys
program = subprocess.Popen([sys.executable, "-c", "input()"])
print(program.pid, flush=True)
while os.WIFSTOPPED(status := os.waitpid(program.pid, os.WUNTRACED)[1]):
    os.kill(os.getpid(), signal.SIGSTOP)
    os.kill(program.pid, signal.SIGCONT)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_one_that_stops_with_its_program_goes_on_with_it() -> None:
    command = [sys.executable, "-c", AS_NSENTER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as entered:
        assert entered.stdin is not None
        assert entered.stdout is not None
        pause(int(entered.stdout.readline()), 1.0)
        entered.stdin.write(b"go\n")
        entered.stdin.close()
        try:
            assert entered.wait(LONG) == 0
        finally:
            entered.kill()


def test_one_that_a_test_has_stopped_does_not_go_on() -> None:
    with subprocess.Popen(["sleep", "600"]) as stopped:
        try:
            stopped.send_signal(signal.SIGSTOP)
            about = psutil.Process(stopped.pid)
            wait_until(lambda: about.status() == psutil.STATUS_STOPPED, what="it to stop")
            pause(stopped.pid, 0.0)
            assert about.status() == psutil.STATUS_STOPPED
        finally:
            stopped.kill()


def test_the_process_of_sshd_that_would_die_of_it_is_not_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its argument is the title that sshd gives it."""
    command = [sys.executable, "-c", GAP, "0.2", "sshd: anna [net]"]
    sent: list[tuple[int, int]] = []
    with subprocess.Popen(command) as sandboxed:
        try:
            wait_until(lambda: "[net]" in str(psutil.Process(sandboxed.pid).cmdline()))
            monkeypatch.setattr(os, "kill", lambda *what: sent.append(what))
            pause(sandboxed.pid, 0.0)
            monkeypatch.undo()
        finally:
            sandboxed.kill()
    assert sent == []
