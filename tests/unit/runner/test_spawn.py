"""A process whose start is cancelled does not live on, and its pipes are like others."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import threading
from typing import Any

import pytest

from runner.processes import spawn
from runner.processes.launch import Launch
from tests.support.waiting import LONG

LAUNCH = Launch(argv=("/bin/sleep", "60"), env={}, working_dir="/", identity=None)


@pytest.mark.parametrize(
    ("function", "start"),
    [
        ("fork_exec", lambda children: spawn.spawn(LAUNCH, children)),
        (
            "execute",
            lambda children: spawn.start_in_thread(
                LAUNCH.argv, children, stdin=subprocess.DEVNULL, close_fds=True
            ),
        ),
    ],
)
async def test_a_start_that_is_cancelled_while_its_program_runs_already_ends_the_program(
    function: str, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, may_return = asyncio.Event(), threading.Event()
    loop, started, original = asyncio.get_running_loop(), [], getattr(spawn, function)

    def slow(*args: Any, **options: Any) -> int:
        started.append(original(*args, **options))
        loop.call_soon_threadsafe(runs.set)
        may_return.wait(LONG)
        return int(started[0])

    monkeypatch.setattr(spawn, function, slow)
    starting = asyncio.create_task(start(spawn.Children()))
    await runs.wait()
    starting.cancel()
    may_return.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)


def test_a_job_begins_with_pipes_of_the_usual_size() -> None:
    """A user's pipes may hold 64 MiB together: larger ones would leave the jobs' own 8 KiB each."""
    usual = os.pipe()
    with spawn.ends_for(LAUNCH) as ends:
        sizes = {fcntl.fcntl(end, fcntl.F_GETPIPE_SZ) for end in (*usual, *ends[:2])}
    for end in (*usual, *ends[:2]):
        os.close(end)
    assert len(sizes) == 1
