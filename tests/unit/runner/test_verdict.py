from pathlib import Path

import pytest

from fairlead.wire.runner import ExitReason
from runner.cgroup import oom_kills
from runner.job.outcome import Interruption, Verdict, judge, last_line, of_max_duration
from runner.processes.spawn import Ending

KILLED = Ending(137, "SIGKILL")


@pytest.mark.parametrize(
    ("ending", "oom", "limit", "expected"),
    [
        (Ending(0), False, None, Verdict(ExitReason.DONE_BY_RUNNER)),
        (Ending(0), True, None, Verdict(ExitReason.DONE_BY_RUNNER)),
        (
            Ending(3),
            False,
            None,
            Verdict(ExitReason.CONTAINER_EXITED_WITH_ERROR, "exited with code 3: boom"),
        ),
        (
            KILLED,
            False,
            None,
            Verdict(ExitReason.CONTAINER_EXITED_WITH_ERROR, "ended by SIGKILL: boom"),
        ),
        (
            KILLED,
            True,
            None,
            Verdict(
                ExitReason.OUT_OF_MEMORY, "killed by the kernel: the job's memory limit was reached"
            ),
        ),
        (
            Ending(1),
            True,
            None,
            Verdict(ExitReason.CONTAINER_EXITED_WITH_ERROR, "exited with code 1: boom"),
        ),
        (
            Ending(0),
            False,
            60.0,
            Verdict(ExitReason.MAX_DURATION_EXCEEDED, "stopped after max_duration (60 s)"),
        ),
    ],
)
def test_the_reason_follows_from_how_it_ended(
    ending: Ending, oom: bool, limit: float | None, expected: Verdict
) -> None:
    enforced = None if limit is None else of_max_duration(limit)
    assert judge(ending, oom_killed=oom, enforced=enforced, last_line="boom") == expected


@pytest.mark.parametrize(
    ("ending", "restart", "killed", "reason"),
    [
        (Ending(0), 75, False, "done_by_runner"),
        (Ending(75), 75, False, "interrupted"),
        (Ending(75), None, False, "container_exited_with_error"),
        (Ending(1), 75, False, "container_exited_with_error"),
        (Ending(143, "SIGTERM"), 143, False, "container_exited_with_error"),
        (KILLED, 75, True, "interrupted"),
        (KILLED, None, True, "interrupted"),
    ],
)
def test_an_interrupted_job_says_by_its_exit_code_how_it_ended(
    ending: Ending, restart: int | None, killed: bool, reason: str
) -> None:
    interruption = Interruption(restart_exit_code=restart, killed=killed)
    verdict = judge(ending, oom_killed=False, last_line="", interruption=interruption)
    assert verdict.reason == reason


def test_the_last_line_is_free_of_secrets_and_control_bytes() -> None:
    tail = b"Traceback\n\x1b[31mbad token hunter2!\x1b[0m\xff\n\n"
    assert last_line(tail, ["hunter", "hunter2"]) == " [31mbad token ***! [0m�"


def test_nothing_said_gives_no_line() -> None:
    assert last_line(b"\n \n", []) == ""


def fake_cgroup(root: Path, membership: str, path: str, text: str) -> None:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(membership)
    counter = root / "sys/fs/cgroup" / path
    counter.parent.mkdir(parents=True)
    counter.write_text(text)


@pytest.mark.parametrize(
    ("membership", "path", "text"),
    [
        ("0::/\n", "memory.events", "oom 3\noom_kill 2\n"),
        ("0::/user.slice/a\n", "user.slice/a/memory.events", "oom_kill 2\n"),
        ("5:memory:/docker/x\n0::/\n", "memory/docker/x/memory.oom_control", "oom_kill 2\n"),
        ("5:cpu,memory:/docker/x\n", "memory/memory.oom_control", "under_oom 0\noom_kill 2\n"),
    ],
)
def test_kills_are_counted_in_both_cgroup_versions(
    tmp_path: Path, membership: str, path: str, text: str
) -> None:
    fake_cgroup(tmp_path, membership, path, text)
    assert oom_kills(tmp_path) == 2


def test_nobody_counting_means_none(tmp_path: Path) -> None:
    assert oom_kills(tmp_path) == 0
