"""A runner kills its job's leftovers, in a process of its own: the victim may be the test's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import LONG, wait_until

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
    runner.communicate(b"x", timeout=LONG)
    left = Path(f"/proc/{child}").exists() and not _is_zombie(child)
    if left:
        os.killpg(child, signal.SIGKILL)
    assert not left


NOBODYS = 1 << 30
"""No process has this session id: the kernel's largest pid is 2**22 (proc_sys_kernel(5)).

The id after a test's own is likely that of a job of another test that runs beside it.
"""

LOOKS = f"""
import os, signal, subprocess
from common.processes.reaper import adopt_orphans
from runner.job import outcome
adopt_orphans()
scope = outcome.DescendantScope(adopts_orphans=True)
looks = []
real = outcome.process_table
outcome.process_table = lambda: looks.append(1) or real()
scope.kill_all({NOBODYS})
assert not looks, "it looks at all processes although it has no child"
job = subprocess.Popen(["sleep", "600"], start_new_session=True)
scope.kill_all(job.pid)
assert job.wait() == -signal.SIGKILL and looks
orphan = subprocess.run(["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo $!"], stdout=-1)
scope.kill_all({NOBODYS})
pid, status = os.waitpid(int(orphan.stdout), 0)
assert os.WTERMSIG(status) == signal.SIGKILL
"""


def test_a_runner_that_adopts_orphans_looks_at_other_processes_only_while_it_has_a_child() -> None:
    done = subprocess.run([sys.executable, "-c", LOOKS], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


LEFT = f"""
import os, signal
from common.processes.reaper import adopt_orphans
from runner.job import outcome
adopt_orphans()
def left():
    return outcome.left_behind({NOBODYS}, adopts_orphans=True)
assert not left(), "nothing was started"
# Its parent and its session's leader have ended, and its environment is empty: no list names it.
told, tell = os.pipe()
leader = os.fork()
if not leader:
    os.setsid()
    hidden = os.fork()
    if not hidden:
        os.execve("/bin/sleep", ["sleep", "600"], {{}})
    os.write(tell, str(hidden).encode())
    os._exit(0)
os.waitpid(leader, 0)
orphan = int(os.read(told, 20))
assert left()
os.kill(orphan, signal.SIGKILL)
os.waitid(os.P_PID, orphan, os.WEXITED | os.WNOWAIT)
assert not left(), "what has ended is no process, although nobody has waited for it"
os.waitpid(orphan, 0)
assert not left()
"""


def test_what_a_job_left_is_seen_whatever_its_session_and_parents() -> None:
    done = subprocess.run([sys.executable, "-c", LEFT], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
