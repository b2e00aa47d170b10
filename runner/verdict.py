"""From how the process ended to the exit record's words. Pure."""

from __future__ import annotations

import signal
from collections.abc import Iterable

import msgspec

from runner.process import Ending

DONE = "done_by_runner"
EXITED_WITH_ERROR = "container_exited_with_error"
OUT_OF_MEMORY = "out_of_memory"
MAX_DURATION = "max_duration_exceeded"
LOG_QUOTA = "log_quota_exceeded"
INTERRUPTED = "interrupted"
EXECUTOR_ERROR = "executor_error"
STOPPED_BEFORE_START = "stopped before it started"
"""Message of an `executor_error`: none of the reasons a runner may give means "was stopped", and
the controller, who asked for the stop, has set the real reason before."""

_MAX_LINE = 500
_KILLED_CODE = 128 + signal.SIGKILL


class Verdict(msgspec.Struct, frozen=True):
    reason: str
    message: str | None = None


class Interruption(msgspec.Struct, frozen=True, kw_only=True):
    """The job was asked to end so that it can come back. `killed`: it took longer than it might."""

    restart_exit_code: int | None
    killed: bool


def of_max_duration(seconds: float) -> Verdict:
    return Verdict(MAX_DURATION, f"stopped after max_duration ({seconds:g} s)")


def of_log_quota(quota: int) -> Verdict:
    return Verdict(LOG_QUOTA, f"stopped when its log had more than log_quota ({quota} bytes)")


def judge(
    ending: Ending,
    *,
    oom_killed: bool,
    last_line: str,
    enforced: Verdict | None = None,
    interruption: Interruption | None = None,
) -> Verdict:
    """`enforced` is the limit, if one made the runner stop the job."""
    if enforced is not None:
        return enforced
    if interruption is not None and interruption.killed:
        return Verdict(INTERRUPTED, "interrupted: it did not end within its grace and was killed")
    if ending.code == 0 and ending.signal is None:
        return Verdict(DONE)
    if oom_killed and ending.code == _KILLED_CODE:
        return Verdict(OUT_OF_MEMORY, "killed by the kernel: the job's memory limit was reached")
    if interruption is not None and _asks_for_restart(ending, interruption):
        return Verdict(INTERRUPTED, f"interrupted: exited with code {ending.code} to be restarted")
    how = f"ended by {ending.signal}" if ending.signal else f"exited with code {ending.code}"
    return Verdict(EXITED_WITH_ERROR, f"{how}: {last_line}" if last_line else how)


def _asks_for_restart(ending: Ending, interruption: Interruption) -> bool:
    code = interruption.restart_exit_code
    return code is not None and ending == Ending(code)


def last_line(tail: bytes, secrets: Iterable[str]) -> str:
    """The last line of stderr that says something, with secrets and control bytes taken out."""
    text = tail.decode("utf-8", "replace")
    for secret in sorted(secrets, key=len, reverse=True):
        if secret:
            text = text.replace(secret, "***")
    lines = (line.strip() for line in text.replace("\r", "\n").split("\n"))
    said = [line for line in lines if line]
    if not said:
        return ""
    return "".join(c if c.isprintable() else " " for c in said[-1])[:_MAX_LINE]
