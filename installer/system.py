"""The machine as the installer sees it: files below a root, and programs that it runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec


class InstallError(Exception):
    """The node cannot be installed so; the message says why and what to do about it."""


_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PATIENCE = 900.0


class Done(msgspec.Struct, frozen=True):
    """How a program ended, and all that it wrote."""

    status: int
    output: str


class System(Protocol):
    root: Path
    """Below it lies the node's file system; `/` but in tests."""

    def run(self, *argv: str) -> Done:
        """Run a program to its end. A program that is missing ends with 127."""

    def has_program(self, name: str) -> bool: ...

    def is_booted(self) -> bool:
        """Whether systemd runs this machine; a build in a chroot only prepares the units."""

    def processes(self) -> Sequence[ProcessUse]:
        """All processes but the installer and the fork server of the shim, with which it ends, with
        what could keep a version's folder in use."""


class ProcessUse(msgspec.Struct, frozen=True):
    pid: int
    program: str
    mounts: tuple[str, ...]
    """Folders that are mounted in its namespace, as paths of their own file systems."""


_FORK_SERVER = b"entrypoint.fork_server"


class RealSystem:
    def __init__(self) -> None:
        self.root = Path("/")

    def run(self, *argv: str) -> Done:
        # Answers of these programs are compared, so they must not be translated.
        environment = {**os.environ, "PATH": _PATH, "LC_ALL": "C.UTF-8"}
        environment["DEBIAN_FRONTEND"] = "noninteractive"
        program = shutil.which(argv[0], path=_PATH)
        if program is None:
            return Done(127, f"{argv[0]} is missing")
        try:
            done = subprocess.run(
                [program, *argv[1:]],
                env=environment,
                # A package manager would ask there, and wait for an answer.
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=_PATIENCE,
                check=False,
            )
        # systemctl waits for as long as a unit takes to stop, which may be for ever.
        except subprocess.TimeoutExpired:
            return Done(124, f"did not end within {_PATIENCE:.0f} s")
        return Done(done.returncode, done.stdout)

    def has_program(self, name: str) -> bool:
        return shutil.which(name, path=_PATH) is not None

    def is_booted(self) -> bool:
        return Path("/run/systemd/system").is_dir()

    def processes(self) -> Sequence[ProcessUse]:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            if int(folder.name) != os.getpid():
                try:
                    mounts = (folder / "mountinfo").read_text(errors="replace")
                    program = str((folder / "exe").readlink())
                    words = (folder / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue  # ended meanwhile, or a thread of the kernel
                if _FORK_SERVER in words:
                    continue
                roots = tuple(line.split(" ")[3] for line in mounts.splitlines())
                found.append(ProcessUse(int(folder.name), program, roots))
        return found


def must(system: System, *argv: str) -> str:
    """The program's output. Raises InstallError with its last lines when it fails."""
    done = system.run(*argv)
    if done.status:
        tail = "\n".join(done.output.splitlines()[-8:])
        raise InstallError(f"`{' '.join(argv)}` ended with {done.status}:\n{tail}")
    return done.output
