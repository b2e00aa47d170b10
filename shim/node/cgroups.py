"""The cgroups of this node, of both versions: where a process is, and folders below that place.

A *place* is a process's folder in one hierarchy. Below it the shim makes leaves for the jobs that a
container carries. In version 2 the files of a leaf count processes and kill them; its memory is
counted where that controller is on. In version 1 the hierarchy of the memory controller counts
kills. No limit is set: those of the place hold for all that is below it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import msgspec

from common.processes.leaves import LeafFile

_OPTIONAL = {
    1: (("memory.oom_control", LeafFile.EVENTS, os.O_RDONLY),),
    2: (
        ("memory.events", LeafFile.EVENTS, os.O_RDONLY),
        ("cgroup.kill", LeafFile.KILL, os.O_WRONLY),
    ),
}
"""The other files of a leaf, by the version; a kernel or a hierarchy may lack them."""


class Place(msgspec.Struct, frozen=True):
    """`version`: of the hierarchy, 1 or 2. `folder`: an absolute path."""

    version: int
    folder: str

    def is_within(self, path: str) -> bool:
        """Return whether it is at or below a path below the root of cgroups, which may be mounted
        anywhere. The path names a container, so it is no other's."""
        return f"/{path}/" in f"{self.folder}/"

    @property
    def enter(self) -> str:
        """The file by which a process enters. In version 1 one thread does: to move all of them
        costs the kernel a lock of all processes, and a fork takes the thread's place."""
        return "cgroup.procs" if self.version == 2 else "tasks"


def places_of(cgroups: str, mounts: str) -> tuple[Place, ...]:
    """Return the places in hierarchies that leaves need, version 2 first. `cgroups`: as in
    /proc/PID/cgroup, `mounts`: as in /proc/self/mountinfo."""
    paths = {}
    for line in cgroups.splitlines():
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    found = [place for line in mounts.splitlines() if (place := _place(line, paths)) is not None]
    by_version = {place.version: place for place in reversed(found)}
    return tuple(by_version[version] for version in (2, 1) if version in by_version)


def _place(line: str, paths: dict[str, str]) -> Place | None:
    before, _, after = line.partition(" - ")
    about, of_kernel = before.split(" "), after.split(" ")
    if len(about) < 6 or len(of_kernel) < 3:
        return None
    root, point, options = about[3], about[4], about[5]
    version = {"cgroup2": 2, "cgroup": 1}.get(of_kernel[0])
    if version is None or "ro" in options.split(","):
        return None
    if version == 1 and "memory" not in of_kernel[2].split(","):
        return None
    path = paths.get("" if version == 2 else "memory")
    # What is outside of this mount, or of this cgroup namespace, cannot be reached by it.
    if path is None or ".." in path.split("/") or not _is_below(path, root):
        return None
    below = path[len(root.rstrip("/")) :].strip("/")
    return Place(version, os.path.join(point, below) if below else point)


def _is_below(path: str, root: str) -> bool:
    return root == "/" or path == root or path.startswith(f"{root}/")


def _counts_below(place: Place) -> bool:
    """Return whether the limits of the place hold for what is below it: before Linux 5.11, version
    1 may not count so, and a job in a leaf would have no limit."""
    try:
        return Path(place.folder, "memory.use_hierarchy").read_text().strip() != "0"
    except OSError:
        # Version 2 has no such file: there, limits always hold for all that is below (cgroups(7)).
        return True


class CgroupTree(Protocol):
    """The folders of cgroups. Blocking; every method raises OSError."""

    def places(self, pid: int) -> tuple[Place, ...]:
        """Return the places of this process in which leaves can be made."""

    def why_none(self, places: tuple[Place, ...]) -> str | None:
        """Return why no leaf can be made in these places, as a sentence's part; None: it can."""

    def make(self, folder: Path) -> None:
        """Make a cgroup; one that is there stays."""

    def remove(self, folder: Path) -> bool:
        """Remove a cgroup; return False while a process is in it. One that is gone is removed."""

    def names(self, folder: Path) -> tuple[str, ...]:
        """Return what is in the folder; nothing for one that is gone."""

    def open(self, folder: Path, name: str, flags: int) -> int | None:
        """Open a file of a cgroup; None: there is none."""


class KernelTree:
    def places(self, pid: int) -> tuple[Place, ...]:
        cgroups = Path(f"/proc/{pid}/cgroup").read_text()
        found = places_of(cgroups, Path("/proc/self/mountinfo").read_text())
        return tuple(place for place in found if _counts_below(place))

    def why_none(self, places: tuple[Place, ...]) -> str | None:
        if not places:
            return "no cgroup file system can be written here"
        for place in places:
            if not os.access(place.folder, os.W_OK):
                return f"{place.folder} cannot be written"
        return None

    def make(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)

    def remove(self, folder: Path) -> bool:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return True
        except OSError as error:
            # A killed process is there until it has exited, and so long the cgroup stays
            # (cgroups(7)).
            if error.errno == errno.EBUSY:
                return False
            raise
        return True

    def names(self, folder: Path) -> tuple[str, ...]:
        try:
            return tuple(os.listdir(folder))
        except FileNotFoundError:
            # The engine removes the cgroup of a container that has ended.
            return ()

    def open(self, folder: Path, name: str, flags: int) -> int | None:
        try:
            return os.open(folder / name, flags | os.O_CLOEXEC)
        except FileNotFoundError:
            # Which files a cgroup has depends on its version and controllers, and on the kernel.
            return None


class TaskLeaves:
    """The leaves of one task. Blocking; methods raise OSError and may be repeated."""

    def __init__(self, tree: CgroupTree, places: tuple[Place, ...], task_id: str) -> None:
        self._tree = tree
        self._places = places
        self._prefix = prefix_of(task_id)

    def open_home(self) -> list[int]:
        """Open the files by which a process comes back to the places."""
        fds: list[int] = []
        with ExitStack() as opened:
            for place in self._places:
                fds.append(self._enter(Path(place.folder), place, opened))
            opened.pop_all()
        return fds

    def make(self, numbers: range) -> tuple[tuple[LeafFile, ...], list[int]]:
        """Make leaves; return the files of each, and the descriptors of all."""
        kinds: list[LeafFile] = []
        fds: list[int] = []
        with ExitStack() as opened:
            for number in numbers:
                kinds = []
                for place in self._places:
                    for kind, fd in self._make(place, number, opened):
                        kinds.append(kind)
                        fds.append(fd)
            opened.pop_all()
        return tuple(kinds), fds

    def remove(self, number: int) -> bool:
        """Remove a leaf; return False while a process is in it."""
        # Not `all`, which would stop at the first.
        gone = [self._tree.remove(self._leaf(place, number)) for place in self._places]
        return False not in gone

    def remove_all(self, but: frozenset[int] = frozenset()) -> bool:
        """Remove all leaves but some; return False while one of them has a process."""
        return remove_leaves(self._tree, self._places, self._prefix, but)

    def numbers(self) -> set[int]:
        """Return the numbers of the leaves that are there."""
        return {
            number
            for place in self._places
            for _, number in _leaves_in(self._tree, place, self._prefix)
        }

    def _make(self, place: Place, number: int, opened: ExitStack) -> Iterator[tuple[LeafFile, int]]:
        folder = self._leaf(place, number)
        self._tree.make(folder)
        yield LeafFile.ENTER, self._enter(folder, place, opened)
        for name, kind, flags in _OPTIONAL[place.version]:
            if (fd := self._tree.open(folder, name, flags)) is not None:
                opened.callback(os.close, fd)
                yield kind, fd

    def _enter(self, folder: Path, place: Place, opened: ExitStack) -> int:
        fd = self._tree.open(folder, place.enter, os.O_RDWR)
        if fd is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
        opened.callback(os.close, fd)
        return fd

    def _leaf(self, place: Place, number: int) -> Path:
        return Path(place.folder, f"{self._prefix}{number}")


def prefix_of(task_id: str) -> str:
    return f"fairlead-{task_id}-"


def remove_leaves(
    tree: CgroupTree, places: tuple[Place, ...], prefix: str, but: frozenset[int] = frozenset()
) -> bool:
    """Remove the cgroups with this prefix but some; return False while one has a process."""
    gone = True
    for place in places:
        for name, number in _leaves_in(tree, place, prefix):
            if number not in but:
                gone &= tree.remove(Path(place.folder, name))
    return gone


def _leaves_in(tree: CgroupTree, place: Place, prefix: str) -> Iterator[tuple[str, int]]:
    for name in tree.names(Path(place.folder)):
        # The id of another task may begin with this one's.
        number = name[len(prefix) :] if name.startswith(prefix) else ""
        if number.isdecimal():
            yield name, int(number)
