"""The files of this process's cgroup, version 1 or 2, inside or outside of a container.

Reading blocks, but only on files of /sys or /proc.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

UNIFIED = ""
"""The only hierarchy of version 2."""


class Cgroup:
    """This process's cgroup; `root` is where /proc and /sys are."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._mount = root / "sys/fs/cgroup"
        self._paths = _memberships(root / "proc/self/cgroup")

    def text(self, controller: str, name: str) -> str | None:
        """Return the content of the file `name`; None when there is none that may be read."""
        for path in self._candidates(controller, name):
            try:
                return path.read_text()
            except OSError:
                # The group may not have this controller, or v1 is mounted (cgroups(7)).
                continue
        return None

    def number(self, controller: str, name: str) -> int | None:
        """Return the number in a file with one number; None also for `max`."""
        value = (self.text(controller, name) or "").strip()
        return int(value) if value.isdecimal() else None

    def field(self, controller: str, name: str, field: str) -> int | None:
        """Return a number of a file with lines `field number`."""
        for line in (self.text(controller, name) or "").splitlines():
            key, _, value = line.partition(" ")
            if key == field and value.isdecimal():
                return int(value)
        return None

    def _candidates(self, controller: str, name: str) -> Iterator[Path]:
        """Yield possible paths: a container may see the whole tree, or only its own part."""
        folder = self._mount / controller
        yield folder / self._paths.get(controller, "") / name
        yield folder / name


@cache
def _memberships(path: Path) -> dict[str, str]:
    """Return controller → the path below its mount. It is looked up once: in the leaf of a job
    (see `processes.leaf`) this process is only for a moment."""
    try:
        lines = path.read_text().splitlines()
    # A kernel without cgroups, or a sandbox, has no such file.
    except OSError:
        return {}
    found: dict[str, str] = {}
    for line in lines:
        _, controllers, group = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = group.lstrip("/")
    return found


def oom_kills(root: Path = Path("/")) -> int:
    """Return how often the kernel's memory limit killed a process in this cgroup; 0 when that is
    not counted."""
    cgroup = Cgroup(root)
    files = ((UNIFIED, "memory.events"), ("memory", "memory.oom_control"))
    counts = (cgroup.field(controller, name, "oom_kill") for controller, name in files)
    return next((count for count in counts if count is not None), 0)
