"""The first process of a task without a container, run as what it is: a script of its own."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from common.processes import reaper
from tests.support.waiting import LONG, eventually

Process = asyncio.subprocess.Process


@asynccontextmanager
async def a_reaper(folder: Path, *program: str) -> AsyncIterator[Process]:
    """Started as the engine does it: with the signals that it handles blocked."""
    argv = reaper.command(program, str(folder))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, reaper.HANDLED - {signal.SIGCHLD})
    try:
        process = await asyncio.create_subprocess_exec(*argv, stderr=asyncio.subprocess.PIPE)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(reaper.END_ALL)
        await process.communicate()


async def status_of(process: Process) -> int:
    return await asyncio.wait_for(process.wait(), LONG)


@pytest.mark.parametrize(("script", "status"), [("exit 7", 7), ("kill -9 $$", 137)])
async def test_it_ends_as_its_program_did(tmp_path: Path, script: str, status: int) -> None:
    async with a_reaper(tmp_path, "/bin/sh", "-c", script) as process:
        assert await status_of(process) == status


async def test_its_program_runs_in_its_folder_without_the_reapers_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(reaper.VARIABLE, "t1")
    async with a_reaper(tmp_path, "/bin/sh", "-c", "env > told") as process:
        assert await status_of(process) == 0
    assert reaper.VARIABLE not in (tmp_path / "told").read_text()


async def test_a_program_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    async with a_reaper(tmp_path, "/no/such") as process:
        _, said = await process.communicate()
    assert (process.returncode, said) == (
        127,
        b"/no/such cannot be started: No such file or directory\n",
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_reaches_its_program_however_early_it_came(
    tmp_path: Path, number: signal.Signals
) -> None:
    async with a_reaper(tmp_path, "/bin/sleep", "600") as process:
        process.send_signal(number)
        assert await status_of(process) == 128 + number


async def test_children_of_its_program_hear_none_of_its_signals(tmp_path: Path) -> None:
    child = "trap ': > heard' TERM; : > ready; while :; do /bin/sleep 0.05; done"
    (tmp_path / "child").write_text(child)
    parent = "trap 'exit 4' TERM; /bin/sh child & wait"
    async with a_reaper(tmp_path, "/bin/sh", "-c", parent) as process:
        await eventually((tmp_path / "ready").exists)
        process.terminate()
        assert await status_of(process) == 4
    assert not (tmp_path / "heard").exists()


async def test_told_to_end_all_it_does_before_its_program_has_begun(tmp_path: Path) -> None:
    async with a_reaper(tmp_path, "/bin/sleep", "600") as process:
        process.send_signal(reaper.END_ALL)
        assert await status_of(process) == 137


async def test_the_children_of_a_process_are_those_that_it_waits_for() -> None:
    child = await asyncio.create_subprocess_exec("/bin/sleep", "600")
    try:
        assert child.pid in reaper.children_of(os.getpid())
    finally:
        child.kill()
        await child.wait()


def test_a_kernel_without_lists_of_children_is_asked_for_every_process(tmp_path: Path) -> None:
    for pid, parent in ((7, 1), (70, 7), (71, 7), (700, 70)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a (b) c) S {parent} 7 7 0")
    (tmp_path / "8").mkdir()
    (tmp_path / "sys").mkdir()
    assert sorted(reaper.children_of(7, str(tmp_path))) == [70, 71]
