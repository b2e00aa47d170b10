"""A runner kills its job's leftovers, in a process of its own: the victim may be the test's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import wait_until

KILLS_ALL = """
import subprocess, sys
from runner.job.outcome import DescendantScope
job = subprocess.Popen(["/bin/sh", "job"], start_new_session=True)
sys.stdin.read(1)
DescendantScope().kill_all(job.pid)
job.wait()
"""


def test_a_session_below_the_jobs_own_dies_with_it_where_no_orphan_comes_back(
    tmp_path: Path,
) -> None:
    (tmp_path / "job").write_text("setsid sh -c 'echo $$ > pid; mv pid told; sleep 600; :' & wait")
    argv = [sys.executable, "-c", KILLS_ALL]
    runner = subprocess.Popen(argv, stdin=subprocess.PIPE, cwd=tmp_path)
    wait_until((tmp_path / "told").exists)
    child = int((tmp_path / "told").read_text())
    runner.communicate(b"x", timeout=60)
    left = Path(f"/proc/{child}").exists() and not _is_zombie(child)
    if left:
        os.killpg(child, signal.SIGKILL)
    assert not left


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
