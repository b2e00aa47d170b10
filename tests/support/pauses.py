"""Runs tests while it stops their processes for moments, as a busy machine does, at no cost of CPU.

`python -m tests.support.pauses --seed 7 tests/unit/cli` runs pytest; every moment either it or one
process below it stands still for up to 2.5 s. A test that fails there races with time.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil

RUNS = (0.02, 0.1, 0.3, 0.8, 1.5)
STANDS_STILL = (0.1, 0.4, 0.4, 1.2, 1.2, 2.5)
"""Seconds. The longer ones are what a process waits for with thirty others on two processors."""


def run(argv: list[str], dice: random.Random) -> int:
    """Run a command to its end; return its exit status."""
    with subprocess.Popen(argv) as process:
        while process.poll() is None:
            time.sleep(dice.choice(RUNS))
            pause(_one_of(process.pid, dice), dice.choice(STANDS_STILL))
        return process.returncode


def pause(pid: int, seconds: float) -> None:
    """Let a process stand still; what stops with it goes on with it. One that a test has stopped
    is left alone."""
    with suppress(ProcessLookupError, psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if _stands_still(process) or _dies_of_a_stop(process):
            return
        above = [one for one in process.parents() if not _stands_still(one)]
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
            # nsenter stops when its program stops, and goes on only when it is told to.
            for one in filter(_stands_still, above):
                one.resume()


def _one_of(pid: int, dice: random.Random) -> int:
    """The command itself, half of the times, or a process below it."""
    with suppress(psutil.NoSuchProcess):
        below = [one.pid for one in psutil.Process(pid).children(recursive=True)]
        if below and dice.random() < 0.5:
            return dice.choice(below)
    return pid


def _dies_of_a_stop(process: psutil.Process) -> bool:
    """A sleep that was stopped is continued by a system call (restart_syscall(2)) for which the
    sandbox of OpenSSH's process before a login kills it."""
    command = " ".join(process.cmdline())
    return "sshd: " in command and "[net]" in command


def _stands_still(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() == psutil.STATUS_STOPPED)
    return False


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.support.pauses", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    options, arguments = parser.parse_known_args()
    command = [sys.executable, "-m", "pytest", "-q", *arguments]
    sys.exit(run(command, random.Random(options.seed)))


if __name__ == "__main__":
    main()
