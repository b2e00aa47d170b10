"""One pytest collects the tests, forks lanes that run them, and tells what these report.

A forked lane has the collected tests and the modules that they import. It ends as any pytest does:
its fixtures end what they have started.

An interrupt of the run ends the lanes, and so does the end of one lane that was killed, crashed or
was interrupted itself: the run fails with the name of its last test.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from tests.support.lanes import Lane

_PIECE = 1 << 16
_ORDINARY = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
_AGAIN_SECONDS = 2.0
"""Python drops an interrupt that comes while it calls back, such as in `__del__`."""
_GRACE_SECONDS = 60.0
"""A lane that has not ended by then after its interrupt is killed: the interpreter waits at its end
for each thread of a pool, so one that a test left in a call would keep it."""


class ForkedLanes:
    """Runs the collected tests in `count` processes."""

    def __init__(self, config: pytest.Config, count: int) -> None:
        self._config = config
        self._count = count
        self._lanes: list[_Heard] = []
        self._listening = selectors.DefaultSelector()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.config.option.collectonly or session.testsfailed:
            return None  # pytest's own loop lists them, or tells that collecting failed
        folder = Path(tempfile.mkdtemp(prefix="lanes-"))
        # An interrupt waits until all lanes are there, or some would go on without this process.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        for _ in range(self._count):
            theirs = self._fork()
            if theirs is not None:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
                return self._become_lane(session, folder, theirs)
        try:
            with self._ended_after(folder):
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
                self._listen(session)
        finally:
            shutil.rmtree(folder)
        return True

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for lane in self._lanes:
            if lane.has_failed:
                terminalreporter.section("files of a lane with a failed test, in their order")
                terminalreporter.write_line(" ".join(lane.ran))

    def _fork(self) -> BinaryIO | None:
        """Start a lane. In the lane, return the pipe through which it tells."""
        # What is still in these buffers would be written by each process.
        sys.stdout.flush()
        sys.stderr.flush()
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(ours)
            self._listening.close()
            return os.fdopen(theirs, "wb")
        os.close(theirs)
        lane = _Heard(pid, ours)
        self._lanes.append(lane)
        for fd in (lane.pipe, lane.process):
            self._listening.register(fd, selectors.EVENT_READ, lane)
        return None

    def _become_lane(self, session: pytest.Session, folder: Path, pipe: BinaryIO) -> bool | None:
        # The keyboard interrupts the process that collected, which hands it on once. A group of
        # its own in that terminal would not do: what reads the terminal from there is stopped.
        os.setsid()
        plugins = self._config.pluginmanager
        plugins.unregister(self)
        plugins.unregister(name="terminalreporter")
        # By this name of pytest-xdist's, pytest knows that another process keeps its cache.
        self._config.workerinput = {}  # type: ignore[attr-defined]
        plugins.register(_Teller(self._config, pipe))
        return Lane(folder, [], apart=False).pytest_runtestloop(session)

    def _listen(self, session: pytest.Session) -> None:
        while self._hear():
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            for lane in self._lanes:
                if lane.code not in (None, *_ORDINARY):
                    pytest.exit(f"a lane {lane.end()}", returncode=3)

    def _hear(self, timeout: float | None = None) -> bool:
        """Wait for what lanes tell; return False as soon as all have ended."""
        if all(lane.code is not None for lane in self._lanes):
            return False
        for key, _ in self._listening.select(timeout):
            if not key.data.hear(self._config, key.fd):
                self._listening.unregister(key.fd)
        return True

    @contextmanager
    def _ended_after(self, folder: Path) -> Iterator[None]:
        """End the lanes where the body fails or is interrupted; a second interrupt kills them.

        What they tell is heard meanwhile: a lane could not write to a full pipe, nor end.
        """
        try:
            yield
        except BaseException:
            (folder / Lane.STOPPED).touch()
            try:
                limit = time.monotonic() + _GRACE_SECONDS
                while time.monotonic() < limit and self._interrupt():
                    pass
            finally:
                self._kill()
            raise
        finally:
            self._listening.close()
            for lane in self._lanes:
                os.close(lane.pipe)
                os.close(lane.process)

    def _interrupt(self) -> bool:
        """Interrupt those that have not noticed; return whether any goes on after a while."""
        for lane in self._lanes:
            if lane.code is None and not lane.is_interrupted:
                os.kill(lane.pid, signal.SIGINT)
        limit = time.monotonic() + _AGAIN_SECONDS
        while goes_on := self._hear(max(0.0, limit - time.monotonic())):
            if time.monotonic() >= limit:
                break
        return goes_on

    def _kill(self) -> None:
        for lane in self._lanes:
            if lane.code is None:
                sys.stderr.write(f"\na lane did not end and is killed {lane.where}\n")
                os.kill(lane.pid, signal.SIGKILL)
                with suppress(ProcessLookupError):  # it may have been killed before it had a group
                    os.killpg(lane.pid, signal.SIGKILL)
                os.waitpid(lane.pid, 0)


class _Heard:
    """What a lane has told."""

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid = pid
        self.pipe = pipe
        self.process = os.pidfd_open(pid)
        self.code: int | None = None
        self.ran: list[str] = []
        self.where = "before its first test"
        self.has_failed = False
        self.is_interrupted = False
        self._rest = b""
        os.set_blocking(pipe, False)

    def hear(self, config: pytest.Config, fd: int) -> bool:
        """Take what it tells now; return whether more may come through `fd`."""
        if fd == self.pipe:
            return self._read(config)
        # An interrupted test may leave daemons. Nobody gets the group's id before the wait below.
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGTERM)
        _, status = os.waitpid(self.pid, 0)
        self._read(config)
        # A process that a test has forked may hold the pipe, so its end is not waited for.
        self.code = os.waitstatus_to_exitcode(status)
        return False

    def end(self) -> str:
        assert self.code is not None
        if self.code < 0:
            return f"was killed by {signal.Signals(-self.code).name} {self.where}"
        return f"ended with {self.code} {self.where}"

    def _read(self, config: pytest.Config) -> bool:
        with suppress(BlockingIOError):
            while piece := os.read(self.pipe, _PIECE):
                *lines, self._rest = (self._rest + piece).split(b"\n")
                for line in lines:
                    self._take(config, **json.loads(line))
            return False
        return True

    def _take(
        self,
        config: pytest.Config,
        begins: tuple[str, Any] | None = None,
        report: dict[str, Any] | None = None,
        ends: tuple[str, Any] | None = None,
        interrupted: bool = False,
    ) -> None:
        hook = config.hook
        self.is_interrupted |= interrupted
        if begins is not None:
            nodeid, location = begins
            self.where = f"in {nodeid}"
            file = nodeid.partition("::")[0]
            if self.ran[-1:] != [file]:
                self.ran.append(file)
            hook.pytest_runtest_logstart(nodeid=nodeid, location=location)
        if report is not None:
            told = hook.pytest_report_from_serializable(config=config, data=report)
            self.has_failed |= told.failed
            hook.pytest_runtest_logreport(report=told)
        if ends is not None:
            nodeid, location = ends
            self.where = f"after {nodeid}"
            hook.pytest_runtest_logfinish(nodeid=nodeid, location=location)


class _Teller:
    """In a lane: tells its reports through a pipe."""

    def __init__(self, config: pytest.Config, pipe: BinaryIO) -> None:
        self._config = config
        self._pipe = pipe

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._tell(begins=(nodeid, location))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        self._tell(report=hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._tell(ends=(nodeid, location))

    def pytest_keyboard_interrupt(self) -> None:
        self._tell(interrupted=True)

    def _tell(self, **what: Any) -> None:
        self._pipe.write(json.dumps(what).encode() + b"\n")
        self._pipe.flush()


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("lanes")
    group.addoption("--forked-lanes", metavar="N", type=int, help="run the tests in N processes")


def configure(config: pytest.Config) -> None:
    count = config.getoption("--forked-lanes")
    if count is not None:
        config.pluginmanager.register(ForkedLanes(config, count), "forked lanes")
