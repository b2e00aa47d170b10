"""The parts of an examination of a node: programs that are asked, and findings.

Each check is a function of (node, asked), so it can be tested by itself; `doctor` runs them all.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from fairlead.wire.node import EngineKind, Finding, FindingLevel
from shim.settings import RUNTIME

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SECONDS = 20.0
INSTALL = "run /opt/fairlead/current/install"


class Answer(msgspec.Struct, frozen=True):
    status: int
    output: str


Asked = Callable[[Sequence[str]], Answer]


class NodeSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The paths and the engine of a node's shim. `root` is `/` except in tests."""

    data: Path = Path("/var/lib/fairlead")
    socket: Path = Path("/run/fairlead/shim.sock")
    runtime: Path = RUNTIME
    engine: EngineKind
    root: Path = Path("/")


def ask(argv: Sequence[str]) -> Answer:
    """Blocking. A program that is missing answers 127."""
    program = shutil.which(argv[0], path=_PATH)
    if program is None:
        return Answer(127, f"{argv[0]} is missing")
    try:
        done = subprocess.run(
            [program, *argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={"PATH": _PATH, "LC_ALL": "C.UTF-8"},
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Answer(124, f"no answer within {_SECONDS:.0f} s")
    return Answer(done.returncode, done.stdout)


def ok(message: str) -> Finding:
    return Finding(check="", level=FindingLevel.OK, message=message)


def warn(message: str, fix: str) -> Finding:
    return Finding(check="", level=FindingLevel.WARNING, message=message, fix=fix)


def bad(message: str, fix: str, check: str = "") -> Finding:
    return Finding(check=check, level=FindingLevel.ERROR, message=message, fix=fix)
