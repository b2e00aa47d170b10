"""How each thing on a node should be: a step compares, changes what differs, takes it away again.

A step is told the names of the steps that have changed something before it (`earlier`), so that
a check without changes finds what they would cause.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from installer.system import InstallError, System, must


class Step(Protocol):
    @property
    def name(self) -> str: ...

    def difference(self, system: System, earlier: Set[str]) -> str | None:
        """How the node will be changed ("written"), or None when all is as it should be."""

    def apply(self, system: System) -> None:
        """Raises InstallError or OSError. Repeatable."""

    def leftover(self, system: System) -> str | None:
        """How it will be taken away ("removed"), or None when nothing is there."""

    def undo(self, system: System) -> None:
        """Raises InstallError or OSError. Repeatable."""


def at(system: System, path: str) -> Path:
    """Where an absolute path of the node lies."""
    return system.root / path.lstrip("/")


@dataclass(frozen=True)
class File:
    """A file of the installer's own, with exactly this content."""

    name: str
    content: str
    mode: int = 0o644

    def difference(self, system: System, earlier: Set[str]) -> str | None:
        path = at(system, self.name)
        try:
            # A link may lead to another program's file: a file of our own takes its place.
            if path.is_symlink() or path.read_bytes() != self.content.encode():
                return "written"
        except FileNotFoundError:
            return "written"
        return None if stat.S_IMODE(path.stat().st_mode) == self.mode else f"mode {self.mode:o}"

    def apply(self, system: System) -> None:
        write(at(system, self.name), self.content, self.mode)

    def leftover(self, system: System) -> str | None:
        return "removed" if os.path.lexists(at(system, self.name)) else None

    def undo(self, system: System) -> None:
        at(system, self.name).unlink(missing_ok=True)


@dataclass(frozen=True)
class NoFile:
    """A file of an earlier install that these options do not have."""

    name: str

    def difference(self, system: System, earlier: Set[str]) -> str | None:
        return self.leftover(system)

    def apply(self, system: System) -> None:
        self.undo(system)

    def leftover(self, system: System) -> str | None:
        return "removed" if os.path.lexists(at(system, self.name)) else None

    def undo(self, system: System) -> None:
        at(system, self.name).unlink(missing_ok=True)


@dataclass(frozen=True)
class NoFolder(NoFile):
    """A folder of an earlier install that these options do not have, with all that is in it."""

    def undo(self, system: System) -> None:
        if at(system, self.name).is_dir():
            shutil.rmtree(at(system, self.name))


def make_folder(path: Path) -> None:
    """Make the folder and those that it is in, which others may read whatever root's umask is."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir()
        one.chmod(0o755)


def write(path: Path, content: str, mode: int) -> None:
    """Whole or not at all."""
    make_folder(path.parent)
    fresh = path.with_name(f".{path.name}.fairlead-new")
    with fresh.open("w") as opened:
        os.fchmod(opened.fileno(), mode)
        opened.write(content)
        opened.flush()
        # Else a crash after the rename can leave an empty file of that name.
        os.fsync(opened.fileno())
    fresh.replace(path)


@dataclass(frozen=True)
class Folder:
    name: str
    mode: int = 0o755
    is_kept: bool = False
    """It stays when the node is uninstalled, as long as something is in it."""

    def difference(self, system: System, earlier: Set[str]) -> str | None:
        path = at(system, self.name)
        if not path.is_dir():
            return "created"
        return None if stat.S_IMODE(path.stat().st_mode) == self.mode else f"mode {self.mode:o}"

    def apply(self, system: System) -> None:
        path = at(system, self.name)
        make_folder(path)
        path.chmod(self.mode)

    def leftover(self, system: System) -> str | None:
        path = at(system, self.name)
        if not path.is_dir() or (self.is_kept and any(path.iterdir())):
            return None
        return "removed"

    def undo(self, system: System) -> None:
        shutil.rmtree(at(system, self.name))


@dataclass(frozen=True)
class Link:
    name: str
    target: str

    def difference(self, system: System, earlier: Set[str]) -> str | None:
        path = at(system, self.name)
        is_so = path.is_symlink() and str(path.readlink()) == self.target
        return None if is_so else f"points to {self.target}"

    def apply(self, system: System) -> None:
        path = at(system, self.name)
        make_folder(path.parent)
        fresh = path.with_name(f".{path.name}.fairlead-new")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(self.target)
        # symlink(2) replaces nothing; rename(2) does, and at no moment is there no link.
        fresh.replace(path)

    def leftover(self, system: System) -> str | None:
        return "removed" if at(system, self.name).is_symlink() else None

    def undo(self, system: System) -> None:
        at(system, self.name).unlink()


@dataclass(frozen=True)
class Group:
    group: str

    @property
    def name(self) -> str:
        return f"group {self.group}"

    def difference(self, system: System, earlier: Set[str]) -> str | None:
        return None if self._exists(system) else "created"

    def apply(self, system: System) -> None:
        must(system, "groupadd", "--system", self.group)

    def leftover(self, system: System) -> str | None:
        return "removed" if self._exists(system) else None

    def undo(self, system: System) -> None:
        if self._exists(system):  # it may have gone with its user
            must(system, "groupdel", self.group)

    def _exists(self, system: System) -> bool:
        return system.run("getent", "group", self.group).status == 0


@dataclass(frozen=True)
class User:
    """A user whom sshd lets in by key, and who can do nothing else: the password field is '*',
    since sshd refuses a locked user ('!')."""

    user: str
    group: str
    home: str

    @property
    def name(self) -> str:
        return f"user {self.user}"

    def difference(self, system: System, earlier: Set[str]) -> str | None:
        if system.run("getent", "passwd", self.user).status:
            return "created"
        if system.run("id", "-gn", self.user).output.strip() != self.group:
            return f"primary group {self.group}"
        shadow = system.run("getent", "shadow", self.user).output.strip().split(":")
        return "unlocked for keys" if len(shadow) > 1 and shadow[1] != "*" else None

    def apply(self, system: System) -> None:
        same = ("--gid", self.group, "--password", "*")
        if system.run("getent", "passwd", self.user).status:
            home = ("--no-create-home", "--home-dir", self.home, "--shell", "/usr/sbin/nologin")
            must(system, "useradd", "--system", *same, *home, self.user)
        else:
            must(system, "usermod", *same, self.user)

    def leftover(self, system: System) -> str | None:
        return None if system.run("getent", "passwd", self.user).status else "removed"

    def undo(self, system: System) -> None:
        must(system, "userdel", self.user)


@dataclass(frozen=True)
class Tree:
    """The bundle's folder, copied under its version: it appears there whole or not at all."""

    source: Path
    name: str
    linked: bool = False
    """As further names of the same files, where they are on one file system."""

    def difference(self, system: System, earlier: Set[str]) -> str | None:
        target = at(system, self.name)
        if target.is_dir():
            return None  # the version names the content
        return "installed"

    def apply(self, system: System) -> None:
        target = at(system, self.name)
        if self.source == target:
            return
        make_folder(target.parent)
        fresh = target.with_name(f".{target.name}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        copy_tree(self.source, fresh, linked=self.linked)
        # Before the rename: a crash must not leave files of this version empty.
        os.sync()
        fresh.rename(target)

    def leftover(self, system: System) -> str | None:
        return "removed" if at(system, self.name).is_dir() else None

    def undo(self, system: System) -> None:
        shutil.rmtree(at(system, self.name))


def copy_tree(source: Path, target: Path, *, linked: bool) -> None:
    """Files that are one file in `source` are one in `target`; all belong to root."""
    names: dict[tuple[int, int], str] = {}

    def copy(old: str, new: str) -> None:
        found = Path(old).stat()
        twin = names.setdefault((found.st_dev, found.st_ino), new)
        if twin != new:
            # Names of one file stay names of one file: copied apart, a bundle would take twice the
            # disk.
            os.link(twin, new)
            return
        if linked:
            try:
                os.link(old, new)
                return
            except OSError:
                # Another file system (EXDEV), or one without hard links (EPERM): link(2).
                pass
        shutil.copyfile(old, new)
        shutil.copystat(old, new)

    shutil.copytree(source, target, symlinks=True, copy_function=copy)


@dataclass(frozen=True)
class Unit:
    """A service: enabled, running, and running with what is installed now."""

    unit: str
    restarts_for: frozenset[str]
    """Names of steps after whose change it is restarted."""
    program: Callable[[System], str | None] | None = None
    """The program's path when it is another one than the installed one."""

    @property
    def name(self) -> str:
        return self.unit

    def difference(self, system: System, earlier: Set[str]) -> str | None:
        file = f"/etc/systemd/system/{self.unit}"
        if file in earlier and not at(system, file).exists():
            return "enabled and started" if system.is_booted() else "enabled"
        words = []
        if system.run("systemctl", "is-enabled", self.unit).output.strip() != "enabled":
            words.append("enabled")
        if system.is_booted():
            if system.run("systemctl", "is-active", self.unit).status:
                words.append("started")
            elif earlier & self.restarts_for or (self.program and self.program(system)):
                words.append("restarted")
        return " and ".join(words) or None

    def apply(self, system: System) -> None:
        if system.is_booted():
            must(system, "systemctl", "daemon-reload")
        must(system, "systemctl", "enable", self.unit)
        if not system.is_booted():
            return
        done = system.run("systemctl", "restart", self.unit)
        if done.status:
            journal = system.run(
                "journalctl", "-n", "8", "--no-pager", "-o", "cat", "-u", self.unit
            )
            raise InstallError(f"{self.unit} does not start:\n{journal.output.strip()}")

    def leftover(self, system: System) -> str | None:
        file = at(system, f"/etc/systemd/system/{self.unit}")
        return "stopped and disabled" if file.exists() else None

    def undo(self, system: System) -> None:
        if system.is_booted():
            must(system, "systemctl", "disable", "--now", self.unit)
        else:
            must(system, "systemctl", "disable", self.unit)


@dataclass(frozen=True)
class NoUnit:
    """A service of an earlier install that these options do not have. Its file goes after it."""

    unit: str

    @property
    def name(self) -> str:
        return self.unit

    def difference(self, system: System, earlier: Set[str]) -> str | None:
        return self.leftover(system)

    def apply(self, system: System) -> None:
        self.undo(system)

    def leftover(self, system: System) -> str | None:
        return Unit(self.unit, frozenset()).leftover(system)

    def undo(self, system: System) -> None:
        if self.leftover(system) is not None:
            Unit(self.unit, frozenset()).undo(system)


@dataclass(frozen=True)
class Command:
    """A service takes up files that were changed."""

    name: str
    does: str
    after: frozenset[str]
    act: Callable[[System], None]

    def difference(self, system: System, earlier: Set[str]) -> str | None:
        return self.does if earlier & self.after and system.is_booted() else None

    def apply(self, system: System) -> None:
        self.act(system)

    def leftover(self, system: System) -> str | None:
        return self.does if system.is_booted() else None

    def undo(self, system: System) -> None:
        self.act(system)
