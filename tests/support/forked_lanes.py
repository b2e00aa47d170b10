"""One pytest collects the tests, forks lanes that run them, and tells what these report.

A forked lane has the collected tests and the modules that they import. It ends as any pytest does:
its fixtures end what they have started.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from tests.support.lanes import Lane

_PIECE = 1 << 16
_ORDINARY = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)


class ForkedLanes:
    """Runs the collected tests in `count` processes."""

    def __init__(self, config: pytest.Config, count: int) -> None:
        self._config = config
        self._count = count
        self._lanes: list[_Heard] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.config.option.collectonly or session.testsfailed:
            return None  # pytest's own loop lists them, or tells that collecting failed
        folder = Path(tempfile.mkdtemp(prefix="lanes-"))
        # What is still in these buffers would be written by each process.
        sys.stdout.flush()
        sys.stderr.flush()
        for _ in range(self._count):
            ours, theirs = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(ours)
                return self._become_lane(session, folder, os.fdopen(theirs, "wb"))
            os.close(theirs)
            self._lanes.append(_Heard(pid, ours))
        try:
            with self._ended_after():
                self._listen(session)
        finally:
            shutil.rmtree(folder)
        return True

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for lane in self._lanes:
            if lane.has_failed:
                terminalreporter.section("files of a lane with a failed test, in their order")
                terminalreporter.write_line(" ".join(lane.ran))

    def _become_lane(self, session: pytest.Session, folder: Path, pipe: BinaryIO) -> bool | None:
        # The keyboard interrupts the process that collected, which hands it on once.
        os.setpgid(0, 0)
        plugins = self._config.pluginmanager
        plugins.unregister(self)
        plugins.unregister(name="terminalreporter")
        # By this name of pytest-xdist's, pytest knows that another process keeps its cache.
        self._config.workerinput = {}  # type: ignore[attr-defined]
        plugins.register(_Teller(self._config, pipe))
        return Lane(folder, [], apart=False).pytest_runtestloop(session)

    def _listen(self, session: pytest.Session) -> None:
        with selectors.DefaultSelector() as pipes:
            for lane in self._lanes:
                pipes.register(lane.pipe, selectors.EVENT_READ, lane)
            while pipes.get_map():
                for key, _ in pipes.select():
                    if not key.data.hear(self._config):
                        pipes.unregister(key.fd)
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)

    @contextmanager
    def _ended_after(self) -> Iterator[None]:
        """Wait for the lanes; interrupt them where the body fails or is interrupted."""
        try:
            yield
        except BaseException:
            for lane in self._lanes:
                with suppress(ProcessLookupError):
                    os.kill(lane.pid, signal.SIGINT)
            raise
        finally:
            codes = [os.waitstatus_to_exitcode(os.waitpid(lane.pid, 0)[1]) for lane in self._lanes]
            for lane in self._lanes:
                os.close(lane.pipe)
        for lane, code in zip(self._lanes, codes, strict=True):
            if code not in _ORDINARY:
                pytest.exit(f"a lane ended with {code} after {lane.last}", returncode=3)


class _Heard:
    """What a lane has told."""

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid = pid
        self.pipe = pipe
        self.ran: list[str] = []
        self.last = "nothing"
        self.has_failed = False
        self._rest = b""

    def hear(self, config: pytest.Config) -> bool:
        """Take what it tells now; return whether more may come."""
        piece = os.read(self.pipe, _PIECE)
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            self._take(config, json.loads(line))
        return bool(piece)

    def _take(self, config: pytest.Config, data: dict[str, Any]) -> None:
        report = config.hook.pytest_report_from_serializable(config=config, data=data)
        self.last = report.nodeid
        file = self.last.partition("::")[0]
        if self.ran[-1:] != [file]:
            self.ran.append(file)
        self.has_failed |= report.failed
        if report.when == "setup":
            config.hook.pytest_runtest_logstart(nodeid=report.nodeid, location=report.location)
        config.hook.pytest_runtest_logreport(report=report)
        if report.when == "teardown":
            config.hook.pytest_runtest_logfinish(nodeid=report.nodeid, location=report.location)


class _Teller:
    """In a lane: tells its reports through a pipe."""

    def __init__(self, config: pytest.Config, pipe: BinaryIO) -> None:
        self._config = config
        self._pipe = pipe

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._pipe.write(json.dumps(data).encode() + b"\n")
        self._pipe.flush()


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("lanes")
    group.addoption("--forked-lanes", metavar="N", type=int, help="run the tests in N processes")


def configure(config: pytest.Config) -> None:
    count = config.getoption("--forked-lanes")
    if count is not None:
        config.pluginmanager.register(ForkedLanes(config, count), "forked lanes")
