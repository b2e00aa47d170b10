"""Fairlead as a user installs it: wheels of this checkout, in an environment of its own.

They are built and installed without a network: the libraries that an extra asks for are links
to those of the tests' environment, and no others are there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

CHECKOUT = Path(__file__).parents[2]
# Nothing of ours is importable where pip builds, and `./dev setup` made it so here.
_BUILD = (
    "import sys; sys.modules['fairlead'] = None; import setuptools.build_meta as it;"
    " print(it.build_wheel(sys.argv[1]))"
)
_LEFT_OUT = shutil.ignore_patterns(
    "__pycache__", ".*cache", "*.egg-info", ".venv", ".build", ".git"
)


def copy_checkout(folder: Path) -> Path:
    """Copy what a build reads, with what `./dev setup` brought, and without what it made."""
    shutil.copytree(CHECKOUT, folder, ignore=_LEFT_OUT, symlinks=True)
    return folder


def build_wheel(project: Path, out: Path, env: Mapping[str, str] = os.environ) -> Path:
    """Build the wheel of a project, which is the client's or the daemons', as pip does. Raises
    subprocess.CalledProcessError."""
    out.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, "-c", _BUILD, str(out)]
    subprocess.run(argv, cwd=project, env=env, capture_output=True, text=True, check=True)
    (wheel,) = out.glob("*.whl")
    return wheel


class Environment:
    """An environment with the client's wheel; with an extra, also with the daemons' and what that
    extra needs."""

    def __init__(
        self, folder: Path, client: Path, daemons: Path | None = None, extra: str = ""
    ) -> None:
        self.bin = folder / "bin"
        self._run(sys.executable, "-m", "uv", "-q", "venv", "--python", sys.executable, str(folder))
        python = str(self.bin / "python")
        self._run(
            *(sys.executable, "-m", "uv", "-q", "pip", "install", "--offline", "--no-deps"),
            *("--no-cache", "--python", python, str(client), *([str(daemons)] if daemons else ())),
        )
        (self.site,) = folder.glob("lib/python3*/site-packages")
        for name in sorted(_needed(f"fairlead-daemons[{extra}]" if daemons else "fairlead")):
            self._link(metadata.distribution(name))

    def run(
        self,
        program: str,
        *arguments: str | Path,
        cwd: Path,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment to its end."""
        env = {"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(cwd), **(env or {})}
        argv = [str(self.bin / program), *map(str, arguments)]
        return subprocess.run(
            argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False
        )

    def _link(self, library: metadata.Distribution) -> None:
        for first in {Path(file).parts[0] for file in library.files or ()} - {"..", "__pycache__"}:
            there = self.site / first
            if not there.exists():
                there.symlink_to(Path(str(library.locate_file(first))))

    @staticmethod
    def _run(*argv: str) -> None:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def _needed(asked: str) -> set[str]:
    """Return the names of all distributions, other than ours, that this one needs."""
    found: set[str] = set()
    waiting, seen = [asked], set[str]()
    while waiting:
        text = waiting.pop()
        if text in seen:
            continue
        seen.add(text)
        requirement = Requirement(text)
        waiting += _needs_of(requirement)
        found.add(re.sub(r"[-_.]+", "-", requirement.name).lower())
    return found - {"fairlead", "fairlead-daemons"}


def _needs_of(requirement: Requirement) -> Iterator[str]:
    for text in metadata.requires(requirement.name) or ():
        need = Requirement(text)
        if need.marker is None or any(
            need.marker.evaluate({"extra": extra}) for extra in requirement.extras or {""}
        ):
            need.marker = None
            yield str(need)
