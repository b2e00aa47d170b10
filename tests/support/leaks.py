"""Finds what a test leaves behind: tasks, file descriptors, threads and child processes.

A fixture of a wider scope than one test may leave such things to the next test.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from tests.support.waiting import LONG, wait_until

SETTLES_WITHIN = LONG
_NOBODYS_FILES = ("/dev/null", "/dev/urandom", "/dev/pts/", "/proc/", "pipe:[pytest]")


@dataclass(frozen=True)
class Holdings:
    """The process's holdings at one moment; each set's members are readable."""

    files: frozenset[str]
    threads: frozenset[str]
    children: frozenset[str]

    def __sub__(self, other: Holdings) -> Holdings:
        return Holdings(
            self.files - other.files, self.threads - other.threads, self.children - other.children
        )

    def __or__(self, other: Holdings) -> Holdings:
        return Holdings(
            self.files | other.files, self.threads | other.threads, self.children | other.children
        )

    def describe(self) -> list[str]:
        return [
            *(f"leaked file {file}" for file in sorted(self.files)),
            *(f"leaked thread {thread}" for thread in sorted(self.threads)),
            *(f"leaked child process {pid} {_command(pid)}" for pid in sorted(self.children)),
        ]


outlasting: set[str] = set()
"""Pids of daemons that belong to a session but may be restarted by one of its tests, and files
that it holds for them."""


def holdings() -> Holdings:
    files, children = frozenset(_files()) - outlasting, frozenset(_children()) - outlasting
    return Holdings(files, frozenset(_threads()), children)


def outlasts(number: int) -> None:
    """Let this file descriptor outlast a test."""
    outlasting.update(file for file in _files() if file.startswith(f"{number} "))


def leaked_since(before: Holdings) -> list[str]:
    """New holdings since then, after those that end by themselves have had time to end."""

    def settled() -> bool:
        if not (holdings() - before).describe():
            return True
        # A file in a reference cycle is closed only by the garbage collector.
        gc.collect()
        return False

    with suppress(TimeoutError):
        wait_until(settled, SETTLES_WITHIN)
        return []
    return (holdings() - before).describe()


@contextmanager
def watched_tasks(leaked: list[str]) -> Iterator[None]:
    """Notes the tasks that a closing event loop still had to cancel."""
    close = asyncio.Runner.close

    def note_and_close(runner: asyncio.Runner) -> None:
        with suppress(RuntimeError):  # it was closed before
            leaked.extend(f"leaked task {task!r}" for task in asyncio.all_tasks(runner.get_loop()))
        close(runner)

    with mock.patch.object(asyncio.Runner, "close", note_and_close):
        yield


def _files() -> Iterator[str]:
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{number}")
            if not target.startswith(_NOBODYS_FILES):
                yield f"{number} → {target}"


def _threads() -> Iterator[str]:
    return (f"{thread.name} ({thread.native_id})" for thread in threading.enumerate())


def _children() -> Iterator[str]:
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            yield from (task / "children").read_text().split()


def _command(pid: str) -> str:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        return words.decode(errors="replace").strip()[:120] or "(ended, not waited for)"
    return "(gone)"


async def keepers(pieces: AsyncIterator[object], given: list[object]) -> int:
    """Return how many others keep the last piece given, while the next one is awaited."""
    waiting = asyncio.ensure_future(anext(pieces))
    await asyncio.sleep(0)
    # The list and the argument of the call have it too.
    count = sys.getrefcount(given[-1]) - 2
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    return count
