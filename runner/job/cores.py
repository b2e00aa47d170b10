"""`core_dumps`: when a job has ended, core dumps of its processes are copied to its output folder.

The kernel writes a core dump where the node's core_pattern says, as the process that crashed: by
default into that process's folder. Only a file that is there can be kept. Where core_pattern gives
core dumps to a program of the node, the job's log says so.

The copying is a program of its own, which runs as the job's user: it reads what the job may read.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import stat
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from common.core_pattern import FIX, why_not_files
from runner.code.helper import Helpers
from runner.job.outputs import copy_whole, lines_of, print_lines
from runner.processes.spawn import Ending

COPY_SECONDS = 300.0
FOLDER = "cores"
_PATTERN = Path("/proc/sys/kernel/core_pattern")
_USES_PID = Path("/proc/sys/kernel/core_uses_pid")
_MAX_SEEN = 100_000
_CRASHES = frozenset(
    128 + number
    for number in (
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGQUIT,
        signal.SIGSEGV,
        signal.SIGSYS,
        signal.SIGTRAP,
    )
)
"""Exit codes of processes whose end makes a core dump, also as a shell tells of them."""
_SPECIFIER = re.compile(r"%(.?)")
_ELF_CORE = (b"\x04\x00", b"\x00\x04")
"""The ELF type of core dumps, in both orders of bytes."""
_HEADS = {
    1: ("28xI10xHH", "4xI8xI", 52),
    2: ("32xQ14xHH", "8xQ16xQ", 64),
}
"""By ELF class (elf(5)): where the file header has the place, size and number of program headers,
where one of those has its segment's place and size, and the length of the file header."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """`names`: a regular expression for core dumps. `since`: Unix time of the job's start. `limit`:
    the most bytes that are copied; None: all."""

    working_dir: str
    target: str
    since: float
    most: int
    limit: int | None = None
    names: str = ""


def why_none(pattern: str, hard_limit: int) -> str | None:
    """Return why no core dump of a job can be kept on this node; None: it can."""
    if (why := why_not_files(pattern)) is not None:
        return f"on this node {why}; its operator can change it ({FIX})"
    if hard_limit == 0:
        return "the hard limit of core dumps (ulimit -Hc) is 0 on this node, or by `ulimits`"
    return None


def names_of(pattern: str, *, uses_pid: bool) -> str:
    """Return the regular expression of the file names that this core_pattern makes (core(5))."""
    name = pattern.rpartition("/")[2]
    at, parts = 0, []
    for found in _SPECIFIER.finditer(name):
        parts.append(re.escape(name[at : found.start()]))
        parts.append("%" if found[1] == "%" else "" if found[1] == "" else ".*")
        at = found.end()
    parts.append(re.escape(name[at:]))
    # The kernel then appends the pid by itself (core(5)).
    if uses_pid and "%p" not in name:
        parts.append(r"(?:\.\d+)?")
    return "".join(parts)


class Kernel(NamedTuple):
    """The node's sysctls kernel.core_pattern and kernel.core_uses_pid."""

    pattern: str
    uses_pid: bool


def this_kernel() -> Kernel:
    """Return what /proc tells; a sandbox that has no such files has the kernel's default."""
    try:
        return Kernel(_PATTERN.read_text().rstrip("\n"), _USES_PID.read_text().strip() == "1")
    except OSError:
        return Kernel("core", False)


def folder_of(pattern: str, working_dir: str) -> str:
    """Return the folder in or below which this core_pattern puts core dumps of the job."""
    if not pattern.startswith("/"):
        return working_dir
    return os.path.dirname(pattern.partition("%")[0])


async def keep(helpers: Helpers, order: Order, ended: Ending, kernel: Kernel) -> list[str]:
    """Copy core dumps as the user of the helpers, and return the lines for the job's log.

    `order.names` is replaced by those of the kernel; an absolute pattern says the folder too.
    """
    pattern, uses_pid = kernel
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    if (why := why_none(pattern, hard)) is not None:
        return [f"core dumps: none is kept: {why}"] if ended.code in _CRASHES else []
    order = msgspec.structs.replace(
        order,
        working_dir=folder_of(pattern, order.working_dir),
        names=names_of(pattern, uses_pid=uses_pid),
    )
    lines = await lines_of("core dumps", "runner.job.cores", order, helpers, COPY_SECONDS)
    if not lines and ended.code in _CRASHES:
        lines = [
            f"core dumps: there is none in {order.working_dir}: the job does not see that"
            f" folder, or the process may not write to its own folder or was in another one"
        ]
    return lines


class Found(msgspec.Struct, frozen=True):
    """`whole`: the bytes that its head promises."""

    path: Path
    size: int
    whole: int
    written_at: float


class CoreCopier:
    """Copies what an order names. `lines` is for the job's log. Blocking."""

    def __init__(self, order: Order) -> None:
        self.lines: list[str] = []
        self._order = order
        self._target = Path(order.target) / FOLDER
        self._names = re.compile(order.names, re.DOTALL)

    def run(self) -> None:
        found = sorted(self._look(), key=lambda one: one.written_at)
        left = self._order.limit
        for one in found[: self._order.most]:
            if left is not None and one.size > left:
                self.lines.append(
                    f"core dumps: {one.path} ({one.size} bytes) is beyond the limit of outputs"
                )
                continue
            self._copy(one)
            left = None if left is None else left - one.size
        if len(found) > self._order.most:
            more = len(found) - self._order.most
            self.lines.append(f"core dumps: {more} more are not kept (core_dumps)")

    def _look(self) -> Iterator[Found]:
        """Yield the core dumps in the folder and below it, on its own file system."""
        seen = 0
        root = Path(self._order.working_dir)
        try:
            device = root.stat().st_dev
        except OSError:
            return
        for folder, folders, files in os.walk(root):
            at = Path(folder)
            folders[:] = [name for name in folders if _is_on(at / name, device)]
            seen += len(files) + len(folders)
            for name in files:
                if self._names.fullmatch(name) and (found := self._core(at / name)) is not None:
                    yield found
            if seen > _MAX_SEEN:
                return

    def _core(self, path: Path) -> Found | None:
        try:
            info = path.lstat()
            if not stat.S_ISREG(info.st_mode) or info.st_mtime < self._order.since:
                return None
            with path.open("rb") as file:
                head = file.read(64)
                if not head.startswith(b"\x7fELF") or head[16:18] not in _ELF_CORE:
                    return None
                whole = _promised(file, head)
        except OSError:
            return None
        return Found(path, info.st_size, whole, info.st_mtime)

    def _copy(self, one: Found) -> None:
        if one.path.is_relative_to(self._order.target):
            self.lines.append(f"core dumps: {one.path} is among the outputs")
            return
        try:
            self._target.mkdir(exist_ok=True)
            target, number = self._target / one.path.name, 1
            while os.path.lexists(target):
                number += 1
                target = self._target / f"{one.path.name}-{number}"
            copy_whole(one.path, target, shutil.copyfile)
        except OSError as error:
            self.lines.append(f"core dumps: {one.path}: {error.strerror or error}")
            return
        line = f"core dumps: {one.path} ({one.size} bytes) is kept as {FOLDER}/{target.name}"
        if one.whole > one.size:
            line += (
                f", but it was cut: the whole one has {one.whole} bytes, more than `ulimit -c`"
                " or the disk allowed"
            )
        self.lines.append(line)


def _promised(file: BinaryIO, head: bytes) -> int:
    """Return where the last segment of this ELF file ends; 0: its head does not tell."""
    order = "<" if head[5] == 1 else ">"
    file_head, segment_head, length = _HEADS.get(head[4], _HEADS[2])
    if len(head) < length:
        return 0
    at, size, number = struct.unpack_from(order + file_head, head)
    if size < struct.calcsize(segment_head):
        return 0
    file.seek(at)
    table = file.read(size * number)
    segments = (
        struct.unpack_from(order + segment_head, table, start)
        for start in range(0, len(table) - size + 1, size)
    )
    return max((offset + length for offset, length in segments), default=0)


def _is_on(folder: Path, device: int) -> bool:
    try:
        return folder.lstat().st_dev == device
    except OSError:
        return False


def main() -> None:
    copier = CoreCopier(msgspec.json.decode(sys.argv[1], type=Order))
    copier.run()
    print_lines(copier.lines)


if __name__ == "__main__":
    main()
