"""The outcome of a job: from its process's end to the exit record's words, and what to kill.

In a container, everything but pid 1 belongs to the job. Outside, the processes of the job's session
and all descendants of this process do.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from fairlead.wire.runner import ExitReason
from runner.processes.spawn import Children, Ending

Table = dict[int, tuple[int, int]]
"""pid → (parent, session)."""
_LAST_PATIENCE = 5.0
"""Seconds for which killed processes are waited for: one may hang in a driver."""
_LOOK_AGAIN = 0.01
_ROUNDS = 20
"""A process that forks while the list is read needs another look; a fork bomb gets only this
many."""


class Scope(Protocol):
    def kill_all(self, session: int) -> None:
        """Send SIGKILL to what the job with this session id has left; may be repeated."""


class ContainerScope:
    """This process is pid 1: the kernel spares it alone."""

    def kill_all(self, session: int) -> None:
        try:
            # -1 is every process at once (kill(2)): one that forks would escape from a list.
            os.kill(-1, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return


class DescendantScope:
    """The session and every descendant of this process. `adopts_orphans`: it is a subreaper, so
    all of them are descendants."""

    def __init__(self, *, adopts_orphans: bool = False) -> None:
        self._adopts_orphans = adopts_orphans

    def kill_all(self, session: int) -> None:
        # A list of the node's processes costs more than a tiny job itself.
        if self._adopts_orphans and not _has_children():
            return
        me = os.getpid()

        def left(table: Table) -> set[int]:
            found = {pid for pid, row in table.items() if row[1] == session}
            return _with_descendants(found | {me}, table) - {me}

        _kill_until_none(left)


class SparingScope:
    """The session, and all that the job has orphaned: SSH sessions of its container live on."""

    def __init__(self, children: Children) -> None:
        self._children = children

    def kill_all(self, session: int) -> None:
        """Also wait for the end of what is killed: its ports and its GPU memory are free then."""
        ends_at = time.monotonic() + _LAST_PATIENCE
        _kill_until_none(partial(self._left, session))
        while self.is_left(session) and time.monotonic() < ends_at:
            time.sleep(_LOOK_AGAIN)

    def is_left(self, session: int) -> bool:
        """Return whether a process lives that the job with this session id has left. Blocking."""
        return bool(self._left(session, process_table()))

    def _left(self, session: int, table: Table) -> set[int]:
        me, owned = os.getpid(), self._children.owned
        orphans = self._children.adopts_orphans
        found = {
            pid
            for pid, (parent, of) in table.items()
            if of == session or (orphans and parent == me and pid not in owned)
        }
        return _with_descendants(found, table) - {me}


def _with_descendants(found: set[int], table: Table) -> set[int]:
    new = found
    while new:
        new = {pid for pid, row in table.items() if row[0] in new} - found
        found = found | new
    return found


def scope_of_this_process(*, adopts_orphans: bool = False) -> Scope:
    if os.getpid() == 1:
        return ContainerScope()
    return DescendantScope(adopts_orphans=adopts_orphans)


def left_behind(session: int, *, adopts_orphans: bool) -> bool:
    """Return whether a process lives that the job with this session id has left. Blocking."""
    # A list of the node's processes costs more than a tiny job itself.
    if adopts_orphans and not _has_children():
        return False
    # Orphans come to a process that adopts them; another one's children are its own affair.
    me, table = os.getpid(), process_table()
    parent = me if adopts_orphans else None
    return any(pid != me and (row[0] == parent or row[1] == session) for pid, row in table.items())


def _has_children() -> bool:
    """Return whether this process has a child, also one that has ended and was not waited for."""
    try:
        # WNOWAIT only looks: to reap a child here would lose its exit code.
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _kill_until_none(left: Callable[[Table], set[int]]) -> None:
    # More than once: a listed process may fork before it is killed.
    for _ in range(_ROUNDS):
        pids = left(process_table())
        if not pids:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                # It has ended meanwhile, or it has taken other rights (kill(2): ESRCH, EPERM).
                continue


def process_table() -> Table:
    """Return all processes that are not zombies."""
    table: Table = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            # The program's name stands in parentheses and may contain some itself (proc(5)).
            fields = (entry / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:
            # It has ended since /proc was listed.
            continue
        if fields[0] not in "ZX":
            table[int(entry.name)] = (int(fields[1]), int(fields[3]))
    return table


STOPPED_BEFORE_START = "stopped before it started"
"""The message of an `executor_error`: no reason of a runner means "was stopped", and the
controller, which asked for the stop, has already set the real reason."""
_MAX_LINE = 500
_KILLED_CODE = 128 + signal.SIGKILL


class Verdict(msgspec.Struct, frozen=True):
    reason: ExitReason
    message: str | None = None


class Interruption(msgspec.Struct, frozen=True, kw_only=True):
    """The job was asked to end so that it can come back. `killed`: it took longer than allowed."""

    restart_exit_code: int | None
    killed: bool


def of_max_duration(seconds: float) -> Verdict:
    return Verdict(ExitReason.MAX_DURATION_EXCEEDED, f"stopped after max_duration ({seconds:g} s)")


def of_log_quota(quota: int) -> Verdict:
    return Verdict(
        ExitReason.LOG_QUOTA_EXCEEDED,
        f"stopped when its log had more than log_quota ({quota} bytes)",
    )


def judge(
    ending: Ending,
    *,
    oom_killed: bool,
    last_line: str,
    enforced: Verdict | None = None,
    interruption: Interruption | None = None,
    in_setup: bool = False,
) -> Verdict:
    """Return the verdict. `enforced` is the limit for which the runner stopped the job, if any.
    `in_setup`: the job's `setup` had not succeeded."""
    if enforced is not None:
        return enforced
    if interruption is not None and interruption.killed:
        return Verdict(
            ExitReason.INTERRUPTED, "interrupted: it did not end within its grace and was killed"
        )
    if ending.code == 0 and ending.signal is None:
        return Verdict(ExitReason.DONE_BY_RUNNER)
    stage = "setup failed: " if in_setup else ""
    # The kernel may have killed a helper of the job: only the main process's end tells why the job
    # ended.
    if oom_killed and ending.code == _KILLED_CODE:
        return Verdict(
            ExitReason.OUT_OF_MEMORY,
            f"{stage}killed by the kernel: the job's memory limit was reached",
        )
    if interruption is not None and _asks_for_restart(ending, interruption):
        return Verdict(
            ExitReason.INTERRUPTED, f"interrupted: exited with code {ending.code} to be restarted"
        )
    how = f"ended by {ending.signal}" if ending.signal else f"exited with code {ending.code}"
    how = f"{stage}{how}"
    return Verdict(
        ExitReason.CONTAINER_EXITED_WITH_ERROR, f"{how}: {last_line}" if last_line else how
    )


def _asks_for_restart(ending: Ending, interruption: Interruption) -> bool:
    code = interruption.restart_exit_code
    return code is not None and ending == Ending(code)


def last_line(tail: bytes, secrets: Iterable[str]) -> str:
    """Return the last meaningful line of stderr, without secrets and control bytes."""
    text = tail.decode("utf-8", "replace")
    # The longest first: a shorter one within it would leave the rest of it readable.
    for secret in sorted(secrets, key=len, reverse=True):
        if secret:
            text = text.replace(secret, "***")
    # A progress bar writes its line again and again after a carriage return.
    lines = (line.strip() for line in text.replace("\r", "\n").split("\n"))
    written = [line for line in lines if line]
    if not written:
        return ""
    return "".join(c if c.isprintable() else " " for c in written[-1])[:_MAX_LINE]
