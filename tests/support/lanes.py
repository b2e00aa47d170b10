"""Several pytest processes ("lanes") share one run's tests: each takes the next file that is left.

Lanes were started with the same arguments and `--lanes FOLDER`, which is empty at the beginning. A
fixture of the session exists once in each lane. A lane is an ordinary pytest: if it is interrupted,
its fixtures end what they have started.

A lane with `--apart` has no way out of its network: it leaves the files below each
`--fetching PATH` to the others, which begin with them.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


class Queue:
    """The files that no lane has taken, in a file that lanes lock."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "queue.json"

    def take(self, files: list[str], mine: list[str], last: str | None) -> str | None:
        """Return the next file of `mine` that is left, None if none is. `files` are all of the run;
        raises UsageError if another lane has found others.

        Folders stay together as long as possible, because their files share what takes long to
        start: first a file next to `last`, then one of a folder that no lane has begun.
        """
        with self._file.open("a+") as queue:
            fcntl.flock(queue, fcntl.LOCK_EX)
            queue.seek(0)
            state = json.loads(queue.read() or "null") or {"all": files, "taken": []}
            if state["all"] != files:
                raise pytest.UsageError(f"{self._file}: the lanes found different files")
            left = [file for file in mine if file not in state["taken"]]
            begun = {_folder(file) for file in state["taken"]}
            near = [file for file in left if last is not None and _folder(file) == _folder(last)]
            fresh = [file for file in left if _folder(file) not in begun]
            for file in (near or fresh or left)[:1]:
                state["taken"].append(file)
                queue.truncate(0)
                queue.write(json.dumps(state))
                return file
        return None


class Lane:
    """Runs what it takes from the queue, until a file named `STOPPED` lies in the folder."""

    STOPPED = "stopped"

    def __init__(self, folder: Path, fetching: list[str], *, apart: bool) -> None:
        self._queue = Queue(folder)
        self._stopped = folder / self.STOPPED
        self._fetching = fetching
        self._apart = apart
        self.ran: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.config.option.collectonly or session.testsfailed:
            return None  # pytest's own loop lists them, or tells that collecting failed
        items = self._items(session.items)
        item = next(items, None)
        while item is not None:
            # A file is taken before the last test of the one before: pytest asks what comes next
            # to know which fixtures end.
            following = next(items, None)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop or self._stopped.exists():
                raise session.Interrupted(session.shouldstop or "the run was stopped")
            item = following
        return True

    def pytest_terminal_summary(self, terminalreporter: Any, exitstatus: int) -> None:
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            terminalreporter.section("files of this lane, in their order")
            terminalreporter.write_line(" ".join(self.ran))

    def _items(self, items: list[pytest.Item]) -> Iterator[pytest.Item]:
        by_file: dict[str, list[pytest.Item]] = {}
        for item in items:
            by_file.setdefault(item.nodeid.partition("::")[0], []).append(item)
        mine = sorted(by_file, key=lambda file: not self._fetches(file))
        if self._apart:
            mine = [file for file in mine if not self._fetches(file)]
        while file := self._queue.take(list(by_file), mine, self.ran[-1] if self.ran else None):
            self.ran.append(file)
            yield from by_file[file]

    def _fetches(self, file: str) -> bool:
        return any(Path(file).is_relative_to(path) for path in self._fetching)


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("lanes")
    group.addoption("--lanes", metavar="FOLDER", type=Path, help="where lanes of one run meet")
    group.addoption("--apart", action="store_true", help="this lane has no way out")
    group.addoption("--fetching", metavar="PATH", action="append", default=[], help="needs one")


def configure(config: pytest.Config) -> None:
    folder = config.getoption("--lanes")
    if folder is not None:
        lane = Lane(folder, config.getoption("--fetching"), apart=config.getoption("--apart"))
        config.pluginmanager.register(lane, "lane")


def _folder(file: str) -> str:
    return file.rpartition("/")[0]
