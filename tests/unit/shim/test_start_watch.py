"""The watch for an OCI runtime that waits for a FIFO."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from shim.engines.docker import oci_runtime
from shim.engines.docker.oci_runtime import StartWatch
from tests.support.waiting import eventually

ID = "0123456789abcdef" * 4
WAITS = "wait_for_partner"


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "infinity"]) as made:
        yield made
        made.kill()


class Proc:
    """A /proc with one process, and what is there besides."""

    def __init__(self, folder: Path, pid: int) -> None:
        self._folder = folder / str(pid)
        self._folder.mkdir()
        for name in ("self", "net", "4194304"):
            (folder / name).mkdir()
        self.tell(f"0::/system.slice/docker-{ID}.scope", WAITS, "runc:[2:INIT]\n")

    def tell(self, cgroup: str, wchan: str, comm: str) -> None:
        for name, text in (("cgroup", cgroup), ("wchan", wchan), ("comm", comm)):
            (self._folder / name).write_text(text)


@pytest.fixture
def proc(tmp_path: Path, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> Proc:
    monkeypatch.setattr(oci_runtime, "_PROC", tmp_path)
    monkeypatch.setattr(oci_runtime, "LOOK_SECONDS", 0.001)
    return Proc(tmp_path, process.pid)


async def test_a_runtime_that_waits_for_a_fifo_is_ended(
    proc: Proc, process: subprocess.Popen[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    async with StartWatch(ID) as watch:
        assert await asyncio.to_thread(process.wait) == -signal.SIGKILL
        await eventually(lambda: watch.has_ended_it)
    assert "its list of users is a FIFO" in caplog.text


@pytest.mark.parametrize(
    ("cgroup", "wchan", "comm"),
    [
        ("0::/docker/another", WAITS, "runc:[2:INIT]"),
        (f"0::/docker/{ID}", "do_wait", "runc:[2:INIT]"),
        # The job itself may wait for a FIFO of its own.
        (f"0::/docker/{ID}", WAITS, "sh"),
    ],
)
async def test_nothing_else_is_ended(
    proc: Proc, process: subprocess.Popen[bytes], cgroup: str, wchan: str, comm: str
) -> None:
    proc.tell(cgroup, wchan, comm)
    assert not oci_runtime._end_waiting(ID)
    assert process.poll() is None


async def test_a_watch_that_fails_does_not_fail_the_start(
    proc: Proc, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(oci_runtime, "_PROC", Path("/nowhere"))
    async with StartWatch(ID) as watch:
        await eventually(lambda: watch._looking.done())
    assert not watch.has_ended_it
    assert f"the start of container {ID} is not watched" in caplog.text


async def test_a_start_that_is_cancelled_while_its_watch_ends_is_cancelled(proc: Proc) -> None:
    ended = asyncio.Event()

    async def start() -> None:
        async with StartWatch(ID):
            ended.set()

    starting = asyncio.create_task(start())
    await ended.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting


async def test_a_busy_node_is_looked_at_less_and_less(
    proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses, sleep = list[float](), asyncio.sleep

    async def short(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(oci_runtime, "_end_waiting", lambda _: False)
    monkeypatch.setattr(asyncio, "sleep", short)
    async with StartWatch(ID):
        while len(pauses) < 4:
            await sleep(0)
    assert pauses[:4] == [0.001, 0.002, 0.004, 0.008]
