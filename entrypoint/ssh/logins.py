"""Turns a visitor's name into a user of the image, with its shell and its environment.

The accounts come from the image's own files; an image without any still has root.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

import msgspec

from runner.errors import CannotStart
from runner.processes import environment
from runner.processes.identity import Identity, current_identity, resolve

_SHELLS = ("/bin/bash", "/bin/sh", "/usr/bin/bash", "/usr/bin/sh")
_NO_SHELLS = ("nologin", "false", "true", "sync", "halt", "shutdown")
_ABOUT_THE_USER = ("HOME", "USER", "LOGNAME", "SHELL")


class NothingToRun(Exception):
    """There is no program to run; the message is for the visitor."""


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """A visitor's login. `change`: the process must become `identity` before it runs anything for
    the visitor."""

    identity: Identity
    shell: str | None
    change: bool

    @property
    def home(self) -> str:
        return self.identity.home if os.path.isdir(self.identity.home) else "/"

    def argv(self, command: str | None, env: Mapping[str, str]) -> tuple[str, list[str]]:
        """Return the program and its arguments, `argv[0]` included. Raises NothingToRun.

        In an image without a shell, a command is split into words here.
        """
        if self.shell is not None:
            name = os.path.basename(self.shell)
            # A name that begins with `-` makes it a login shell (bash(1)).
            return self.shell, [f"-{name}"] if command is None else [name, "-c", command]
        if command is None:
            raise NothingToRun("this image has no shell; name a program to run")
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise NothingToRun(f"this image has no shell, and: {error}") from None
        program = _find(words[0], env.get("PATH", "")) if words else None
        if program is None:
            raise NothingToRun(f"this image has no shell, and no program {words[:1]}")
        return program, words

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        env = dict(inherited)
        if self.change:
            for name in _ABOUT_THE_USER:
                env.pop(name, None)
        env.setdefault("PATH", environment.DEFAULT_PATH)
        env.setdefault("HOME", self.identity.home)
        env["USER"] = env["LOGNAME"] = self.identity.name
        if self.shell is not None:
            env["SHELL"] = self.shell
        return env


def kept_path(variables: Mapping[str, str]) -> dict[str, str]:
    """Return what makes bash take up this PATH before its first prompt. A visitor's shell is a
    login shell, and /etc/profile of Debian's images sets PATH again: without the job's venv, and
    without what the image has in its own PATH."""
    path = variables.get("PATH")
    if path is None or "PROMPT_COMMAND" in variables:
        return {}
    return {"PROMPT_COMMAND": f"PATH={shlex.quote(path)}:$PATH; unset PROMPT_COMMAND"}


def login_as(name: str, root: Path = Path("/")) -> Login | None:
    """Return the login; None for a user that the image does not know. Without root's rights, every
    name becomes the present user."""
    if os.geteuid() != 0:
        identity = current_identity(root)
        return Login(identity=identity, shell=_shell(identity.uid, root), change=False)
    try:
        # `resolve` would take a group after a colon; a visitor chooses none.
        identity = resolve(name.partition(":")[0], root)
    except CannotStart:
        if name != "root":
            return None
        identity = Identity(uid=0, gid=0, name="root", home="/root")
    return Login(identity=identity, shell=_shell(identity.uid, root), change=identity.uid != 0)


def locked_users(root: Path = Path("/")) -> list[str]:
    """Return users with a shell whose password is locked (as `useradd` makes it), not merely
    missing.

    OpenSSH without PAM refuses them with any key.
    """
    locked = {row[0] for row in _rows(root / "etc/shadow", 2) if row[1].startswith("!")}
    return [
        row[0]
        for row in _rows(root / "etc/passwd", 7)
        if row[0] in locked and os.path.basename(row[6]) not in _NO_SHELLS
    ]


def _shell(uid: int, root: Path) -> str | None:
    for shell in (*_own_shell(uid, root), *_SHELLS):
        if os.path.basename(shell) not in _NO_SHELLS and os.access(root / shell[1:], os.X_OK):
            return shell
    return None


def _own_shell(uid: int, root: Path) -> list[str]:
    rows = _rows(root / "etc/passwd", 7)
    return [row[6] for row in rows if row[2] == str(uid) and row[6][:1] == "/"]


def _rows(path: Path, columns: int) -> list[list[str]]:
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        # An image without users of its own has no passwd(5).
        return []
    rows = (line.split(":") for line in lines)
    return [row for row in rows if len(row) >= columns]


def _find(program: str, path: str) -> str | None:
    folders = [""] if "/" in program else path.split(":")
    candidates = (os.path.join(folder, program) for folder in folders)
    return next((p for p in candidates if os.path.isfile(p) and os.access(p, os.X_OK)), None)
